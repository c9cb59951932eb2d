"""A PostgreSQL server of the run's own: a new cluster on a real disk, on a unix socket, as an ordinary user.

Its settings are the defaults (`fsync`, `synchronous_commit` and `full_page_writes` are on) but for memory, the number
of connections and the room for the log, so that neither a checkpoint nor a refusal falls into the middle of a sample.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psycopg

from bench import cpu
from bench.environments import PeerUnavailable

USER = "bench"
SETTINGS = {
    "listen_addresses": "",
    "max_connections": "300",
    "shared_buffers": "512MB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "30min",
    "log_min_messages": "warning",
    "shared_preload_libraries": "pg_stat_statements",
    "pg_stat_statements.track_planning": "on",
}


@dataclass(frozen=True)
class Counters:
    """What a server has done since it was started: for one database, and (syncs, bytes) for all."""

    transactions: float
    syncs: float
    wal_bytes: float

    def __sub__(self, other: Counters) -> Counters:
        return Counters(
            self.transactions - other.transactions, self.syncs - other.syncs, self.wal_bytes - other.wal_bytes
        )


def binaries() -> Path:
    """The folder of the newest server that is installed.

    Raises:
        PeerUnavailable: there is none.
    """
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    found = str(versions[-1]) if versions else shutil.which("initdb")
    if found is None:
        raise PeerUnavailable(
            "PostgreSQL 15 or newer is not installed: apt-get install --no-install-recommends postgresql"
        )
    return Path(found).resolve().parent


class Postgres:
    """The server. Use it as a context: it is gone with all its data afterwards, also when this process is killed."""

    def __init__(self) -> None:
        self.bin = binaries()
        place = os.environ.get("PERDURE_BENCH_DIR", "/var/tmp")
        self.folder = Path(tempfile.mkdtemp(prefix="perdure-bench-pg-", dir=place))
        root = os.geteuid() == 0
        self._as_user = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"] if root else []
        if root:
            shutil.chown(self.folder, "nobody", "nogroup")
        self.run("initdb", "-D", str(self._data), "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C")
        with (self._data / "postgresql.auto.conf").open("a") as file:
            settings = {**SETTINGS, "unix_socket_directories": str(self.folder)}
            file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())
        self._guard = self._guarded()
        self.run("pg_ctl", "start", "-D", str(self._data), "-w", "-l", str(self.folder / "log"), "-o", "-c port=5432")
        self.pid = int((self._data / "postmaster.pid").read_text().splitlines()[0])

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    @property
    def version(self) -> str:
        return str(self.sql("SHOW server_version")[0][0]).split()[0]

    def run(self, program: str, *arguments: str) -> str:
        """Run one of its programs as its user; what it printed."""
        command = [*self._as_user, str(self.bin / program), *arguments]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, cwd="/")
        if done.returncode:
            raise RuntimeError(f"{program} failed: {done.stdout}{done.stderr}")
        return done.stdout

    def _guarded(self) -> subprocess.Popen[bytes]:
        """What stops the server and removes its data when this process lets go of its end of a pipe."""
        stop = shlex.join([*self._as_user, str(self.bin / "pg_ctl"), "stop", "-m", "immediate", "-D", str(self._data)])
        script = f"cat >/dev/null; {stop}; rm -rf {shlex.quote(str(self.folder))}"
        quiet = subprocess.DEVNULL
        return subprocess.Popen(
            ["sh", "-c", script], stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, start_new_session=True, cwd="/"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard.wait(120)

    # --- databases

    def url(self, database: str) -> str:
        return f"postgresql://{USER}@/{database}?host={self.folder}"

    def new_database(self, name: str) -> str:
        """Its address."""
        self.sql(f"CREATE DATABASE {name}")
        self.sql("CREATE EXTENSION pg_stat_statements", database=name)
        return self.url(name)

    def connect(self, database: str = "postgres") -> psycopg.Connection[Any]:
        return psycopg.connect(self.url(database), autocommit=True)

    def sql(self, statement: str, values: Sequence[Any] = (), *, database: str = "postgres") -> list[tuple[Any, ...]]:
        with self.connect(database) as connection:
            cursor = connection.execute(statement.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    # --- what it has done

    def counters(self, database: str) -> Counters:
        """Up to what its processes have reported, which they do between transactions, once a second."""
        ((transactions,),) = self.sql("SELECT xact_commit FROM pg_stat_database WHERE datname = %s", (database,))
        ((syncs, wal_bytes),) = self.sql("SELECT wal_sync, wal_bytes FROM pg_stat_wal")
        return Counters(float(transactions), float(syncs), float(wal_bytes))

    def cpu(self) -> float:
        """CPU seconds of all its processes."""
        return cpu.spent([self.pid])

    def hello(self) -> dict[str, Any]:
        names = ("fsync", "synchronous_commit", "full_page_writes", "wal_sync_method", "shared_buffers")
        shown = ", ".join(f"{name}={self.sql(f'SHOW {name}')[0][0]}" for name in names)
        return {"system": "postgresql", "versions": {"postgresql": self.version}, "durability": shown}
