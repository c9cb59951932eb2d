"""Those who are told of commits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from perdure.store.port import Committed, Listener


class Listeners:
    """Called one after the other on the loop; one that fails is reported to the loop and disturbs no other."""

    def __init__(self) -> None:
        self._all: list[Listener] = []

    def add(self, listener: Listener) -> Callable[[], None]:
        """Add a listener; returns what removes it."""
        self._all.append(listener)
        return lambda: self._all.remove(listener)

    def __bool__(self) -> bool:
        return bool(self._all)

    def tell(self, committed: Committed) -> None:
        """Tell all of a commit."""
        for listener in tuple(self._all):
            try:
                listener(committed)
            except Exception as error:
                told = {"message": f"a store listener failed: {listener!r}", "exception": error}
                asyncio.get_running_loop().call_exception_handler(told)
