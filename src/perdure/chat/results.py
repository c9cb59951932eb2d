"""What a tool returned, bounded and made plain: whatever it is, the model gets something that it can act on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

import msgspec

from perdure.chat import entries as e
from perdure.chat.tools import Tool
from perdure.errors import NotJson, PerdureError
from perdure.records import canonical
from perdure.records.content import JsonPart, TextPart

RESULT_BYTES: Final = 50 * 1024
RESULT_LINES: Final = 2000
FILES_BYTES: Final = 4 * 1024 * 1024
DETAILS_BYTES: Final = 256 * 1024
RESULT_PARTS: Final = 64
ERROR_CHARACTERS: Final = 4000

ResultPart: TypeAlias = "str | e.Text | e.Json | e.File | TextPart | JsonPart"


class Bounds(msgspec.Struct, frozen=True):
    """How much text of a result is kept, and which end of it: the `head`, or the `tail` as of a build's output."""

    bytes: int = RESULT_BYTES
    lines: int = RESULT_LINES
    keep: Literal["head", "tail"] = "head"


@dataclass(frozen=True)
class ToolResult:
    """What a tool may return besides text: content for the model, and what the harness is to do.

    `details` are for programs and people; models do not see them. `is_error` tells the model that the call did not
    succeed. `terminate` ends the turn when all calls of the round ask for it; `handoff` ends it and begins the
    conversation anew with that text; `add_tools` offers more tools from the next model call on. `usage` is what the
    tool itself spent on models, unless that is counted elsewhere.
    """

    content: ResultPart | Sequence[ResultPart] = ()
    details: Any = None
    is_error: bool = False
    terminate: bool = False
    handoff: str | None = None
    add_tools: tuple[str, ...] = ()
    diagnostics: tuple[e.Diagnostic, ...] = ()
    usage: e.Usage | None = None
    bounds: Bounds = field(default_factory=Bounds)


class Finished(msgspec.Struct, frozen=True):
    """The result of a call as it is stored, and what it asks of the harness."""

    content: e.Content
    outcome: e.Outcome = "done"
    details: Any = None
    diagnostics: tuple[e.Diagnostic, ...] = ()
    terminate: bool = False
    handoff: str | None = None
    add_tools: tuple[str, ...] = ()
    usage: e.Usage | None = None

    def entry(
        self,
        entry_id: str,
        at: int,
        answers: str,
        slot: int,
        call: e.ToolCall,
        *,
        turn: int | None = None,
        took: int | None = None,
    ) -> e.ToolResult:
        """Return the result as a transcript entry: that of the call in place `slot` of the entry `answers`."""
        return e.ToolResult(
            id=entry_id,
            at=at,
            turn=turn,
            answers=answers,
            slot=slot,
            call=call.id,
            tool=call.tool,
            content=self.content,
            outcome=self.outcome,
            details=self.details,
            diagnostics=self.diagnostics,
            took=took,
            terminate=self.terminate,
            handoff=self.handoff,
            add_tools=self.add_tools,
            usage=self.usage,
        )


def finish(value: Any, bounds: Bounds | None = None) -> Finished:
    """Return what a tool returned as it is stored: text, JSON, parts, a `ToolResult`, or what is said in their place.

    Text and JSON beyond the bounds are cut at a line and say so; binary data and files that are too large are named,
    not shown; what is not JSON becomes an error that the model sees, and the call is not repeated for it.
    """
    result = value if isinstance(value, ToolResult) else None
    kept = result.bounds if result is not None and bounds is None else bounds or Bounds()
    remarks: list[e.Diagnostic] = [] if result is None else list(result.diagnostics)
    try:
        parts = _parts(value, remarks) if result is None else _content(result.content, remarks)
    except NotJson as error:
        return Finished(_unstorable(error), "failed", diagnostics=(_remark("result_not_json", error.message),))
    content = _bounded(parts, kept, remarks)
    if result is None:
        return Finished(content, diagnostics=tuple(remarks))
    details = _details(result.details, remarks)
    return Finished(
        content,
        "failed" if result.is_error else "done",
        details,
        tuple(remarks),
        result.terminate,
        result.handoff,
        result.add_tools,
        result.usage,
    )


