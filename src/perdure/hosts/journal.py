"""The journal of a resumable turn, as its handler uses it: steps, memos, sleep.

After a loss the handler is called again from its beginning. What it did before is known by name: the first step that is
called `charge` is `charge`, the second one `charge#2`, and so on.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import msgspec

from perdure.crashpoints import areach
from perdure.errors import BadRequest, ContentTooLarge, NotJson, StepFailed, StepInterrupted
from perdure.hosts.failures import error_json
from perdure.hosts.protocol import MemoKept, StepBegun, StepEnded
from perdure.records import canonical
from perdure.records.durations import parse_duration
from perdure.records.ids import new_id
from perdure.records.instants import SECOND
from perdure.records.steps import MEMO_BYTES, STEP_NAME_BYTES, Replay

if TYPE_CHECKING:
    from perdure.hosts.turns import TurnExecution

T = TypeVar("T")
RESULT_BYTES: Final = 1024 * 1024

log = logging.getLogger("perdure.run")


class Told(msgspec.Struct, frozen=True):
    """What becomes of a step that is begun."""

    status: str
    outcome_json: bytes | None
    elapsed: int


class Journal:
    """What one execution of a resumable turn has done and does."""

    def __init__(self, execution: TurnExecution) -> None:
        self._execution = execution
        self._named: Counter[str] = Counter()

    async def step(
        self, name: str, function: Callable[..., Awaitable[T] | T], args: tuple[Any, ...], kwargs: dict[str, Any],
        replay: Replay,
    ) -> T:  # fmt: skip
        """Do a step once, as far as that can be said; see `TurnContext.step`."""
        known_as = self._name(name)
        request = canonical.digest(replay.encode(), *(_shown(value) for value in [*args, *sorted(kwargs.items())]))
        told = await self._begin(known_as, replay, request)
        if told.status != "running":
            return cast("T", _outcome(known_as, told))
        await areach("runtime.step.begun")
        try:
            result = function(*args, **kwargs)
            if inspect.isawaitable(result):
                result = await result
            outcome = _encoded(known_as, result)
        except Exception as error:
            raise await self._failed(known_as, error) from error
        await areach("runtime.step.done")
        await self._end(known_as, "completed", outcome)
        return cast("T", canonical.decode(outcome))

    def _name(self, name: str) -> str:
        if not isinstance(name, str) or not name or "#" in name or len(name.encode()) > STEP_NAME_BYTES:
            raise BadRequest(
                f"A step's name is text of at most {STEP_NAME_BYTES} bytes without '#', not {name!r}. Nothing was done."
            )
        self._named[name] += 1
        count = self._named[name]
        return name if count == 1 else f"{name}#{count}"

    async def _begin(self, name: str, replay: Replay, request: bytes) -> Told:
        if replay not in ("safe", "never"):
            raise BadRequest(f'replay is "safe" or "never", not {replay!r}. Nothing was done.')
        return Told(*await self._execution.report(StepBegun(self._execution.number, name, replay, request)))

    async def _failed(self, name: str, error: Exception) -> StepFailed:
        outcome = error_json(error, "step_failed")
        await self._end(name, "failed", outcome)
        return StepFailed(name, canonical.decode(outcome))

    async def _end(self, name: str, status: str, outcome: bytes) -> None:
        await self._execution.report(StepEnded(self._execution.number, name, status, outcome))
        await areach("runtime.step.ended")

    async def memo(self, name: str, value: Callable[[], Awaitable[T] | T] | T) -> T:
        """Keep a value; see `TurnContext.memo`."""
        made = value() if callable(value) else value
        if inspect.isawaitable(made):
            made = await made
        data = canonical.encode(made, "memo")
        if len(data) > MEMO_BYTES:
            raise ContentTooLarge("memo", f"{len(data)} bytes", f"{MEMO_BYTES} bytes")
        kept: bytes = await self._execution.report(MemoKept(self._execution.number, name, data))
        await areach("runtime.memo.kept")
        return cast("T", canonical.decode(kept))

    async def sleep(self, duration: str) -> None:
        """Wait, counting from when the wait was first begun; see `TurnContext.sleep`."""
        length = parse_duration(duration)
        name = self._name("sleep")
        told = await self._begin(name, "safe", canonical.digest(duration.encode()))
        if told.status != "running":
            return
        await asyncio.sleep(max(length - told.elapsed, 0) / SECOND)
        await self._end(name, "completed", b"null")

    async def ask_id(self) -> str:
        """Return the id of the next question: the same one as before a loss."""
        self._named["ask#"] += 1
        return await self.memo(f"ask#{self._named['ask#']}", new_id)


def _shown(value: Any) -> bytes:
    """Return what a step's argument is known by: its content, or its type where it has none that could be stored."""
    try:
        return canonical.encode(value, "argument")
    except (NotJson, ContentTooLarge):
        return type(value).__qualname__.encode()


def _encoded(name: str, result: Any) -> bytes:
    data = canonical.encode(result, f"result of step {name}")
    if len(data) > RESULT_BYTES:
        raise ContentTooLarge(f"result of step {name}", f"{len(data)} bytes", f"{RESULT_BYTES} bytes")
    return data


def _outcome(name: str, told: Told) -> Any:
    if told.status == "interrupted":
        raise StepInterrupted(name)
    assert told.outcome_json is not None
    outcome = canonical.decode(told.outcome_json)
    if told.status == "failed":
        raise StepFailed(name, outcome)
    return outcome
