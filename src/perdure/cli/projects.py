"""`perdure init`, `perdure dev` and `perdure deploy`: from a folder of agents to something that runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from perdure.cli import views
from perdure.cli.connect import connect
from perdure.cli.options import HERE, PLAIN, Flag, IdempotencyKey, Output, Server
from perdure.cli.output import note, print_fields, show


def init(
    directory: Annotated[Path, Parameter(help="The folder; made if there is none.")],
    /,
    *,
    force: Annotated[Flag, Parameter(help="Overwrite files that are there.")] = False,
    output: Output = PLAIN,
) -> None:
    """Begin a project: write a first agent into a folder."""
    from perdure.authoring.scaffold import init_project

    files = [str(path) for path in init_project(directory, force=force)]
    if output.json:
        show({"directory": str(directory), "files": files}, output)
    else:
        print_fields(("created", file) for file in files)
        note(f"Run it with: perdure dev {directory}")


def dev(
    project: Annotated[Path, Parameter(help="The project's folder, or one Python file.")] = Path(),
    /,
    *,
    host: Annotated[str, Parameter(help="Address to listen on; other than loopback needs API keys.")] = "127.0.0.1",
    port: Annotated[int, Parameter(help="Port to listen on; 0 takes any free one.")] = 7373,
    data: Annotated[Path | None, Parameter(help="Data folder. Else .perdure in the project.")] = None,
    reload: Annotated[
        bool, Parameter(negative="--no-reload", show_default=False, help="Take up changes of code as they are saved.")
    ] = True,
    output: Output = PLAIN,
) -> None:
    """Run a project on this machine: server and worker in one process, everything embedded."""
    from perdure.server.dev import run_dev

    run_dev(project, host=host, port=port, data=data, reload=reload, json=output.json)


def deploy(
    path: Annotated[Path, Parameter(help="The project's folder, one Python file, or a .tar.gz of it.")] = Path(),
    /,
    *,
    promote: Annotated[
        bool,
        Parameter(negative="--no-promote", show_default=False, help="Make it the environment's current deployment."),
    ] = True,
    idempotency_key: IdempotencyKey = None,
    server: Server = HERE,
    output: Output = PLAIN,
) -> None:
    """Build a project and make it an environment's current deployment. If it does not import, nothing changes."""
    with connect(server, path) as client:
        deployment = client.deploy(path, promote=promote, idempotency_key=idempotency_key).document()
    show(deployment, output, views.deployment_fields(deployment))
