"""`perdure session`: create, find, give input, stop and resume."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from cyclopts import App, Parameter

from perdure.cli import views
from perdure.cli.connect import connect
from perdure.cli.inputs import read_input, read_needed_input
from perdure.cli.options import (
    HERE,
    NO_INPUT,
    PLAIN,
    TABLE,
    Cursor,
    IdempotencyKey,
    InputOptions,
    Limit,
    Output,
    Rows,
    Server,
)
from perdure.cli.output import check_rows, note, show, show_rows

app = App(name="session", help="Create and follow sessions, give them input, stop and resume them.")
app.command("perdure.cli.streams:events", name="events", help="Print the session's log.")
app.command("perdure.cli.streams:watch", name="watch", help="Follow a session: what it is now, then what happens.")
app.command("perdure.cli.runs:logs", name="logs", help="Print what user code printed in a run.")
app.command("perdure.cli.turns:app", name="turn", help="See turns, wait for them, speak to running ones.")
app.command("perdure.cli.asks:app", name="ask", help="See and answer what running turns ask of people.")
app.command("perdure.cli.runs:app", name="run", help="See a session's periods of execution.")

SessionId: TypeAlias = Annotated[str, Parameter(help="Id of the session.")]
Key: TypeAlias = Annotated[str | None, Parameter(help="Unique name of the session among its agent's.")]


@app.command
def create(
    agent: Annotated[str, Parameter(help="Name of the agent.")],
    /,
    *,
    given: InputOptions = NO_INPUT,
    key: Key = None,
    idempotency_key: IdempotencyKey = None,
    server: Server = HERE,
    output: Output = PLAIN,
) -> None:
    """Create a session; with an input, its first turn is accepted too."""
    input = read_input(given)
    with connect(server) as client:
        receipt = client.agents[agent].create_session(input=input, key=key, idempotency_key=idempotency_key)
    show(receipt.document(), output)


@app.command
def get_or_create(
    agent: Annotated[str, Parameter(help="Name of the agent.")],
    /,
    *,
    key: Annotated[str, Parameter(help="Name of the session among its agent's.")],
    given: InputOptions = NO_INPUT,
    idempotency_key: IdempotencyKey = None,
    server: Server = HERE,
    output: Output = PLAIN,
) -> None:
    """Find the session of a key or create it; an input is enqueued there."""
    input = read_input(given)
    with connect(server) as client:
        receipt = client.agents[agent].get_or_create(key, input=input, idempotency_key=idempotency_key)
    show(receipt.document(), output)


@app.command
def get(session_id: SessionId, /, *, server: Server = HERE, output: Output = PLAIN) -> None:
    """Show a session: its status, its Computer, its queue and its holds."""
    with connect(server) as client:
        session = client.session(session_id).get().document()
    show(session, output, views.session_fields(session))


@app.command(name="list")
def list_(
    *,
    agent: Annotated[str | None, Parameter(help="Only sessions of this agent.")] = None,
    key: Annotated[str | None, Parameter(help="Only sessions of this key.")] = None,
    status: Annotated[
        tuple[str, ...], Parameter(help="Only sessions of this status: open, closing, closed, cancelled. May repeat.")
    ] = (),
    cursor: Cursor = None,
    limit: Limit = None,
    server: Server = HERE,
    rows: Rows = TABLE,
) -> None:
    """List sessions, newest first."""
    check_rows(rows)
    wanted = [each for group in status for each in group.split(",")]
    with connect(server) as client:
        page = client.sessions.list(agent=agent, key=key, status=wanted, cursor=cursor, limit=limit).document()
    sessions = page["sessions"]
    show_rows(page, sessions, rows, views.SESSION_COLUMNS, map(views.session_row, sessions))
    if "next_cursor" in page:
        note(f"There are more: --cursor {page['next_cursor']}")


@app.command
def enqueue(
    session_id: SessionId,
    /,
    *,
    given: InputOptions = NO_INPUT,
    idempotency_key: IdempotencyKey = None,
    server: Server = HERE,
    output: Output = PLAIN,
) -> None:
    """Give a session an input: a new turn, behind those that wait."""
    input = read_needed_input(given)
    with connect(server) as client:
        receipt = client.session(session_id).enqueue(input, idempotency_key=idempotency_key)
    show(receipt.document(), output)


@app.command
def send(
    session_id: SessionId,
    /,
    *,
    given: InputOptions = NO_INPUT,
    idempotency_key: IdempotencyKey = None,
    server: Server = HERE,
    output: Output = PLAIN,
) -> None:
    """Steer the running turn if it takes messages, else enqueue."""
    input = read_needed_input(given)
    with connect(server) as client:
        receipt = client.session(session_id).send(input, idempotency_key=idempotency_key)
    show(receipt.document(), output)


@app.command
def interrupt(
    session_id: SessionId,
    /,
    *,
    reason: Annotated[str | None, Parameter(allow_leading_hyphen=True, help="Why, for people.")] = None,
    idempotency_key: IdempotencyKey = None,
    server: Server = HERE,
    output: Output = PLAIN,
) -> None:
    """Stop the running turn and hold the session; queued turns wait."""
    with connect(server) as client:
        receipt = client.session(session_id).interrupt(reason=reason, idempotency_key=idempotency_key)
    show(receipt.document(), output)
    note(f"Queued turns wait. Go on with: perdure session resume {session_id} --hold {receipt.hold_id}")


@app.command
def resume(
    session_id: SessionId,
    /,
    *,
    hold: Annotated[str, Parameter(help="Id of the hold: `perdure session get` shows it.")],
    idempotency_key: IdempotencyKey = None,
    server: Server = HERE,
    output: Output = PLAIN,
) -> None:
    """Release one hold; queued turns run when none is left."""
    with connect(server) as client:
        receipt = client.session(session_id).resume(hold, idempotency_key=idempotency_key)
    show(receipt.document(), output)


@app.command
def close(
    session_id: SessionId,
    /,
    *,
    idempotency_key: IdempotencyKey = None,
    server: Server = HERE,
    output: Output = PLAIN,
) -> None:
    """Finish what was accepted, then end the session. Releases no hold."""
    with connect(server) as client:
        receipt = client.session(session_id).close(idempotency_key=idempotency_key)
    show(receipt.document(), output)


@app.command
def cancel(
    session_id: SessionId,
    /,
    *,
    idempotency_key: IdempotencyKey = None,
    server: Server = HERE,
    output: Output = PLAIN,
) -> None:
    """End the session at once: its running turn and all queued ones are cancelled."""
    with connect(server) as client:
        receipt = client.session(session_id).cancel(idempotency_key=idempotency_key)
    show(receipt.document(), output)
