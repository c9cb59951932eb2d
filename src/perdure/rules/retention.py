"""Retention: what a session's log may lose at its beginning."""

from __future__ import annotations

from perdure.records.sessions import SessionHead
from perdure.rules.commands import Command
from perdure.rules.decision import Decision, Draft, Found, need


class Trim(Command, frozen=True, kw_only=True):
    """Let go of the events up to `upto`, and of what they tell of; answered with the floor as it is then."""

    upto: int


def trim(head: SessionHead, command: Trim, now: int, found: Found) -> Decision:
    """Raise the session's floor, but never past an event of a turn that has not ended."""
    draft = Draft(head, now)
    floor = min(command.upto, head.last_seq)
    if (number := _unfinished(head)) is not None:
        queued: int | None = need(found, "queued_seq", number)
        floor = min(floor, head.retained_after if queued is None else queued - 1)
    if floor > head.retained_after:
        draft.head.retained_after = floor
        draft.touched = True
    return draft.done(draft.head.retained_after)


def _unfinished(head: SessionHead) -> int | None:
    """Return the first turn that has not ended, or whose handler has not let go."""
    if head.active is not None:
        return head.active.number
    if head.winding is not None:
        return head.winding.turn
    return head.first_queued if head.queued else None


def gone(head: SessionHead) -> str:
    """Return what to tell of a thing of the session that is not there: that it may have been once."""
    if head.retained_after == 0:
        return ""
    return f"What had ended by event {head.retained_after} is gone by retention."
