"""What should happen next in a session, read off its head: by the engine after each commit, by timers in time."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from perdure.records.sessions import SessionHead

Action: TypeAlias = Literal["start_run", "start_turn", "resume_computer", "hibernate", "stop_run", "wait"]
WAIT: Final[Action] = "wait"


def is_runnable(head: SessionHead) -> bool:
    """Whether a queued turn may run: none is active or winding down, and no hold stops it."""
    return head.queued > 0 and head.active is None and head.winding is None and not head.holds and not head.is_terminal


def is_resumable(head: SessionHead) -> bool:
    """Whether the active turn's process is gone, and another may go on with it."""
    lost = head.resumes and head.active is not None and head.run is None
    return lost and not head.holds and not head.is_terminal


def is_at_rest(head: SessionHead) -> bool:
    """Whether a run has nothing in its hands; turns may wait for it."""
    return head.active is None and head.winding is None


def is_idle(head: SessionHead) -> bool:
    """Whether a run has nothing to do and nothing in its hands."""
    return is_at_rest(head) and not is_runnable(head)


def next_action(head: SessionHead, now: int) -> Action:
    """Return what a session's owner should do now."""
    run = head.run
    if run is not None and run.phase == "stopping":
        return "stop_run"
    if run is not None and (head.is_terminal or _overstays(head, now)):
        return "stop_run"
    if is_resumable(head):
        return "start_run"
    if is_runnable(head):
        return _towards_turn(head)
    if head.computer is not None and head.computer.residency == "hibernating":
        return "hibernate"
    return WAIT


def _overstays(head: SessionHead, now: int) -> bool:
    return head.winding is not None and now >= head.winding.until


def _towards_turn(head: SessionHead) -> Action:
    run = head.run
    if run is None:
        return "start_run"
    if head.computer is not None and head.computer.residency in ("hibernated", "hibernating"):
        return "resume_computer"
    if run.phase == "ready" and (head.computer is None or head.computer.residency == "running"):
        return "start_turn"
    return WAIT


def is_drained(head: SessionHead) -> bool:
    """Whether a closing session has finished all that it accepted."""
    return head.queued == 0 and head.active is None and head.winding is None and not head.holds


def hibernate_at(head: SessionHead) -> int | None:
    """When an idle session's Computer is to be hibernated, if ever."""
    after = head.limits.hibernate_after_idle
    resident = head.computer is not None and head.computer.residency == "running"
    ready = head.run is not None and head.run.phase == "ready"
    if after is None or head.idle_since is None or head.is_terminal or not (is_idle(head) and resident and ready):
        return None
    return head.idle_since + after


def close_at(head: SessionHead) -> int | None:
    """When an idle session is to be closed, if ever."""
    after = head.limits.close_after_idle
    if after is None or head.idle_since is None or head.status != "open" or head.active or head.queued:
        return None
    return head.idle_since + after


def wake_at(head: SessionHead) -> int | None:
    """The next instant at which time alone changes the session: what its one timer waits for."""
    stopping = head.run is not None and head.run.phase == "stopping"
    times = (
        head.active.deadline_at if head.active else None,
        head.winding.until if head.winding and not stopping else None,
        hibernate_at(head),
        close_at(head),
    )
    known = [at for at in times if at is not None]
    return min(known) if known else None


def needs_owner(head: SessionHead) -> bool:
    """Whether a worker that starts up has to look at the session: something runs, or something may.

    An inline session that was idle is not among them: what its worker had of it is gone, and the next input finds out.
    One that has ended is: its run must end too, or whoever watches it never hears the end.
    """
    has_run_to_look_at = head.run is not None and (head.host == "process" or head.is_terminal)
    at_work = head.run is not None and head.active is not None
    return at_work or head.winding is not None or has_run_to_look_at or is_runnable(head) or is_resumable(head)
