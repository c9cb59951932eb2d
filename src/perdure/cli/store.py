"""`perdure store`: bring a store up to date, check it, move it, and let old things go."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

from cyclopts import App, Parameter

from perdure.cli.findings import Strict, report
from perdure.cli.options import PLAIN, TABLE, Flag, Output, Rows
from perdure.cli.output import check_rows, note, print_fields, progress, show, show_rows
from perdure.cli.stores import StoreAt, environment_id, in_store, present_place, present_store

if TYPE_CHECKING:
    from perdure.server.place import Place
    from perdure.store.port import Pruned, Retention, Store
    from perdure.store.tools.copy import Copied

app = App(name="store", help="Bring a store up to date, check it, move it, and let old things go.")

FOREVER: Final = "forever"
_KEPT: Final = ("events", "sessions", "receipts")

Age: TypeAlias = str | None


@app.command
def migrate(
    *,
    finish: Annotated[
        Flag, Parameter(help="Also do what older servers and workers cannot go on beside, once none of them is left.")
    ] = False,
    dry_run: Annotated[Flag, Parameter(help="Change nothing; say what is due.")] = False,
    store: StoreAt = None,
    output: Output = PLAIN,
) -> None:
    """Bring a store to this version's schema: on PostgreSQL as far as older servers and workers go on beside it."""
    place = present_store(store)
    done, due = asyncio.run(_migrated(place, finish, dry_run))
    if output.json:
        show({"store": place.shown, "dry_run": dry_run, "done": done, "due": due}, output)
        return
    steps = [*(("done", step) for step in done), *(("due", step) for step in due)]
    print_fields([("store", place.shown), *(steps or [("schema", "up to date")])])
    if due and not dry_run:
        note("Once no older server or worker is left: perdure store migrate --finish")


async def _migrated(place: Place, finish: bool, dry_run: bool) -> tuple[list[str], list[str]]:
    """Return what was done, and what is still due."""
    from perdure.server.place import opened_store
    from perdure.store.tools.migrate import migrate

    if finish and not dry_run:
        return await migrate(place.address), []
    due = await migrate(place.address, dry_run=True)
    if dry_run or not due:
        return [], due
    async with opened_store(place.address):
        pass  # Whoever opens a store does what older processes do not mind.
    left = await migrate(place.address, dry_run=True)
    return [step for step in due if step not in left], left


@app.command
def check(*, store: StoreAt = None, strict: Strict = False, output: Output = PLAIN) -> int:
    """Check that what is in a store fits together: heads, logs, turns, queues. Changes nothing.

    Ends with 0 when all is well, and with 2 when something is wrong.
    """
    from perdure.store.tools.check import check as checked

    place = present_store(store)
    try:
        found = asyncio.run(checked(place.address, lambda count: progress(f"{count} sessions are checked")))
    finally:
        progress("")
    return report(place.shown, found, output, strict=strict)


@app.command
def copy(
    source: Annotated[str, Parameter(help="The store to copy: postgresql://…, a data folder, or sqlite:///FOLDER.")],
    target: Annotated[str, Parameter(help="The store to fill: an empty database, or a folder that is not there yet.")],
    /,
    *,
    output: Output = PLAIN,
) -> None:
    """Copy a whole store to another one and compare them row by row: all of it, or nothing.

    Nobody may use either of them meanwhile. Sessions go on where they were, once servers and workers use the copy. The
    source stays as it is.
    """
    from perdure.server.place import parse_place

    here, there = present_place(source), parse_place(target)
    copied, keys = asyncio.run(_copied(here, there))
    rows = {**copied.rows, "api_keys": max(copied.rows["api_keys"], keys)}
    notes = [*copied.notes, *_advice(here, there)]
    if output.json:
        show({"source": here.shown, "target": there.shown, "rows": rows, "notes": notes}, output)
        return
    moved = [(kind.replace("_", " "), count) for kind, count in rows.items() if count]
    print_fields([("copied", here.shown), ("to", there.shown), *moved, *(("note", text) for text in notes)])


async def _copied(source: Place, target: Place) -> tuple[Copied, int]:
    from perdure.server.carrying import carry_keys
    from perdure.store.tools.copy import copy

    def told(phase: str, kind: str, count: int) -> None:
        progress(f"{phase} {kind}: {count}")

    try:
        copied = await copy(source.address, target.address, told)
    finally:
        progress("")
    return copied, await carry_keys(source, target)


