"""The driver of Perdure in process, inline host: `python -m bench.ours.driver FOLDER [restless] [postgresql://…]`."""

from __future__ import annotations

import platform
import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import apsw
import psycopg

from bench import load, wire
from bench.ours.engine import ALWAYS_AWAKE, RESTLESS, Perdure


async def hello(store: str | None) -> dict[str, Any]:
    driver = {"psycopg": psycopg.__version__} if store else {"sqlite": apsw.sqlite_lib_version()}
    kind = "PostgreSQL" if store else "SQLite WAL, synchronous=FULL"
    return {
        "system": "ours",
        "versions": {"perdure": version("perdure"), "python": platform.python_version(), **driver},
        "durability": f"{kind}, group commit; inline host, in process",
    }


async def main() -> None:
    answers = wire.take_stdout()
    folder = Path(sys.argv[1]) / "ours"
    folder.mkdir(exist_ok=True)
    store = next((extra for extra in sys.argv[2:] if "://" in extra), None)
    ours = Perdure(folder, RESTLESS if "restless" in sys.argv[2:] else ALWAYS_AWAKE, store)
    await ours.open()
    await wire.serve(
        {
            "hello": partial(hello, store),
            "turns": partial(ours.counted, load.converse),
            "create": partial(load.open_many, ours.turn),
            "extend": partial(load.extend, ours.turn),
            "grow": partial(load.grow, ours.turn),
            "stored": ours.stored,
            "keyed": ours.keyed,
            "asleep": ours.asleep,
            "sessions": ours.sessions,
            "know": ours.know,
        },
        answers,
    )


if __name__ == "__main__":
    wire.run(main)
