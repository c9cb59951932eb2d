"""SQL by name: statements live in `sql/*.sql`, each under a line `-- name: …` with a sentence on what it is for."""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import Path
from typing import Final

_HEADING: Final = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


class Statements:
    """The statements of one engine, read from its folder when the first one is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder: Final = folder

    @cached_property
    def by_name(self) -> dict[str, str]:
        """All statements by name. Raises ValueError when two have one name."""
        found: dict[str, str] = {}
        for file in sorted(self.folder.glob("*.sql")):
            _, *pieces = _HEADING.split(file.read_text())
            for name, text in zip(pieces[::2], pieces[1::2], strict=True):
                if name in found:
                    raise ValueError(f"two SQL statements are named {name}; the second is in {file}")
                found[name] = _body(text)
        return found


def _body(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith("--")).strip().rstrip(";")
