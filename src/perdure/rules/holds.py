"""Holds and controls: interrupt, resume, close, cancel, and what time does by itself."""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from perdure.errors import HoldNotFound, SessionNotOpen, TooManyHolds
from perdure.records.sessions import SYSTEM, Hold, Issuer, SessionHead
from perdure.rules.commands import Cancel, Close, Interrupt, PlaceHold, Resume, Tick
from perdure.rules.decision import Decision, Draft, Found, PutHold, TurnEnded, data, need, receipt
from perdure.rules.dispatch import close_at, hibernate_at
from perdure.rules.sessions import settle_closing
from perdure.rules.turns import stop_active

HOLD_LIMIT: Final = 32
LOSSES_BEFORE_HOLD: Final = 3


def place(draft: Draft, hold_id: str, reason: str, issuer: Issuer, message: str | None = None) -> None:
    """Add a hold; queued turns wait until exactly this one is released."""
    head = draft.head
    # What the system has to say is never refused: a loss could not be settled then. It says it once a run.
    if issuer != SYSTEM and len(head.holds) >= HOLD_LIMIT:
        raise TooManyHolds(head.id, HOLD_LIMIT)
    hold = Hold(hold_id, reason, issuer, draft.now, message)
    head.holds = (*head.holds, hold)
    draft.change(PutHold(hold))
    told = data(hold_id=hold_id, reason=reason, message=message, issuer={"kind": issuer.kind, "id": issuer.id})
    draft.event("session.held", told, in_run=False)


def control_receipt(head: SessionHead, control_id: str, hold_id: str | None = None) -> bytes:
    """Return the receipt of a control: it says that the control was accepted."""
    fields: dict[str, Any] = {"id": control_id, "session_id": head.id, "status": "accepted"}
    if hold_id is not None:
        fields["hold_id"] = hold_id
    return receipt(**fields)


def interrupt(head: SessionHead, command: Interrupt, now: int, _: Found) -> Decision:
    """Stop the running turn and hold the session; queued turns wait for that hold."""
    if head.is_terminal:
        raise SessionNotOpen(head.id, head.status)
    draft = Draft(head, now)
    if head.active is not None:
        stop_active(draft, "interrupted", "interrupt", command.hold_id)
    place(draft, command.hold_id, "interrupt", command.issuer, command.message)
    return draft.done(control_receipt(head, command.control_id, command.hold_id))


def resume(head: SessionHead, command: Resume, now: int, found: Found) -> Decision:
    """Release exactly one hold; releasing it again changes nothing. The interrupted input is not run again."""
    draft = Draft(head, now)
    told = control_receipt(head, command.control_id, command.hold_id)
    hold = next((hold for hold in head.holds if hold.id == command.hold_id), None)
    if hold is None:
        if need(found, "hold", command.hold_id) is None:
            raise HoldNotFound(command.hold_id)
        return draft.done(told)
    draft.head.holds = tuple(other for other in head.holds if other is not hold)
    if hold.reason == "process_failures":
        draft.head.losses = 0
    draft.change(PutHold(replace(hold, released_at=now)))
    if not head.is_terminal:
        # Whoever watches a session that has ended has been told that nothing follows.
        draft.event("session.resumed", data(hold_id=hold.id), in_run=False)
    # Its owner starts the next turn: the run that the head knows may be a dead worker's.
    settle_closing(draft)
    return draft.done(told)


def close(head: SessionHead, command: Close, now: int, _: Found) -> Decision:
    """Refuse new input, finish what was accepted, then end. Holds stay; closing again changes nothing."""
    draft = Draft(head, now)
    begin_close(draft, "close")
    return draft.done(control_receipt(head, command.control_id))


def begin_close(draft: Draft, reason: str) -> None:
    """Start to drain an open session."""
    if draft.head.status != "open":
        return
    draft.head.status = "closing"
    draft.event("session.closing", data(reason=reason), in_run=False)
    settle_closing(draft)


def cancel(head: SessionHead, command: Cancel, now: int, _: Found) -> Decision:
    """End the session at once: the running turn and all queued ones are cancelled."""
    draft = Draft(head, now)
    told = control_receipt(head, command.control_id)
    if head.is_terminal:
        return draft.done(told)
    if head.active is not None:
        stop_active(draft, "cancelled", "cancel")
    for number in range(head.first_queued, head.last_turn + 1):
        seq = draft.event("turn.cancelled", turn=number, in_run=False)
        draft.change(TurnEnded(number, "cancelled", seq, now, "cancel"))
    draft.head.queued = 0
    draft.head.status = "cancelled"
    draft.head.ended_at = now
    draft.event("session.cancelled", in_run=False)
    return draft.done(told)


def tick(head: SessionHead, command: Tick, now: int, _: Found) -> Decision:
    """Do what time makes due: the deadline of a turn, the end of an idle session, the sleep of its Computer."""
    draft = Draft(head, now)
    active = head.active
    if active is not None and active.deadline_at is not None and now >= active.deadline_at:
        _pass_deadline(draft, command.hold_id)
    elif _due(close_at(head), now):
        begin_close(draft, "idle")
    elif _due(hibernate_at(head), now):
        assert head.computer is not None
        draft.head.computer = replace(head.computer, residency="hibernating")
        draft.touched = True
    return draft.done()


def place_hold(head: SessionHead, command: PlaceHold, now: int, _: Found) -> Decision:
    """Hold the session for a reason of the system's."""
    draft = Draft(head, now)
    if not head.is_terminal:
        place(draft, command.hold_id, command.reason, SYSTEM, command.message)
    return draft.done()


def _due(at: int | None, now: int) -> bool:
    return at is not None and now >= at


def _pass_deadline(draft: Draft, hold_id: str) -> None:
    stop_active(draft, "interrupted", "deadline", hold_id)
    draft.event("session.deadline", data(hold_id=hold_id))
    place(draft, hold_id, "turn_deadline", SYSTEM, "Turn deadline elapsed")
