"""`perdure session ask`: see and answer what running turns ask of people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from cyclopts import App, Parameter

from perdure.cli import views
from perdure.cli.connect import connect
from perdure.cli.inputs import read_json
from perdure.cli.options import HERE, PLAIN, TABLE, Cursor, InSession, Limit, Output, Rows, Server
from perdure.cli.output import check_rows, note, show, show_rows
from perdure.errors import BadRequest

if TYPE_CHECKING:
    from perdure.client.sync import AskHandle

app = App(name="ask", help="See and answer what running turns ask of people.")

AskId: TypeAlias = Annotated[str, Parameter(help="Id of the question.")]


@app.command(name="list")
def list_(
    session_id: Annotated[str, Parameter(help="Id of the session.")],
    /,
    *,
    status: Annotated[str | None, Parameter(help="Only questions that are pending, responded or cancelled.")] = None,
    cursor: Cursor = None,
    limit: Limit = None,
    server: Server = HERE,
    rows: Rows = TABLE,
) -> None:
    """List a session's questions, oldest first."""
    check_rows(rows)
    with connect(server) as client:
        page = client.session(session_id).asks(status=status, cursor=cursor, limit=limit).document()
    show_rows(page, page["asks"], rows, views.ASK_COLUMNS, map(views.ask_row, page["asks"]))
    if "next_cursor" in page:
        note(f"There are more: --cursor {page['next_cursor']}")


@app.command
def get(ask_id: AskId, /, *, session: InSession, server: Server = HERE, output: Output = PLAIN) -> None:
    """Show a question, its options and its answer."""
    with connect(server) as client:
        ask = client.session(session).ask(ask_id).get().document()
    show(ask, output, views.ask_fields(ask))


@app.command
def answer(
    ask_id: AskId,
    /,
    *,
    session: InSession,
    text: Annotated[
        str | None, Parameter(allow_leading_hyphen=True, help="Answer in words, where the question takes them.")
    ] = None,
    option: Annotated[tuple[str, ...], Parameter(help="Id of the chosen option. May repeat.")] = (),
    answer_json: Annotated[
        str | None, Parameter(allow_leading_hyphen=True, help="Answer as the API takes it. - is standard input.")
    ] = None,
    response_id: Annotated[
        str | None,
        Parameter(help="Makes the command safe to repeat: the same answer counts once."),
    ] = None,
    server: Server = HERE,
    output: Output = PLAIN,
) -> None:
    """Answer a question. The first valid answer stands."""
    if answer_json is not None and (text is not None or option):
        raise BadRequest("--answer-json excludes --text and --option. Nothing was sent.")
    with connect(server) as client:
        handle = client.session(session).ask(ask_id)
        given = read_json(answer_json, "--answer-json") if answer_json is not None else _answer(handle, text, option)
        ask = handle.answer(given, response_id=response_id).document()
    show(ask, output, views.ask_fields(ask))


def _answer(handle: AskHandle, text: str | None, chosen: tuple[str, ...]) -> Any:
    """Return an answer in the form that the question takes; the server judges whether it fits."""
    if text is None and not chosen:
        raise BadRequest("There is no answer; give --text, --option or --answer-json. Nothing was sent.")
    control = handle.get().answer_control
    if control.type == "text" and not chosen:
        return text
    options = control.options if control.type == "choice" else []
    if unknown := set(chosen) - {option.id for option in options}:
        known = ", ".join(option.id for option in options) or "none"
        raise BadRequest(f"The question has no option {', '.join(sorted(unknown))}; it has: {known}. Nothing was sent.")
    selected = [{"id": option.id, "value": option.value} for option in options if option.id in chosen]
    return {"selected": selected, **({} if text is None else {"text": text})}
