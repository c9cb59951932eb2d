"""One case: an act in a world in which one crash point is armed, and what has to hold in the end."""

from __future__ import annotations

import asyncio
import os
from typing import NamedTuple

import crash_acts as acts
from crash_story import PROCESS_AGENTS, Story
from crash_world import World

from perdure.crashpoints import Action
from perdure.testing import CrashNote, History, HistoryBroken

PATIENCE = 20.0
MEANT = "ValueError"
"""What a handler raises that is told to fail."""

HANG_PATIENCE = 0.15


class Case(NamedTuple):
    """A point, for one purpose of it or any, what happens there, and the act of an agent that comes by."""

    point: str
    label: str
    action: Action
    act: str
    agent: str

    def __str__(self) -> str:
        where = f"{self.point}={self.label}" if self.label else self.point
        return f"{where}:{self.action}-{self.act}-{self.agent}"

    @property
    def slug(self) -> str:
        """A name for files and keys."""
        return str(self).replace(":", "-").replace("=", "-")


class Crash(NamedTuple):
    """What happened at the point, and whether it happened in the server that served then."""

    note: CrashNote
    in_server: bool


async def play(world: World, case: Case) -> None:
    """Play a case, and check all that must hold."""
    world.begin()
    await world.up()
    world.restarted.clear()
    before = world.starts
    story = Story(world, case.agent, f"{case.slug}-{os.getpid()}")
    world.crash.arm(case.point, case.action, label=case.label)
    try:
        async with asyncio.timeout(PATIENCE):
            crash = await _play(world, case, story)
            history = await story.check()
            _check_what_was_lost(case, crash, history)
    except (TimeoutError, AssertionError, HistoryBroken) as error:
        note = world.crash.note()
        log = "\n".join(f"{event['seq']} {event['type']} {event['data']}" for event in story.events)
        error.add_note(f"{note}, {world.starts - before} starts; the log:\n{log}\nthe server:\n{world.tail()}")
        raise
    finally:
        world.crash.disarm()
        await story.close()


async def _play(world: World, case: Case, story: Story) -> Crash:
    playing = asyncio.create_task(getattr(acts, case.act)(story))
    reaching = asyncio.create_task(world.crash.wait(PATIENCE))
    try:
        await asyncio.wait([playing, reaching], return_when=asyncio.FIRST_COMPLETED)
        if not reaching.done() and playing.exception() is None:
            # The act is over for the client; the server may still be at work.
            await asyncio.wait([reaching], timeout=1)
        assert reaching.done(), "the crash point was not reached"
        crash = Crash(reaching.result(), in_server=reaching.result().pid == world.server.pid)
        await _pull_plug(world, case, crash, playing)
        await playing
        return crash
    finally:
        for task in (playing, reaching):
            task.cancel()
        await asyncio.wait([playing, reaching])


async def _pull_plug(world: World, case: Case, crash: Crash, playing: asyncio.Task[None]) -> None:
    note = crash.note
    assert (note.point, note.action) == (case.point, case.action)
    if case.action == "hang":
        # What hangs must not come to anything; if the act ends all the same, the hang has stopped nothing of it.
        await asyncio.wait([playing], timeout=HANG_PATIENCE)
        await world.kill(note.pid)
    elif case.action == "kill" and crash.in_server:
        await world.server.gone()
        await world.up()


def _check_what_was_lost(case: Case, crash: Crash, history: History) -> None:
    """One crash spoils one turn at most, and none of a session's own process when it is the server's."""
    lost = [turn["sequence"] for turn in history.turns if turn.get("reason") in ("process_lost", "process_stopped")]
    failed = [turn["sequence"] for turn in history.turns if turn.get("error", {}).get("type", MEANT) != MEANT]
    dies_anyway = 1 if case.act == "loss" else 0
    survives = case.agent in PROCESS_AGENTS and crash.in_server
    assert len(lost) <= dies_anyway + (0 if survives else 1), f"turns {lost} were lost"
    assert len(lost) + len(failed) <= dies_anyway + 1, f"turns {lost} were lost and {failed} failed"
