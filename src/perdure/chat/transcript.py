"""From entries to a request that every provider accepts: one pure function.

Providers refuse a conversation for good when a call has no result, a result no call, an id comes twice or a message is
empty. Entries are what happened, in the order of their commits, and what happened may be any of these. So a request is
not read from the entries but made of them:

- the newest cut (a reset, or a summary that reaches further than the cut before it) decides where it begins;
- answers that failed, were lost, refused or aborted are left out;
- the results of an answer follow it at once, in the order of its calls: a missing one is stood in for, a second one and
  one without a call are left out;
- call ids, tool names and arguments that a provider would refuse are replaced, call ids uniquely;
- user and assistant take turns, the user first and last, and nobody says nothing.

The same entries give the same request, and more entries one that begins the same, until the next cut: providers' caches
live on that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from perdure.chat import entries as e
from perdure.errors import InvalidJson, NotJson
from perdure.records import canonical

HIDDEN: Final = frozenset({"refused", "aborted", "error", "lost"})
FILLER: Final = "Continue."
EMPTY_RESULT: Final = "(no output)"
INTERRUPTED: Final = (
    "No result: the call was interrupted before it finished. It may have had an effect; check before you repeat it."
)
CUT_OFF: Final = (
    "Not run: the answer reached its limit of output before this call was complete. Repeat it, with less in it."
)
_SAFE: Final = re.compile(r"[A-Za-z0-9_-]+")
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_-]+")
CALL_ID_LENGTH: Final = 40
TOOL_NAME_LENGTH: Final = 64
INVALID_ARGUMENTS: Final = "invalid_arguments"


class Answer(msgspec.Struct, frozen=True):
    """The result of a call, as the user's side says it. `call` and `tool` are those of the request."""

    call: str
    tool: str
    content: e.Content
    is_error: bool


class Said(msgspec.Struct, frozen=True):
    """What the user's side says: results first, then everything else in order."""

    parts: tuple[Answer | e.Text | e.Json | e.File, ...]


class Answered(msgspec.Struct, frozen=True):
    """What a model answered. `model` is the name that was asked for, `entry` the entry's id."""

    parts: tuple[e.AnswerPart, ...]
    origin: e.Origin
    model: str
    entry: str


Message: TypeAlias = Said | Answered


class Request(msgspec.Struct, frozen=True):
    """What a model is asked: the system prompt and the messages."""

    system: str
    messages: tuple[Message, ...]


class Cut(msgspec.Struct, frozen=True):
    """Where requests begin: `at` is the place of the entry that cuts (-1 for none), `start` that of the first kept."""

    at: int = -1
    start: int = 0
    lead: str | None = None


def build(entries: Sequence[e.Entry]) -> Request:
    """Return the request that these entries, the whole transcript or its end, make."""
    return Transcript(entries).request()


class Transcript:
    """A conversation that grows. A request costs what has been added since the last one, however long it is."""

    def __init__(self, entries: Iterable[e.Entry] = ()) -> None:
        self._entries: list[e.Entry] = list(entries)
        self._builder: _Builder | None = None
        self._read = 0

    @property
    def entries(self) -> Sequence[e.Entry]:
        """All entries, in their order."""
        return self._entries

    def add(self, *entries: e.Entry) -> None:
        """Add entries that were committed."""
        self._entries += entries

    def request(self) -> Request:
        """Return the request that the entries make now."""
        builder = self._builder or self._begin_anew()
        while self._read < len(self._entries):
            entry = self._entries[self._read]
            if builder.goes_on_with(entry):
                builder.add(entry)
                self._read += 1
            else:
                builder = self._begin_anew()
        return builder.request()

    def _begin_anew(self) -> _Builder:
        """Build from the newest cut; all results are known from the beginning, whichever order they came in."""
        cut = find_cut(self._entries)
        front = _end_of_front(self._entries, cut)
        builder = _Builder(shown_sections(self._entries[:front]), _first_results(self._entries))
        if cut.lead is not None:
            builder.say(e.Text(cut.lead))
        for place in range(cut.start, len(self._entries)):
            entry = self._entries[place]
            if place >= front or not isinstance(entry, e.SectionsChange):
                builder.add(entry, in_front=place < front)
        self._builder, self._read = builder, len(self._entries)
        return builder


# --- where it begins


