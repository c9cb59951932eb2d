"""Agents that are resumed: killed anywhere, they go on from their last committed step, and do nothing twice."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.client.aio import AsyncClient
from perdure.client.retry import Retry
from perdure.testing import DevServer, Ledger

PROJECT = '''
import asyncio, os
from pathlib import Path
import perdure
from perdure.testing import Ledger

SMALL = perdure.Template("small", image=perdure.Image("base").from_("python:3.12-slim"), pass_env=["LEDGER"])


def tell(what):
    Ledger(os.environ["LEDGER"]).note(what=what, pid=os.getpid())


async def note(what, answer=None):
    tell(what)
    return answer or what


async def gated(gate, what):
    tell(what)
    while not Path(gate).exists():
        await asyncio.sleep(0.005)
    return what


async def travel(turn, ctx):
    """Search, keep a key, book with the replay policy that the input names, and say so."""
    gate, replay = turn.text.split()
    found = await ctx.step("search", note, "search", {"flights": [1, 2]}, replay="safe")
    await turn.output.write("found")
    key = await ctx.memo("key", lambda: f"key of {os.getpid()}")
    try:
        booked = await ctx.step("book", gated, gate, f"book {key}", replay=replay)
    except perdure.errors.StepInterrupted as error:
        booked = error.code
    await turn.output.write("booked")
    both = await asyncio.gather(*(ctx.step("mail", note, f"mail {n}") for n in range(2)))
    return {"found": found, "booked": booked, "mails": both, "runs": ctx.run.number}


async def fails(turn, ctx):
    told = []
    for value in (object(), float("nan"), "x" * (2 << 20)):
        try:
            await ctx.step("bad", lambda: value)
        except perdure.errors.StepFailed as error:
            told.append(error.details["code"])
    try:
        await ctx.step("raises", boom)
    except perdure.errors.StepFailed as error:
        told.append(error.details["type"])
    return told


async def boom():
    raise LookupError("no seat")


async def asks(turn, ctx):
    tell("asking")
    answer = await turn.ask("Book it?")
    return [answer.value, ctx.run.number]


async def naps(turn, ctx):
    tell("napping")
    await ctx.sleep(turn.text)
    return ctx.run.number


async def plain(turn, ctx):
    try:
        await ctx.step("x", note, "x")
    except perdure.PerdureError as error:
        return error.code


for name, handler in {"travel": travel, "fails": fails, "asks": asks, "naps": naps}.items():
    for kind, template in {"inline": None, "process": SMALL}.items():
        agent = globals()[f"{kind}_{name}"] = perdure.Agent(f"{kind}_{name}", template=template, recovery="resume")
        agent.turn(handler)
interrupted = perdure.Agent("interrupted")
interrupted.turn(plain)
'''
QUICK = Retry(attempts=1000, first=0.01, longest=0.05)
KINDS = ("inline", "process")


class Scene:
    def __init__(self, folder: Path) -> None:
        (folder / "project" / "agents").mkdir(parents=True)
        (folder / "project" / "agents" / "resumed.py").write_text(PROJECT)
        self.ledger = Ledger(folder / "ledger")
        self.gate = folder / "gate"
        self.server = DevServer(folder / "project", folder / "data", environment={"LEDGER": str(folder / "ledger")})

    def noted(self, what: str) -> list[Any]:
        return [entry for entry in self.ledger.entries() if entry["what"].startswith(what)]

    async def until_noted(self, what: str, times: int = 1) -> Any:
        async with asyncio.timeout(60):
            while len(found := self.noted(what)) < times:
                await asyncio.sleep(0.01)
        return found[-1]

    def client(self) -> AsyncClient:
        return AsyncClient(self.server.url, retry=QUICK)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    with scene.server:
        yield scene


async def result(client: AsyncClient, receipt: Any) -> Any:
    found = await client.session(receipt.session_id).turn(receipt.turn_id).wait(60)
    assert found.status == "settled"
    assert found.turn.status == "completed", found.turn
    return found.turn.result


async def types_of(client: AsyncClient, receipt: Any) -> list[str]:
    events = [event async for event in client.session(receipt.session_id).iter_events()]
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    return [event.type for event in events]


@pytest.mark.parametrize("replay", ["safe", "never"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_killed_turn_goes_on_from_its_last_step(scene: Scene, kind: str, replay: str) -> None:
    """The server is killed, and with it the process of a session that has one, while the booking is at work."""
    async with scene.client() as client:
        receipt = await client.agents[f"{kind}_travel"].create_session(text=f"{scene.gate} {replay}")
        first = await scene.until_noted("book")
        await asyncio.to_thread(scene.server.kill)
        if kind == "process":
            os.kill(first["pid"], signal.SIGKILL)
        await asyncio.to_thread(scene.server.start)
        if replay == "safe":
            again = await scene.until_noted("book", 2)
            assert again["pid"] != first["pid"]
        scene.gate.touch()
        told = await result(client, receipt)
        assert told["found"] == {"flights": [1, 2]}
        assert told["runs"] == 2
        assert told["booked"] == (f"book key of {first['pid']}" if replay == "safe" else "step_interrupted")
        assert sorted(told["mails"]) == ["mail 0", "mail 1"]
        assert len(scene.noted("search")) == 1, "it is in the journal"
        assert len(scene.noted("book")) == (2 if replay == "safe" else 1)
        kinds = await types_of(client, receipt)
        assert kinds.count("turn.output") == 2, "outputs are not written again"
        assert kinds.count("turn.resumed") == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_an_answer_that_comes_while_no_process_is_there_is_heard(scene: Scene, kind: str) -> None:
    async with scene.client() as client:
        receipt = await client.agents[f"{kind}_asks"].create_session()
        receipt = await client.session(receipt.session_id).enqueue(text="go")
        first = await scene.until_noted("asking")
        session = client.session(receipt.session_id)
        async with asyncio.timeout(30):
            while not (asks := (await session.asks()).asks):
                await asyncio.sleep(0.01)
        await asyncio.to_thread(scene.server.kill)
        if kind == "process":
            os.kill(first["pid"], signal.SIGKILL)
        await asyncio.to_thread(scene.server.start)
        await scene.until_noted("asking", 2)
        await session.ask(asks[0].id).answer("yes")
        assert await result(client, receipt) == ["yes", 2]
        assert (await types_of(client, receipt)).count("ask.created") == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_a_nap_counts_from_its_first_beginning(scene: Scene, kind: str) -> None:
    async with scene.client() as client:
        receipt = await client.agents[f"{kind}_naps"].create_session(text="2s")
        first = await scene.until_noted("napping")
        async with asyncio.timeout(30):
            while "step.started" not in await types_of(client, receipt):
                await asyncio.sleep(0.01)
        await asyncio.to_thread(scene.server.kill)
        if kind == "process":
            os.kill(first["pid"], signal.SIGKILL)
        await asyncio.to_thread(scene.server.start)
        assert await result(client, receipt) == 2
        kinds = await types_of(client, receipt)
        assert (kinds.count("step.started"), kinds.count("step.completed")) == (2, 1)


@pytest.mark.parametrize("kind", KINDS)
async def test_what_cannot_be_kept_ends_a_step_for_good(scene: Scene, kind: str) -> None:
    async with scene.client() as client:
        receipt = await client.agents[f"{kind}_fails"].create_session(text="go")
        assert await result(client, receipt) == ["not_json", "not_json", "content_too_large", "LookupError"]


async def test_an_agent_that_is_interrupted_has_no_journal(scene: Scene) -> None:
    async with scene.client() as client:
        receipt = await client.agents["interrupted"].create_session(text="go")
        assert await result(client, receipt) == "not_supported"


POINTS = ("runtime.step.begun", "runtime.step.done", "runtime.step.ended", "runtime.memo.kept")


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("point", POINTS)
async def test_wherever_it_is_killed_a_safe_step_runs_until_it_is_done(
    scene: Scene, point: str, nth: int, tmp_path: Path
) -> None:
    scene.gate.touch()
    if point == "runtime.memo.kept" and nth == 2:
        nth = 1
    await asyncio.to_thread(scene.server.stop)
    await asyncio.to_thread(lambda: scene.server.start(crash_point=f"{point}:kill:{nth}"))
    async with scene.client() as client:
        receipt = await client.agents["inline_travel"].create_session(text=f"{scene.gate} safe")
        assert await asyncio.to_thread(scene.server.wait) == -signal.SIGKILL
        await asyncio.to_thread(scene.server.start)
        told = await result(client, receipt)
        assert told["runs"] == 2
        assert told["found"] == {"flights": [1, 2]}
        books = {entry["what"] for entry in scene.noted("book")}
        assert len(books) == 1, "a step that runs again has the same key"
        assert len(scene.noted("search")) <= (2 if nth == 1 else 1)
