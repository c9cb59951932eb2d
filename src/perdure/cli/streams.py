"""`perdure session events` and `perdure session watch`: what happened in a session, and what happens now."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter

from perdure.cli import views
from perdure.cli.connect import connect
from perdure.cli.options import HERE, TABLE, After, Flag, Limit, Rows, Server
from perdure.cli.output import BOLD, DIM, check_rows, is_terminal, note, print_document, print_line, styled
from perdure.cli.text import cell, one_line, short
from perdure.errors import BadRequest

if TYPE_CHECKING:
    from perdure.client.sync import SessionHandle
    from perdure.client.watching import WatchItem
    from perdure.errors import PerdureError

Document = dict[str, Any]

_CLEAR_LINE: Final = "\r\x1b[K"


def events(
    session_id: Annotated[str, Parameter(help="Id of the session.")],
    /,
    *,
    after: After = 0,
    limit: Limit = None,
    follow: Annotated[Flag, Parameter(help="Print new events too, until the session has ended.")] = False,
    server: Server = HERE,
    rows: Rows = TABLE,
) -> None:
    """Print the session's log in order: 100 events, or --limit, 1000 at most; all with --follow."""
    check_rows(rows)
    with connect(server) as client:
        session = client.session(session_id)
        if follow:
            _follow(session, after, limit, rows)
        else:
            _page(session, after, limit, rows)


def _page(session: SessionHandle, after: int, limit: int | None, rows: Rows) -> None:
    page = session.events(after=after, limit=limit).document()
    if rows.json:
        print_document(page)
        return
    print_each(page["events"], print_line if rows.jsonl else event_printer())
    if page["has_more"]:
        note(f"There are more: --after {page['next_after']}")


def _follow(session: SessionHandle, after: int, limit: int | None, rows: Rows) -> None:
    if limit is not None and limit < 1:
        raise BadRequest(f"--limit must be at least 1, not {limit}.")
    with closing(session.watch(after=after, on_lost=say_lost)) as items:
        found = islice((doc for item in items if (doc := line(item)).get("id")), limit)
        documents = (document["data"] for document in found)
        if not rows.json:
            print_each(documents, print_line if rows.jsonl else event_printer())
            return
        retained_after = session.events(after=after, limit=1).retained_after
        listed = list(documents)
    next_after = listed[-1]["seq"] if listed else after
    print_document({"events": listed, "next_after": next_after, "has_more": False, "retained_after": retained_after})


def watch(
    session_id: Annotated[str, Parameter(help="Id of the session.")],
    /,
    *,
    after: Annotated[int | None, Parameter(help="Begin after this event instead of with a snapshot.")] = None,
    server: Server = HERE,
    rows: Rows = TABLE,
) -> None:
    """Follow a session: what it is now, what is being written, what happens; until it has ended.

    Reconnects by itself. With --jsonl each line is `{"event", "id"?, "data"}` as in the API's stream; with --json one
    document is printed at the end.
    """
    check_rows(rows)
    with connect(server) as client, closing(client.session(session_id).watch(after=after, on_lost=say_lost)) as items:
        lines = (line(item) for item in items)
        if rows.json:
            print_document({"items": list(lines)})
        else:
            print_each(lines, print_line if rows.jsonl else _watch_printer())


def line(item: WatchItem) -> Document:
    """Return an item of a watch as the API's stream has it: the event's name, its id if it is durable, its data."""
    from perdure.api.events import Event
    from perdure.client.watching import name_of

    durable = {"id": item.seq} if isinstance(item, Event) else {}
    return {"event": name_of(item), **durable, "data": item.document()}


def say_lost(error: PerdureError, _seconds: float) -> None:
    """Tell a person that a stream was lost, which comes back by itself."""
    note(f"{error.message} Trying again.")


def print_each(documents: Iterable[Document], print_one: Callable[[Document], None]) -> None:
    """Print documents as they come."""
    for document in documents:
        print_one(document)


# --- for people and pipes ------------------------------------------------------------------------------------------


def event_printer(*, sessions: bool = False) -> Callable[[Document], None]:
    """Return what prints an event for whom it is read by; with `sessions` it names the session, too."""
    if is_terminal():
        return partial(_print_for_person, sessions=sessions)
    return partial(_print_row, sessions=sessions)


def _watch_printer() -> Callable[[Document], None]:
    return _Screen().take if is_terminal() else _print_watch_row


def _print_row(event: Document, *, sessions: bool = False) -> None:
    row = (event["session_id"], *views.event_row(event)) if sessions else views.event_row(event)
    print("\t".join(cell(str(value)) for value in row), flush=True)


def _print_watch_row(item: Document) -> None:
    if "id" in item:
        _print_row(item["data"])
    else:
        turn_id = item["data"].get("turn_id")
        _print_row(
            {"seq": "-", "at": "-", "type": item["event"], "turn_id": turn_id, "run_id": None, "data": item["data"]}
        )


def _print_for_person(event: Document, *, sessions: bool = False) -> None:
    place = f"{event['session_id']} " if sessions else ""
    width = max(shutil.get_terminal_size().columns - 46 - len(place), 20)
    head = styled(DIM, f"{place}{event['seq']:>6}  {event['at'][11:19]}")
    kind = styled(BOLD, f"{cell(event['type']):<24}")
    print(f"{head}  {kind} {short(views.gist(event), width, one_line)}", flush=True)


class _Screen:
    """A watch on a terminal: events below each other, and under them the one line that is being written."""

    def __init__(self) -> None:
        self._live = False

    def take(self, item: Document) -> None:
        """Show an item."""
        if self._live:
            sys.stdout.write(_CLEAR_LINE)
            self._live = False
        if "id" in item:
            _print_for_person(item["data"])
        else:
            {"snapshot": self._snapshot, "live": self._being_written}.get(item["event"], self._ignore)(item["data"])
        sys.stdout.flush()

    def _snapshot(self, data: Document) -> None:
        session = data["session"]
        print(f"{styled(BOLD, cell(session['agent']))} {session['id']} {session['status']}")
        for turn in data["turns"]:
            print(styled(DIM, f"{turn['sequence']:>6}  {turn['status']:<12}"), *self._said(turn), sep="  ")
        for content in data["live"].values():
            self._being_written({"content": content})

    def _said(self, turn: Document) -> Iterator[str]:
        yield short(views.content_text(turn["input"]) or "", 40, one_line)
        if told := views.outcome(turn):
            yield "→ " + short(told, 60, one_line)

    def _being_written(self, data: Document) -> None:
        text = one_line(views.content_text(data["content"]) or "")
        if text:
            width = shutil.get_terminal_size().columns - 4
            sys.stdout.write(f"{_CLEAR_LINE}  {styled(DIM, text[-width:])}")
            self._live = True

    def _ignore(self, data: Document) -> None:
        pass
