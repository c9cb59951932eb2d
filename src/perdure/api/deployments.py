"""Agents, deployments and the server itself."""

from __future__ import annotations

from typing import Any

from perdure.api.base import Duration, Id, Instant, Omitted, Wire
from perdure.records.sessions import HostKind


class Template(Wire):
    """The recipe of an agent's Computers. Sizes are bytes."""

    id: str
    image: str
    base: str
    cpu: float
    memory: int
    disk: Omitted[int] = None


class Agent(Wire):
    """An agent of the environment's current deployment, and where it is defined."""

    id: str
    host: HostKind
    module: str
    file: str
    line: int
    has_init: bool
    template: Template | None
    close_after_idle: Omitted[Duration] = None
    hibernate_after_idle: Omitted[Duration] = None
    max_turn_duration: Omitted[Duration] = None


class AgentList(Wire):
    """All agents of the environment's current deployment, by id."""

    agents: list[Agent]


class Deployment(Wire):
    """One immutable build of a project in an environment. `live` marks those that `perdure dev` made of its folder."""

    id: Id
    project: str
    environment: str
    digest: str
    live: bool
    agents: list[str]
    created_at: Instant


class DeploymentPage(Wire):
    """Deployments, newest first. No `next_cursor` means that there are no more."""

    deployments: list[Deployment]
    next_cursor: Omitted[str] = None


class ServerInfo(Wire):
    """Which server answers. `instance_id` changes with each start."""

    version: str
    instance_id: Id
    mode: str


class Health(Wire):
    """The server is there (`/healthz`) or accepts work (`/readyz`)."""

    status: str


class ApiDescription(Wire):
    """The OpenAPI 3.1 document of this API."""

    openapi: str
    info: dict[str, Any]
    paths: dict[str, Any]
    components: dict[str, Any]
