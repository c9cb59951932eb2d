"""Operations on runs and their logs."""

from __future__ import annotations

from typing import Any, Final

from perdure.api import runs
from perdure.errors import RunNotFound
from perdure.server import wire
from perdure.server.operations import IN_SESSION, Operation
from perdure.server.queries import LogsQuery, NumberedQuery
from perdure.server.replies import Reply, document
from perdure.server.request import Call


async def listing(call: Call) -> Reply:
    """List runs."""
    query: NumberedQuery = call.query
    rows = await call.service.runs(call.scope, call.id("session_id"), after=query.after, limit=query.limit + 1)
    page: dict[str, Any] = {"runs": [wire.run(row) for row in rows[: query.limit]]}
    if len(rows) > query.limit:
        page["next_after"] = rows[query.limit - 1].number
    return document(page)


async def logs(call: Call) -> Reply:
    """Return a piece of a run's log."""
    query: LogsQuery = call.query
    chunk = await call.service.run_log(
        call.scope, call.id("session_id"), call.id("run_id"), offset=query.offset, limit=query.limit
    )
    return document(wire.log(chunk))


OPERATIONS: Final = (
    Operation(
        id="list_runs",
        method="GET",
        path="/v1/sessions/{session_id}/runs",
        tag="runs",
        summary="List the session's periods of execution",
        handler=listing,
        query=NumberedQuery,
        answers={200: runs.RunPage},
        errors=IN_SESSION,
    ),
    Operation(
        id="read_run_log",
        method="GET",
        path="/v1/sessions/{session_id}/runs/{run_id}/logs",
        tag="runs",
        summary="Return a piece of what user code printed in a run",
        handler=logs,
        query=LogsQuery,
        answers={200: runs.LogPage},
        errors=(*IN_SESSION, RunNotFound),
    ),
)