def find_cut(entries: Sequence[e.Entry]) -> Cut:
    """Return the newest cut; a summary that reaches less far than the cut before it is no cut.

    A summary of entries that are not here cuts nothing: rather too much is shown than something lost.
    """
    places: dict[str, int] = {}
    cut = Cut()
    for place, entry in enumerate(entries):
        places[entry.id] = place
        if isinstance(entry, e.Reset):
            cut = Cut(place, place + 1, entry.handoff)
        elif isinstance(entry, e.Summary):
            start = places.get(entry.through, cut.start - 1) + 1
            if start >= cut.start:
                cut = Cut(place, start, _summarised(entry.text))
    return cut


def _summarised(text: str) -> str:
    return f"<summary>\n{text.strip() or '(nothing)'}\n</summary>"


def _end_of_front(entries: Sequence[e.Entry], cut: Cut) -> int:
    """Return the place before which changes of sections belong to the system prompt.

    All that is known when the conversation begins, or begins anew, stands in front; later changes are told where they
    happened, so that what providers have cached stays as it is.
    """
    place = max(cut.at, cut.start - 1) + 1
    while place < len(entries) and not isinstance(entries[place], e.AssistantMessage):
        place += 1
    return place


# --- the system prompt


def shown_sections(entries: Iterable[e.Entry]) -> dict[str, str]:
    """Return the sections that a model has been shown by the end of these entries, in their order."""
    shown: dict[str, str] = {}
    for entry in entries:
        if isinstance(entry, e.SectionsChange):
            shown = changed_sections(shown, entry)
    return shown


def changed_sections(shown: Mapping[str, str], change: e.SectionsChange) -> dict[str, str]:
    """Return the sections that are shown after one more change, in their order."""
    known = {**({} if change.whole else shown), **change.sections}
    order = [*change.order, *(key for key in known if key not in change.order)]
    return {key: text for key in order if (text := known.get(key)) is not None}


def _update(change: e.SectionsChange) -> str:
    lines = [
        text if text is not None else f"The section {key!r} no longer applies." for key, text in change.sections.items()
    ]
    lines += [f"The tool {name!r} is available now." for name in change.tools_added]
    lines += [f"The tool {name!r} is no longer available." for name in change.tools_removed]
    return "<system-update>\n" + "\n\n".join(lines) + "\n</system-update>" if lines else ""


# --- what the user's side says


def _spoken(entry: e.Entry) -> e.Content:
    if isinstance(entry, e.UserMessage | e.Steer):
        return entry.content
    return (e.Text(entry.text),) if isinstance(entry, e.Note) else ()


def _first_results(entries: Sequence[e.Entry]) -> dict[tuple[str, int], e.ToolResult]:
    """Return the result of each call; the first that was committed is the one that counts."""
    found: dict[tuple[str, int], e.ToolResult] = {}
    for entry in entries:
        if isinstance(entry, e.ToolResult):
            found.setdefault((entry.answers, entry.slot), entry)
    return found


def result_content(result: e.ToolResult) -> e.Content:
    """Return what a model is shown of a result: its content, and the harness's remarks as one text."""
    remarks = "\n".join(f"{each.severity}: {each.message}" for each in result.diagnostics)
    parts = (*result.content, e.Text(f"<harness>\n{remarks}\n</harness>")) if remarks else result.content
    return tuple(_speaking(parts)) or e.text_content(EMPTY_RESULT)


def _speaking(parts: Iterable[e.Text | e.Json | e.File]) -> Iterator[e.Text | e.Json | e.File]:
    return (part for part in parts if not isinstance(part, e.Text) or part.text.strip())


# --- whose turn it is


