"""Turns commits into counts and spans: told of each commit of this process by the store, as any listener is.

What other processes commit is theirs to count: hints, which carry no command, are passed over.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from perdure.records.ids import instant_of
from perdure.records.sessions import ActiveTurn, Event, QueuedTurn, SessionHead
from perdure.telemetry import metrics
from perdure.telemetry.traces import Span, tracer

_STEPS: Final = 10_000


class News(Protocol):
    """A commit, as stores tell it."""

    @property
    def head(self) -> SessionHead: ...

    @property
    def command(self) -> Any: ...

    @property
    def events(self) -> Sequence[Event]: ...

    @property
    def started(self) -> QueuedTurn | None: ...

    @property
    def ended(self) -> ActiveTurn | None: ...


Note: TypeAlias = Callable[[News, Event], None]


def observe(news: News) -> None:
    """Count what a commit has done."""
    for event in news.events:
        note = _NOTES.get(event.type)
        if note is not None:
            note(news, event)
    if not news.events and type(news.command).__name__ == "AdoptRun":
        metrics.RUNS_ADOPTED.add()


# --- turns


def _admitted(news: News, _: Event) -> None:
    metrics.TURNS_ADMITTED.add(news.head.agent)


def _running(news: News, event: Event) -> None:
    if news.started is not None:
        metrics.QUEUE_SECONDS.observe((event.at - news.started.created_at) / 1e6, news.head.agent)


def _turn_ended(news: News, event: Event) -> None:
    agent, outcome, turn = news.head.agent, event.type[5:], news.ended
    metrics.TURNS.add(agent, outcome)
    # A turn that never ran has no length.
    if turn is not None and turn.number == event.turn:
        metrics.TURN_SECONDS.observe((event.at - turn.started_at) / 1e6, agent, outcome)
        if (made := tracer()) is not None:
            made.turn(_span(news.head, turn, event, outcome), turn.id)


def _span(head: SessionHead, turn: ActiveTurn, event: Event, outcome: str) -> Span:
    accepted = min(instant_of(turn.id), turn.started_at)
    attributes: dict[str, str | int | float | bool] = {
        "perdure.session.id": head.id,
        "perdure.turn.id": turn.id,
        "perdure.turn.number": turn.number,
        "perdure.turn.outcome": outcome,
        "perdure.run.number": event.run or 0,
        "perdure.agent": head.agent,
        "perdure.environment": head.environment,
        "perdure.deployment": head.deployment,
        "perdure.worker": head.worker or "",
        "perdure.queue_seconds": (turn.started_at - accepted) / 1e6,
    }
    error = outcome if outcome in ("failed", "interrupted") else None
    return Span("turn", accepted, event.at, attributes, events=(("started", turn.started_at),), error=error)


# --- steps

_BEGUN: OrderedDict[tuple[str, int, str], int] = OrderedDict()
"""When the steps that are at work in this process began."""


class _Named(msgspec.Struct):
    name: str


_NAME: Final = msgspec.json.Decoder(_Named)


def _step_key(news: News, event: Event) -> tuple[str, int, str]:
    return news.head.id, event.turn or 0, _NAME.decode(event.data).name


def _step_begun(news: News, event: Event) -> None:
    _BEGUN[_step_key(news, event)] = event.at
    while len(_BEGUN) > _STEPS:
        _BEGUN.popitem(last=False)


def _step_ended(news: News, event: Event) -> None:
    agent, outcome = news.head.agent, event.type[5:]
    key = _step_key(news, event)
    metrics.STEPS.add(agent, outcome)
    begun = _BEGUN.pop(key, None)
    # One that was at work when its process was lost began elsewhere, and ended nobody knows when.
    if begun is None or outcome == "interrupted":
        return
    metrics.STEP_SECONDS.observe((event.at - begun) / 1e6, agent, outcome)
    active = news.head.active
    if (made := tracer()) is not None and active is not None:
        attributes = {"perdure.session.id": key[0], "perdure.turn.id": active.id, "perdure.step": key[2]}
        error = outcome if outcome == "failed" else None
        made.step(Span("step", begun, event.at, attributes, error=error), active.id)


# --- sessions and runs


def _created(news: News, _: Event) -> None:
    metrics.SESSIONS_CREATED.add(news.head.agent)


def _session_ended(_: News, event: Event) -> None:
    metrics.SESSIONS_ENDED.add(event.type[8:])


def _held(news: News, _: Event) -> None:
    metrics.HOLDS_PLACED.add(news.head.holds[-1].reason)


def _run_started(news: News, _: Event) -> None:
    recovery = news.head.run.recovery if news.head.run else "initial"
    metrics.RUNS_STARTED.add(news.head.host, recovery)


def _run_ended(news: News, event: Event) -> None:
    metrics.RUNS_ENDED.add(news.head.host, news.head.run_end or event.type[16:])


_NOTES: Final[dict[str, Note]] = {
    "turn.queued": _admitted,
    "turn.running": _running,
    "turn.completed": _turn_ended,
    "turn.failed": _turn_ended,
    "turn.interrupted": _turn_ended,
    "turn.cancelled": _turn_ended,
    "step.started": _step_begun,
    "step.completed": _step_ended,
    "step.failed": _step_ended,
    "step.interrupted": _step_ended,
    "session.created": _created,
    "session.closed": _session_ended,
    "session.cancelled": _session_ended,
    "session.held": _held,
    "session.process_started": _run_started,
    "session.process_stopped": _run_ended,
    "session.process_lost": _run_ended,
}
