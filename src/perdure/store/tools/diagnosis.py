"""What the facts about a PostgreSQL server mean: what would be lost, and how to mend it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from perdure.store.tools.findings import Finding

if TYPE_CHECKING:
    from perdure.store.postgres.doctor import Facts, StoreFacts

OLDEST: Final = 150_000
SKEW: Final = 1.0
"""Seconds by which clocks may differ without anybody noticing."""
DEAD_FOR: Final = 60
"""Seconds after which somebody should have taken over from a worker that is gone."""
FULL: Final = 0.05
_SET: Final = "ALTER SYSTEM SET {} = on, then SELECT pg_reload_conf()"


def diagnose(facts: Facts) -> Iterator[Finding]:
    """Yield what is wrong, or worth knowing."""
    yield from _version(facts)
    yield from _flushes(facts)
    yield from _standbys(facts)
    yield from _backups(facts)
    yield from _machine(facts)
    yield from _connections(facts)
    if facts.store is None:
        yield Finding("note", "There is no store in this database yet.", mend="The first server or worker makes it.")
    else:
        yield from _schema(facts.store)
        yield from _sessions(facts.store)


def _version(facts: Facts) -> Iterator[Finding]:
    if facts.version < OLDEST:
        yield Finding(
            "error",
            f"The server is PostgreSQL {facts.version // 10_000}; Perdure needs {OLDEST // 10_000} or newer.",
            "Statements may fail that newer servers understand.",
            "Upgrade the server.",
        )
    if facts.in_recovery or facts.read_only:
        yield Finding(
            "error",
            "The server is a standby that takes no writes." if facts.in_recovery else "The server takes no writes.",
            "Nothing can be accepted.",
            "Name the primary in the store's address, or all servers with target_session_attrs=read-write."
            if facts.in_recovery
            else "Set default_transaction_read_only = off for this database and user.",
        )


def _flushes(facts: Facts) -> Iterator[Finding]:
    if not facts.fsync:
        yield Finding(
            "error",
            "fsync is off.",
            "After a power failure or a crash of the machine, acknowledged turns are lost and the database may be "
            "damaged beyond repair.",
            _SET.format("fsync"),
        )
    if not facts.full_page_writes:
        yield Finding(
            "error",
            "full_page_writes is off.",
            "A power failure in the middle of a write may damage pages, and acknowledged turns with them.",
            f"{_SET.format('full_page_writes')}; leave it off only on a file system that never tears pages.",
        )
    if facts.synchronous_commit == "off":
        yield Finding(
            "warning",
            "synchronous_commit is off.",
            "Commits of sessions are flushed all the same, but what is deployed, which keys end and what others write "
            "may be lost with the machine.",
            _SET.format("synchronous_commit"),
        )


def _standbys(facts: Facts) -> Iterator[Finding]:
    if facts.in_recovery:
        return
    if not facts.standby_names:
        yield Finding(
            "warning",
            "No synchronous standby is named.",
            "If the server's disk is lost, so are all turns that were acknowledged since the last backup.",
            "Name a standby in synchronous_standby_names, or take a managed server that keeps two copies.",
        )
    elif facts.synchronous_commit in ("off", "local"):
        yield Finding(
            "warning",
            f"There are synchronous standbys, but synchronous_commit is {facts.synchronous_commit}.",
            "Nobody waits for the standby: a failover may lose acknowledged turns.",
            _SET.format("synchronous_commit"),
        )
    elif facts.standbys == 0:
        yield Finding(
            "warning",
            "Synchronous standbys are named, but none is connected that this user can see.",
            "If there is none, commits wait until one comes.",
            "Start the standby; give this user pg_monitor, so that it can see.",
        )


def _backups(facts: Facts) -> Iterator[Finding]:
    if facts.wal_level == "minimal" or facts.archive_mode == "off":
        yield Finding(
            "note",
            f"The log is not archived (wal_level {facts.wal_level}, archive_mode {facts.archive_mode}).",
            "Backups bring back the instant at which they were taken, and nothing after it.",
            "Archive the log for point-in-time recovery, unless your backup tool streams it.",
        )
    if not facts.autovacuum:
        yield Finding(
            "warning",
            "autovacuum is off.",
            "Tables grow, statements slow down, and in the end the server stops taking writes.",
            _SET.format("autovacuum"),
        )


def _machine(facts: Facts) -> Iterator[Finding]:
    if abs(facts.skew) > SKEW:
        way = "ahead of" if facts.skew > 0 else "behind"
        yield Finding(
            "warning",
            f"The server's clock is {abs(facts.skew):.1f} s {way} this machine's.",
            "Nothing is lost, since rules and leases go by the server's; but times in logs of machines do not agree.",
            "Keep the clocks of all machines with NTP.",
        )
    if facts.free is not None and facts.free < FULL:
        yield Finding(
            "error",
            f"The disk of the server is almost full: {facts.free:.1%} is free.",
            "When it is full, nothing more is accepted, and the server may stop.",
            "Make room, set a retention (perdure store retention) and prune.",
        )
    for seconds, whose in facts.open_for_long[:5]:
        yield Finding(
            "warning",
            f"A transaction of {whose} has been open for {seconds} s, and has written.",
            "The feed over all sessions waits for it, and nothing that was deleted since is cleaned up.",
            "End it: pg_terminate_backend, or ROLLBACK PREPARED.",
        )


def _connections(facts: Facts) -> Iterator[Finding]:
    workers = 0 if facts.store is None else facts.store.workers
    wanted = (workers + 1) * facts.a_process
    if facts.direct and wanted > facts.limit:
        yield Finding(
            "warning",
            f"{workers} live workers and a server may open {wanted} connections; this user may have {facts.limit}.",
            "Those that come last wait, and are refused in the end.",
            "Raise max_connections, lower perdure_connections in the store's address, or put a pooler in between.",
        )
    if not facts.direct and not facts.hears:
        yield Finding(
            "warning",
            "There is a pooler in between, behind which hints are not heard.",
            "Nothing; but servers and workers find out by looking what others have done, which takes longer.",
            "Give the server's own address for it: perdure_listen=postgresql://… in the store's address; or say "
            "perdure_hints=off to have it so.",
        )


def _schema(store: StoreFacts) -> Iterator[Finding]:
    before = [f"{number:04d}" for number, phase in store.missing if phase == "pre"]
    after = [f"{number:04d}" for number, phase in store.missing if phase == "post"]
    if before:
        yield Finding(
            "warning",
            f"The schema is older than this version: {', '.join(before)} to be done.",
            "Nothing; the first server or worker of this version does it.",
            "perdure store migrate",
        )
    elif after:
        yield Finding(
            "note",
            f"The schema still has what older versions need: {', '.join(after)} to be done.",
            mend="When no older server or worker is left: perdure store migrate",
        )
    if store.feed_is_ahead:
        yield Finding(
            "error",
            "The store was restored from a dump into a server with fewer transactions behind it.",
            "The feed over all sessions shows nothing new until the server has caught up, and then in a wrong order.",
            "perdure store migrate numbers the feed anew; cursors from before are refused.",
        )


def _sessions(store: StoreFacts) -> Iterator[Finding]:
    for worker, count, since in store.dead:
        if since is None or since > DEAD_FOR:
            when = "has no lease" if since is None else f"has had no lease for {since} s"
            yield Finding(
                "warning",
                f"Worker {worker} {when} and still owns {count} sessions.",
                "Their turns wait.",
                "Start a worker; it takes over. Where one runs and does not, its log says why.",
            )
    for machine, count in store.machines:
        yield Finding(
            "warning",
            f"{count} sessions have their Computer on machine {machine}, where no worker is alive.",
            "Their turns wait; their disks are there and nowhere else.",
            "Start a worker on that machine, with the data folder that it had.",
        )
    if store.unowned and not store.workers:
        yield Finding(
            "warning",
            f"No worker is alive, and {store.unowned} sessions need one.",
            "Their turns wait.",
            "perdure worker --store …",
        )
