"""A PostgreSQL server of the tests' own: in a temporary folder, on a unix socket, as an ordinary user."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from itertools import count
from pathlib import Path

import psycopg

USER = "perdure"
INSTALL = "the tests need PostgreSQL 15 or newer: apt-get install --no-install-recommends postgresql"
_ROOM = 1024**3
_SETTINGS = {
    "listen_addresses": "",
    "max_connections": "60",
    "shared_buffers": "32MB",
    "autovacuum": "off",
    "log_min_messages": "warning",
    "max_prepared_transactions": "0",
}


def binaries() -> Path | None:
    """Return the folder of the newest server that is installed here."""
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if versions:
        return versions[-1].parent
    found = shutil.which("initdb")
    return Path(found).resolve().parent if found else None


def memory() -> Path | None:
    """Return a folder in memory, if there is one with room."""
    folder = Path("/dev/shm")
    return folder if folder.is_dir() and shutil.disk_usage(folder).free > _ROOM else None


class PostgresServer:
    """A server that is started, stopped and killed by tests. `folder` holds its data and its socket."""

    def __init__(self, fsync: bool = True) -> None:
        found = binaries()
        if found is None:
            raise RuntimeError(INSTALL)
        self._bin = found
        # Not in pytest's folders: a socket's path has at most 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="perdure-pg-", dir=None if fsync else memory()))
        self._numbers = count(1)
        # PostgreSQL refuses to run as root.
        root = os.geteuid() == 0
        self._as_user = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"] if root else []
        if root:
            shutil.chown(self.folder, "nobody", "nogroup")
        self._run("initdb", "-D", str(self._data), "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        settings = {**_SETTINGS, "fsync": "on" if fsync else "off", "unix_socket_directories": str(self.folder)}
        with (self._data / "postgresql.auto.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())
        self._guard = self._guarded()
        self.start()

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _run(self, program: str, *arguments: str) -> str:
        command = [*self._as_user, str(self._bin / program), *arguments]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False, cwd="/"
        )
        if done.returncode:
            raise RuntimeError(f"{program} failed: {done.stdout}{done.stderr}")
        return done.stdout

    def start(self) -> None:
        """Start, and wait until it answers."""
        self._run("pg_ctl", "start", "-D", str(self._data), "-w", "-l", str(self.folder / "log"), "-o", "-c port=5432")

    def stop(self, mode: str = "fast") -> None:
        """Stop: `fast` ends all connections, `immediate` is a crash."""
        self._run("pg_ctl", "stop", "-D", str(self._data), "-w", "-m", mode)

    def restart(self, mode: str = "fast") -> None:
        """Stop and start."""
        self.stop(mode)
        self.start()

    def _guarded(self) -> subprocess.Popen[bytes]:
        """Start what stops the server and removes all traces when this process lets go of it, or is killed."""
        stop = shlex.join([*self._as_user, str(self._bin / "pg_ctl"), "stop", "-m", "immediate", "-D", str(self._data)])
        script = f"cat >/dev/null; {stop}; rm -rf {shlex.quote(str(self.folder))}"
        return subprocess.Popen(
            ["sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )

    def remove(self) -> None:
        """Stop for good and remove all traces."""
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard.wait(60)

    def url(self, database: str, **options: str) -> str:
        """Return a store's address."""
        query = "&".join(f"{name}={value}" for name, value in {"host": str(self.folder), **options}.items())
        return f"postgresql://{USER}@/{database}?{query}"

    def sql(self, statement: str, *values: object, database: str = "postgres") -> list[tuple[object, ...]]:
        """Run a statement as superuser and return its rows."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), values)
            return cursor.fetchall() if cursor.description else []

    def new_database(self, template: str | None = None) -> str:
        """Return the name of a new database, a copy of another if one is named."""
        name = f"db{next(self._numbers)}"
        self.sql(f"CREATE DATABASE {name}" + (f" TEMPLATE {template}" if template else ""))
        return name

    def drop_database(self, name: str) -> None:
        """Remove a database and end whoever is connected to it."""
        self.sql(f"DROP DATABASE {name} WITH (FORCE)")

    def dump(self, database: str, *options: str) -> str:
        """Return what `pg_dump` says of a database."""
        said = self._run("pg_dump", "-h", str(self.folder), "-U", USER, "--no-comments", *options, database)
        # Since 2025 each dump is guarded by a random word.
        return "".join(line for line in said.splitlines(True) if not line.startswith(("\\restrict", "\\unrestrict")))
