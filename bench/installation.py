"""What is measured on PostgreSQL: each system with a database of its own on one server, all of them driven alike."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from bench import cpu
from bench.drivers import Driver
from bench.ours.parts import DURABILITY, Server, Worker
from bench.postgres import Counters, Postgres
from bench.stage import Stage
from bench.stats import Sample

OURS, SERVED, PARTED = "ours", "ours http", "ours parts"
IN_PROCESS = {"ours": "ours", "dbos": "dbos", "langgraph": "langgraph", "ref": "pgref"}
VERSIONS = {"perdure": version("perdure"), "psycopg": version("psycopg")}
REPORTED = 1.1
"""Seconds after which a process of the server's reports what it has done, at the end of its next transaction."""


@dataclass(frozen=True)
class System:
    """A system that takes a load. `pids` are its own processes, without the database's and without the load's."""

    name: str
    driver: Driver
    pids: tuple[int, ...]
    database: str | None

    def warm(self) -> None:
        self.driver.ask("turns", conversations=10, turns=40, seconds=0.5, tag="warm")


@dataclass(frozen=True)
class Taken:
    """What one load took: its sample, CPU seconds of the system's own processes and of the database's."""

    sample: Sample
    own_cpu: float
    database_cpu: float
    acknowledged: int | None = None

    @property
    def turns(self) -> int:
        return len(self.sample.latencies)


class Installation:
    """One PostgreSQL and the systems on it, which end with the stage."""

    def __init__(self, stage: Stage) -> None:
        """Start the server.

        Raises:
            PeerUnavailable: PostgreSQL is not installed.
        """
        self.stage = stage
        self.postgres = stage.exits.enter_context(Postgres())
        stage.report.systems["postgresql"] = self.postgres.hello()

    # --- systems

    def start(self, name: str, *extra: str) -> System | None:
        """A system, warm; None with a note in the report if it cannot be had here."""
        if name == "restate":
            driver = self._try("restate")
            pids = () if driver is None else tuple(self.stage.report.systems["restate"].pop("pids"))
            return self._warm(None if driver is None else System(name, driver, pids, None))
        if name in (SERVED, PARTED):
            return self._warm(self.parts(name, 0 if name == SERVED else 1))
        driver = self._try(IN_PROCESS[name], self.postgres.new_database(name), *extra)
        return self._warm(None if driver is None else System(name, driver, (driver.pid,), name))

    def start_all(self, names: Sequence[str]) -> dict[str, System]:
        """Those of the systems that can be had here."""
        started = {name: self.start(name) for name in names}
        return {name: system for name, system in started.items() if system is not None}

    def _try(self, system: str, *extra: str) -> Driver | None:
        try:
            return self.stage.start(system, *extra)
        except Exception as why:  # a peer that does not come up is told of, and the others are measured
            if system == "ours":
                raise
            self.stage.report.notes.append(f"{system} not measured: {str(why).strip().splitlines()[-1]}")
            return None

    @staticmethod
    def _warm(system: System | None) -> System | None:
        if system is not None:
            system.warm()
        return system

    def parts(self, name: str, workers: int, lease: str = "15s") -> System:
        """`perdure serve` with its load; with so many workers of its own, or working itself."""
        database = name.replace(" ", "_")
        url, enter = self.postgres.new_database(database), self.stage.exits.enter_context
        server = enter(Server(self.stage.folder, f"{database}-server", url, works=not workers, lease=lease))
        server.deploy()
        folder = self.stage.folder
        pools = [enter(Worker(folder, f"{database}-worker{number}", url, lease=lease)) for number in range(workers)]
        self.stage.report.systems[name] = {"system": name, "versions": VERSIONS, "durability": DURABILITY}
        driver = enter(Driver("http", self.stage.folder, str(server.port)))
        driver.ask("hello")
        return System(name, driver, (server.pid, *(worker.pid for worker in pools)), database)

    # --- measuring

    def take(self, system: System, operation: str, **arguments: Any) -> Taken:
        """One load, with what it took."""
        self.stage.note_contention()
        own, database = cpu.spent(system.pids), self.postgres.cpu()
        answer = system.driver.ask(operation, **arguments)
        own, database = cpu.spent(system.pids) - own, self.postgres.cpu() - database
        return Taken(Sample.of(answer), own, database, answer.get("acknowledged"))

    def settled(self, system: System, at_once: int) -> Counters:
        """The server's counters, all that the system did before included.

        Processes of the server report at the end of a transaction, once a second at most: so they are given a moment
        and then one more, short load.
        """
        assert system.database is not None
        time.sleep(REPORTED)
        system.driver.ask("turns", conversations=at_once, turns=1, seconds=0.05, tag=f"report-{time.monotonic_ns()}")
        return self.postgres.counters(system.database)