def fail(error: BaseException, output: e.Content = ()) -> Finished:
    """Return what a model is told of a tool that raised: the error's words, not its traceback."""
    words = error.message if isinstance(error, PerdureError) else str(error)
    name = type(error).__name__
    text = canonical.clean_text(f"{name}: {words}" if words else name)
    if len(text) > ERROR_CHARACTERS:
        text = text[:ERROR_CHARACTERS] + "…"
    return Finished((*output, e.Text(text)), "failed", diagnostics=(_remark("tool_error", "The tool failed."),))


def refuse(code: str, message: str, outcome: e.Outcome = "refused") -> Finished:
    """Return what a model is told of a call that was not run."""
    return Finished(e.text_content(message), outcome, diagnostics=(e.Diagnostic(code, "The call was not run."),))


def stopped(outcome: Literal["interrupted", "aborted"], output: e.Content = (), details: Any = None) -> Finished:
    """Return what a model is told of a call that was cut short, with what it had put out until then."""
    words = {
        "interrupted": "The call was interrupted before it finished. It may have had an effect; check before you "
        "repeat it.",
        "aborted": "The call was stopped by a person before it finished. It may have had an effect.",
    }[outcome]
    return Finished(output, outcome, details, (e.Diagnostic(outcome, words, "error"),))


def replay_after_crash(stored: str, tool: Tool | None) -> bool:
    """Tell whether a call that was running when its process ended is run again.

    Both must say `safe`: the policy that was stored with the call, and the tool as it is defined now. A tool that is
    gone says nothing.
    """
    return stored == "safe" and tool is not None and tool.replay == "safe"


# --- what kind of value it is


def _parts(value: Any, remarks: list[e.Diagnostic]) -> list[e.Text | e.Json | e.File]:
    if value is None:
        return []
    if _is_part(value):
        return [_part(value)]
    if isinstance(value, bytes | bytearray | memoryview):
        return [_decoded(bytes(value), remarks)]
    if isinstance(value, list | tuple) and all(_is_part(each) for each in value) and not _is_plain_list(value):
        return _content(value, remarks)
    return [e.Json(_plain(value))]


def _content(content: Any, remarks: list[e.Diagnostic]) -> list[e.Text | e.Json | e.File]:
    """Return the parts of what a `ToolResult` holds, where a list of texts is a list of parts."""
    if not isinstance(content, list | tuple) or not all(_is_part(each) for each in content):
        return _parts(content, remarks)
    if len(content) > RESULT_PARTS:
        remarks.append(_remark("truncated", f"Only the first {RESULT_PARTS} of {len(content)} parts are kept."))
    return [_part(each) for each in content[:RESULT_PARTS]]


def _is_part(value: Any) -> bool:
    return isinstance(value, str | e.Text | e.Json | e.File | TextPart | JsonPart)


def _is_plain_list(value: Iterable[Any]) -> bool:
    """A list of nothing but text is data, such as names; the model is to see where one ends."""
    return all(isinstance(each, str) for each in value)


def _part(value: ResultPart) -> e.Text | e.Json | e.File:
    if isinstance(value, str):
        return e.Text(value)
    if isinstance(value, TextPart):
        return e.Text(value.text)
    if isinstance(value, JsonPart | e.Json):
        return e.Json(_plain(value.value))
    return value


def _decoded(data: bytes, remarks: list[e.Diagnostic]) -> e.Text:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" not in text:
        return e.Text(text)
    remarks.append(_remark("binary", "The result is binary data, which is not shown."))
    return e.Text(f"[binary data, {len(data)} bytes]")


