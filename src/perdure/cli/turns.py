"""`perdure session turn`: see turns, wait for them, speak to running ones."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from cyclopts import App, Parameter

from perdure.cli import views
from perdure.cli.connect import connect
from perdure.cli.inputs import read_needed_input
from perdure.cli.options import (
    HERE,
    NO_INPUT,
    PLAIN,
    TABLE,
    After,
    IdempotencyKey,
    InputOptions,
    InSession,
    Limit,
    Output,
    Rows,
    Server,
)
from perdure.cli.output import check_rows, note, show, show_rows

app = App(name="turn", help="See turns, wait for them, speak to running ones.")

TurnId: TypeAlias = Annotated[str, Parameter(help="Id of the turn.")]


@app.command
def get(turn_id: TurnId, /, *, session: InSession, server: Server = HERE, output: Output = PLAIN) -> None:
    """Show a turn: its input and what became of it."""
    with connect(server) as client:
        turn = client.session(session).turn(turn_id).get().document()
    show(turn, output, views.turn_fields(turn))


@app.command(name="list")
def list_(
    session_id: Annotated[str, Parameter(help="Id of the session.")],
    /,
    *,
    after: After = 0,
    limit: Limit = None,
    server: Server = HERE,
    rows: Rows = TABLE,
) -> None:
    """List a session's turns in order."""
    check_rows(rows)
    with connect(server) as client:
        page = client.session(session_id).turns(after=after, limit=limit).document()
    turns = page["turns"]
    show_rows(page, turns, rows, views.TURN_COLUMNS, map(views.turn_row, turns))
    if "next_after" in page:
        note(f"There are more: --after {page['next_after']}")


@app.command
def wait(
    turn_id: TurnId,
    /,
    *,
    session: InSession,
    timeout: Annotated[
        str | None, Parameter(help="How long: 90s, 10m, 1h. Else until the turn has ended. Cancels nothing.")
    ] = None,
    server: Server = HERE,
    output: Output = PLAIN,
) -> None:
    """Wait until a turn has ended, and show it. Status `timeout` if the time was up before."""
    with connect(server) as client:
        result = client.session(session).turn(turn_id).wait(timeout).document()
    show(result, output, views.wait_fields(result))


@app.command
def send(
    turn_id: TurnId,
    /,
    *,
    session: InSession,
    given: InputOptions = NO_INPUT,
    idempotency_key: IdempotencyKey = None,
    server: Server = HERE,
    output: Output = PLAIN,
) -> None:
    """Say something to exactly this running turn."""
    input = read_needed_input(given)
    with connect(server) as client:
        receipt = client.session(session).turn(turn_id).send(input, idempotency_key=idempotency_key)
    show(receipt.document(), output)
