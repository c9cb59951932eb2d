"""How nodes reach the database, and how that is cut.

Workers live in network namespaces of their own where root allows it: each has a pair of virtual devices whose other end
is on a bridge, where PostgreSQL listens; a cut takes the device down, so that packets vanish. Elsewhere, and for
servers, which clients must reach, a proxy stands in between and lets connections stand still.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Sequence

from tests.chaos.cleaner import Cleaner
from tests.chaos.proxy import Proxies, Route

LOOPBACK = "127.0.0.1"


class Namespaces:
    """A bridge, and a namespace for each of some nodes."""

    def __init__(self, cleaner: Cleaner, nodes: Sequence[str]) -> None:
        self._cleaner = cleaner
        self._nodes = list(nodes)
        # Others may do the same at the same time.
        self._net = f"10.213.{random.SystemRandom().randrange(1, 255)}"
        self._tag = f"{os.getpid() % 0xFFFFF:05x}"
        self.address = f"{self._net}.1"
        bridge = f"pc{self._tag}"
        self._do("link", "add", bridge, "type", "bridge", undo=("link", "del", bridge))
        self._do("address", "add", f"{self.address}/24", "dev", bridge)
        self._do("link", "set", bridge, "up")
        for number, node in enumerate(nodes):
            self._add(bridge, number, node)

    def _add(self, bridge: str, number: int, node: str) -> None:
        space, outer, inner = self.space(node), self._device(node), f"{self._device(node)}i"
        self._do("netns", "add", space, undo=("netns", "del", space))
        self._do("link", "add", outer, "type", "veth", "peer", "name", inner, "netns", space)
        self._do("link", "set", outer, "master", bridge, "up")
        self._do("-n", space, "address", "add", f"{self._net}.{number + 10}/24", "dev", inner)
        self._do("-n", space, "link", "set", inner, "up")
        self._do("-n", space, "link", "set", "lo", "up")

    def _device(self, node: str) -> str:
        return f"pc{self._tag}{self._nodes.index(node)}"

    def space(self, node: str) -> str:
        """Return the name of a node's namespace."""
        return f"perdure-{self._tag}-{node}"

    def _do(self, *words: str, undo: Sequence[str] = ()) -> None:
        done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False, timeout=30)
        if done.returncode:
            raise NoNamespaces(f"ip {' '.join(words)}: {done.stderr.strip()}")
        if undo:
            self._cleaner.later("ip", *undo)

    def set(self, node: str, state: str) -> None:
        """Take a node's device `down`, or `up` again."""
        self._do("link", "set", self._device(node), state)


class NoNamespaces(Exception):
    """Raised where this machine gives no network namespaces; the message says what it refused."""


class Network:
    """All ways between nodes and database. `kind` says how workers are cut off, and `why` why not in a better way."""

    def __init__(self, cleaner: Cleaner, workers: Sequence[str], servers: Sequence[str]) -> None:
        self.kind, self.why = "network namespaces", ""
        self._spaces: Namespaces | None = None
        self._proxied = list(servers)
        try:
            self._spaces = self._namespaces(cleaner, workers)
        except NoNamespaces as error:
            self.kind, self.why = "proxies", str(error)
            self._proxied += workers
        self.host = self._spaces.address if self._spaces else LOOPBACK
        """Where PostgreSQL is to listen."""
        self._ports: dict[str, list[int]] = {}
        self._proxies: Proxies | None = None

    @staticmethod
    def _namespaces(cleaner: Cleaner, nodes: Sequence[str]) -> Namespaces:
        if os.environ.get("CHAOS_NETWORK") == "proxies":
            raise NoNamespaces("CHAOS_NETWORK=proxies")
        if os.geteuid() != 0:
            raise NoNamespaces("only root may make them")
        if shutil.which("ip") is None:
            raise NoNamespaces("there is no ip command: apt-get install iproute2")
        return Namespaces(cleaner, nodes)

    def connect(self, databases: Sequence[tuple[str, int]], free_ports: Sequence[int]) -> None:
        """Begin to forward to the databases, for those who are not in a namespace."""
        ports = iter(free_ports)
        routes: dict[str, list[Route]] = {}
        for node in self._proxied:
            routes[node] = [(next(ports), host, port) for host, port in databases]
            self._ports[node] = [port for port, _, _ in routes[node]]
        self._proxies = Proxies(routes)

    def places(self, node: str, databases: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
        """Return where a node finds the databases."""
        ports = self._ports.get(node)
        return list(databases) if ports is None else [(LOOPBACK, port) for port in ports]

    def prefix(self, node: str) -> list[str]:
        """Return what is put before a node's command."""
        return (
            [] if node in self._proxied or self._spaces is None else ["ip", "netns", "exec", self._spaces.space(node)]
        )

    def cut(self, node: str) -> None:
        """Let nothing pass any more between a node and the database."""
        self._change(node, "down", "stall")

    def heal(self, node: str) -> None:
        """Let everything pass again."""
        self._change(node, "up", "heal")

    def _change(self, node: str, state: str, word: str) -> None:
        if node in self._proxied:
            assert self._proxies is not None
            self._proxies.tell(word, node)
        else:
            assert self._spaces is not None
            self._spaces.set(node, state)

    def close(self) -> None:
        """End the proxies; namespaces go with the cleaner."""
        if self._proxies is not None:
            self._proxies.close()
