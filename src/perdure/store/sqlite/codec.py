"""How values are written into columns: ids as 16 bytes, positions as one integer, known words as small numbers."""

from __future__ import annotations

from typing import Final

from perdure.records.sessions import TurnStatus
from perdure.store.codec import is_canonical

SHIFT: Final = 32
LARGEST_NUMBER: Final = (1 << SHIFT) - 1
ABOVE_ALL_IDS: Final = b"\xff" * 17

# Only ever append to these: the numbers are in people's files.
EVENT_TYPES: Final = (
    "session.created",
    "session.closing",
    "session.closed",
    "session.cancelled",
    "session.held",
    "session.resumed",
    "session.deadline",
    "session.process_started",
    "session.process_stopped",
    "session.process_lost",
    "session.init_failed",
    "session.hibernated",
    "session.awakened",
    "turn.queued",
    "turn.running",
    "turn.output",
    "turn.completed",
    "turn.failed",
    "turn.interrupted",
    "turn.cancelled",
    "message.admitted",
    "message.started",
    "message.delivered",
    "message.rejected",
    "ask.created",
    "ask.responded",
    "ask.cancelled",
    "turn.resumed",
    "step.started",
    "step.completed",
    "step.failed",
    "step.interrupted",
)
TURN_STATUSES: Final[tuple[TurnStatus, ...]] = ("queued", "running", "completed", "failed", "interrupted", "cancelled")

TYPE_NUMBERS: Final[dict[str, int]] = {name: number for number, name in enumerate(EVENT_TYPES)}
STATUS_NUMBERS: Final[dict[str, int]] = {name: number for number, name in enumerate(TURN_STATUSES)}


def position(sid: int, number: int) -> int:
    """Return where the event, turn or run `number` of a session is stored."""
    return sid << SHIFT | number


def number_of(pos: int) -> int:
    """Return the number of an event, turn or run from its position."""
    return pos & LARGEST_NUMBER


def sid_at(pos: int) -> int:
    """Return the session's number from a position."""
    return pos >> SHIFT


def pack_id(text: str) -> bytes | str:
    """Return the 16 bytes of a canonical UUID; other text stays text, so that every id finds exactly itself."""
    return bytes.fromhex(text.replace("-", "")) if is_canonical(text) else text


def unpack_id(value: bytes | str) -> str:
    """Return the text of a stored id."""
    if isinstance(value, str):
        return value
    digits = value.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def unpack_known(value: bytes | str | None) -> str | None:
    """Return the text of a stored id that may be absent."""
    return None if value is None else unpack_id(value)


def unpack_type(value: int | str) -> str:
    """Return the name of a stored event type: by its number, or by name for a type without one."""
    return value if isinstance(value, str) else EVENT_TYPES[value]
