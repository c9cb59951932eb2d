"""What SQLite says when the machine fails, said in our words."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import apsw

from perdure.crashpoints import CrashPointReached
from perdure.errors import (
    BadRequest,
    PerdureError,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreInUse,
    StoreReadOnly,
    Unavailable,
)

_UNBINDABLE: Final = (OverflowError, UnicodeEncodeError, TypeError, apsw.TooBigError, apsw.MismatchError)
_SAFE: Final = "What was committed before is safe"


def translate(error: BaseException, file: Path) -> PerdureError:
    """Return the error that callers get for what went wrong in the database at `file`."""
    if isinstance(error, PerdureError):
        return error
    if isinstance(error, CrashPointReached):
        return StoreError(f"{error}. Nothing of it was committed.")
    if isinstance(error, _UNBINDABLE):
        return BadRequest(f"A value cannot be stored: {error}. Nothing was changed.")
    if isinstance(error, apsw.Error):
        return _of_sqlite(error, file)
    return StoreError(f"The store at {file} failed: {error!r}. {_SAFE}; read the state and try again.")


def closing() -> Unavailable:
    """Return the error of those who come while a store is being closed."""
    return Unavailable("The store is closing. Nothing was changed; try again when the server is back.")


def _of_sqlite(error: apsw.Error, file: Path) -> StoreError:
    if isinstance(error, apsw.FullError):
        return StoreFull(f"The disk or quota of {file} is full. {_SAFE}, this was not stored; make room and try again.")
    if isinstance(error, apsw.ReadOnlyError | apsw.CantOpenError | apsw.PermissionsError | apsw.AuthError):
        return StoreReadOnly(
            f"{file} cannot be written ({error}). {_SAFE}, this was not stored; make the folder and its files writable "
            "for this user and try again."
        )
    if isinstance(error, apsw.CorruptError | apsw.NotADBError):
        return StoreCorrupt(
            f"{file} is damaged ({error}). This was not stored. Stop the server and restore a backup; keep the damaged "
            "file, since `sqlite3 FILE .recover` may save more from it."
        )
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return StoreInUse(f"Another process has {file} locked ({error}). This was not stored; end it and try again.")
    if isinstance(error, apsw.IOError):
        return StoreError(
            f"The disk under {file} failed ({error}). {_SAFE}; whether this was stored is certain only after the next "
            "successful commit, so send it again under the same idempotency key."
        )
    return StoreError(f"The database {file} refused a write ({error}). {_SAFE}, this was not stored.")
