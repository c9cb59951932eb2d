"""Transcript entries: what was said and done in a conversation, as immutable plain data.

An entry is never changed after its commit; what a model is shown is made of entries anew for each request (see
`transcript`). What a provider must get back unchanged (ids, signatures, encrypted reasoning) is kept beside what people
read. Stored entries name their format; one of a newer format is refused, not guessed at.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import msgspec

from perdure.chat.errors import EntryInvalid, EntryTooNew
from perdure.errors import ContentTooLarge
from perdure.records import canonical

FORMAT: Final = 1
ENTRY_BYTES: Final = 8 * 1024 * 1024
ENTRY_PARTS: Final = 1024

FailureKind: TypeAlias = Literal[
    "rate_limit",
    "overloaded",
    "server",
    "connection",
    "timeout",
    "cut",
    "malformed",
    "overflow",
    "quota",
    "credentials",
    "not_found",
    "rejected",
    "refused",
    "misused",
]
RETRYABLE: Final = frozenset({"rate_limit", "overloaded", "server", "connection", "timeout", "cut", "malformed"})
StopReason: TypeAlias = Literal["answer", "tools", "length", "refused", "aborted", "error", "lost"]
Outcome: TypeAlias = Literal["done", "failed", "interrupted", "aborted", "refused", "invalid"]


class _Plain(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Base of all structures of an entry; a field that is not known is a sign of damage."""


class Payload(_Plain, frozen=True, kw_only=True):
    """What a provider attached to a part and must get back as it was."""

    provider: str | None = None
    id: str | None = None
    details: dict[str, Any] | None = None


class Text(_Plain, frozen=True, tag_field="type", tag="text"):
    """Text for people and models."""

    text: str
    payload: Payload | None = None


class Json(_Plain, frozen=True, tag_field="type", tag="json"):
    """A JSON value; models are shown its canonical text."""

    value: Any


class File(_Plain, frozen=True, tag_field="type", tag="file"):
    """An image or another file, whole."""

    media_type: str
    data: bytes
    name: str | None = None
    payload: Payload | None = None


class Thinking(_Plain, frozen=True, tag_field="type", tag="thinking"):
    """A model's reasoning. It goes back to its provider only, with the signature that proves whose it is."""

    text: str
    signature: str | None = None
    payload: Payload | None = None


class ToolCall(_Plain, frozen=True, tag_field="type", tag="tool_call"):
    """A model's wish to have a tool run. `arguments` is the text that it sent, be it JSON or not."""

    id: str
    tool: str
    arguments: str
    payload: Payload | None = None


class Opaque(_Plain, frozen=True, tag_field="type", tag="opaque"):
    """A part that only its provider understands, such as a search that it ran by itself."""

    what: str
    value: Any


Content: TypeAlias = tuple[Text | Json | File, ...]
AnswerPart: TypeAlias = Text | Thinking | ToolCall | File | Opaque


class Usage(_Plain, frozen=True, kw_only=True):
    """Tokens of one model call, and its price in US dollars as decimal text where it is known.

    `input` includes what was read from and written to the provider's cache.
    """

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    details: dict[str, int] = {}
    cost: str | None = None

    @property
    def total(self) -> int:
        """All tokens that the call put into the context: what was read and what was written."""
        return self.input + self.output


class Origin(_Plain, frozen=True, kw_only=True):
    """Who gave an answer: the provider's own words about it, which some get back with the next request."""

    model: str | None = None
    provider: str | None = None
    url: str | None = None
    system: str | None = None
    response: str | None = None
    details: dict[str, Any] | None = None
    finish: str | None = None


class Failure(_Plain, frozen=True):
    """Why a model call failed. `retry_after` is what the provider asked to wait, in microseconds."""

    kind: FailureKind
    message: str
    retry_after: int | None = None
    status: int | None = None

    @property
    def is_retryable(self) -> bool:
        """Whether the same request may succeed later."""
        return self.kind in RETRYABLE


class Diagnostic(_Plain, frozen=True):
    """A remark of the harness about a tool's run: a code for programs and a message that models read too."""

    code: str
    message: str
    severity: Literal["info", "warning", "error"] = "warning"


class _Entry(_Plain, frozen=True, kw_only=True, tag_field="kind"):
    """Base of all entries. `at` is an instant, `turn` the number of the session's turn that wrote the entry."""

    id: str
    at: int
    turn: int | None = None


class UserMessage(_Entry, frozen=True, kw_only=True, tag="user"):
    """An input that a turn began with."""

    content: Content
    author: str | None = None


class Steer(_Entry, frozen=True, kw_only=True, tag="steer"):
    """A message that reached a running turn and was placed after a round of tools."""

    content: Content
    message: str | None = None
    author: str | None = None


