"""Waiting for a turn to end."""

from __future__ import annotations

import asyncio
from typing import Final

from perdure.store.port import Committed

_ENDS: Final = frozenset({"turn.completed", "turn.failed", "turn.interrupted", "turn.cancelled"})


class TurnWaits:
    """Futures of those who wait for turns, by session and turn number."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[int, list[asyncio.Future[None]]]] = {}

    def add(self, session_id: str, number: int) -> asyncio.Future[None]:
        """Return a future that is done once the turn's end is committed."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(session_id, {}).setdefault(number, []).append(future)
        return future

    def remove(self, session_id: str, number: int, future: asyncio.Future[None]) -> None:
        """Forget a future that nobody waits for any more."""
        turns = self._waiting.get(session_id, {})
        if future in turns.get(number, []):
            turns[number].remove(future)
            if not turns[number]:
                del turns[number]
        if not turns:
            self._waiting.pop(session_id, None)

    def committed(self, news: Committed) -> None:
        """Wake those whose turn has ended."""
        turns = self._waiting.get(news.head.id)
        if not turns:
            return
        for event in news.events:
            if event.type in _ENDS and event.turn in turns:
                for future in turns.pop(event.turn):
                    if not future.done():
                        future.set_result(None)
        if not turns:
            self._waiting.pop(news.head.id, None)
