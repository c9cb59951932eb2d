"""What a running tool puts out: decoded, freed of control characters, bounded while it grows."""

from __future__ import annotations

import codecs
import re
from typing import Final

from perdure.chat.entries import Content, Diagnostic, Text
from perdure.chat.results import Bounds
from perdure.records import canonical

# Colours and cursor movements, then what is left of control characters but tabs and line feeds.
_ESCAPES: Final = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\^_]")
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_LONGEST_ESCAPE: Final = 256


class OutputBuffer:
    """Text that is added piece by piece, of which whole lines within the bounds are kept: memory does not grow.

    Pieces may end anywhere, within a character or an escape sequence too. `dropped_bytes` and `dropped_lines` count
    what is not kept any more.
    """

    def __init__(self, bounds: Bounds | None = None) -> None:
        self._bounds = bounds or Bounds()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._escape = ""
        self._kept: list[str] = []
        self._partial = ""
        self._bytes = 0
        self._full = False
        self.dropped_bytes: int = 0
        self.dropped_lines: int = 0

    def add(self, piece: str | bytes) -> None:
        """Add a piece of text, or of UTF-8 bytes in which what is not UTF-8 becomes U+FFFD."""
        text = self._decoder.decode(piece) if isinstance(piece, bytes) else piece
        text = self._clean(self._escape + text.replace("\r\n", "\n"))
        *whole, rest = (self._partial + text).split("\n")
        for line in whole:
            self._keep(line + "\n")
        self._partial = self._bounded_line(rest)

    def text(self) -> str:
        """Return what is kept now, the line that has not ended included."""
        if not self._partial or (self._full and self._bounds.keep == "head"):
            return "".join(self._kept)
        return "".join(self._kept) + self._partial

    def content(self) -> Content:
        """Return what is kept as the content of a result."""
        text = self.text()
        return (Text(text),) if text else ()

    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """Return the remark on what was dropped, if anything was."""
        if not self.dropped_bytes:
            return ()
        end = "beginning" if self._bounds.keep == "head" else "end"
        return (
            Diagnostic(
                "truncated",
                f"Only the {end} of the output is shown; {self.dropped_lines} lines ({self.dropped_bytes} bytes) are "
                "left out.",
            ),
        )

    def _clean(self, text: str) -> str:
        """Return text without control sequences; the beginning of one at its end waits for the rest."""
        text = _ESCAPES.sub("", text)
        start = text.rfind("\x1b", max(0, len(text) - _LONGEST_ESCAPE))
        self._escape, text = ("", text) if start < 0 else (text[start:], text[:start])
        return canonical.clean_text(_CONTROLS.sub("", text))

    def _keep(self, line: str) -> None:
        line = self._bounded_line(line)
        if self._bounds.keep == "head":
            self._keep_head(line)
        else:
            self._keep_tail(line)

    def _keep_head(self, line: str) -> None:
        size = len(line.encode())
        if self._full or len(self._kept) >= self._bounds.lines or self._bytes + size > self._bounds.bytes:
            self._full = True
            self._drop(line)
        else:
            self._kept.append(line)
            self._bytes += size

    def _keep_tail(self, line: str) -> None:
        self._kept.append(line)
        self._bytes += len(line.encode())
        first = 0
        while len(self._kept) - first > self._bounds.lines or self._bytes > self._bounds.bytes:
            self._bytes -= len(self._kept[first].encode())
            self._drop(self._kept[first])
            first += 1
        del self._kept[:first]

    def _drop(self, line: str) -> None:
        self.dropped_bytes += len(line.encode())
        self.dropped_lines += 1

    def _bounded_line(self, line: str) -> str:
        """Return as much of a line that has not ended as can be kept at all."""
        limit = self._bounds.bytes
        if len(line.encode()) <= limit:
            return line
        data = line.encode()
        kept = data[:limit] if self._bounds.keep == "head" else data[-limit:]
        self.dropped_bytes += len(data) - limit
        return kept.decode("utf-8", "ignore")
