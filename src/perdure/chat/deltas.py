"""An answer while it is written: the changes in their order, and the draft that they make."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from perdure.chat import entries as e


class Begun(msgspec.Struct, frozen=True, tag="begun"):
    """A part of the answer begins; `index` is its place."""

    index: int
    part: e.AnswerPart


class Grew(msgspec.Struct, frozen=True, tag="grew"):
    """More of a part: of its text, its reasoning or its arguments."""

    index: int
    text: str


class Became(msgspec.Struct, frozen=True, tag="became"):
    """A part as it is now, whole; nothing that was said of it before counts."""

    index: int
    part: e.AnswerPart


Delta: TypeAlias = Begun | Grew | Became


class Draft:
    """The answer as far as it is written. Each change costs as much as it brings, however long the answer is."""

    def __init__(self) -> None:
        self._parts: dict[int, e.AnswerPart] = {}
        self._pieces: dict[int, list[str]] = {}

    def apply(self, delta: Delta) -> None:
        """Take a change in. One of a part that has not begun is left out."""
        if isinstance(delta, Grew):
            if delta.index in self._parts:
                self._pieces.setdefault(delta.index, []).append(delta.text)
        else:
            self._parts[delta.index] = delta.part
            self._pieces.pop(delta.index, None)

    def parts(self) -> tuple[e.AnswerPart, ...]:
        """Return the parts as they are now, in their order."""
        for index, pieces in self._pieces.items():
            self._parts[index] = _longer(self._parts[index], "".join(pieces))
        self._pieces.clear()
        return tuple(part for _, part in sorted(self._parts.items()))

    def text(self) -> str:
        """Return the text that people read."""
        return "".join(part.text for part in self.parts() if isinstance(part, e.Text))


def _longer(part: e.AnswerPart, more: str) -> e.AnswerPart:
    if isinstance(part, e.Text):
        return e.Text(part.text + more, part.payload)
    if isinstance(part, e.Thinking):
        return e.Thinking(part.text + more, part.signature, part.payload)
    if isinstance(part, e.ToolCall):
        return e.ToolCall(part.id, part.tool, part.arguments + more, part.payload)
    return part
