"""`perdure deployment`: see deployments, and make one current again."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from cyclopts import App, Parameter

from perdure.cli import views
from perdure.cli.connect import connect
from perdure.cli.options import HERE, PLAIN, TABLE, Cursor, Limit, Output, Rows, Server
from perdure.cli.output import check_rows, note, show, show_rows

app = App(name="deployment", help="See deployments and make one current again.")

DeploymentId: TypeAlias = Annotated[str, Parameter(help="Id of the deployment.")]


@app.command(name="list")
def list_(*, cursor: Cursor = None, limit: Limit = None, server: Server = HERE, rows: Rows = TABLE) -> None:
    """List the environment's deployments, newest first."""
    check_rows(rows)
    with connect(server) as client:
        page = client.deployments.list(cursor=cursor, limit=limit).document()
    found = page["deployments"]
    show_rows(page, found, rows, views.DEPLOYMENT_COLUMNS, map(views.deployment_row, found))
    if "next_cursor" in page:
        note(f"There are more: --cursor {page['next_cursor']}")


@app.command
def get(deployment_id: DeploymentId, /, *, server: Server = HERE, output: Output = PLAIN) -> None:
    """Show a deployment."""
    with connect(server) as client:
        deployment = client.deployments.get(deployment_id).document()
    show(deployment, output, views.deployment_fields(deployment))


@app.command
def promote(deployment_id: DeploymentId, /, *, server: Server = HERE, output: Output = PLAIN) -> None:
    """Make a deployment current: new sessions begin on it."""
    with connect(server) as client:
        deployment = client.deployments.promote(deployment_id).document()
    show(deployment, output, views.deployment_fields(deployment))