class AssistantMessage(_Entry, frozen=True, kw_only=True, tag="assistant"):
    """What a model answered, whole or cut.

    `stop` says how it ended: `answer`, `tools` (it waits for results), `length` (cut by the limit of output),
    `refused`, `aborted` (by a person), `error` (the provider failed), `lost` (the process did). `model` is the name
    that was asked for.
    """

    parts: tuple[AnswerPart, ...]
    stop: StopReason
    model: str
    origin: Origin = Origin()
    usage: Usage | None = None
    failure: Failure | None = None

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The tool calls in their order; a call's place in it is its `slot`."""
        return tuple(part for part in self.parts if isinstance(part, ToolCall))

    @property
    def text(self) -> str:
        """The text that people read."""
        return "".join(part.text for part in self.parts if isinstance(part, Text))


class ToolResult(_Entry, frozen=True, kw_only=True, tag="tool_result"):
    """What became of one call: that in place `slot` of the assistant message `answers`.

    Providers repeat call ids, so the place and not `call` tells calls apart. `details` is for programs and people and
    is not shown to models. `took` is in microseconds. `terminate`, `handoff` and `add_tools` are what the tool asked of
    the harness.
    """

    answers: str
    slot: int
    call: str
    tool: str
    content: Content
    outcome: Outcome = "done"
    details: Any = None
    diagnostics: tuple[Diagnostic, ...] = ()
    took: int | None = None
    terminate: bool = False
    handoff: str | None = None
    add_tools: tuple[str, ...] = ()
    usage: Usage | None = None

    @property
    def is_error(self) -> bool:
        """Whether the model is told that the call did not succeed."""
        return self.outcome != "done"


class Summary(_Entry, frozen=True, kw_only=True, tag="summary"):
    """A compaction: in requests `text` stands for all up to and including the entry `through`."""

    text: str
    through: str
    reason: Literal["threshold", "overflow", "manual"] = "threshold"
    tokens_before: int = 0
    model: str | None = None
    usage: Usage | None = None


class Reset(_Entry, frozen=True, kw_only=True, tag="reset"):
    """A new beginning: models are shown nothing from before, except the text that was handed over."""

    handoff: str | None = None


class DocumentChange(_Entry, frozen=True, kw_only=True, tag="document"):
    """A document's new value (`base`) or the changes since its last one (`changes`); None for both ends it."""

    document: str
    version: int
    base: Any = None
    changes: tuple[Any, ...] | None = None


class SectionsChange(_Entry, frozen=True, kw_only=True, tag="sections"):
    """What changed in the system prompt. With `whole`, it begins anew; None takes a section away.

    `order` names all sections in the order that holds from here on; without it, new ones come last.
    """

    sections: dict[str, str | None]
    order: tuple[str, ...] = ()
    whole: bool = False
    tools_added: tuple[str, ...] = ()
    tools_removed: tuple[str, ...] = ()


class Note(_Entry, frozen=True, kw_only=True, tag="note"):
    """Something that the harness or a hook tells the model, in the place where a user would speak."""

    text: str


class Abort(_Entry, frozen=True, kw_only=True, tag="abort"):
    """A person stopped the work here. `reason` is a code."""

    reason: str = "aborted"
    by: str | None = None


Entry: TypeAlias = (
    UserMessage
    | Steer
    | AssistantMessage
    | ToolResult
    | Summary
    | Reset
    | DocumentChange
    | SectionsChange
    | Note
    | Abort
)


class _Format(msgspec.Struct):
    v: int


_ENTRY: Final = msgspec.json.Decoder(Entry)
_FORMAT: Final = msgspec.json.Decoder(_Format)
_PREFIX: Final = b'{"entry":'
_SUFFIX: Final = b',"v":%d}'


def encode(entry: Entry) -> bytes:
    """Return the entry as canonical JSON bytes.

    Lone surrogates are replaced. Raises `NotJson` for a value that JSON does not have and `ContentTooLarge` beyond
    1,024 parts or 8 MiB.
    """
    parts = entry.parts if isinstance(entry, AssistantMessage) else getattr(entry, "content", ())
    if len(parts) > ENTRY_PARTS:
        raise ContentTooLarge("transcript entry", f"{len(parts)} parts", f"{ENTRY_PARTS} parts")
    data = canonical.encode(msgspec.to_builtins(entry), "transcript entry")
    if len(data) > ENTRY_BYTES:
        raise ContentTooLarge("transcript entry", f"{len(data)} bytes", f"{ENTRY_BYTES} bytes")
    return _PREFIX + data + _SUFFIX % FORMAT


def decode(data: bytes) -> Entry:
    """Return a stored entry; raises `EntryTooNew` for a newer format and `EntryInvalid` for what is no entry."""
    suffix = _SUFFIX % FORMAT
    if not data.startswith(_PREFIX) or not data.endswith(suffix):
        _refuse(data)
    try:
        return _ENTRY.decode(memoryview(data)[len(_PREFIX) : -len(suffix)])
    except (msgspec.DecodeError, RecursionError) as error:
        raise EntryInvalid(str(error)) from None


def _refuse(data: bytes) -> None:
    try:
        version: int = _FORMAT.decode(data).v
    except (msgspec.DecodeError, RecursionError) as error:
        raise EntryInvalid(str(error)) from None
    if version > FORMAT:
        raise EntryTooNew(version, FORMAT)
    raise EntryInvalid(f"its format is {version}")


def text_content(text: str) -> Content:
    """Return content of one text."""
    return (Text(text),)
