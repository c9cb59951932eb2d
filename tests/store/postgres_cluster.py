"""A PostgreSQL primary with standbys of the tests' own: started, killed, frozen, promoted and rebuilt by tests.

    cluster = PostgresCluster()           # a primary and a standby that commits wait for
    store = open_store(cluster.url(cluster.new_database()))
    cluster.fail_over()                   # the primary is killed as by a power failure, the standby takes over
    cluster.rejoin()                      # what was the primary comes back as a standby
    cluster.remove()

Each node listens on a TCP port and on a unix socket in its folder. What the tests themselves ask of a node goes through
the socket, so that it arrives however broken the network is that the tests have made.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final

import psycopg
from postgres_server import INSTALL, USER, binaries, memory

_PATIENCE: Final = 60.0
_RECEIVING: Final = "SELECT 1 FROM pg_stat_wal_receiver"
_RECEIVED: Final = "SELECT pg_last_wal_receive_lsn() - '0/0'::pg_lsn"
_SETTINGS: Final = {
    "max_connections": "60",
    "shared_buffers": "32MB",
    "autovacuum": "off",
    "log_min_messages": "warning",
    "max_prepared_transactions": "0",
    "wal_level": "replica",
    "max_wal_senders": "8",
    "wal_keep_size": "256MB",
    "hot_standby": "on",
    "wal_receiver_timeout": "5s",
    "wal_retrieve_retry_interval": "200ms",
}


class PostgresNode:
    """One server of a cluster. `prefix` is put before its commands, to run them in a network namespace, say.

    `host` is where it listens and where clients find it. PostgreSQL refuses to run as root, so it runs as `nobody`.
    """

    def __init__(
        self, folder: Path, name: str, *, host: str = "127.0.0.1", port: int | None = None, prefix: Sequence[str] = ()
    ) -> None:
        found = binaries()
        if found is None:
            raise RuntimeError(INSTALL)
        self._bin = found
        self.name = name
        self.host = host
        self.port = free_port() if port is None else port
        self.folder = folder / name
        self.data = self.folder / "data"
        self.settings = dict(_SETTINGS)
        root = os.geteuid() == 0
        self._prefix = [
            *prefix,
            *(["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"] if root else []),
        ]
        self.folder.mkdir(parents=True)
        if root:
            shutil.chown(self.folder, "nobody", "nogroup")

    def run(self, program: str, *arguments: str) -> str:
        """Run one of PostgreSQL's programs as the server's user and return what it says."""
        command = [*self._prefix, str(self._bin / program), *arguments]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PATIENCE, check=False, cwd="/"
        )
        if done.returncode:
            raise RuntimeError(f"{program} of {self.name} failed: {done.stdout}{done.stderr}")
        return done.stdout

    # --- life

    def make(self) -> None:
        """Make a new and empty server."""
        self.run("initdb", "-D", str(self.data), "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        hosts = "host all all all trust\nhost replication all all trust\nlocal replication all trust\n"
        with (self.data / "pg_hba.conf").open("a") as file:
            file.write(hosts)

    def copy(self, primary: PostgresNode) -> None:
        """Become a standby of another node, with a new copy of its data. Must not be running."""
        shutil.rmtree(self.data, ignore_errors=True)
        self.run("pg_basebackup", "-D", str(self.data), "-d", primary.replication, "-X", "stream", "-c", "fast", "-N")
        self.follow(primary)

    def follow(self, primary: PostgresNode) -> None:
        """Be a standby of another node from the next start on."""
        self.settings["primary_conninfo"] = f"{primary.replication} application_name={self.name}"
        (self.data / "standby.signal").touch()

    def start(self) -> None:
        """Start, and wait until it answers."""
        self.write_settings()
        log = self.folder / "log"
        try:
            self.run("pg_ctl", "start", "-D", str(self.data), "-w", "-l", str(log))
        except RuntimeError as error:
            error.add_note(log.read_text()[-4000:])
            raise

    def write_settings(self) -> None:
        """Write `settings`, which it takes over when it is started or told to `reload`."""
        own = {"listen_addresses": self.host, "port": str(self.port), "unix_socket_directories": str(self.folder)}
        lines = [f"{name} = '{value}'\n" for name, value in {**self.settings, **own}.items()]
        (self.data / "postgresql.auto.conf").write_text("".join(lines))

    def set(self, **settings: str) -> None:
        """Change settings, of which none needs a restart, while it runs."""
        self.settings |= settings
        self.write_settings()
        self.run("pg_ctl", "reload", "-D", str(self.data))

    def stop(self, mode: str = "fast") -> None:
        """Stop: `fast` ends all connections in order, `immediate` is a crash."""
        self.run("pg_ctl", "stop", "-D", str(self.data), "-w", "-m", mode)

    def restart(self, mode: str = "fast") -> None:
        """Stop and start."""
        self.stop(mode)
        self.start()

    def promote(self) -> None:
        """Make a standby a primary, and wait until it is."""
        self.settings.pop("primary_conninfo", None)
        self.run("pg_ctl", "promote", "-D", str(self.data), "-w")

    # --- violence

    @property
    def pid(self) -> int | None:
        """The id of the server's first process, None when it does not run."""
        with suppress(FileNotFoundError, ValueError, IndexError):
            pid = int((self.data / "postmaster.pid").read_text().splitlines()[0])
            if _lives(pid):
                return pid
        return None

    def _processes(self) -> list[int]:
        pid = self.pid
        return [] if pid is None else [pid, *children(pid)]

    def kill(self) -> None:
        """Kill all its processes at once, as when the machine loses its power."""
        self._signal(signal.SIGSTOP)  # so that the first process does not clean up behind the others
        killed = self._signal(signal.SIGKILL)
        until(lambda: not any(_lives(pid) for pid in killed), f"{self.name} is dead")
        # Where nobody collects dead processes, as in many a container, the next one would take them for living ones.
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        (self.folder / f".s.PGSQL.{self.port}.lock").unlink(missing_ok=True)

    def freeze(self) -> None:
        """Let it stand still: connections stay open and nothing is answered."""
        # The first one last and first again, since it must not start a process in between.
        self._signal(signal.SIGSTOP)
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> list[int]:
        found = self._processes()
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        return found

    # --- questions

    @property
    def replication(self) -> str:
        """Where standbys find it."""
        return f"host={self.host} port={self.port} user={USER} dbname=replication"

    def sql(self, statement: str, *values: object, database: str = "postgres") -> list[tuple[object, ...]]:
        """Run a statement as superuser, through the socket, and return its rows."""
        where = f"host={self.folder} port={self.port} user={USER} dbname={database} connect_timeout=10"
        with psycopg.connect(where, autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), values)
            return cursor.fetchall() if cursor.description else []

    def url(self, database: str, **options: str) -> str:
        """Return a store's address that names this node only."""
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"postgresql://{USER}@{self.host}:{self.port}/{database}" + (f"?{query}" if query else "")

    def guard(self) -> str:
        """Return a line for a shell that kills it."""
        pidfile = shlex.quote(str(self.data / "postmaster.pid"))
        return (
            f"p=$(head -n 1 {pidfile} 2>/dev/null) && [ -d /proc/$p ] && kill -STOP $p && "
            "kill -KILL $(cat /proc/$p/task/$p/children) $p"
        )


