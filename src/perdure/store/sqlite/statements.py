"""SQL by name: statements live in `sql/*.sql`, each under a line `-- name: …` with a sentence on what it is for."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "sql"
_HEADING: Final = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


@cache
def statements() -> dict[str, str]:
    """Return all statements by name. Raises ValueError when two have one name."""
    found: dict[str, str] = {}
    for file in sorted(FOLDER.glob("*.sql")):
        _, *pieces = _HEADING.split(file.read_text())
        for name, text in zip(pieces[::2], pieces[1::2], strict=True):
            if name in found:
                raise ValueError(f"two SQL statements are named {name}; the second is in {file}")
            found[name] = _body(text)
    return found


def _body(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith("--")).strip().rstrip(";")


def sql(name: str) -> str:
    """Return one statement."""
    return statements()[name]
