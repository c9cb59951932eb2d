"""The scale-out engine: PostgreSQL, shared by as many processes as wanted, each with group commit of its own.

Needs the extra `perdure[postgres]`.
"""

from __future__ import annotations

from perdure.store.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
