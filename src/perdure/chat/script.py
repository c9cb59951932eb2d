"""Scripts for models: what is answered to what, chosen from the conversation alone: a restart changes nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from perdure.chat.errors import ModelNotAvailable
from perdure.errors import DefinitionError
from perdure.records import canonical

FailureKind: TypeAlias = Literal[
    "rate_limit",
    "overloaded",
    "server",
    "connection",
    "timeout",
    "malformed",
    "overflow",
    "quota",
    "credentials",
    "rejected",
]


class _Strict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Base: a misspelt word in a script is an error."""


class Call(_Strict, frozen=True, kw_only=True):
    """A tool call. `arguments` are JSON data, or text that is sent as it is, broken or not."""

    tool: str
    arguments: dict[str, Any] | str = {}
    id: str | None = None

    @property
    def text(self) -> str:
        """The arguments as the model sends them."""
        return self.arguments if isinstance(self.arguments, str) else canonical.encode(self.arguments).decode()


class Fail(_Strict, frozen=True, kw_only=True):
    """How a call fails instead of answering, `times` times. `retry_after` is in seconds.

    With `after`, it fails in the middle: when so many characters have been sent.
    """

    kind: FailureKind = "overloaded"
    times: int = 1
    retry_after: float | None = None
    after: int = 0


class Reply(_Strict, frozen=True, kw_only=True):
    """One answer: reasoning, text and calls, in this order.

    `when` (a regular expression) and `after` (a tool) say what it answers: words that the user's side has just said,
    the result of a tool that has just come. Without them, it answers when its turn in the script comes. `speed` is in
    characters a second, `wait` in seconds before the first; `cut` ends the stream after so many characters, once.
    """

    when: str | None = None
    after: str | None = None
    think: str = ""
    text: str = ""
    calls: tuple[Call, ...] = ()
    speed: float | None = None
    wait: float = 0
    cut: int | None = None
    fail: Fail | None = None
    stop: Literal["length", "refused"] | None = None

    @property
    def is_conditional(self) -> bool:
        """Whether it answers something in particular."""
        return self.when is not None or self.after is not None


class Asked(msgspec.Struct, frozen=True):
    """What a scripted model looks at: the newest words and results, and how many answers came before."""

    words: str
    results: dict[str, str] = {}
    answers: int = 0
    system: str = ""
    tools: tuple[str, ...] = ()


Chooser: TypeAlias = Callable[[Asked], Reply]


class Script(_Strict, frozen=True, kw_only=True):
    """Answers in their order. `otherwise` is said when none fits; without it, that is an error."""

    answers: tuple[Reply, ...]
    speed: float | None = None
    otherwise: Reply | None = None

    def choose(self, asked: Asked) -> Reply | None:
        """Return the answer: the first that answers this in particular, else the next in order, else `otherwise`."""
        for reply in self.answers:
            if reply.is_conditional and _answers(reply, asked):
                return reply
        plain = [reply for reply in self.answers if not reply.is_conditional]
        return plain[asked.answers] if asked.answers < len(plain) else self.otherwise


def _answers(reply: Reply, asked: Asked) -> bool:
    if reply.after is not None and reply.after not in asked.results:
        return False
    if reply.when is None:
        return True
    texts = asked.results.values() if reply.after is not None else (asked.words,)
    return any(re.search(reply.when, text, re.IGNORECASE) for text in texts)


def script_of(answers: Sequence[Reply | str], speed: float | None = None) -> Script:
    """Return a script of answers, of which a plain text stands for one of that text."""
    replies = tuple(Reply(text=answer) if isinstance(answer, str) else answer for answer in answers)
    return _checked(Script(answers=replies, speed=speed), "script")


def load_script(path: str) -> Script:
    """Return the script of a YAML file; raises `ModelNotAvailable` saying what is wrong with it."""
    name = f"scripted:{path}"
    try:
        value = msgspec.yaml.decode(Path(path).read_bytes())
        return _checked(msgspec.convert(_spelt_out(value), Script), path)
    except ImportError:
        raise ModelNotAvailable(name, "scripts need the extra 'chat': pip install 'perdure[chat]'.") from None
    except OSError as error:
        raise ModelNotAvailable(name, f"the script cannot be read: {error.strerror}.") from None
    except (msgspec.DecodeError, DefinitionError) as error:
        raise ModelNotAvailable(name, f"the script says something wrong: {error}") from None


def _spelt_out(value: Any) -> Any:
    """Return a script with its short forms spelt out: a list for its answers, a text for an answer of it."""
    script = {"answers": value} if isinstance(value, list) else value
    if not isinstance(script, dict):
        return script
    spelt = dict(script)
    if isinstance(spelt.get("answers"), list):
        spelt["answers"] = [{"text": each} if isinstance(each, str) else each for each in spelt["answers"]]
    if isinstance(spelt.get("otherwise"), str):
        spelt["otherwise"] = {"text": spelt["otherwise"]}
    return spelt


def _checked(script: Script, name: str) -> Script:
    for number, reply in enumerate(script.answers, 1):
        try:
            re.compile(reply.when or "")
        except re.error as error:
            raise DefinitionError(f"{name}: `when` of answer {number} is no regular expression: {error}.") from None
        if any(speed is not None and speed <= 0 for speed in (reply.speed, script.speed)):
            raise DefinitionError(f"{name}: the speed of answer {number} must be above 0 characters a second.")
    return script
