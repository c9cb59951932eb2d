"""Steps of a resumable turn: intended before they are done, done at most as often as their replay policy says.

A step is begun by a commit, and ends by one that holds its outcome. Whoever begins it again, in a later run, is told
what became of it: its outcome; or, when its process was lost while it was at work, that it may go on once more if both
then and now it was said to be safe, and else that it may have happened.
"""

from __future__ import annotations

from msgspec.structs import replace

from perdure.errors import NotSupported, StepMismatch, StepNotFound, TooManyPending
from perdure.records.sessions import ActiveTurn, SessionHead
from perdure.records.steps import MEMOS_A_TURN, STEPS_A_TURN, STEPS_AT_ONCE, Step, StepTold
from perdure.rules.commands import BeginStep, EndStep, KeepMemo
from perdure.rules.decision import Decision, Draft, Found, PutMemo, PutStep, data, need, with_raw
from perdure.rules.guards import check_fence, running


def begin(head: SessionHead, command: BeginStep, now: int, found: Found) -> Decision:
    """Begin a step, or say what became of it."""
    check_fence(head, command)
    active = running(head, command.turn)
    _check_resumes(head)
    draft = Draft(head, now)
    known: Step | None = need(found, "step", (command.turn, command.name))
    if known is None:
        return _told(draft, _first(draft, active, command))
    if known.request != command.request:
        raise StepMismatch(command.name)
    if known.status != "running" or known.run == _run(draft):
        return _told(draft, known)
    # Its process was lost while it was at work.
    if known.replay == "safe" and command.replay == "safe":
        return _told(draft, _again(draft, known))
    return _told(draft, _given_up(draft, known))


def _told(draft: Draft, step: Step) -> Decision:
    return draft.done(StepTold(step.status, step.outcome_json, draft.now - step.started_at))


def _check_resumes(head: SessionHead) -> None:
    if not head.resumes:
        raise NotSupported(
            f"Agent {head.agent!r} is interrupted when its process is lost, so it keeps no journal. Nothing was done; "
            'define it with recovery="resume".'
        )


def _run(draft: Draft) -> int:
    assert draft.head.run is not None
    return draft.head.run.number


def _first(draft: Draft, active: ActiveTurn, command: BeginStep) -> Step:
    if active.steps >= STEPS_A_TURN:
        raise TooManyPending("steps of a turn", STEPS_A_TURN)
    if len(active.at_work) >= STEPS_AT_ONCE:
        raise TooManyPending("steps at work", STEPS_AT_ONCE)
    draft.update_active(steps=active.steps + 1, at_work=(*active.at_work, command.name))
    run = _run(draft)
    step = Step(command.turn, command.name, command.replay, "running", command.request, run, 1, draft.now)
    return _begun(draft, step)


def _again(draft: Draft, known: Step) -> Step:
    return _begun(draft, replace(known, run=_run(draft), attempts=known.attempts + 1))


def _begun(draft: Draft, step: Step) -> Step:
    draft.change(PutStep(step))
    draft.event("step.started", data(name=step.name, replay=step.replay, attempt=step.attempts), turn=step.turn)
    return step


def _given_up(draft: Draft, known: Step) -> Step:
    seq = draft.event("step.interrupted", data(name=known.name), turn=known.turn)
    ended = replace(known, status="interrupted", ended_seq=seq)
    draft.change(PutStep(ended))
    _no_more_at_work(draft, known.name)
    return ended


def end(head: SessionHead, command: EndStep, now: int, found: Found) -> Decision:
    """Commit the outcome of a step; the first one stands. One that completes shows that its process gets on."""
    check_fence(head, command)
    running(head, command.turn)
    known: Step | None = need(found, "step", (command.turn, command.name))
    if known is None:
        raise StepNotFound(command.name)
    draft = Draft(head, now)
    if known.status != "running":
        return draft.done(known)
    member = "result" if command.status == "completed" else "error"
    told = with_raw({"name": data(name=known.name)[len(b'{"name":') : -1], member: command.outcome_json})
    seq = draft.event(f"step.{command.status}", told, turn=command.turn)
    ended = replace(known, status=command.status, ended_seq=seq, outcome_json=command.outcome_json)
    draft.change(PutStep(ended))
    _no_more_at_work(draft, known.name)
    if command.status == "completed":
        draft.head.losses = 0
    return draft.done(ended)


def _no_more_at_work(draft: Draft, name: str) -> None:
    active = draft.head.active
    assert active is not None
    draft.update_active(at_work=tuple(other for other in active.at_work if other != name))


def keep(head: SessionHead, command: KeepMemo, now: int, found: Found) -> Decision:
    """Keep a value under a name, or return the one that was kept there first."""
    check_fence(head, command)
    active = running(head, command.turn)
    _check_resumes(head)
    draft = Draft(head, now)
    known: bytes | None = need(found, "memo", (command.turn, command.name))
    if known is not None:
        return draft.done(known)
    if active.memos >= MEMOS_A_TURN:
        raise TooManyPending("memos of a turn", MEMOS_A_TURN)
    draft.update_active(memos=active.memos + 1)
    draft.change(PutMemo(command.turn, command.name, command.value_json))
    return draft.done(command.value_json)
