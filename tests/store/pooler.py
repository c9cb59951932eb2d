"""PgBouncer in front of a server of the tests."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Final

import psycopg
from postgres_cluster import free_port, until
from postgres_server import USER

INSTALL: Final = "the tests of poolers need PgBouncer: apt-get install --no-install-recommends pgbouncer"
_CONFIGURATION: Final = """
[databases]
* = host={host} port={port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users
admin_users = {user}
pool_mode = {mode}
default_pool_size = {size}
max_client_conn = 200
query_wait_timeout = {patience}
server_login_retry = 1
logfile = {folder}/log
"""


def pgbouncer() -> str | None:
    """Return where PgBouncer is, if it is installed."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def version() -> tuple[int, ...]:
    """Return the version of PgBouncer; it knows prepared statements from 1.21 on."""
    said = subprocess.run([str(pgbouncer()), "--version"], capture_output=True, text=True, check=True).stdout
    return tuple(int(number) for number in said.split()[1].split("."))


class PgBouncer:
    """A pooler of `size` connections to the server whose socket is in `host`; `mode` is transaction or session."""

    def __init__(self, host: Path, *, mode: str = "transaction", size: int = 4, patience: int = 120) -> None:
        found = pgbouncer()
        if found is None:
            raise RuntimeError(INSTALL)
        self._folder = Path(tempfile.mkdtemp(prefix="perdure-pooler-"))
        self.port = free_port()
        root = os.geteuid() == 0
        as_user = ["--reuid=nobody", "--regid=nogroup", "--clear-groups"] if root else []
        # It ends with who has started it, however that ends.
        self._command = ["setpriv", "--pdeathsig=KILL", *as_user, found, "-q", str(self._folder / "ini")]
        settings = {"host": host, "port": 5432, "listen": self.port, "folder": self._folder, "user": USER}
        configuration = _CONFIGURATION.format(**settings, mode=mode, size=size, patience=patience)
        (self._folder / "ini").write_text(configuration)
        (self._folder / "users").write_text(f'"{USER}" ""\n')
        if root:
            for path in (self._folder, *self._folder.iterdir()):
                shutil.chown(path, "nobody", "nogroup")
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start, and wait until it answers."""
        self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, cwd="/")
        until(self._answers, "PgBouncer answers")

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "log").read_text()
        try:
            self.ask("SHOW VERSION")
        except psycopg.OperationalError:
            return False
        return True

    def stop(self) -> None:
        """End it at once, with all its connections."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(20)
            self._process = None

    def remove(self) -> None:
        """Stop for good and remove all traces."""
        self.stop()
        shutil.rmtree(self._folder)

    def ask(self, command: str) -> list[tuple[object, ...]]:
        """Run a command of its console."""
        where = f"host=127.0.0.1 port={self.port} user={USER} dbname=pgbouncer connect_timeout=5"
        with psycopg.connect(where, autocommit=True, cursor_factory=psycopg.ClientCursor) as console:
            cursor = console.execute(command.encode())
            return cursor.fetchall() if cursor.description else []

    def url(self, database: str, **options: str) -> str:
        """Return a store's address that leads through it."""
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{database}" + (f"?{query}" if query else "")
