"""What SQLite says when the machine fails, said in our words."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

from perdure.errors import BadRequest, PerdureError, StoreCorrupt, StoreError, StoreFull, StoreInUse, StoreReadOnly

_UNBINDABLE: Final = (
    OverflowError,
    UnicodeEncodeError,
    TypeError,
    sqlite3.ProgrammingError,
    sqlite3.InterfaceError,
    sqlite3.DataError,
)
_SAFE: Final = "What was committed before is safe"


def translate(error: BaseException, file: Path) -> PerdureError:
    """Return the error that callers get for what went wrong in the database at `file`."""
    if isinstance(error, PerdureError):
        return error
    if isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", None) is not None:
        return _of_code(error.sqlite_errorcode & 0xFF, str(error), file)
    if isinstance(error, _UNBINDABLE):
        return BadRequest(f"A value cannot be stored: {error}. Nothing was changed.")
    return StoreError(f"The store at {file} failed: {error!r}. {_SAFE}; read the state and try again.")


def _of_code(code: int, text: str, file: Path) -> PerdureError:
    if code == sqlite3.SQLITE_FULL:
        return StoreFull(f"The disk or quota of {file} is full. {_SAFE}, this was not stored; make room and try again.")
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return StoreReadOnly(
            f"{file} cannot be written ({text}). {_SAFE}, this was not stored; "
            "make the folder writable for this user and try again."
        )
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return StoreCorrupt(
            f"{file} is damaged ({text}). This was not stored. Stop the server and restore a backup; keep the damaged "
            "file, since `sqlite3 FILE .recover` may save more from it."
        )
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreInUse(f"Another process has {file} locked ({text}). This was not stored; end it and try again.")
    if code == sqlite3.SQLITE_IOERR:
        return StoreError(
            f"The disk under {file} failed ({text}). {_SAFE}; whether this was stored is certain only after the next "
            "successful commit, so send it again under the same idempotency key."
        )
    return StoreError(f"The database {file} refused a write ({text}). {_SAFE}, this was not stored.")
