"""A project that a process brings along: what it is called, and its source as a deployment."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from perdure.authoring.config import read_config
from perdure.deploy.archive import SourceArchive
from perdure.engine.service import Scope
from perdure.errors import PerdureError
from perdure.server.node import Node
from perdure.server.process import Say
from perdure.store.port import Deployment

PROJECT: Final = "demo"
ENVIRONMENT: Final = "development"


def project_name(path: Path) -> str:
    """Return what commands that are given no project mean in this folder."""
    return (read_config(path).project if path.is_dir() else None) or PROJECT


async def deploy_first(node: Node, scope: Scope, archive: SourceArchive, say: Say) -> None:
    """Deploy the source, if it is not what is current; one that does not import leaves the earlier deployment to go on.

    Raises the errors of a project that does not import when there is no earlier deployment.
    """
    try:
        deployment = await deploy_changed(node, scope, archive)
    except PerdureError as error:
        if await node.store.environment(scope.id) is None:
            raise
        say("broken", f"{error}\nGoing on with the code that worked before", error=error.message)
        return
    say_deployed(say, deployment)


async def deploy_changed(node: Node, scope: Scope, archive: SourceArchive) -> Deployment:
    """Deploy the source, and return what is current then.

    What is current already is not built again, so that a server is back at once.
    """
    return await _unchanged(node, scope, archive.digest) or await node.service.deploy(scope, archive.data)


def say_deployed(say: Say, deployment: Deployment) -> None:
    """Say what is current now."""
    say("deployed", f"Agents: {', '.join(agent.id for agent in deployment.agents)}", deployment_id=deployment.id)


async def _unchanged(node: Node, scope: Scope, digest: str) -> Deployment | None:
    """Return the current deployment if it was made of this very source and can still be had."""
    environment = await node.store.environment(scope.id)
    current = environment and environment.current_deployment
    deployment = await node.store.deployment(current) if current else None
    if deployment is None or deployment.digest != digest:
        return None
    if await asyncio.to_thread(Path(deployment.source).is_dir) or await node.store.archive(deployment.id) is not None:
        return deployment
    return None
