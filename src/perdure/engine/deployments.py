"""Deployments as the engine uses them: which one a session's next run takes, and its code for inline agents."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from pathlib import Path
from typing import Final

from perdure.authoring.project import Project, load_project
from perdure.deploy.build import lay_out
from perdure.errors import (
    AgentNotFound,
    DeploymentNotFound,
    EnvironmentNotFound,
    NoCurrentDeployment,
    StoreError,
)
from perdure.hosts.protocol import RunSpec
from perdure.hosts.runtime import Handlers
from perdure.records.definitions import AgentDefinition
from perdure.records.sessions import SessionHead
from perdure.store.port import Deployment, Store

_LOADED: Final = 32
_FRESH: Final = 1.0


class Deployments:
    """Finds definitions and code.

    In an environment that *follows* its current deployment (`perdure dev`), a session's next run takes the current one;
    in any other it stays on the deployment that it began on.
    """

    def __init__(self, store: Store, data: Path, following: frozenset[str] = frozenset()) -> None:
        self._store = store
        self._data = data
        self._following = following
        self._current: dict[str, tuple[Deployment, float]] = {}
        self._places: dict[str, Path] = {}
        self._known: OrderedDict[str, Deployment] = OrderedDict()
        self._projects: OrderedDict[str, Project] = OrderedDict()
        self._loading: dict[str, asyncio.Task[Project]] = {}

    async def current(self, environment: str) -> Deployment:
        """Return an environment's current deployment; one that another process has promoted, within a second."""
        known = self._current.get(environment)
        if known is not None and (self._store.leases is None or _time() < known[1] + _FRESH):
            return known[0]
        found = await self._store.environment(environment)
        if found is None:
            raise EnvironmentNotFound(environment, "Deploy there first: perdure deploy DIR --project P --env E.")
        if found.current_deployment is None:
            raise NoCurrentDeployment(environment)
        deployment = await self.get(found.current_deployment)
        self._current[environment] = deployment, _time()
        return deployment

    async def get(self, deployment_id: str) -> Deployment:
        """Return a deployment."""
        known = self._known.get(deployment_id)
        if known is None:
            known = await self._store.deployment(deployment_id)
            if known is None:
                raise DeploymentNotFound(deployment_id)
            self._known[deployment_id] = known
            while len(self._known) > _LOADED:
                self._known.popitem(last=False)
        return known

    def known(self, deployment_id: str) -> Deployment | None:
        """Return a deployment if it is in memory already."""
        return self._known.get(deployment_id)

    async def promote(self, environment: str, deployment_id: str) -> Deployment:
        """Make a deployment current."""
        await self._store.promote(environment, deployment_id)
        deployment = await self.get(deployment_id)
        self._current[environment] = deployment, _time()
        return deployment

    async def resolve(self, head: SessionHead) -> tuple[Deployment, AgentDefinition]:
        """Return the deployment and definition that a session's next run takes."""
        if head.environment in self._following:
            deployment = await self.current(head.environment)
        else:
            deployment = await self.get(head.deployment)
        return deployment, agent_of(deployment, head.agent)

    def is_outdated(self, head: SessionHead) -> bool:
        """Whether the session follows a deployment that is newer than its run's."""
        if head.environment not in self._following:
            return False
        current = self._current.get(head.environment)
        return current is not None and current[0].id != head.deployment

    async def place(self, deployment: Deployment) -> Path:
        """Return where a deployment's source is on this machine; laid out from the store when it is not here yet."""
        known = self._places.get(deployment.id)
        if known is not None:
            return known
        ours = self._data / "deployments" / deployment.id
        for folder in (Path(deployment.source), ours):
            if await asyncio.to_thread(folder.is_dir):
                return self._places.setdefault(deployment.id, folder)
        archive = await self._store.archive(deployment.id)
        if archive is None:
            raise StoreError(
                f"The source of deployment {deployment.id} is neither in {deployment.source} on this machine nor in "
                "the store. Its sessions wait; deploy the same source again, which puts it into the store."
            )
        await lay_out(archive, ours)
        return self._places.setdefault(deployment.id, ours)

    def known_place(self, deployment: Deployment) -> Path:
        """Return where a deployment's source is, whose code is in memory."""
        return self._places.get(deployment.id, Path(deployment.source))

    async def handlers(self, spec: RunSpec) -> Handlers:
        """Return an inline agent's code; the first time, its project is imported in a thread."""
        found = self.loaded(spec.deployment_id, spec.agent.id)
        if found is not None:
            return found
        task = self._loading.get(spec.deployment_id)
        if task is None:
            task = asyncio.create_task(asyncio.to_thread(load_project, Path(spec.source)))
            self._loading[spec.deployment_id] = task
            task.add_done_callback(lambda _: self._loading.pop(spec.deployment_id, None))
        self._keep(spec.deployment_id, await asyncio.shield(task))
        found = self.loaded(spec.deployment_id, spec.agent.id)
        if found is None:
            raise AgentNotFound(spec.agent.id)
        return found

    def loaded(self, deployment_id: str, agent: str) -> Handlers | None:
        """Return an agent's code if its project is in memory already."""
        project = self._projects.get(deployment_id)
        if project is None or agent not in project.agents:
            return None
        self._projects.move_to_end(deployment_id)
        found = project.agents[agent]
        assert found.turn_handler is not None
        return Handlers(found.turn_handler, found.init_handler)

    def _keep(self, deployment_id: str, project: Project) -> None:
        self._projects[deployment_id] = project
        while len(self._projects) > _LOADED:
            self._projects.popitem(last=False)


def _time() -> float:
    return asyncio.get_running_loop().time()


def agent_of(deployment: Deployment, agent: str) -> AgentDefinition:
    """Return a deployment's definition of an agent; raises `AgentNotFound`."""
    for definition in deployment.agents:
        if definition.id == agent:
            return definition
    known = ", ".join(sorted(definition.id for definition in deployment.agents)) or "none"
    raise AgentNotFound(agent, f"The deployment has: {known}.")
