"""The feed of an environment, followed: pages of events, and the cursor from which it goes on."""

from __future__ import annotations

from collections.abc import Mapping

from perdure.api.events import PAGE, FeedPage
from perdure.client.call import Settings
from perdure.client.following import Following, OnLost, read
from perdure.client.sse import ServerSentEvent


class FeedFollowing(Following[FeedPage]):
    """Where the following of a feed is. `after` is a cursor, or `now`; None begins with the oldest."""

    def __init__(self, settings: Settings, after: str | None, on_lost: OnLost | None) -> None:
        super().__init__(settings, "/v1/events/watch", on_lost)
        self._asked = after
        self._cursor: str | None = None

    def _place(self) -> tuple[str | None, Mapping[str, str]]:
        return self._cursor, {} if self._cursor is not None or self._asked is None else {"after": self._asked}

    def _item(self, event: ServerSentEvent) -> FeedPage | None:
        if event.type != PAGE:
            return None
        page = read(FeedPage, event)
        is_news = page.events or self._cursor is None
        self._cursor = page.cursor
        self._progressed()
        return page if is_news else None
