"""Leases: which workers are alive, where several share a store; and who takes over from those that are not.

A worker has one lease, under a name that it never uses again, and renews it well before it runs out. All times are the
store's, so clocks of machines may differ by anything. A lease is only a way of knowing when to take over: what protects
a session is its fence, which every claim bumps and every write of a worker carries.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import msgspec


class LeaseView(msgspec.Struct, frozen=True):
    """A worker that is alive: where it can be reached, its machine, and for how many microseconds its lease lasts."""

    worker: str
    address: str | None
    machine: str | None
    expires_in: int


class Leases(ABC):
    """Workers and what they have claimed. Raises `StoreError` when the store cannot be reached."""

    @abstractmethod
    async def renew(self, worker: str, duration: int, address: str | None = None, machine: str | None = None) -> bool:
        """Begin or renew a worker's lease for `duration` microseconds.

        `address` is where it can be reached, `machine` whose Computers it can use.

        Returns False when the lease has run out or was given back: the worker must stop what it runs, and may begin
        again under another name.
        """

    @abstractmethod
    async def release(self, worker: str) -> None:
        """Give a lease back, so that others may take over at once."""

    @abstractmethod
    async def claim(self, worker: str, machine: str | None, limit: int) -> list[str]:
        """Return sessions that need an owner and have none that is alive, at most `limit`; nobody else is given them.

        Sessions whose Computer is on a machine go to workers of that machine only; the others to any.

        They are the worker's to start, adopt or settle by commands, while its lease lasts; without one it gets none.
        When the connection was lost meanwhile, all that the worker has claimed is returned, what it knows of included.
        """

    @abstractmethod
    async def claimed(self, worker: str) -> list[str]:
        """Return the sessions that need an owner and are a worker's, by a claim or by its run."""

    @abstractmethod
    async def owner_address(self, session_id: str) -> str | None:
        """Return where the worker of a session can be reached, if it has one that is alive and said so."""

    @abstractmethod
    async def now(self) -> int:
        """Return the time by which leases run out, and by which rules go."""

    @abstractmethod
    async def alive(self) -> list[LeaseView]:
        """Return the workers that are alive, in order of name."""
