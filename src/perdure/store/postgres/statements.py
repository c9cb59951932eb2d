"""The SQL statements of this engine."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from perdure.store.statements import Statements

FOLDER: Final = Path(__file__).parent / "sql"
_STATEMENTS: Final = Statements(FOLDER)


def statements() -> dict[str, str]:
    """Return all statements by name."""
    return _STATEMENTS.by_name


def sql(name: str) -> str:
    """Return one statement."""
    return _STATEMENTS.by_name[name]
