"""What PostgreSQL says when something fails, in our words; and whether it passes by itself or a value is to blame."""

from __future__ import annotations

import struct
from typing import Final

import psycopg

from perdure.crashpoints import CrashPointReached
from perdure.errors import BadRequest, PerdureError, StoreCorrupt, StoreError, StoreFull, StoreReadOnly

RETRY_AFTER_SECONDS: Final = 2

_PASSING_CLASSES: Final = frozenset({"08", "40"})
_PASSING: Final = frozenset(
    {
        "25P03",  # idle in transaction for too long
        "53000",
        "53100",  # the disk is full
        "53200",
        "53300",  # too many connections
        "53400",
        "55000",
        "55P03",  # a lock was not to be had in time
        "57014",  # statement timeout
        "57P01",  # shutting down, or ended by an administrator
        "57P02",
        "57P03",  # starting up
        "57P05",
    }
)
# What is tried again on another connection, since all that are open lead to the same wrong place.
_ELSEWHERE: Final = frozenset({"57P01", "57P02", "57P03"})
_UNSTORABLE: Final = (
    psycopg.DataError,
    psycopg.IntegrityError,
    psycopg.ProgrammingError,
    psycopg.NotSupportedError,
    ValueError,
    TypeError,
    OverflowError,
    AttributeError,
    struct.error,
)
_SEVERAL: Final = "Multiple connection attempts"
_REFUSALS: Final = ("authentication failed", "no password supplied", "no pg_hba.conf entry", "does not exist")
# A race lost: somebody else took the same key between our look and our write.
_KEYS: Final = frozenset({"sessions_by_key", "idempotency_pkey", "writers_pkey"})


class Unsettled(Exception):
    """Raised when the connection was lost during a commit, and what became of it has to be read."""


class CannotConnect(psycopg.OperationalError):
    """Raised when there is no connection to be had; libpq says why in words only."""


class AllBusy(psycopg.OperationalError):
    """Raised when all connections were in use for as long as somebody could wait."""


def sqlstate(error: BaseException) -> str | None:
    """Return PostgreSQL's code of an error, None for one that does not come from the server."""
    return error.sqlstate if isinstance(error, psycopg.Error) else None


def is_passing(error: BaseException) -> bool:
    """Whether the same work may succeed when it is done again in a moment."""
    code = sqlstate(error)
    if code is not None:
        known = code in _PASSING or code[:2] in _PASSING_CLASSES
        return known or _takes_no_writes(error) or lost_a_race(error) or _is_stale(error)
    # Without a code it is the connection that failed: refused, lost or closed.
    return not refuses_us(error) and isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | OSError)


def lost_a_race(error: BaseException) -> bool:
    """Whether another commit took the same session key or idempotency key first; read again, it will be found."""
    return isinstance(error, psycopg.errors.UniqueViolation) and error.diag.constraint_name in _KEYS


def _is_stale(error: BaseException) -> bool:
    """Whether a prepared statement has become useless, because a migration has changed a table."""
    return _unsupported_in(error) == "RevalidateCachedQuery"


def _takes_no_writes(error: BaseException) -> bool:
    """Whether the server is a standby, or a primary that has just become one."""
    # The second is what BEGIN says on a standby.
    return sqlstate(error) == "25006" or _unsupported_in(error) == "call_bool_check_hook"


def _unsupported_in(error: BaseException) -> str | None:
    """Return the function of the server that does not support something; only the words for it are translated."""
    return error.diag.source_function if isinstance(error, psycopg.errors.FeatureNotSupported) else None


def refuses_us(error: BaseException) -> bool:
    """Whether the server is there and does not let us in, which waiting does not change."""
    # libpq gives no code for this. In other languages than English it is tried again in vain.
    said = str(error)
    return isinstance(error, CannotConnect) and _SEVERAL not in said and any(words in said for words in _REFUSALS)


def leads_nowhere(error: BaseException) -> bool:
    """Whether the other open connections are likely to be of no use either."""
    code = sqlstate(error)
    if isinstance(error, CannotConnect | AllBusy):
        # Those that are open may be the last that we get.
        return False
    if code is None:
        return is_passing(error)
    return code in _ELSEWHERE or _takes_no_writes(error) or _is_stale(error)


def is_ambiguous(error: BaseException) -> bool:
    """Whether an error of a commit leaves open whether it has happened."""
    return sqlstate(error) in ("08007", "40003")


def is_value(error: BaseException) -> bool:
    """Whether a value of some command is to blame, and not the machine."""
    return isinstance(error, _UNSTORABLE) and not is_passing(error)


def translate(error: BaseException) -> PerdureError:
    """Return the error that callers get."""
    if isinstance(error, PerdureError):
        return error
    if isinstance(error, CrashPointReached):
        return StoreError(f"{error}. Nothing of it was committed.")
    if is_passing(error):
        return _passing(error)
    return _lasting(error)


def _passing(error: BaseException) -> StoreError:
    if _takes_no_writes(error):
        return StoreReadOnly(
            f"The PostgreSQL server takes no writes ({_said(error)}). What was committed before is safe, this was not "
            "stored; name the primary in the store's address, or all servers with target_session_attrs=read-write.",
            {"retry_after_seconds": RETRY_AFTER_SECONDS},
        )
    if sqlstate(error) == "53100":
        return StoreFull(
            f"The disk of the PostgreSQL server is full ({_said(error)}). What was committed before is safe, this was "
            "not stored; make room and try again.",
            {"retry_after_seconds": RETRY_AFTER_SECONDS},
        )
    if isinstance(error, AllBusy):
        return StoreError(
            f"PostgreSQL is overloaded ({_said(error)}). What was committed before is safe, this was not stored; try "
            "again in a moment, and raise perdure_connections in the store's address if it happens often.",
            {"retry_after_seconds": RETRY_AFTER_SECONDS},
        )
    return StoreError(
        f"PostgreSQL did not answer in time ({_said(error)}). What was committed before is safe, this was not stored; "
        "try again in a moment.",
        {"retry_after_seconds": RETRY_AFTER_SECONDS},
    )


def _lasting(error: BaseException) -> PerdureError:
    code = sqlstate(error) or ""
    if code in ("XX001", "XX002"):
        return StoreCorrupt(
            f"The PostgreSQL database is damaged ({_said(error)}). This was not stored. Stop and restore a backup."
        )
    if code in ("26000", "42P05"):
        return StoreError(
            f"The pooler does not know prepared statements ({_said(error)}). This was not stored. Take "
            "perdure_prepare=on out of the store's address, or use PgBouncer 1.21 or newer, which knows them."
        )
    if code in ("42501", "42P01", "3F000", "28000", "28P01", "3D000") or refuses_us(error):
        return StoreError(f"PostgreSQL refuses this user or this database ({_said(error)}). Nothing was changed.")
    if isinstance(error, _UNSTORABLE):
        return BadRequest(f"A value cannot be stored: {_said(error)}. Nothing was changed.")
    return StoreError(f"PostgreSQL failed ({_said(error)}). What was committed before is safe, this was not stored.")


def unsettled() -> StoreError:
    """Return the error for a commit whose outcome could not be read in time."""
    return StoreError(
        "The connection to PostgreSQL was lost during a commit, and the server has not come back to say whether it "
        "happened. Read the state, or send the command again under the same idempotency key.",
        {"retry_after_seconds": RETRY_AFTER_SECONDS, "outcome": "unknown"},
    )


def _said(error: BaseException) -> str:
    text = " ".join(str(error).split()) or repr(error)
    code = sqlstate(error)
    return f"{code}: {text}" if code else text
