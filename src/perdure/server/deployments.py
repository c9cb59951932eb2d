"""Operations on agents and deployments."""

from __future__ import annotations

from typing import Any, Final

from perdure.api import deployments
from perdure.api.requests import ARCHIVE_BYTES
from perdure.errors import (
    AgentNotFound,
    ArchiveInvalid,
    DefinitionError,
    DeploymentNotFound,
    DiscoveryFailed,
    DuplicateDefinition,
    EnvironmentNotFound,
    InvalidCursor,
    InvalidId,
    NoAgentsFound,
    NoCurrentDeployment,
    ProjectError,
    ProjectImportError,
    SourceTooLarge,
)
from perdure.server import wire
from perdure.server.cursors import make_cursor, read_cursor
from perdure.server.operations import Archive, Operation
from perdure.server.queries import DeploymentsQuery, DeployQuery
from perdure.server.replies import Reply, document
from perdure.server.request import Call

_GZIP: Final = "application/gzip"
_PROJECT: Final = (
    ArchiveInvalid,
    ProjectError,
    ProjectImportError,
    NoAgentsFound,
    DuplicateDefinition,
    DiscoveryFailed,
    DefinitionError,
    SourceTooLarge,
)


async def agents(call: Call) -> Reply:
    """List agents."""
    found = await call.service.agents(call.scope)
    return document({"agents": [wire.agent(each) for each in sorted(found, key=lambda each: each.id)]})


async def agent(call: Call) -> Reply:
    """Return one agent."""
    return document(wire.agent(await call.service.agent(call.scope, call.params["agent"])))


async def deploy(call: Call) -> Reply:
    """Deploy a project's source."""
    query: DeployQuery = call.query
    archive = await call.body(ARCHIVE_BYTES, _GZIP)
    made = await call.service.deploy(call.scope, archive, promote=query.promote == "true")
    return document(wire.deployment(made), 201)


async def listing(call: Call) -> Reply:
    """List deployments."""
    query: DeploymentsQuery = call.query
    filters = {"of": f"deployments {query.project}/{query.environment}"}
    rows = await call.service.deployments(
        call.scope, before=read_cursor(query.cursor, **filters), limit=query.limit + 1
    )
    page: dict[str, Any] = {"deployments": [wire.deployment(row) for row in rows[: query.limit]]}
    if len(rows) > query.limit:
        page["next_cursor"] = make_cursor(rows[query.limit - 1].id, **filters)
    return document(page)


async def get(call: Call) -> Reply:
    """Return one deployment."""
    return document(wire.deployment(await call.service.deployment(call.scope, call.id("deployment_id"))))


async def promote(call: Call) -> Reply:
    """Make a deployment current."""
    return document(wire.deployment(await call.service.promote(call.scope, call.id("deployment_id"))))


OPERATIONS: Final = (
    Operation(
        id="list_agents",
        method="GET",
        path="/v1/agents",
        tag="agents",
        summary="List the agents of the current deployment",
        handler=agents,
        answers={200: deployments.AgentList},
        errors=(
            EnvironmentNotFound,
            NoCurrentDeployment,
        ),
    ),
    Operation(
        id="get_agent",
        method="GET",
        path="/v1/agents/{agent}",
        tag="agents",
        summary="Return an agent of the current deployment",
        handler=agent,
        answers={200: deployments.Agent},
        errors=(AgentNotFound, EnvironmentNotFound, NoCurrentDeployment),
    ),
    Operation(
        id="deploy",
        method="POST",
        path="/v1/deployments",
        tag="deployments",
        summary="Deploy a project; the same source again returns the deployment that there is",
        handler=deploy,
        query=DeployQuery,
        body=Archive(_GZIP, ARCHIVE_BYTES, "A gzipped tar of the project's folder"),
        answers={201: deployments.Deployment},
        errors=_PROJECT,
    ),
    Operation(
        id="list_deployments",
        method="GET",
        path="/v1/deployments",
        tag="deployments",
        summary="List deployments, newest first",
        handler=listing,
        query=DeploymentsQuery,
        answers={200: deployments.DeploymentPage},
        errors=(InvalidCursor,),
    ),
    Operation(
        id="get_deployment",
        method="GET",
        path="/v1/deployments/{deployment_id}",
        tag="deployments",
        summary="Return a deployment",
        handler=get,
        answers={200: deployments.Deployment},
        errors=(InvalidId, DeploymentNotFound),
    ),
    Operation(
        id="promote",
        method="POST",
        path="/v1/deployments/{deployment_id}/promote",
        tag="deployments",
        summary="Make a deployment the environment's current one",
        handler=promote,
        answers={200: deployments.Deployment},
        errors=(InvalidId, DeploymentNotFound),
    ),
)