class _Builder:
    """Messages in turns: what the user's side says is collected until the assistant answers."""

    def __init__(self, shown: dict[str, str], results: dict[tuple[str, int], e.ToolResult]) -> None:
        self._shown = shown
        self._results = results
        self._is_front = True
        self._messages: list[Message] = []
        self._answer: e.AssistantMessage | None = None
        self._words: list[e.Text | e.Json | e.File] = []
        self._ids: set[str] = set()

    def goes_on_with(self, entry: e.Entry) -> bool:
        """Tell whether an entry only adds to what was built: no cut, and no result of an answer from before."""
        if isinstance(entry, e.ToolResult):
            return self._answer is not None and entry.answers == self._answer.id
        return not isinstance(entry, e.Summary | e.Reset)

    def add(self, entry: e.Entry, *, in_front: bool = False) -> None:
        if isinstance(entry, e.AssistantMessage):
            self._is_front = in_front
            if entry.stop not in HIDDEN:
                self._add_answer(entry)
        elif isinstance(entry, e.ToolResult):
            self._results.setdefault((entry.answers, entry.slot), entry)
        elif not isinstance(entry, e.SectionsChange):
            self.say(*_spoken(entry))
        elif self._is_front:
            self._shown = changed_sections(self._shown, entry)
        else:
            self.say(e.Text(_update(entry)))

    def say(self, *parts: e.Text | e.Json | e.File) -> None:
        self._words += _speaking(parts)

    def request(self) -> Request:
        system = "\n\n".join(text for text in self._shown.values() if text.strip())
        return Request(system, (*self._messages, self._said()))

    def _add_answer(self, entry: e.AssistantMessage) -> None:
        parts = self._sendable(entry)
        if parts:
            self._messages += [self._said(), Answered(parts, entry.origin, entry.model, entry.id)]
            self._answer, self._words = entry, []

    def _said(self) -> Said:
        """Return what the user's side has said since the last answer: its results, then all else, or a filler."""
        last = self._messages[-1] if self._messages else None
        calls = [part for part in last.parts if isinstance(part, e.ToolCall)] if isinstance(last, Answered) else []
        entry = self._answer
        answers = (
            [_result(call, self._results.get((entry.id, slot)), entry) for slot, call in enumerate(calls)]
            if entry is not None
            else []
        )
        return Said((*answers, *self._words) or (e.Text(FILLER),))

    def _sendable(self, entry: e.AssistantMessage) -> tuple[e.AnswerPart, ...]:
        parts = [self._sendable_part(part) for part in entry.parts if not _is_mute(part)]
        while parts and isinstance(parts[-1], e.Thinking):
            parts.pop()  # reasoning that leads to nothing is refused
        return tuple(parts)

    def _sendable_part(self, part: e.AnswerPart) -> e.AnswerPart:
        if not isinstance(part, e.ToolCall):
            return part
        return e.ToolCall(
            self._unique(part.id), sendable_tool_name(part.tool), sendable_arguments(part.arguments), part.payload
        )

    def _unique(self, call_id: str) -> str:
        is_safe = _SAFE.fullmatch(call_id) and len(call_id) <= CALL_ID_LENGTH
        base = call_id if is_safe else _UNSAFE.sub("_", call_id)[: CALL_ID_LENGTH - 8] or "call"
        found, number = base, 1
        while found in self._ids:
            number += 1
            found = f"{base[: CALL_ID_LENGTH - 8]}-{number}"
        self._ids.add(found)
        return found


def _is_mute(part: e.AnswerPart) -> bool:
    if isinstance(part, e.Text):
        return not part.text.strip()
    return isinstance(part, e.Thinking) and not part.signature and part.payload is None


def _result(call: e.ToolCall, result: e.ToolResult | None, entry: e.AssistantMessage) -> Answer:
    if result is None:
        text = CUT_OFF if entry.stop == "length" else INTERRUPTED
        return Answer(call.id, call.tool, e.text_content(text), True)
    return Answer(call.id, call.tool, result_content(result), result.is_error)


def sendable_tool_name(name: str) -> str:
    """Return the name of a tool in a form that every provider takes, for calls of tools that there never were."""
    if _SAFE.fullmatch(name) and len(name) <= TOOL_NAME_LENGTH:
        return name
    return _UNSAFE.sub("_", name)[:TOOL_NAME_LENGTH] or "tool"


def sendable_arguments(text: str) -> str:
    """Return a call's arguments as the text of a JSON object, unchanged if they are that already."""
    if not text.strip():
        return "{}"
    try:
        value = canonical.parse(text.encode("utf-8", "replace"), "arguments")
        data = canonical.encode(value, "arguments")
    except (InvalidJson, NotJson):
        return canonical.encode({INVALID_ARGUMENTS: text}).decode()
    if not isinstance(value, dict):
        return canonical.encode({INVALID_ARGUMENTS: value}).decode()
    return text if _is_strict(text) else data.decode()


def _is_strict(text: str) -> bool:
    """Tell whether any JSON reader takes the text as it is: ours forgives the escapes of lone surrogates."""
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return False
    return True