class PostgresCluster:
    """A primary and standbys. With `synchronous`, no commit is acknowledged before a standby has flushed it.

    `primary` and `standbys` are who they are now. The nodes are named `a`, `b` …; `hosts` and `prefixes` give each its
    address and what is put before its commands.
    """

    def __init__(
        self,
        size: int = 2,
        *,
        synchronous: bool = True,
        fsync: bool = True,
        hosts: Sequence[str] = (),
        prefixes: Sequence[Sequence[str]] = (),
    ) -> None:
        # Not in pytest's folders: a socket's path has at most 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="perdure-cluster-", dir=None if fsync else memory()))
        self.folder.chmod(0o755)
        self._numbers = count(1)
        self.synchronous = synchronous
        self.nodes = [
            PostgresNode(
                self.folder,
                chr(ord("a") + number),
                host=hosts[number] if hosts else "127.0.0.1",
                prefix=prefixes[number] if prefixes else (),
            )
            for number in range(size)
        ]
        self.primary, *self.standbys = self.nodes
        self._guard = self._guarded()
        for node in self.nodes:
            node.settings["fsync"] = "on" if fsync else "off"
        self.primary.make()
        self.primary.start()
        for standby in self.standbys:
            standby.copy(self.primary)
            standby.start()
        self._wait_for_standbys()

    def _guarded(self) -> subprocess.Popen[bytes]:
        """Start what kills all servers and removes all traces when this process lets go of it, or is killed."""
        kill = "\n".join(node.guard() for node in self.nodes)
        return subprocess.Popen(
            ["sh", "-c", f"cat >/dev/null\n{kill}\nsleep 0.2\nrm -rf {shlex.quote(str(self.folder))}"],
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
        self._guard.wait(_PATIENCE)

    # --- for clients

    def url(self, database: str, **options: str) -> str:
        """Return a store's address that names all nodes, and means the one that takes writes."""
        hosts = ",".join(f"{node.host}:{node.port}" for node in self.nodes)
        all_options = {"target_session_attrs": "read-write", **options}
        query = "&".join(f"{name}={value}" for name, value in all_options.items())
        return f"postgresql://{USER}@{hosts}/{database}?{query}"

    def new_database(self) -> str:
        """Return the name of a new database, which the standbys have too."""
        name = f"db{next(self._numbers)}"
        self.primary.sql(f"CREATE DATABASE {name}")
        return name

    def sql(self, statement: str, *values: object, database: str = "postgres") -> list[tuple[object, ...]]:
        """Run a statement on the primary as superuser and return its rows."""
        return self.primary.sql(statement, *values, database=database)

    # --- what may happen to it

    def fail_over(self, *, kill: bool = True) -> PostgresNode:
        """Kill the primary and promote a standby, as a cluster manager would; returns what was the primary.

        Without `kill` the old primary is left as it is, frozen or cut off by the test, say. Nothing that it is asked to
        commit from now on is acknowledged, since no standby follows it any more.
        """
        old = self.primary
        if kill:
            old.kill()
        new = self.standbys[0] if len(self.standbys) == 1 else self._newest_standby()
        self.standbys.remove(new)
        # Before it takes writes: commits that wait for a standby would wait for ever.
        new.set(synchronous_standby_names="")
        new.promote()
        self.primary = new
        for standby in self.standbys:
            standby.set(primary_conninfo=f"{new.replication} application_name={standby.name}")
        self._wait_for_standbys()
        return old

    def _newest_standby(self) -> PostgresNode:
        """Cut the standbys off the primary and return the one that has the most: all that was acknowledged."""
        for standby in self.standbys:
            standby.set(primary_conninfo="")
        until(lambda: not any(node.sql(_RECEIVING) for node in self.standbys), "no standby follows the old primary")
        return max(self.standbys, key=lambda node: node.sql(_RECEIVED))

    def rejoin(self) -> None:
        """Make every node that is neither primary nor standby a new standby, whatever has become of it."""
        for node in self.nodes:
            if node is not self.primary and node not in self.standbys:
                node.kill()
                node.settings.pop("synchronous_standby_names", None)
                node.copy(self.primary)
                node.start()
                self.standbys.append(node)
        self._wait_for_standbys()

    def _wait_for_standbys(self) -> None:
        """Wait until all standbys follow, and commits wait for one of them if they should."""
        wanted = len(self.standbys)
        if not wanted:
            return
        until(lambda: self._following() == wanted, f"{wanted} standbys follow {self.primary.name}")
        if self.synchronous:
            self.primary.set(synchronous_standby_names="ANY 1 (*)")
            until(lambda: bool(self._following("quorum")), f"commits wait for a standby of {self.primary.name}")

    def _following(self, *states: str) -> int:
        found = self.sql("SELECT sync_state FROM pg_stat_replication WHERE state = 'streaming'")
        return len([state for (state,) in found if not states or state in states])


def free_port() -> int:
    """Return a TCP port of loopback that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def children(pid: int) -> list[int]:
    """Return the ids of a process's children."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _lives(pid: int) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def until(holds: Callable[[], bool], what: str, patience: float = _PATIENCE) -> None:
    """Wait until something holds that nobody tells of."""
    deadline = time.monotonic() + patience
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {patience:.0f} s until {what}")
        time.sleep(0.02)
