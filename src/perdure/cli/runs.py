"""`perdure session run` and `perdure session logs`: periods of execution, and what was printed in them."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import App, Parameter

from perdure.cli import views
from perdure.cli.connect import connect
from perdure.cli.options import HERE, PLAIN, TABLE, After, Flag, Limit, Output, Rows, Server
from perdure.cli.output import check_rows, is_terminal, note, print_document, show_rows
from perdure.cli.text import block
from perdure.errors import BadRequest

if TYPE_CHECKING:
    from perdure.api.runs import LogPage
    from perdure.client.sync import SessionHandle

app = App(name="run", help="See a session's periods of execution.")

_POLL_SECONDS: Final = 0.5


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
    """List a session's runs in order."""
    check_rows(rows)
    with connect(server) as client:
        page = client.session(session_id).runs(after=after, limit=limit).document()
    show_rows(page, page["runs"], rows, views.RUN_COLUMNS, map(views.run_row, page["runs"]))
    if "next_after" in page:
        note(f"There are more: --after {page['next_after']}")


def logs(
    session_id: Annotated[str, Parameter(help="Id of the session.")],
    /,
    *,
    run: Annotated[str | None, Parameter(help="Id of the run. Else the newest.")] = None,
    offset: Annotated[int, Parameter(help="Only what comes after this many bytes.")] = 0,
    follow: Annotated[Flag, Parameter(help="Go on until the run has ended.")] = False,
    server: Server = HERE,
    output: Output = PLAIN,
) -> None:
    """Print what user code printed in a run: stdout, stderr and logging."""
    with connect(server) as client:
        session = client.session(session_id)
        pages = _pages(session, run or _newest_run(session), offset, follow)
        if output.json:
            read = list(pages)
            data = "".join(page.data for page in read)
            print_document({"data": data, "next_offset": read[-1].next_offset, "eof": read[-1].eof})
        else:
            for page in pages:
                sys.stdout.write(block(page.data) if is_terminal() else page.data)
                sys.stdout.flush()


def _pages(session: SessionHandle, run_id: str, offset: int, follow: bool) -> Iterator[LogPage]:
    while True:
        page = session.logs(run_id, offset=offset)
        yield page
        at_end = page.next_offset == offset
        if page.eof or (at_end and not follow):
            return
        if at_end:
            time.sleep(_POLL_SECONDS)
        offset = page.next_offset


def _newest_run(session: SessionHandle) -> str:
    if running := session.get().run:
        return running.id
    after: int | None = 0
    newest = None
    while after is not None:
        page = session.runs(after=after, limit=100)
        newest = page.runs[-1].id if page.runs else newest
        after = page.next_after
    if newest is None:
        raise BadRequest(f"Session {session.id} has not run yet, so that there are no logs.")
    return newest
