"""One chaos run, from nothing to a verdict."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
from tests.chaos.asking import Caller
from tests.chaos.checker import Problem, find
from tests.chaos.cleaner import Cleaner
from tests.chaos.collecting import collect
from tests.chaos.database import ClusterDatabase, free_port
from tests.chaos.evidence import Evidence
from tests.chaos.load import Load
from tests.chaos.nemeses import NEMESES, Injection, Stage, missing
from tests.chaos.network import Network
from tests.chaos.nodes import Ended, Node, perdure
from tests.chaos.reading import FeedReader, Readers

from perdure.client.aio import AsyncClient
from perdure.testing import Ledger

PROJECT: Final = Path(__file__).with_name("project")
WORKERS: Final = ("worker-1", "worker-2", "worker-3")
SERVERS: Final = ("server-1", "server-2")
JUMPS: Final = ("worker-3", "server-2")
SLEEPERS: Final = ("worker-2",)
_CALM: Final = 2.0
_SETTLED: Final = 60.0
_LASTING: Final = 120.0
_AT_ONCE: Final = 2


@dataclass(frozen=True)
class Options:
    """What is run: each of `kinds` in turn, then `seconds` of them by chance, among so many conversations `at_once`.

    `pause` is how many seconds a client takes between two acts; `extra` is added to the environment of all nodes;
    `jumps` and `sleepers` are the nodes whose clocks are moved. Without `hints` workers look for news by themselves.
    """

    seed: int
    seconds: float = 0.0
    kinds: Sequence[str] = tuple(NEMESES)
    lease: float = 3.0
    at_once: int = 16
    pause: float = 0.8
    extra: dict[str, str] = field(default_factory=dict)
    jumps: Sequence[str] = JUMPS
    sleepers: Sequence[str] = SLEEPERS
    hints: bool = True
    say: Callable[[str], None] = print


@dataclass
class Outcome:
    """What came of a run. Times are seconds."""

    options: Options
    evidence: Evidence
    problems: list[Problem] = field(default_factory=list)
    injections: list[Injection] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    ends: list[Ended] = field(default_factory=list)
    latencies: list[tuple[float, float]] = field(default_factory=list)
    ends_of_turns: dict[str, int] = field(default_factory=dict)
    retries: int = 0
    lasted: float = 0.0
    network: str = ""
    database: str = ""
    folder: Path = Path()


@asynccontextmanager
async def staged(options: Options) -> AsyncIterator[tuple[Stage, Path]]:
    """Set up database, network, workers and servers; take all of it away at the end, whatever happens."""
    folder = Path(tempfile.mkdtemp(prefix="perdure-chaos-"))
    folder.chmod(0o755)
    cleaner = Cleaner(str(folder))
    cleaner.later("rm", "-rf", str(folder))
    options.say(f"everything is in {folder}")
    nodes: list[Node] = []
    network: Network | None = None
    database: ClusterDatabase | None = None
    try:
        network = await asyncio.to_thread(Network, cleaner, WORKERS, SERVERS)
        database = await asyncio.to_thread(ClusterDatabase, cleaner, folder, network)
        stage = _stage(options, folder, network, database)
        nodes = stage.nodes
        yield stage, folder
    finally:
        for node in nodes:
            await node.close()
        if network is not None:
            network.close()
        if database is not None:
            await asyncio.to_thread(database.remove)
        await asyncio.to_thread(cleaner.clean)


def _stage(options: Options, folder: Path, network: Network, database: ClusterDatabase) -> Stage:
    lease = f"{options.lease * 1000:.0f}ms"

    def worker(name: str) -> Node:
        def command() -> list[str]:
            hints = {} if options.hints else {"perdure_hints": "off"}
            where = ["--store", database.url(name, **hints), "--data", str(folder / name / "data")]
            return perdure("worker", *where, "--lease", lease, "--json")

        return Node(name, folder, command, prefix=network.prefix(name), environment=options.extra)

    def server(name: str) -> Node:
        port = free_port()

        def command() -> list[str]:
            where = ["--store", database.url(name), "--data", str(folder / name / "data"), "--port", str(port)]
            return perdure("serve", *where, "--no-worker", "--json")

        return Node(name, folder, command, environment=options.extra, url=f"http://127.0.0.1:{port}")

    workers, servers = [worker(name) for name in WORKERS], [server(name) for name in SERVERS]
    for node in [*workers, *servers]:
        if node.name in (*options.jumps, *options.sleepers):
            node.fake_clock(sleeps=node.name in options.sleepers)
    return Stage(workers, servers, database, network, options.lease, random.Random(f"{options.seed}/nemeses"))


async def start(stage: Stage) -> None:
    """Start all nodes, and deploy the project."""
    stage.servers[0].start()
    await stage.servers[0].until_ready()
    async with AsyncClient(stage.servers[0].url) as client:
        await client.deploy(PROJECT)
    for node in stage.nodes:
        node.start()
    for node in stage.nodes:
        await node.until_ready()


async def run(options: Options) -> Outcome:
    """Run, and check."""
    evidence = Evidence()
    outcome = Outcome(options, evidence)
    async with staged(options) as (stage, folder):
        outcome.folder = folder
        outcome.network = stage.network.kind + (f" ({stage.network.why})" if stage.network.why else "")
        outcome.database = stage.database.version
        outcome.missing = missing(stage)
        for kind, why in outcome.missing.items():
            options.say(f"{kind} cannot be done here: {why}")
        await start(stage)
        await _Show(stage, outcome).run()
        evidence.histories = await collect(stage.database.url())
        for node in stage.nodes:
            evidence.ledger += Ledger(node.ledger).entries()
            outcome.ends += node.ends
        outcome.problems = await asyncio.to_thread(find, evidence)
        if outcome.problems:
            kept = Path(tempfile.mkdtemp(prefix="perdure-chaos-kept-"))
            _keep(stage.nodes, kept)
            for session in {problem.session for problem in outcome.problems} & evidence.histories.keys():
                (kept / f"{session}.json").write_bytes(msgspec.json.encode(evidence.histories[session].events))
            outcome.folder = kept
    return outcome


def _keep(nodes: Sequence[Node], folder: Path) -> None:
    """Keep what nodes said and noted."""
    for node in nodes:
        (folder / node.name).mkdir()
        for name in ("log", "said", "ledger"):
            if (node.folder / name).exists():
                shutil.copy(node.folder / name, folder / node.name / name)


class _Show:
    """The part of a run in which things are broken."""

    def __init__(self, stage: Stage, outcome: Outcome) -> None:
        self._stage = stage
        self._outcome = outcome
        self._options = outcome.options
        urls = [server.url for server in stage.servers]
        self._caller = Caller(urls, outcome.evidence, self._options.seed)
        self._readers = Readers(urls, outcome.evidence, self._options.seed)
        self._load = Load(
            self._caller,
            self._readers,
            self._options.seed,
            at_once=self._options.at_once,
            pause=self._options.pause,
        )
        self._until = float("inf")
        self._began = time.monotonic()
        self._watching: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Break and heal while clients talk, then let everything come to rest and stop it."""
        talking = asyncio.create_task(self._load.run(lambda: self._until))
        feed = FeedReader(self._readers)
        following = asyncio.create_task(feed.follow())
        try:
            await asyncio.sleep(_CALM)
            await self._directed()
            await self._by_chance()
            await self._heal()
            await asyncio.sleep(_CALM)
            self._until = time.monotonic()
            self._outcome.lasted = time.monotonic() - self._began
            await self._load.settle_after(talking)
            await asyncio.gather(*self._watching)
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following
            await feed.finish()
            await self._stop()
        finally:
            talking.cancel()
            following.cancel()
            await asyncio.wait([talking, following])
            await self._caller.close()
            await self._readers.close()
        for error in self._load.broken:
            raise error
        self._outcome.latencies = self._load.progress.latencies
        self._outcome.ends_of_turns = self._load.progress.ends
        self._outcome.retries = self._caller.retries

    async def _directed(self) -> None:
        for kind in self._options.kinds:
            if kind not in self._outcome.missing:
                await self._break(kind)
                await asyncio.sleep(0.5)

    async def _by_chance(self) -> None:
        until = time.monotonic() + self._options.seconds
        choice = self._stage.random
        kinds = [kind for kind in self._options.kinds if kind not in self._outcome.missing]
        breaking: set[asyncio.Task[None]] = set()
        while time.monotonic() < until:
            if len(breaking) < _AT_ONCE:
                breaking.add(asyncio.create_task(self._break(choice.choice(kinds))))
            await asyncio.wait(breaking, timeout=choice.expovariate(1 / 3), return_when=asyncio.FIRST_COMPLETED)
            breaking = {task for task in breaking if not task.done()}
            await asyncio.sleep(choice.random())
        await asyncio.gather(*breaking)

    async def _break(self, kind: str) -> None:
        injection = Injection(kind, time.monotonic() - self._began)
        self._outcome.injections.append(injection)
        watching = asyncio.create_task(self._watch(injection))
        self._watching.add(watching)
        try:
            async with asyncio.timeout(_LASTING):
                await NEMESES[kind](self._stage, injection)
        except Exception as error:
            # What the run could not break or heal is told, and is no verdict on what was tested.
            injection.error = repr(error)
        injection.healed = time.monotonic() - self._began
        lasted = injection.healed - injection.began
        self._options.say(f"{injection.began:7.1f} s  {kind} {injection.target} for {lasted:.1f} s {injection.error}")

    async def _watch(self, injection: Injection) -> None:
        injection.settled = await self._load.settled(_SETTLED)

    async def _heal(self) -> None:
        """Have everything up again, whatever the nemeses have left."""
        await asyncio.to_thread(self._stage.database.revive)
        await asyncio.to_thread(self._stage.database.rejoin)
        for node in self._stage.nodes:
            self._stage.network.heal(node.name)
            node.signal(signal.SIGCONT)
            node.start()
        for node in self._stage.nodes:
            await node.until_ready()

    async def _stop(self) -> None:
        """Stop all in order, so that nothing changes any more."""
        for node in self._stage.nodes:
            await node.stop(signal.SIGTERM)


def seed_of(text: str | None) -> int:
    """Return the seed that somebody gave, or a new one."""
    return int(text) if text else int.from_bytes(os.urandom(4), "big")
