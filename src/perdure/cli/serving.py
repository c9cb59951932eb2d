"""`perdure serve` and `perdure worker`: servers and workers of an installation on many machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, TypeAlias

from cyclopts import Parameter

from perdure.cli.options import PLAIN, Output
from perdure.cli.stores import StoreAt, environment_id, place_of
from perdure.errors import BadRequest

Lease: TypeAlias = Annotated[
    str,
    Parameter(
        help="For how long a worker that is not heard of keeps its sessions: shorter takes over sooner, longer bears "
        "longer stalls."
    ),
]
Data: TypeAlias = Annotated[
    Path | None, Parameter(help="Data folder of this process: sources, run logs, Computers. Else .perdure.")
]
_LAST_PORT: Final = 65_535


def serve(
    *,
    store: StoreAt = None,
    host: Annotated[str, Parameter(help="Address to listen on; other than loopback needs API keys.")] = "127.0.0.1",
    port: Annotated[int, Parameter(help="Port to listen on; 0 takes any free one.")] = 7373,
    worker: Annotated[
        bool,
        Parameter(negative="--no-worker", show_default=False, help="Run sessions here too; --no-worker only serves."),
    ] = True,
    data: Data = None,
    lease: Lease = "15s",
    linger: Annotated[
        str, Parameter(help="For how long a server that stops refuses requests before it hangs up; 0 for not at all.")
    ] = "1s",
    output: Output = PLAIN,
) -> None:
    """Serve the API of a store. On PostgreSQL any number of servers may do so, behind a load balancer.

    Stops gracefully at SIGTERM: watches end, so that clients go on elsewhere, and sessions are handed over.
    """
    from perdure.server.serving import Serving, run_serve

    place = place_of(store, data)
    serving = Serving(
        host=host,
        port=port,
        works=worker,
        lease=_lease(lease),
        linger=0.0 if linger == "0" else _seconds(linger),
    )
    run_serve(place, serving, json=output.json)


def worker(
    *,
    store: StoreAt = None,
    project: Annotated[
        Path | None, Parameter(help="A project to deploy at the start, if it is not what is current already.")
    ] = None,
    env: Annotated[
        str | None,
        Parameter(name=("--env", "-e"), help="Where to deploy it: PROJECT/ENVIRONMENT. Else its own and development."),
    ] = None,
    health: Annotated[
        str | None, Parameter(help="HOST:PORT at which to answer /healthz and /readyz. Else nobody is answered.")
    ] = None,
    data: Data = None,
    lease: Lease = "15s",
    output: Output = PLAIN,
) -> None:
    """Own sessions of a PostgreSQL store and run their handlers, beside any number of other workers.

    Stops gracefully at SIGTERM: running turns of inline agents may finish, and sessions are handed over.
    """
    from perdure.server.serving import Working, run_worker

    place = place_of(store, data)
    if env is not None and project is None:
        raise BadRequest("--env says where --project is deployed, and there is none. Nothing was started.")
    working = Working(
        project=None if project is None else project.resolve(),
        scope=None if env is None else _scope(env),
        health=None if health is None else _address(health),
        lease=_lease(lease),
    )
    run_worker(place, working, json=output.json)


def _seconds(duration: str) -> float:
    from perdure.records.durations import parse_duration

    return parse_duration(duration) / 1_000_000


def _lease(duration: str) -> float:
    seconds = _seconds(duration)
    if not 1 <= seconds <= 3600:
        raise BadRequest(f"A lease lasts from 1s to 1h, not {duration}. Nothing was started.")
    return seconds


def _scope(text: str) -> tuple[str, str]:
    project, _, environment = environment_id(text).partition("/")
    return project, environment


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and int(port) <= _LAST_PORT):
        raise BadRequest(f"{text!r} is no HOST:PORT, such as 127.0.0.1:9090. Nothing was started.")
    return host.removeprefix("[").removesuffix("]"), int(port)
