"""Run the demo. Exit code 0 only if every promise held; whatever happens, what it started is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
import tempfile
from pathlib import Path

from demo.stage import Stage
from demo.story import Story
from demo.world import World, WorldError
from perdure.errors import PerdureError

SECONDS = 120
PROJECT = Path(__file__).parent / "project"


async def main() -> int:
    """Tell the story in a folder of its own and clean up after it."""
    stage = Stage()
    folder = Path(tempfile.mkdtemp(prefix="perdure-demo-"))
    shutil.copytree(PROJECT, folder / "project", ignore=shutil.ignore_patterns("__pycache__"))
    world = World(folder / "project", stage)
    try:
        async with asyncio.timeout(SECONDS):
            await Story(world, stage).tell()
    except (PerdureError, WorldError) as error:
        stage.broke(str(error))
    except TimeoutError:
        stage.broke(f"The demo was not done after {SECONDS} seconds; it takes 20.")
    finally:
        left = await world.clear_away()
        shutil.rmtree(folder)
    stage.promise("Nothing is left running, and the folder is gone", not left, f"still there: {left}")
    return stage.end()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(asyncio.run(main()))
    sys.exit(130)
