"""The process host: starts, finds and lets go of sessions' processes in Computers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from pathlib import Path
from typing import Final

from perdure.computers.base import ComputerSpec, Placement
from perdure.computers.identity import ProcessIdentity
from perdure.computers.limits import Limits
from perdure.computers.local import LocalBackend, LocalComputer
from perdure.computers.meta import read_meta
from perdure.crashpoints import areach
from perdure.errors import ProcessStartFailed
from perdure.hosts.process.exitnotes import ExitNote, read_exit
from perdure.hosts.process.forkclient import ForkServerGone, ForkServers, ServerRecipe
from perdure.hosts.process.guest import Launch
from perdure.hosts.process.remote import RemoteGuest
from perdure.hosts.protocol import Driver, Host, RunSpec
from perdure.records.definitions import AgentDefinition, TemplateDefinition
from perdure.telemetry import notes

log = logging.getLogger("perdure.hosts")

PATIENCE: Final = 900.0
CONNECT_TIMEOUT: Final = 30.0
ADOPT_TIMEOUT: Final = 10.0
NOTE_TIMEOUT: Final = 1.0
RESTARTS: Final = 2
"""How often a start is begun anew for a fork server that is gone: one that died unnoticed, then one whose socket a
process that it had just forked still held open."""


class ProcessHost(Host):
    """Runtimes in processes of their own. They outlive this host, its worker and the fork servers they came from."""

    def __init__(self, computers: Path, servers: Path, *, patience: float = PATIENCE) -> None:
        """Take the folders for Computers and for fork servers, and the seconds a process bears without a worker."""
        self.computers: Final = LocalBackend(computers)
        self._patience = patience
        self._servers = ForkServers(servers, self._note)
        self._guests: set[RemoteGuest] = set()
        self._notes: dict[str, asyncio.Future[ExitNote]] = {}

    async def start(self, spec: RunSpec, driver: Driver) -> RemoteGuest:
        """See `Host.start`. Raises `ProcessStartFailed`, or the project's error when it does not import."""
        computer = await self._computer(spec)
        if read_meta(computer.run) is not None:
            # Whatever an earlier Run has left: two Runs of one session must never be at work side by side.
            await computer.stop(grace=0)
        guest = self._guest(spec, driver, computer)
        began = time.perf_counter()
        try:
            guest.listen()
            await areach("host.launch.before")
            process = await self._launch(spec, computer)
            await areach("host.launch.after")
            guest.watch(process)
            if not await guest.until_connected(CONNECT_TIMEOUT) or not guest.enter_service():
                raise ProcessStartFailed(
                    f"The process of session {spec.session_id} was started and did not report: "
                    f"{await self._how_ended(spec, computer)}. Its log is {spec.log_path}; the input stays queued."
                )
        except asyncio.CancelledError:
            # The worker is going: what has been started is its successor's to adopt.
            await guest.detach()
            raise
        except BaseException:
            notes.process_failed()
            await guest.stop(grace=0)
            raise
        notes.process_started(began)
        return guest

    async def _launch(self, spec: RunSpec, computer: LocalComputer) -> ProcessIdentity:
        async def launch(placement: Placement) -> ProcessIdentity:
            return await self._servers.spawn(_recipe(spec), _launch_of(spec, placement, self._patience))

        for _ in range(RESTARTS):
            with contextlib.suppress(ForkServerGone):
                return await computer.start(launch)
            # It may have forked before it died; that child has not run user code, and must not come back.
            await computer.stop(grace=0)
        return await computer.start(launch)

    async def adopt(self, spec: RunSpec, driver: Driver, *, hibernated: bool) -> RemoteGuest | None:
        """See `Host.adopt`. A process that is busy and does not dial in ten seconds is adopted all the same."""
        await areach("host.adopt.before")
        computer = await self._computer(spec)
        meta = read_meta(computer.run)
        process = computer.guest
        if meta is None or process is None or meta.run_id != spec.run_id:
            await computer.stop(grace=0)
            return None
        await self._servers.find(_recipe(spec))
        guest = self._guest(spec, driver, computer)
        try:
            guest.watch(process)
            if not hibernated:
                await self._take_over(guest, computer)
            elif computer.residency == "running":
                await guest.hibernate()
            await areach("host.adopt.after")
        except BaseException:
            # Two that watch over one process would both clear up after it, the later one after its successor.
            await guest.detach()
            raise
        return guest if guest.enter_service() else None

    async def _take_over(self, guest: RemoteGuest, computer: LocalComputer) -> None:
        guest.listen()
        if computer.residency == "hibernated":
            await computer.resume()
        guest.nudge()
        if not await guest.until_connected(ADOPT_TIMEOUT):
            log.warning("the process of session %s lives but is too busy to answer now", guest.spec.session_id)

    async def end(self, spec: RunSpec, grace: float) -> None:
        """Make sure that nothing of a session's Computer runs, for a Run that nobody is to adopt any more."""
        await (await self._computer(spec)).stop(grace)

    async def warm(self, agent: AgentDefinition, deployment_id: str, source: str) -> None:
        """Have a deployment's project imported ahead of its first session. Raises `ProcessStartFailed`."""
        await self._servers.warm(_recipe_of(agent, deployment_id, source))

    async def how_ended(self, spec: RunSpec) -> str:
        """Return what is known of how a Run's process ended, in words."""
        return await self._how_ended(spec, await self._computer(spec))

    async def close(self) -> None:
        """See `Host.close`."""
        for guest in list(self._guests):
            await guest.detach()
        await self._servers.close()

    # --- pieces

    async def _computer(self, spec: RunSpec) -> LocalComputer:
        assert spec.computer_id is not None
        template = _template(spec.agent)
        limits = Limits(cpu=template.cpu, memory=template.memory)
        return await self.computers.open(spec.computer_id, ComputerSpec(limits, _environment(template)))

    def _guest(self, spec: RunSpec, driver: Driver, computer: LocalComputer) -> RemoteGuest:
        guest = RemoteGuest(spec, driver, computer, lambda: self._how_ended(spec, computer), self._let_go)
        self._guests.add(guest)
        self._notes.setdefault(spec.run_id, asyncio.get_running_loop().create_future())
        return guest

    def _let_go(self, guest: RemoteGuest) -> None:
        self._guests.discard(guest)
        self._notes.pop(guest.spec.run_id, None)

    # --- how processes ended

    def _note(self, note: ExitNote) -> None:
        future = self._notes.get(note.run_id)
        if future is not None and not future.done():
            future.set_result(note)

    async def _how_ended(self, spec: RunSpec, computer: LocalComputer) -> str:
        """Return how a process ended; its exit code is known only through its fork server."""
        note = None
        if computer.guest is not None:
            return "it is still running"
        if self._servers.knows(_recipe(spec)):
            future = self._notes.setdefault(spec.run_id, asyncio.get_running_loop().create_future())
            await asyncio.wait([future], timeout=NOTE_TIMEOUT)
            note = future.result() if future.done() else None
        note = note or read_exit(computer.run, spec.run_id)
        return note.in_words() if note else "its process is gone; how it ended is not known"


def _template(agent: AgentDefinition) -> TemplateDefinition:
    if agent.template is None:
        raise ProcessStartFailed(f"Agent {agent.id!r} has no template, so it has no process. Nothing was started.")
    return agent.template


def _environment(template: TemplateDefinition) -> dict[str, str]:
    passed = {name: os.environ[name] for name in template.pass_env if name in os.environ}
    return {**passed, **template.env}


def _launch_of(spec: RunSpec, placement: Placement, patience: float) -> Launch:
    return Launch(
        spec=spec,
        computer_id=placement.computer_id,
        workspace=str(placement.workspace),
        run=str(placement.run),
        rlimits=dict(placement.rlimits),
        cores=sorted(placement.cores) if placement.cores else None,
        environment=dict(placement.environment),
        patience=patience,
    )


def _recipe(spec: RunSpec) -> ServerRecipe:
    return _recipe_of(spec.agent, spec.deployment_id, spec.source)


def _recipe_of(agent: AgentDefinition, deployment_id: str, source: str) -> ServerRecipe:
    template = _template(agent)
    return ServerRecipe(deployment_id, source, template.id, _environment(template))
