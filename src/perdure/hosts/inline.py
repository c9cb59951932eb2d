"""The inline host: runtimes in the worker's own event loop, thousands of sessions a process."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from perdure.errors import NotSupported
from perdure.hosts.logs import RunLog, run_log
from perdure.hosts.protocol import Directive, Driver, Guest, Host, Request, RunSpec
from perdure.hosts.runtime import Handlers, SessionRuntime

log = logging.getLogger("perdure.run")

Loader = Callable[[RunSpec], Awaitable[Handlers]]


class InlineLink:
    """Calls the driver directly."""

    __slots__ = ("_driver",)

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def call(self, request: Request) -> Any:
        """Return the driver's answer."""
        return await self._driver.handle(request)


class InlineGuest(Guest):
    """A runtime in this process."""

    __slots__ = ("_init", "runtime")

    def __init__(self, handlers: Handlers, spec: RunSpec, driver: Driver) -> None:
        context = contextvars.copy_context()
        context.run(run_log.set, RunLog(spec.log_path))
        self.runtime: Final = SessionRuntime(handlers, spec, InlineLink(driver), context, shared=True)
        self.runtime.broken = driver.lost
        self._init: asyncio.Task[None] | None = None
        self._context = context

    def begin_init(self) -> None:
        """Start `init` in the background; the driver hears how it went."""
        self._init = asyncio.get_running_loop().create_task(self.runtime.start(), context=self._context)
        self._init.add_done_callback(self._init_ended)

    def _init_ended(self, init: asyncio.Task[None]) -> None:
        if not init.cancelled() and (error := init.exception()) is not None:
            log.error("how an init ended could not be reported", exc_info=error)
            self.runtime.broken(f"how its init ended could not be reported: {error!r}")

    def tell(self, directive: Directive) -> None:
        self.runtime.tell(directive)

    async def stop(self, grace: float) -> None:
        """Cancel what runs. A handler that does not let go in time is left behind: its writes are fenced off."""
        if self._init is not None and not self._init.done():
            self._init.cancel()
            await asyncio.wait([self._init], timeout=grace)
        await self.runtime.close(grace)

    async def hibernate(self) -> str:
        raise NotSupported("An inline session has no Computer; it sleeps instead.")

    async def resume(self) -> str:
        raise NotSupported("An inline session has no Computer; it wakes by starting a run.")

    async def detach(self) -> None:
        await self.stop(0)


class InlineHost(Host):
    """Starts runtimes in this process; `load` gives an agent's handlers."""

    def __init__(self, load: Loader) -> None:
        self._load = load

    async def start(self, spec: RunSpec, driver: Driver) -> InlineGuest:
        guest = InlineGuest(await self._load(spec), spec, driver)
        guest.begin_init()
        return guest

    def start_ready(self, handlers: Handlers, spec: RunSpec, driver: Driver) -> InlineGuest:
        """Start the runtime of an agent without `init`, whose run is ready by the commit that began it."""
        guest = InlineGuest(handlers, spec, driver)
        guest.runtime.be_ready()
        return guest

    async def adopt(self, spec: RunSpec, driver: Driver, *, hibernated: bool) -> None:
        """Return None: nothing inline outlives its worker."""

    async def close(self) -> None:
        """Nothing is left to let go of: runtimes end with their drivers."""
