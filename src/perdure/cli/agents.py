"""`perdure agent`: which agents the current deployment has."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from perdure.cli import views
from perdure.cli.connect import connect
from perdure.cli.options import HERE, PLAIN, TABLE, Output, Rows, Server
from perdure.cli.output import check_rows, show, show_rows

app = App(name="agent", help="See which agents the current deployment has.")


@app.command(name="list")
def list_(*, server: Server = HERE, rows: Rows = TABLE) -> None:
    """List the agents."""
    check_rows(rows)
    with connect(server) as client:
        agents = [agent.document() for agent in client.agents.list()]
    show_rows({"agents": agents}, agents, rows, views.AGENT_COLUMNS, map(views.agent_row, agents))


@app.command
def get(
    agent: Annotated[str, Parameter(help="Name of the agent.")],
    /,
    *,
    server: Server = HERE,
    output: Output = PLAIN,
) -> None:
    """Show an agent: where it is defined, its Computer's template, its times."""
    with connect(server) as client:
        show(client.agents.get(agent).document(), output)
