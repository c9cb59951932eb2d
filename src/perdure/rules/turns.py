"""Turns: from accepted input to its one outcome."""

from __future__ import annotations

from typing import Final

from perdure.errors import QueueFull, SessionNotOpen, TurnNotRunning
from perdure.records.sessions import ENDED, ActiveTurn, QueuedTurn, RunState, SessionHead, Turn, Winding
from perdure.rules import asks, messages
from perdure.rules.commands import (
    CompleteTurn,
    Enqueue,
    FailTurn,
    NewTurn,
    Permit,
    StartTurn,
    WorkerCommand,
    WriteLive,
    WriteOutput,
)
from perdure.rules.decision import (
    ClearLive,
    Decision,
    Draft,
    Found,
    InsertTurn,
    PutLive,
    TurnEnded,
    TurnStarted,
    data,
    need,
    receipt,
    with_raw,
)
from perdure.rules.dispatch import is_runnable
from perdure.rules.guards import check_fence, running, spend
from perdure.rules.sessions import begin_run, settle_closing

QUEUE_LIMIT: Final = 1_000
RELEASE_GRACE: Final = 10_000_000


def enqueue(head: SessionHead, command: Enqueue, now: int, _: Found) -> Decision:
    """Accept an input; start it in the same commit when the permit and the session allow it."""
    draft = Draft(head, now)
    admit(draft, command.turn, command.permit)
    return draft.done(admitted(draft.head, command.turn.id, created=False))


def admitted(head: SessionHead, turn_id: str | None, *, created: bool) -> bytes:
    """Return the receipt of an admission."""
    if turn_id is None:
        return receipt(session_id=head.id, turn_id=None, sequence=None, created=created)
    flag = "true" if created else "false"
    text = f'{{"created":{flag},"sequence":{head.last_turn},"session_id":"{head.id}","turn_id":"{turn_id}"}}'
    return text.encode()


def admit(draft: Draft, turn: NewTurn, permit: Permit | None) -> None:
    """Queue a turn, and start it at once where nothing is before it."""
    head = draft.head
    if head.status != "open":
        raise SessionNotOpen(head.id, head.status)
    if head.queued >= QUEUE_LIMIT:
        raise QueueFull(head.id, QUEUE_LIMIT)
    head.last_turn += 1
    head.queued += 1
    queued = with_raw({"input": turn.input_json, "sequence": b"%d" % head.last_turn})
    seq = draft.event("turn.queued", queued, turn=head.last_turn, in_run=False)
    draft.change(InsertTurn(head.last_turn, turn.id, seq, draft.now))
    if permit is not None and head.queued == 1 and is_runnable(head) and _may_start(draft, permit):
        start(draft, QueuedTurn(head.last_turn, turn.id, turn.input_json, draft.now))


def _may_start(draft: Draft, permit: Permit) -> bool:
    head = draft.head
    if head.run is not None:
        awake = head.computer is None or head.computer.residency == "running"
        return head.worker == permit.worker and head.run.phase == "ready" and awake
    if permit.run_id is None:
        return False
    # A process has yet to be forked and to run `init`; what it saves is a commit before that.
    ready = head.host == "inline"
    begin_run(draft, permit.run_id, permit.worker, phase="ready" if ready else "starting", home=permit.home)
    return ready


def start(draft: Draft, queued: QueuedTurn) -> None:
    """Make the first queued turn the active one."""
    head = draft.head
    assert head.run is not None
    head.queued -= 1
    head.idle_since = None
    seq = draft.event("turn.running", b'{"sequence":%d}' % queued.number, turn=queued.number)
    longest = head.limits.max_turn_duration
    deadline = None if longest is None else draft.now + longest
    head.active = ActiveTurn(queued.number, queued.id, draft.now, seq, deadline)
    draft.change(TurnStarted(queued.number, head.run.number, draft.now))
    draft.started = queued


def go_on(draft: Draft, found: Found) -> None:
    """Go on with the active turn in a new run: its handler is called again, and finds in the journal what was done."""
    head = draft.head
    assert head.active is not None
    assert head.run is not None
    draft.started = need(found, "queued", head.active.number)
    draft.update_active(takes_messages=False)
    draft.event("turn.resumed", data(sequence=head.active.number), turn=head.active.number)
    draft.change(TurnStarted(head.active.number, head.run.number, head.active.started_at))
    draft.change(ClearLive())


