"""The driver of Perdure in process, inline host: `python -m bench.ours.driver FOLDER [restless]`."""

from __future__ import annotations

import platform
import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import apsw

from bench import load, wire
from bench.ours.engine import ALWAYS_AWAKE, RESTLESS, Perdure


async def hello() -> dict[str, Any]:
    return {
        "system": "ours",
        "versions": {
            "perdure": version("perdure"),
            "python": platform.python_version(),
            "sqlite": apsw.sqlite_lib_version(),
        },
        "durability": "SQLite WAL, synchronous=FULL, group commit; inline host, in process",
    }


async def main() -> None:
    answers = wire.take_stdout()
    folder = Path(sys.argv[1]) / "ours"
    folder.mkdir(exist_ok=True)
    ours = Perdure(folder, RESTLESS if "restless" in sys.argv[2:] else ALWAYS_AWAKE)
    await ours.open()
    await wire.serve(
        {
            "hello": hello,
            "turns": partial(load.converse, ours.turn),
            "create": partial(load.open_many, ours.turn),
            "extend": partial(load.extend, ours.turn),
            "grow": partial(load.grow, ours.turn),
            "stored": ours.stored,
            "asleep": ours.asleep,
            "sessions": ours.sessions,
            "know": ours.know,
        },
        answers,
    )


if __name__ == "__main__":
    wire.run(main)
