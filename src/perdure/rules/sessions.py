"""Sessions: how they begin, close and end, and the periods in which they run."""

from __future__ import annotations

from msgspec.structs import replace

from perdure.records.sessions import Limits, Recovery, Run, RunPhase, RunState
from perdure.rules.decision import Draft, EndRun, PutRun, data
from perdure.rules.dispatch import is_drained


def begin_run(
    draft: Draft,
    run_id: str,
    worker: str,
    *,
    phase: RunPhase,
    limits: Limits | None = None,
    deployment: str | None = None,
    home: str | None = None,
) -> None:
    """Claim the session for a worker and begin a run on it; its Computer is on that worker's machine from now on."""
    head = draft.head
    head.fence += 1
    head.worker = worker
    head.runs += 1
    head.deployment = deployment or head.deployment
    head.limits = limits or head.limits
    if head.computer is not None:
        head.computer = replace(head.computer, home=home or head.computer.home)
    recovery: Recovery = "initial" if head.runs == 1 else "reconstructed"
    head.run = RunState(head.runs, run_id, phase, recovery, draft.now, head.run_end)
    draft.change(PutRun(Run(head.runs, run_id, head.id, recovery, head.deployment, draft.now)))
    draft.event("session.process_started", data(recovery=recovery, number=head.runs))


def end_run(draft: Draft, reason: str) -> None:
    """Forget the present run; what it was doing must have been ended before."""
    head = draft.head
    assert head.run is not None
    draft.change(EndRun(head.run.number, draft.now, reason))
    head.run = None
    head.run_end = reason
    head.winding = None


def settle_closing(draft: Draft) -> None:
    """Close a closing session once all that it accepted has ended and no hold is left."""
    head = draft.head
    if head.status == "closing" and is_drained(head):
        head.status = "closed"
        head.ended_at = draft.now
        draft.event("session.closed", in_run=False)
