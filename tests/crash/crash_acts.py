"""What happens in a case: small stories of one session. Each bears that a turn is interrupted by a crash."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

from crash_story import Story
from crash_world import PROJECT

from perdure.api.sessions import Receipt
from perdure.errors import AskCancelled
from perdure.testing.history import ENDS

Act = Callable[[Story], Awaitable[None]]


async def talk(story: Story) -> None:
    """Three turns, accepted together and done in order."""
    first = await story.create("say one")
    second, third = await story.enqueue("say two"), await story.enqueue("sketch three")
    await story.ended(first, second, third)
    await story.end()


async def journey(story: Story) -> None:
    """Two turns with steps, of agents that are resumed: none is lost with a process, and nothing is done twice."""
    first = await story.create("there")
    second = await story.enqueue("back")
    outcomes = await story.ended(first, second)
    # What is raised in a handler fails its turn.
    assert set(outcomes) <= {"completed", "failed"}
    notes = [entry["what"] for entry in story.world.ledger.entries(kind="step", session=story.session.id)]
    for sequence, outcome in enumerate(outcomes, 1):
        assert notes.count(f"book {sequence}") <= 1, "a step that is never replayed was"
        assert notes.count(f"search {sequence}") >= (outcome == "completed")
    written = [event for event in story.events if event["type"] == "turn.output"]
    words = [event["data"]["content"][0]["text"].partition(" ")[0] for event in written]
    assert outcomes != ["completed"] * 2 or words == ["key", "refused"] * 2, "outputs are written once"
    await story.end()


async def question(story: Story) -> None:
    """A turn asks and is answered; another waits behind it."""
    first = await story.create("ask why")
    second = await story.enqueue("say two")
    asked = await story.until("ask.created", first)
    if asked is not None:
        await _answer(story, asked["data"]["ask_id"], first)
    await story.ended(first, second)
    await story.end()


async def _answer(story: Story, ask_id: str, receipt: Receipt) -> None:
    try:
        await story.answer(ask_id, "because")
    except AskCancelled:
        # Its turn was interrupted by the crash.
        await story.ended(receipt)


async def withdrawal(story: Story) -> None:
    """A turn takes its question back."""
    await story.ended(await story.create("reconsider this"))
    await story.end()


async def steering(story: Story) -> None:
    """A running turn is told things."""
    first = await story.create("listen 2")
    if await story.until("turn.output", first):
        await story.send(first, "say left")
        await story.steer("say right")
    second = await story.enqueue("say two")
    await story.persist(first, "say again")
    await story.ended(second)
    await story.end()


async def rejection(story: Story) -> None:
    """A running turn refuses what it is told."""
    first = await story.create("listen 2")
    if await story.until("turn.output", first):
        await story.send(first, "reject")
    await story.ended(first)
    await story.end()


async def failure(story: Story) -> None:
    """A handler raises; the next turn goes on."""
    first = await story.create("fail on purpose")
    await story.ended(first, await story.enqueue("say two"))
    await story.end()


async def interruption(story: Story) -> None:
    """A running turn is interrupted, and the queue goes on after the resume."""
    first = await story.create("wait")
    second = await story.enqueue("say two")
    await story.until("turn.output", first)
    hold = await story.interrupt()
    await story.ended(first)
    third = await story.enqueue("say three")
    assert hold.hold_id is not None
    await story.resume(hold.hold_id)
    await story.ended(second, third)
    await story.end()


async def deadline(story: Story) -> None:
    """A turn takes too long."""
    first = await story.create("wait")
    second = await story.enqueue("say two")
    await story.ended(first, second)
    await story.end()


async def cancellation(story: Story) -> None:
    """A session is cancelled in the middle of things."""
    first = await story.create("wait")
    await story.enqueue("say two")
    await story.until("turn.output", first)
    await story.end("cancel")


async def idleness(story: Story) -> None:
    """A session closes by itself."""
    await story.ended(await story.create("say one"))
    await story.heard("session.closed")
    await story.end()


async def hibernation(story: Story) -> None:
    """A Computer sleeps, and its session goes on where it was."""
    await story.ended(await story.create("say one"))
    await story.heard("session.hibernated", "session.process_lost", "session.process_stopped")
    await story.ended(await story.enqueue("say two"))
    await story.end()


async def loss(story: Story) -> None:
    """A process dies in a turn; the queue goes on in a new one."""
    first = await story.create("die 3")
    second = await story.enqueue("say two")
    await story.ended(first, second)
    await story.end()


async def broken_init(story: Story) -> None:
    """The first `init` raises, and the session is held; the resumed session begins anew."""
    await story.ended(await story.create("say one"))
    await story.end()


async def server_killed(story: Story) -> None:
    """The server is killed in the middle of a turn: a process goes on with it, an inline turn is interrupted."""
    first = await story.create("ask why")
    second = await story.enqueue("say two")
    asked = await story.until("ask.created", first)
    await story.world.kill(story.world.server.pid)
    if asked is not None:
        await _answer(story, asked["data"]["ask_id"], first)
    await story.ended(first, second)
    await story.end()


async def server_killed_asleep(story: Story) -> None:
    """The server is killed while a Computer sleeps."""
    await story.ended(await story.create("say one"))
    await story.heard("session.hibernated", "session.process_lost", "session.process_stopped")
    await story.world.kill(story.world.server.pid)
    await story.ended(await story.enqueue("say two"))
    await story.end()


async def server_stopped(story: Story) -> None:
    """The server is stopped gracefully between two turns."""
    await story.ended(await story.create("say one"))
    await story.world.stop_server()
    await story.world.up()
    await story.ended(await story.enqueue("say two"))
    await story.end()


async def server_stopped_busy(story: Story) -> None:
    """The server is stopped gracefully in the middle of a turn."""
    gate = story.world.root / f"gate-{story.name}"
    first = await story.create(f"wait_for {gate}")
    second = await story.enqueue("say two")
    await story.until("turn.output", first)
    stopping = asyncio.create_task(story.world.stop_server())
    gate.touch()
    await stopping
    await story.world.up()
    await story.ended(first, second)
    await story.end()


async def impatience(story: Story) -> None:
    """An input comes while a restarted server has not found the session's process again."""
    gate = story.world.root / f"gate-{story.name}"
    first = await story.create(f"doze {gate}")
    await story.ended(first)
    await story.world.kill(story.world.server.pid)
    second = await story.enqueue("say two")
    gate.touch()
    await story.ended(second)
    await story.end()


async def replacement(story: Story) -> None:
    """New code is deployed while a session is idle; its next turn runs on it."""
    await story.ended(await story.create("say one"))
    await story.deploy(_changed(story))
    await story.heard_unless_restarted("session.process_stopped")
    await story.ended(await story.enqueue("say two"))
    await story.end()


def _changed(story: Story) -> Path:
    folder = story.world.root / f"project-{story.name}"
    shutil.copytree(PROJECT, folder)
    (folder / "version.txt").write_text(story.name)
    return folder


async def disappearance(story: Story) -> None:
    """New code lacks the session's agent; the session is held until there is code for it again."""
    story.attended = False
    await story.create()
    bare = story.world.root / f"project-{story.name}"
    (bare / "agents").mkdir(parents=True)
    (bare / "agents" / "other.py").write_text(_OTHER)
    await story.deploy(bare)
    first = await story.enqueue("say one")
    await story.heard("session.held", *ENDS)
    await story.deploy(PROJECT)
    story.attended = True
    for hold in (await story.session.get()).holds:
        await story.resume(hold.id)
    await story.ended(first)
    await story.end()


_OTHER = """
from __future__ import annotations

import perdure

other = perdure.Agent("other")


@other.turn
async def turn(turn, ctx):
    pass
"""