def start_next(draft: Draft, found: Found, command: WorkerCommand) -> None:
    """Start the next queued turn if it may run on a process that is ready, and the worker takes more work.

    Only a command whose fence was checked may do so: without it nobody says that the run's worker is alive.
    """
    head = draft.head
    if not command.start:
        return
    ready = head.run is not None and head.run.phase == "ready"
    awake = head.computer is None or head.computer.residency == "running"
    if ready and awake and is_runnable(head):
        start(draft, need(found, "queued", head.first_queued))


def start_turn(head: SessionHead, command: StartTurn, now: int, found: Found) -> Decision:
    """Start the next queued turn, if one may run now."""
    check_fence(head, command)
    draft = Draft(head, now)
    start_next(draft, found, command)
    return draft.done()


def write_output(head: SessionHead, command: WriteOutput, now: int, found: Found) -> Decision:
    """Append an output event; a write sent again gets the first one's sequence number."""
    check_fence(head, command)
    active = running(head, command.turn)
    draft = Draft(head, now)
    if command.op <= active.op:
        # An op that was refused before has no event: it is decided anew.
        seq = need(found, "output_seq", (command.turn, command.op, active.started_seq))
        if seq is not None:
            return draft.done(seq)
    size = spend(active, len(command.content_json))
    draft.update_active(op=max(command.op, active.op), size=size)
    content = b'{"content":' + command.content_json + b"}"
    return draft.done(draft.event("turn.output", content, turn=command.turn, op=command.op))


def write_live(head: SessionHead, command: WriteLive, now: int, _: Found) -> Decision:
    """Overwrite a live slot of the running turn."""
    check_fence(head, command)
    running(head, command.turn)
    draft = Draft(head, now)
    draft.change(PutLive(command.turn, command.slot, command.content_json))
    return draft.done()


def complete(head: SessionHead, command: CompleteTurn, now: int, found: Found) -> Decision:
    """Commit result and response; the response becomes visible only here."""
    outcome = with_raw({"response": command.response_json, "result": command.result_json})
    return _settle(head, command, now, found, "completed", outcome)


def fail(head: SessionHead, command: FailTurn, now: int, found: Found) -> Decision:
    """End the turn as failed; the session stays open and its queue goes on."""
    return _settle(head, command, now, found, "failed", with_raw({"error": command.error_json}))


def _settle(
    head: SessionHead, command: CompleteTurn | FailTurn, now: int, found: Found, status: str, outcome: bytes
) -> Decision:
    check_fence(head, command)
    draft = Draft(head, now)
    if head.active is None or head.active.number != command.turn or head.run is None:
        return _settled_before(draft, command, found)
    end_active(draft, status, outcome)
    if status == "completed":
        draft.head.losses = 0
    start_next(draft, found, command)
    settle_closing(draft)
    return draft.done(status)


def _settled_before(draft: Draft, command: CompleteTurn | FailTurn, found: Found) -> Decision:
    """Answer a settlement that was sent again, or that came after the turn was ended from outside."""
    number = command.turn
    turn: Turn | None = need(found, "turn", number)
    if turn is None or turn.status not in ENDED:
        raise TurnNotRunning(f"{number} of session {draft.head.id}")
    release(draft, number)
    start_next(draft, found, command)
    settle_closing(draft)
    return draft.done(turn.status)


def end_active(draft: Draft, status: str, outcome: bytes, reason: str | None = None) -> ActiveTurn:
    """End the active turn: cancel its questions, reject its messages, drop its live slots."""
    head = draft.head
    active = head.active
    assert active is not None
    asks.cancel_pending(draft, active)
    messages.reject_pending(draft, active)
    seq = draft.event(f"turn.{status}", outcome, turn=active.number)
    draft.change(TurnEnded(active.number, status, seq, draft.now, reason))
    draft.change(ClearLive())
    head.active = None
    head.idle_since = draft.now
    return active


def stop_active(draft: Draft, status: str, reason: str, hold_id: str | None = None) -> None:
    """End the active turn from outside; its handler gets a time of grace to let go."""
    active = end_active(draft, status, data(reason=reason, hold_id=hold_id), reason)
    if draft.head.run is not None:
        draft.head.winding = Winding(active.number, draft.now + RELEASE_GRACE)


def release(draft: Draft, number: int) -> None:
    """Note that a stopped turn's handler has let go."""
    if draft.head.winding is not None and draft.head.winding.turn == number:
        draft.head.winding = None
        draft.touched = True


def lose_active(draft: Draft, reason: str) -> None:
    """End the active turn because its process is gone; there is no handler to wait for."""
    end_active(draft, "interrupted", data(reason=reason), reason)


def run_of(head: SessionHead, run_id: str) -> RunState | None:
    """Return the present run if it has that id."""
    return head.run if head.run is not None and head.run.id == run_id else None
