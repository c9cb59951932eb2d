"""Which sessions an engine may drive: all of an embedded store, those that it has claimed of a shared one, or none."""

from __future__ import annotations

from abc import ABC, abstractmethod

from perdure.records.ids import new_id
from perdure.records.sessions import SessionHead
from perdure.store.port import Committed


class Ownership(ABC):
    """What a driver and its engine may rely on. `worker_id` is the name that runs are begun under."""

    worker_id: str

    async def start(self) -> None:
        """Begin to own."""
        return

    async def stop(self) -> None:
        """Give everything up, so that others may take over at once."""
        return

    def stop_claiming(self) -> None:
        """Take nothing more."""
        return

    @property
    @abstractmethod
    def works(self) -> bool:
        """Whether new work may be begun here now."""

    @property
    @abstractmethod
    def shares(self) -> bool:
        """Whether others commit to the same sessions."""

    @abstractmethod
    def wants(self, news: Committed, /) -> bool:
        """Whether a session that needs an owner, and has no driver here, is to be driven here."""

    async def may_drive(self, _: SessionHead, /) -> bool:
        """Whether a session that was claimed is still without an owner that is alive."""
        return True

    @abstractmethod
    def keeps(self, head: SessionHead, /) -> bool:
        """Whether a session whose fence has moved is still driven here."""

    @abstractmethod
    def serves_timer_of(self, head: SessionHead, /) -> bool:
        """Whether it is for this engine to do what time makes due in a session that it does not drive."""


class SoleOwner(Ownership):
    """Owns all sessions of a store that is this process's alone."""

    works = True
    shares = False

    def __init__(self) -> None:
        self.worker_id = new_id()

    def wants(self, _: Committed, /) -> bool:
        return True

    def keeps(self, _: SessionHead, /) -> bool:
        return True

    def serves_timer_of(self, _: SessionHead, /) -> bool:
        return True


class Onlooker(Ownership):
    """Owns nothing: accepts what comes from outside and shows what happens."""

    works = False
    shares = True

    def __init__(self) -> None:
        self.worker_id = new_id()

    def wants(self, _: Committed, /) -> bool:
        return False

    def keeps(self, _: SessionHead, /) -> bool:
        return False

    def serves_timer_of(self, _: SessionHead, /) -> bool:
        return False