def _advice(source: Place, target: Place) -> list[str]:
    """Return what is to be known about what is not in a store: files of Computers and logs of runs."""
    if not source.embedded or target.embedded:
        return []
    return [
        f"Computers and logs of earlier runs stay in {source.data}: keep it, and start a worker there with --data "
        f"{source.data}, which goes on with the sessions that have Computers."
    ]


@app.command
def retention(
    environment: Annotated[str, Parameter(help="The environment: PROJECT/ENVIRONMENT.")],
    /,
    *,
    events: Annotated[
        Age, Parameter(help="For how long events, turns and logs of sessions that go on are kept: 30d, or forever.")
    ] = None,
    sessions: Annotated[Age, Parameter(help="For how long sessions are kept that have ended.")] = None,
    receipts: Annotated[
        Age, Parameter(help="For how long an operation that is sent again gets the first one's receipt.")
    ] = None,
    store: StoreAt = None,
    output: Output = PLAIN,
) -> None:
    """Show for how long an environment keeps what has ended, or set it.

    What is not named stays as it is. Nothing goes before `perdure store prune`.
    """
    scope = environment_id(environment)
    given = {name: age for name, age in zip(_KEPT, (events, sessions, receipts), strict=True) if age is not None}
    ages = {name: _microseconds(age) for name, age in given.items()}
    policy = in_store(present_store(store), lambda opened: _retained(opened, scope, ages))
    show({"environment": scope, **_policy(policy)}, output)
    if ages:
        note("Nothing has gone yet: perdure store prune removes what is older.")


async def _retained(store: Store, scope: str, ages: dict[str, int | None]) -> Retention:
    from msgspec.structs import replace

    policy = await store.retention(scope)
    if ages:
        policy = replace(policy, **ages)
        await store.set_retention(scope, policy)
    return policy


def _microseconds(age: str) -> int | None:
    from perdure.records.durations import parse_duration

    return None if age == FOREVER else parse_duration(age)


def _policy(policy: Retention) -> dict[str, str]:
    from perdure.records.durations import format_duration

    ages = {name: getattr(policy, name) for name in _KEPT}
    return {name: FOREVER if age is None else format_duration(age) for name, age in ages.items()}


@app.command
def prune(
    *,
    env: Annotated[
        str | None, Parameter(name=("--env", "-e"), help="Only this environment: PROJECT/ENVIRONMENT. Else all.")
    ] = None,
    dry_run: Annotated[
        Flag, Parameter(help="Remove nothing; say before which instant each environment's things would go.")
    ] = False,
    store: StoreAt = None,
    rows: Rows = TABLE,
) -> None:
    """Remove what is older than the retention of its environment allows, a little at a time, beside live traffic.

    May be interrupted and run again. What unfinished turns need stays.
    """
    check_rows(rows)
    only = None if env is None else [environment_id(env)]
    found = in_store(present_store(store), lambda opened: _due(opened, only) if dry_run else _pruned(opened, only))
    columns = ("ENVIRONMENT", *(name.upper() for name in (_KEPT if dry_run else _GONE)))
    made = [tuple(each.values()) for each in found]
    show_rows({"dry_run": dry_run, "environments": found}, found, rows, columns, made)


_GONE: Final = ("sessions", "turns", "events", "receipts")


async def _pruned(store: Store, only: list[str] | None) -> list[dict[str, Any]]:
    from perdure.store.tools.prune import prune

    def told(environment: str, gone: Pruned) -> None:
        note(f"{environment}: {gone.sessions} sessions, {gone.turns} turns, {gone.events} events so far")

    gone = await prune(store, await _now(store), only, progress=told)
    return [{"environment": scope, **{name: getattr(counts, name) for name in _GONE}} for scope, counts in gone.items()]


async def _due(store: Store, only: list[str] | None) -> list[dict[str, Any]]:
    from perdure.records.instants import format_instant

    environments = [found.id for found in await store.environments()] if only is None else only
    at = await _now(store)
    found = []
    for scope in environments:
        policy = await store.retention(scope)
        ages = {name: getattr(policy, name) for name in _KEPT}
        before = {name: None if age is None else format_instant(at - age) for name, age in ages.items()}
        found.append({"environment": scope, **before})
    return found


async def _now(store: Store) -> int:
    """Return the time of the store: a machine whose clock is ahead must not remove what is not due."""
    from perdure.records.instants import now

    return now() if store.leases is None else await store.leases.now()