def _plain(value: Any) -> Any:
    """Return a value as plain JSON data; raises `NotJson`."""
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    try:
        plain = to_jsonable_python(value)
    except (PydanticSerializationError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise NotJson("result", "$", f"it is a {type(value).__qualname__}: {error}") from None
    return canonical.decode(canonical.encode(plain, "result"))


def _unstorable(error: NotJson) -> e.Content:
    return e.text_content(
        f"The tool ran, but what it returned is lost. {error.message} Do not repeat the call for that: it would end so "
        "again, and it may have had an effect."
    )


def _details(details: Any, remarks: list[e.Diagnostic]) -> Any:
    if details is None:
        return None
    try:
        plain = _plain(details)
    except NotJson as error:
        remarks.append(_remark("details_not_json", f"Its details are left out. {error.message}"))
        return None
    size = len(canonical.encode(plain))
    if size > DETAILS_BYTES:
        remarks.append(
            _remark("details_too_large", f"Its details are left out: {size} bytes; the limit is {DETAILS_BYTES}.")
        )
        return None
    return plain


def _remark(code: str, message: str) -> e.Diagnostic:
    return e.Diagnostic(code, message)


# --- how much of it is kept


def _bounded(parts: Iterable[e.Text | e.Json | e.File], bounds: Bounds, remarks: list[e.Diagnostic]) -> e.Content:
    budget = _Budget(bounds, remarks)
    ordered = list(parts)
    if bounds.keep == "tail":
        return tuple(reversed([budget.take(part) for part in reversed(ordered)]))
    return tuple(budget.take(part) for part in ordered)


class _Budget:
    """What may still be kept of a result's text and files."""

    def __init__(self, bounds: Bounds, remarks: list[e.Diagnostic]) -> None:
        self._bounds, self._remarks = bounds, remarks
        self._bytes, self._lines, self._files = bounds.bytes, bounds.lines, FILES_BYTES

    def take(self, part: e.Text | e.Json | e.File) -> e.Text | e.Json | e.File:
        if isinstance(part, e.File):
            return self._take_file(part)
        text = part.text if isinstance(part, e.Text) else canonical.encode(part.value).decode()
        kept = self._take_text(text)
        if kept is not text:
            return e.Text(kept)
        return part if isinstance(part, e.Json) else e.Text(canonical.clean_text(text))

    def _take_text(self, text: str) -> str:
        kept = bound_text(text, Bounds(self._bytes, self._lines, self._bounds.keep))
        self._bytes -= _size(kept)
        self._lines -= kept.count("\n") + bool(kept)
        if kept is text:
            return text
        end = "first" if self._bounds.keep == "head" else "last"
        self._remarks.append(
            _remark(
                "truncated",
                f"Only the {end} {len(_lines(kept))} of {len(_lines(text))} lines ({_size(kept)} of {_size(text)} "
                "bytes) are shown.",
            )
        )
        return kept

    def _take_file(self, part: e.File) -> e.File | e.Text:
        if len(part.data) <= self._files:
            self._files -= len(part.data)
            return part
        name = f" {part.name}" if part.name else ""
        self._remarks.append(_remark("file_too_large", f"A file is left out; the limit is {FILES_BYTES} bytes."))
        return e.Text(f"[file{name}, {part.media_type}, {len(part.data)} bytes]")


def bound_text(text: str, bounds: Bounds) -> str:
    """Return `text` itself if it is within the bounds, else whole lines of its head or tail, or a part of one line."""
    if bounds.bytes <= 0 or bounds.lines <= 0:
        return text if not text else ""
    if len(text) <= bounds.bytes // 4 and text.count("\n") < bounds.lines:
        return text
    if _size(text) <= bounds.bytes and len(_lines(text)) <= bounds.lines:
        return text
    return _head(text, bounds) if bounds.keep == "head" else _tail(text, bounds)


def _head(text: str, bounds: Bounds) -> str:
    data = canonical.clean_text(text[: bounds.bytes + 1]).encode()
    kept = data[: bounds.bytes].decode("utf-8", "ignore")
    if len(kept) < len(text) and "\n" in kept and not kept.endswith("\n"):
        kept = kept[: kept.rfind("\n") + 1]
    return "".join(_lines(kept)[: bounds.lines])


def _tail(text: str, bounds: Bounds) -> str:
    data = canonical.clean_text(text[-bounds.bytes - 1 :]).encode()
    kept = data[-bounds.bytes :].decode("utf-8", "ignore")
    starts_line = text[-len(kept) - 1 : -len(kept)] == "\n" if kept else True
    if not starts_line and "\n" in kept[:-1]:
        kept = kept[kept.find("\n") + 1 :]
    return "".join(_lines(kept)[-bounds.lines :])


def _lines(text: str) -> list[str]:
    """Split at line feeds only, keeping them: other separators are characters of a line."""
    return re.findall(r"[^\n]*\n|[^\n]+$", text)


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


__all__ = [
    "Bounds",
    "Finished",
    "ToolResult",
    "bound_text",
    "fail",
    "finish",
    "refuse",
    "replay_after_crash",
    "stopped",
]
