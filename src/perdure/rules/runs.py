"""Runs: a session's periods of execution, and the processes that are lost."""

from __future__ import annotations

from typing import cast

from msgspec.structs import replace

from perdure.records.sessions import SYSTEM, Residency, SessionHead
from perdure.rules.commands import (
    AdoptRun,
    HandlerReleased,
    InitFailed,
    RunLost,
    RunReady,
    RunStopped,
    SetResidency,
    Sleep,
    StartRun,
    StopRun,
)
from perdure.rules.decision import Decision, Draft, Found, data, with_raw
from perdure.rules.dispatch import is_at_rest, is_idle, is_resumable, is_runnable
from perdure.rules.guards import check_fence
from perdure.rules.holds import LOSSES_BEFORE_HOLD, place
from perdure.rules.sessions import begin_run, end_run, settle_closing
from perdure.rules.turns import go_on, lose_active, release, run_of, start_next


def start(head: SessionHead, command: StartRun, now: int, _: Found) -> Decision:
    """Begin a run for the next queued turn; does nothing when the session has a run or nothing to do."""
    check_fence(head, command)
    draft = Draft(head, now)
    if head.run is None and (is_runnable(head) or is_resumable(head)):
        # A turn that has begun is gone on with as it began, whatever its code says by now.
        draft.head.resumes = head.resumes if head.active is not None else command.resumes
        begin_run(
            draft,
            command.run_id,
            command.worker,
            phase="starting",
            limits=command.limits,
            deployment=command.deployment,
            home=command.home,
        )
    return draft.done()


def adopt(head: SessionHead, command: AdoptRun, now: int, _: Found) -> Decision:
    """Take over a run whose process outlived its worker."""
    check_fence(head, command)
    draft = Draft(head, now)
    if run_of(head, command.run_id) is not None:
        draft.head.fence += 1
        draft.head.worker = command.worker
        draft.touched = True
    return draft.done()


def ready(head: SessionHead, command: RunReady, now: int, found: Found) -> Decision:
    """Note that `init` has run, and start the next queued turn."""
    check_fence(head, command)
    draft = Draft(head, now)
    run = run_of(head, command.run_id)
    if run is None or run.phase == "stopping":
        return draft.done()
    if run.phase == "starting":
        draft.head.run = replace(run, phase="ready")
        draft.touched = True
        _wake_computer(draft)
        draft.head.idle_since = draft.head.idle_since or now
        if head.active is not None:
            go_on(draft, found)
    start_next(draft, found, command)
    return draft.done()


def _wake_computer(draft: Draft) -> None:
    if draft.head.computer is not None:
        draft.head.computer = replace(draft.head.computer, residency="running")


def init_failed(head: SessionHead, command: InitFailed, now: int, _: Found) -> Decision:
    """Hold a session whose `init` raised; its input stays queued, and only a new process calls `init` again."""
    check_fence(head, command)
    draft = Draft(head, now)
    run = run_of(head, command.run_id)
    if run is None or run.phase != "starting":
        return draft.done()
    draft.event("session.init_failed", with_raw({"error": command.error_json}))
    draft.head.run = replace(run, phase="stopping", reason="init_failed")
    place(draft, command.hold_id, "init_failed", SYSTEM, "The agent's init failed; see session.init_failed")
    return draft.done()


def stop(head: SessionHead, command: StopRun, now: int, _: Found) -> Decision:
    """Say that the run's process is to be ended, before it is."""
    check_fence(head, command)
    draft = Draft(head, now)
    run = run_of(head, command.run_id)
    wanted = not command.if_idle or _is_free(head, command.though_queued)
    if run is not None and run.phase != "stopping" and wanted:
        draft.head.run = replace(run, phase="stopping", reason=command.reason)
        draft.touched = True
    return draft.done()


def sleep(head: SessionHead, command: Sleep, now: int, _: Found) -> Decision:
    """End the run of an idle inline session; its next turn begins a new one."""
    check_fence(head, command)
    draft = Draft(head, now)
    if run_of(head, command.run_id) is not None and _is_free(head, command.though_queued):
        draft.event("session.process_stopped", data(reason=command.reason))
        _leave(draft, command.reason)
    return draft.done()


def _is_free(head: SessionHead, though_queued: bool) -> bool:
    return is_at_rest(head) if though_queued else is_idle(head)


def stopped(head: SessionHead, command: RunStopped, now: int, _: Found) -> Decision:
    """Note that a process has ended as it was asked to."""
    check_fence(head, command)
    draft = Draft(head, now)
    run = run_of(head, command.run_id)
    if run is None:
        return draft.done()
    if head.active is not None and not head.resumes:
        lose_active(draft, "process_stopped")
    draft.event("session.process_stopped", data(reason=command.reason))
    _leave(draft, command.reason)
    return draft.done()


def _leave(draft: Draft, reason: str) -> None:
    end_run(draft, reason)
    if draft.head.computer is not None:
        draft.head.computer = replace(draft.head.computer, residency="cold")
    settle_closing(draft)


def lost(head: SessionHead, command: RunLost, now: int, _: Found) -> Decision:
    """Settle the loss of a process: its turn is interrupted, never replayed; the third loss in a row holds the session.

    A process that is lost while nothing was in its hands does not count: its loss took no work with it.
    """
    check_fence(head, command)
    draft = Draft(head, now)
    run = run_of(head, command.run_id)
    if run is None:
        return draft.done()
    draft.head.fence += 1
    draft.head.worker = command.worker
    counts = head.active is not None or run.phase == "starting"
    if head.active is not None and not head.resumes:
        lose_active(draft, "process_lost")
    draft.head.losses += 1 if counts else 0
    draft.event("session.process_lost", data(reason=command.reason, losses=draft.head.losses))
    _leave(draft, "process_lost")
    if counts and draft.head.losses >= LOSSES_BEFORE_HOLD:
        said = f"{draft.head.losses} processes in a row were lost, the last one: {command.reason}{_in_steps(head)}"
        place(draft, command.hold_id, "process_failures", SYSTEM, said)
    return draft.done()


def _in_steps(head: SessionHead) -> str:
    names = ", ".join(head.active.at_work[:5]) if head.active is not None else ""
    return f"; steps at work: {names}" if names else ""


def released(head: SessionHead, command: HandlerReleased, now: int, found: Found) -> Decision:
    """Note that the handler of a stopped turn has let go; the process keeps its `init` state."""
    check_fence(head, command)
    draft = Draft(head, now)
    release(draft, command.turn)
    start_next(draft, found, command)
    settle_closing(draft)
    return draft.done()


def set_residency(head: SessionHead, command: SetResidency, now: int, found: Found) -> Decision:
    """Note that the Computer was hibernated or runs again."""
    check_fence(head, command)
    draft = Draft(head, now)
    computer = head.computer
    if computer is None or computer.residency == command.residency:
        return draft.done()
    draft.head.computer = replace(computer, residency=cast("Residency", command.residency))
    draft.touched = True
    if command.residency == "hibernated":
        draft.event("session.hibernated", data(note=command.note))
    elif command.residency == "running" and computer.residency in ("hibernated", "resuming"):
        draft.event("session.awakened", data(note=command.note))
        start_next(draft, found, command)
    elif command.residency == "running":
        draft.head.idle_since = now
    return draft.done()
