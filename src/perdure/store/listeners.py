"""Those who are told of commits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from perdure.store.port import Committed, Interest, Listener


class Listeners:
    """Called one after the other on the loop; one that fails is reported to the loop and disturbs no other."""

    def __init__(self) -> None:
        self._all: list[tuple[Listener, Interest | None]] = []

    def add(self, listener: Listener, interest: Interest | None = None) -> Callable[[], None]:
        """Add a listener; returns what removes it."""
        entry = listener, interest
        self._all.append(entry)
        return lambda: self._all.remove(entry)

    def __bool__(self) -> bool:
        return bool(self._all)

    def wants(self, session_id: str) -> bool:
        """Whether what others commit to a session matters to anybody."""
        return any(interest is None or interest(session_id) for _, interest in self._all)

    def tell(self, committed: Committed, *, ownerless: bool = False) -> None:
        """Tell all of a commit, or of a hint of one those to whom it matters: an `ownerless` session does to all."""
        hinted = committed.command is None and not ownerless
        for listener, interest in tuple(self._all):
            if hinted and interest is not None and not interest(committed.head.id):
                continue
            try:
                listener(committed)
            except Exception as error:
                told = {"message": f"a store listener failed: {listener!r}", "exception": error}
                asyncio.get_running_loop().call_exception_handler(told)
