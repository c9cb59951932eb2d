"""`perdure events`: what happens in all sessions of an environment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from perdure.cli.connect import connect
from perdure.cli.options import HERE, TABLE, Flag, Limit, Rows, Server
from perdure.cli.output import check_rows, note, print_document, print_line
from perdure.cli.streams import event_printer, print_each, say_lost
from perdure.errors import BadRequest

if TYPE_CHECKING:
    from perdure.client.sync import Client


def events(
    *,
    after: Annotated[
        str | None, Parameter(help="Where the last page ended: its cursor; or now. Else from the oldest event on.")
    ] = None,
    limit: Limit = None,
    follow: Annotated[Flag, Parameter(help="Print new events too, until it is interrupted.")] = False,
    server: Server = HERE,
    rows: Rows = TABLE,
) -> None:
    """Print the events of all sessions of the environment in the order of their commits: 100, or --limit, 1000 at most.

    With --follow all of them, and --limit ends that. The cursor at which to go on is in what --json prints.
    """
    check_rows(rows)
    with connect(server) as client:
        if not follow:
            _page(client, after, limit, rows)
            return
        if rows.json:
            raise BadRequest("--follow has no end at which --json could print its document; use --jsonl.")
        if limit is not None and limit < 1:
            raise BadRequest(f"--limit must be at least 1, not {limit}.")
        print_each(islice(_followed(client, after), limit), print_line if rows.jsonl else event_printer(sessions=True))


def _page(client: Client, after: str | None, limit: int | None, rows: Rows) -> None:
    page = client.events(after=after, limit=limit).document()
    if rows.json:
        print_document(page)
        return
    print_each(page["events"], print_line if rows.jsonl else event_printer(sessions=True))
    if page["has_more"]:
        note(f"There are more: --after {page['cursor']}")


def _followed(client: Client, after: str | None) -> Iterator[dict[str, Any]]:
    with closing(client.follow_events(after=after, on_lost=say_lost)) as pages:
        for page in pages:
            yield from page.document()["events"]
