"""How long requests learn that the server stops."""

from __future__ import annotations

import asyncio


class Stopping:
    """A flag that is raised once, and that any number of requests can wait for at no cost of a task."""

    def __init__(self) -> None:
        self._begun = False
        self._future: asyncio.Future[None] | None = None

    @property
    def begun(self) -> bool:
        """Whether the server is stopping."""
        return self._begun

    def begin(self) -> None:
        """End watches and waits; called on the loop."""
        self._begun = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def future(self) -> asyncio.Future[None]:
        """Return what is done once the server stops; shared, so it must not be cancelled."""
        if self._future is None:
            self._future = asyncio.get_running_loop().create_future()
            if self._begun:
                self._future.set_result(None)
        return self._future
