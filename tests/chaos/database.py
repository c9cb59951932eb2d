"""PostgreSQL with a synchronous standby, on a disk so small that it can be filled, and what may happen to it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlencode

from tests.chaos.cleaner import Cleaner
from tests.chaos.network import Network

sys.path.append(str(Path(__file__).parents[1] / "store"))

from postgres_cluster import INSTALL, USER, PostgresCluster, PostgresNode, binaries, free_port, until

__all__ = ["INSTALL", "ClusterDatabase", "binaries", "free_port", "until"]

DISK = "800m"
_ROOM_FOR_LOG = {"wal_keep_size": "64MB", "max_wal_size": "96MB", "min_wal_size": "64MB"}
_LISTENERS = "SELECT pid FROM pg_stat_activity WHERE query ILIKE 'listen%%' AND pid <> pg_backend_pid()"
_CLIENTS = "SELECT pid FROM pg_stat_activity WHERE application_name = 'perdure' AND pid <> pg_backend_pid()"


class ClusterDatabase:
    """The cluster of one run. What it does blocks; use it from threads."""

    def __init__(self, cleaner: Cleaner, folder: Path, network: Network) -> None:
        self.disk = folder / "disk"
        self.disk.mkdir()
        self.small = self._mount(cleaner)
        """Whether its disk can be filled without harm to others."""
        before, tempfile.tempdir = tempfile.tempdir, str(self.disk)
        try:
            self.cluster = PostgresCluster(hosts=[network.host] * 2)
        finally:
            tempfile.tempdir = before
        for node in self.cluster.nodes:
            node.set(**_ROOM_FOR_LOG)
        self.name = self.cluster.new_database()
        self._network = network
        places = self._places
        network.connect(places, [free_port() for _ in range(20)])

    def _mount(self, cleaner: Cleaner) -> bool:
        self.disk.chmod(0o755)
        if os.geteuid() != 0:
            return False
        words = ["mount", "-t", "tmpfs", "-o", f"size={DISK},mode=755", "perdure-chaos", str(self.disk)]
        if subprocess.run(words, capture_output=True, check=False).returncode:
            return False
        cleaner.later("umount", "-l", str(self.disk))
        return True

    @property
    def _places(self) -> list[tuple[str, int]]:
        return [(node.host, node.port) for node in self.cluster.nodes]

    @property
    def version(self) -> str:
        """The server's version."""
        ((version,),) = self.cluster.sql("SHOW server_version")
        return str(version)

    def url(self, node: str | None = None, **options: str) -> str:
        """Return the store's address as a node has to write it; without one, past everything that is broken."""
        places = self._places if node is None else self._network.places(node, self._places)
        hosts = ",".join(f"{host}:{port}" for host, port in places)
        query = urlencode({"target_session_attrs": "read-write", **options})
        return f"postgresql://{USER}@{hosts}/{self.name}?{query}"

    # --- what may happen to it

    def restart(self, mode: str) -> None:
        """Stop the primary, `fast` or as by a crash (`immediate`), and start it again."""
        self.cluster.primary.stop(mode)
        self.cluster.primary.start()

    def fail_over(self) -> str:
        """Kill the primary and promote the standby; returns who is the primary now."""
        self.cluster.fail_over()
        return self.cluster.primary.name

    def rejoin(self) -> None:
        """Bring what was the primary back as the standby."""
        self.cluster.rejoin()

    def lose_standby(self) -> PostgresNode:
        """Kill the standby, so that no commit is acknowledged any more."""
        (standby,) = self.cluster.standbys
        standby.kill()
        return standby

    def drop(self, *, listeners: bool) -> int:
        """End connections: those that hear hints, or all."""
        which = _LISTENERS if listeners else _CLIENTS
        return len(self.cluster.sql(f"SELECT pg_terminate_backend(pid) FROM ({which}) found"))

    def fill(self) -> None:
        """Fill the disk to the last byte."""
        if not self.small:
            raise RuntimeError("the database has no disk of its own here")
        with (self.disk / "ballast").open("ab", buffering=0) as ballast, suppress(OSError):
            while room := shutil.disk_usage(self.disk).free:
                os.posix_fallocate(ballast.fileno(), ballast.tell(), room)
                ballast.seek(0, os.SEEK_END)

    def free(self) -> None:
        """Give the room back, and start what could not live without."""
        (self.disk / "ballast").unlink(missing_ok=True)
        self.revive()

    def revive(self) -> None:
        """Start whichever server has ended."""
        for node in (self.cluster.primary, *self.cluster.standbys):
            if node.pid is None:
                node.start()

    def remove(self) -> None:
        """Stop for good and remove all traces."""
        self.cluster.remove()
