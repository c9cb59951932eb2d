"""Environments, deployments and their sources.

What writes may be done twice, when a connection is lost in between: the second time finds what the first has left.
"""

from __future__ import annotations

import msgspec

from perdure.errors import DeploymentNotFound
from perdure.store import records
from perdure.store.codec import is_canonical
from perdure.store.port import Deployment, Environment
from perdure.store.postgres.database import Connection, Statement, all_rows, one_row, trip
from perdure.store.postgres.reads import before_id
from perdure.store.postgres.statements import sql


async def environment(connection: Connection, environment_id: str) -> Environment | None:
    """Return one environment."""
    row = await one_row(connection, sql("environment"), environment_id)
    return None if row is None else Environment(*row)


async def environments(connection: Connection) -> list[Environment]:
    """Return all environments."""
    return [Environment(*row) for row in await all_rows(connection, sql("environments"))]


async def deployment(connection: Connection, deployment_id: str) -> Deployment | None:
    """Return one deployment."""
    known = is_canonical(deployment_id)
    row = await one_row(connection, sql("deployment"), deployment_id) if known else None
    return None if row is None else records.to_deployment(*row)


async def deployments(connection: Connection, environment_id: str, before: str | None, limit: int) -> list[Deployment]:
    """Return an environment's deployments, newest first."""
    rows = await all_rows(connection, sql("deployments"), environment_id, before_id(before), limit)
    return [records.to_deployment(*row) for row in rows]


async def put(connection: Connection, made: Deployment, source: bytes | None) -> Deployment:
    """Store a deployment, its environment and its source; returns the first one of its digest."""
    where = (made.environment, made.digest)
    values = (made.id, *where, made.created_at, made.source, made.live, msgspec.json.encode(made.agents))
    kept: list[Statement] = [] if source is None else [(sql("insert_archive"), (made.digest, source))]
    *_, rows = await trip(
        connection,
        [
            *kept,
            (sql("insert_environment"), (made.environment, made.created_at)),
            (sql("insert_deployment"), values),
            (sql("deployment_by_digest"), where),
        ],
    )
    return records.to_deployment(*rows[0])


async def archive(connection: Connection, deployment_id: str) -> bytes | None:
    """Return the source of a deployment."""
    row = await one_row(connection, sql("archive"), deployment_id) if is_canonical(deployment_id) else None
    return None if row is None else row[0]


async def promote(connection: Connection, environment_id: str, deployment_id: str) -> Environment:
    """Make a deployment current."""
    known = is_canonical(deployment_id)
    row = await one_row(connection, sql("promote"), environment_id, deployment_id) if known else None
    if row is None:
        raise DeploymentNotFound(deployment_id)
    return Environment(*row)
