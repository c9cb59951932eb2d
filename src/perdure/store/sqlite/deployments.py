"""Environments, deployments and their sources."""

from __future__ import annotations

import msgspec

from perdure.errors import DeploymentNotFound
from perdure.store import records
from perdure.store.port import Deployment, Environment
from perdure.store.sqlite.codec import ABOVE_ALL_IDS, pack_id, unpack_id, unpack_known
from perdure.store.sqlite.database import Database, Row, one
from perdure.store.sqlite.statements import sql


def _to_environment(row: Row) -> Environment:
    return Environment(row[0], unpack_known(row[1]), row[2])


def environment(database: Database, environment_id: str) -> Environment | None:
    """Return one environment."""
    row = one(database, sql("environment"), (environment_id,))
    return None if row is None else _to_environment(row)


def environments(database: Database) -> list[Environment]:
    """Return all environments."""
    return [_to_environment(row) for row in database.execute(sql("environments"))]


def _to_deployment(row: Row) -> Deployment:
    return records.to_deployment(unpack_id(row[0]), *row[1:])


def deployment(database: Database, deployment_id: str) -> Deployment | None:
    """Return one deployment."""
    row = one(database, sql("deployment"), (pack_id(deployment_id),))
    return None if row is None else _to_deployment(row)


def deployments(database: Database, environment_id: str, before: str | None, limit: int) -> list[Deployment]:
    """Return an environment's deployments, newest first."""
    below = ABOVE_ALL_IDS if before is None else pack_id(before)
    return [_to_deployment(row) for row in database.execute(sql("deployments"), (environment_id, below, limit))]


def put(database: Database, made: Deployment, source: bytes | None) -> Deployment:
    """Store a deployment, its environment and its source; returns the first one of its digest."""
    if source is not None:
        database.execute(sql("insert_archive"), (made.digest, source))
    where = (made.environment, made.digest)
    row = one(database, sql("deployment_by_digest"), where)
    if row is not None:
        return _to_deployment(row)
    database.execute(sql("insert_environment"), (made.environment, made.created_at))
    values = (*where, made.created_at, made.source, made.live, msgspec.json.encode(made.agents))
    database.execute(sql("insert_deployment"), (pack_id(made.id), *values))
    return made


def archive(database: Database, deployment_id: str) -> bytes | None:
    """Return the source of a deployment."""
    row = one(database, sql("archive"), (pack_id(deployment_id),))
    return None if row is None else row[0]


def promote(database: Database, environment_id: str, deployment_id: str) -> Environment:
    """Make a deployment current."""
    found = deployment(database, deployment_id)
    if found is None or found.environment != environment_id:
        raise DeploymentNotFound(deployment_id)
    database.execute(sql("promote"), (environment_id, pack_id(deployment_id)))
    promoted = environment(database, environment_id)
    assert promoted is not None
    return promoted
