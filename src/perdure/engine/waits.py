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


class TurnWaits:
    """Futures of those who wait for turns, by session and turn number.

    A future's result is the ended turn when it ran in this engine, and None when it has to be read from the store.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, dict[int, list[asyncio.Future[Turn | None]]]] = {}

    def add(self, session_id: str, number: int) -> asyncio.Future[Turn | None]:
        """Return a future that is done once the turn's end is committed."""
        future: asyncio.Future[Turn | None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(session_id, {}).setdefault(number, []).append(future)
        return future

    def remove(self, session_id: str, number: int, future: asyncio.Future[Turn | None]) -> None:
        """Forget a future that nobody waits for any more."""
        turns = self._waiting.get(session_id, {})
        if future in turns.get(number, []):
            turns[number].remove(future)
            if not turns[number]:
                del turns[number]
        if not turns:
            self._waiting.pop(session_id, None)

    def committed(self, news: Committed, before: SessionHead | None, running: QueuedTurn | None) -> None:
        """Wake those whose turn has ended; `before` and `running` are what the engine knew until this commit."""
        turns = self._waiting.get(news.head.id)
        if not turns:
            return
        if news.command is None:
            self._hinted(turns, news.head)
        for event in news.events:
            if event.type in ENDS and event.turn in turns:
                ended = _ended(event, before, running)
                for future in turns.pop(event.turn):
                    if not future.done():
                        future.set_result(ended)
        if not turns:
            self._waiting.pop(news.head.id, None)

    def _hinted(self, turns: dict[int, list[asyncio.Future[Turn | None]]], head: SessionHead) -> None:
        """Wake those whose turn is neither waiting nor running by a head that others have committed."""
        running = head.active.number if head.active is not None else None
        for number in [number for number in turns if number < head.first_queued and number != running]:
            for future in turns.pop(number):
                if not future.done():
                    future.set_result(None)

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
