"""Waiting for a turn to end."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from perdure.records.sessions import Event, QueuedTurn, SessionHead, Turn, TurnStatus
from perdure.store.port import Committed

ENDS: Final[dict[str, TurnStatus]] = {
    "turn.completed": "completed",
    "turn.failed": "failed",
    "turn.interrupted": "interrupted",
    "turn.cancelled": "cancelled",
}


class _Outcome(msgspec.Struct):
    """What came of a turn, as its last event says it."""

    result: msgspec.Raw = msgspec.Raw()
    response: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()
    reason: str | None = None


_OUTCOME: Final = msgspec.json.Decoder(_Outcome)


class TurnWait:
    """One wait for a turn of a session. It hears news from its making on, so that no end falls between two looks."""

    __slots__ = ("_ended", "_future", "_head", "_number")

    def __init__(self) -> None:
        self._number: int | None = None
        self._ended: dict[int, Turn | None] = {}
        self._head: SessionHead | None = None
        self._future: asyncio.Future[Turn | None] = asyncio.get_running_loop().create_future()

    async def until(self, number: int) -> Turn | None:
        """Return once the turn of that number has ended: the turn if it ran here, None if it is to be read."""
        self._number = number
        self._look()
        return await self._future

    def hear(self, news: Committed, before: SessionHead | None, running: QueuedTurn | None) -> None:
        """Hear of a commit; `before` and `running` are what the engine knew until then."""
        for event in news.events:
            if event.turn is not None and event.type in ENDS and self._number in (None, event.turn):
                self._ended[event.turn] = _ended(event, before, running)
        if news.command is None:
            self._head = news.head
        self._look()

    def _look(self) -> None:
        number = self._number
        if number is not None and not self._future.done() and (number in self._ended or self._has_passed(number)):
            self._future.set_result(self._ended.get(number))

    def _has_passed(self, number: int) -> bool:
        """Whether a head that others have committed says that the turn neither waits nor runs."""
        head = self._head
        running = head.active.number if head is not None and head.active is not None else None
        return head is not None and number < head.first_queued and number != running


class TurnWaits:
    """The waits for turns, by session."""

    def __init__(self) -> None:
        # In the order of their coming, so that a run of the same steps wakes them in the same order.
        self._waiting: dict[str, dict[TurnWait, None]] = {}

    def add(self, session_id: str) -> TurnWait:
        """Begin to wait for a turn of a session."""
        wait = TurnWait()
        self._waiting.setdefault(session_id, {})[wait] = None
        return wait

    def remove(self, session_id: str, wait: TurnWait) -> None:
        """Forget a wait."""
        waits = self._waiting.get(session_id, {})
        waits.pop(wait, None)
        if not waits:
            self._waiting.pop(session_id, None)

    def committed(self, news: Committed, before: SessionHead | None, running: QueuedTurn | None) -> None:
        """Tell the waits of a session of a commit; `before` and `running` are what the engine knew until then."""
        for wait in list(self._waiting.get(news.head.id, ())):
            wait.hear(news, before, running)

    def waits_for(self, session_id: str) -> bool:
        """Whether anybody waits for a turn of a session."""
        return session_id in self._waiting

    def sessions(self) -> list[str]:
        """Return the sessions whose turns are waited for."""
        return list(self._waiting)


def _ended(event: Event, head: SessionHead | None, running: QueuedTurn | None) -> Turn | None:
    if head is None or head.active is None or running is None or event.turn != running.number:
        return None
    outcome = _OUTCOME.decode(event.data)
    return Turn(
        id=running.id,
        session_id=head.id,
        number=running.number,
        status=ENDS[event.type],
        input_json=running.input_json,
        created_at=running.created_at,
        result_json=_bytes(outcome.result),
        response_json=_bytes(outcome.response),
        error_json=_bytes(outcome.error),
        reason=outcome.reason,
        run_id=head.run.id if head.run else None,
        started_at=head.active.started_at,
        ended_at=event.at,
    )


def _bytes(raw: msgspec.Raw) -> bytes | None:
    return bytes(raw) or None
