"""What is answered survives `kill -9`; what is not answered is there whole, or not at all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from store_world import Engine, World, text

CHILD = Path(__file__).with_name("crash_child.py")
BEFORE = ("store.decide.before", "store.decide.after", "store.commit.before")
AFTER = ("store.commit.after", "store.publish.before")
NTH = 4


class Child:
    """A process that writes to the store, and what it printed."""

    def __init__(self, engine: Engine, point: str, action: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(CHILD), engine.address, point, action, str(NTH)], stdout=subprocess.PIPE, text=True
        )
        self.lines: list[str] = []

    def until(self, line: str) -> None:
        assert self.process.stdout is not None
        for found in self.process.stdout:
            self.lines.append(found.strip())
            if self.lines[-1] == line:
                return
        raise AssertionError(f"{line!r} did not come: {self.lines}")

    def to_the_end(self) -> int:
        assert self.process.stdout is not None
        self.lines += [line.strip() for line in self.process.stdout]
        self.process.stdout.close()
        return self.process.wait(30)

    @property
    def session(self) -> str:
        return self.lines[0].removeprefix("session ")

    def said(self, word: str) -> list[int]:
        return [int(line.split()[1]) for line in self.lines if line.startswith(word)]


async def check(engine: Engine, child: Child, expected: int | None = None) -> int:
    """Check that the store is whole and has all that was answered; returns how many inputs it has."""
    store = engine.store()
    await store.open()
    turns = await store.turns(child.session, 0, 2000)
    head = await store.head(child.session)
    assert head is not None
    events = (await store.events(child.session, 0, 2000)).events
    assert [turn.input_json for turn in turns] == [text(f"input {number}") for number in range(1, len(turns) + 1)]
    assert [event.seq for event in events] == list(range(1, len(turns) + 2))
    assert (head.last_turn, head.queued, head.last_seq) == (len(turns), len(turns), len(events))
    assert len(child.said("answered")) <= len(turns) <= len(child.said("sent"))
    if expected is not None:
        assert len(turns) == expected
    again = World(store)
    await again.enqueue(head, f"input {len(turns) + 1}")
    await store.close()
    return len(turns)


@pytest.mark.parametrize("point", BEFORE + AFTER)
async def test_a_process_that_is_killed_at_a_point_of_the_commit(engine: Engine, point: str) -> None:
    child = Child(engine, point, "kill")
    assert child.to_the_end() == -9
    assert child.said("answered") == list(range(1, NTH))
    await check(engine, child, NTH if point in AFTER else NTH - 1)


@pytest.mark.parametrize("point", BEFORE + AFTER)
async def test_a_process_that_is_killed_while_a_point_of_the_commit_hangs(engine: Engine, point: str) -> None:
    child = Child(engine, point, "hang")
    child.until("reached")
    child.process.kill()
    assert child.to_the_end() == -9
    await check(engine, child, NTH if point in AFTER else NTH - 1)


@pytest.mark.parametrize("answers", [1, 37, 150])
async def test_a_process_that_is_killed_at_any_moment(engine: Engine, answers: int) -> None:
    child = Child(engine, "", "")
    child.until(f"answered {answers}")
    child.process.kill()
    assert child.to_the_end() == -9
    assert await check(engine, child) >= answers


async def test_a_store_is_the_same_after_it_was_closed(engine: Engine) -> None:
    first = engine.store()
    await first.open()
    world = World(first)
    session = await world.create(said="first", start=True, name="k")
    await world.output(session)
    before = (await first.snapshot(session.id, 10), await world.log(session), await first.runs(session.id, 0, 10))
    await first.close()
    second = engine.store()
    await second.open()
    world = World(second)
    after = (await second.snapshot(session.id, 10), await world.log(session), await second.runs(session.id, 0, 10))
    assert after == before
    await world.complete(session)
    await world.turns(session, 2)
    await second.close()
