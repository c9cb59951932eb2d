"""Whole turns on a scripted model and a journal in memory, crashed at every commit."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.chat_journal import Crashed, MemoryJournal, Store

from perdure.chat import entries as e
from perdure.chat.compaction import CompactionPolicy
from perdure.chat.documents import Document
from perdure.chat.extensions import Extension, assemble
from perdure.chat.hooks import AskFirst, Block
from perdure.chat.loop import Policies, Verdict
from perdure.chat.results import ToolResult
from perdure.chat.runtime import Outcome, Setup, TurnRuntime
from perdure.chat.script import Call, Fail, Reply, Script
from perdure.chat.scripted import ScriptedModel
from perdure.chat.sections import section
from perdure.chat.tools import Tool, tool


class Plan(Document, kind="travel.plan"):
    steps: list[str] = []  # noqa: RUF012 - pydantic copies it


class World:
    """An agent, its store, and what its tools have really done."""

    def __init__(self, script: Any, **options: Any) -> None:
        self.store = Store()
        self.effects: Counter[str] = Counter()
        self.keys: list[str] = []
        self.reported: list[str] = []
        self.model = ScriptedModel(script)
        self.options = options
        self.hung = asyncio.Event()
        self.store.entries.append(e.UserMessage(id="input", at=0, turn=1, content=e.text_content("go")))
        self.extension = Extension(
            "travel",
            tools=self._tools(),
            documents=[Plan],
            sections=[section("role", "Be kind."), section("plan", lambda view: self._plan(view))],
            hooks=options.pop("hooks", None),
        )

    def _plan(self, view: Any) -> str | None:
        plan = view.document(Plan)
        return "\n".join(plan.steps) if plan is not None else None

    def _tools(self) -> list[Tool]:
        @tool(replay="safe")
        async def update_plan(ctx: Any, steps: list[str]) -> str:
            async with ctx.commit() as tx:
                (await tx.document(Plan)).steps = steps
            return "Saved."

        @tool(replay="safe")
        async def search(ctx: Any, query: str) -> ToolResult:
            self.effects[f"search {query}"] += 1
            await ctx.output("looking\n")
            return ToolResult(f"found {query}", details={"query": query})

        @tool(replay="safe")
        async def book(ctx: Any, flight: str) -> str:
            key = await ctx.memo("key", lambda: f"key-{len(self.keys)}")
            self.keys.append(key)
            self.effects[f"book {flight}"] += 1
            await asyncio.sleep(0)
            return f"booked with {key}"

        @tool
        async def charge(ctx: Any, amount: int) -> str:
            self.effects[f"charge {amount}"] += 1
            await ctx.output("charging\n")
            await asyncio.sleep(0)
            return "charged"

        @tool(approval=True)
        async def pay(ctx: Any, amount: int) -> str:
            self.effects[f"pay {amount}"] += 1
            return f"paid {amount}"

        @tool
        async def hang(ctx: Any) -> str:
            self.hung.set()
            await asyncio.Event().wait()
            return "never"

        return [update_plan, search, book, charge, pay, hang]

    def runtime(self, journal: MemoryJournal) -> TurnRuntime:
        setup = Setup(
            model=self.model, name="scripted:x", assembly=assemble([self.extension]), interval=0, **self.options
        )
        return TurnRuntime(setup, journal, lambda what, error: self.reported.append(f"{what}: {error}"))

    async def run(self, plug: int | None = None, after: bool = False) -> Outcome:
        return await self.runtime(MemoryJournal(self.store, plug, after)).run()

    def texts(self) -> list[str]:
        return [_short(entry) for entry in self.store.entries]


def _short(entry: e.Entry) -> str:
    if isinstance(entry, e.AssistantMessage):
        calls = "".join(f" {call.tool}" for call in entry.calls)
        return f"{entry.stop}: {entry.text}{calls}"
    if isinstance(entry, e.ToolResult):
        return f"{entry.outcome}: {_words(entry.content)}"
    if isinstance(entry, e.UserMessage | e.Steer):
        return f"user: {_words(entry.content)}"
    return entry.__struct_config__.tag  # type: ignore[return-value]


def _words(content: e.Content) -> str:
    return "".join(part.text for part in content if isinstance(part, e.Text))


TRIP = [
    Reply(text="Planning.", calls=(Call(tool="update_plan", arguments={"steps": ["fly"]}),)),
    Reply(
        text="Looking.",
        calls=(Call(tool="search", arguments={"query": "x"}), Call(tool="book", arguments={"flight": "LH1"})),
    ),
    Reply(text="Paying.", calls=(Call(tool="charge", arguments={"amount": 5}), Call(tool="nothing"))),
    Reply(text="All is booked."),
]
TRIP_ENTRIES = [
    "user: go",
    "sections",
    "tools: Planning. update_plan",
    "document",
    "done: Saved.",
    "sections",
    "tools: Looking. search book",
    "done: found x",
    "done: booked with key-0",
    "tools: Paying. charge nothing",
    "refused: There is no tool 'nothing' here. The tools are: book, charge, hang, pay, search, update_plan.",
    "done: charged",
    "answer: All is booked.",
]


async def test_a_turn_goes_from_its_input_to_its_answer() -> None:
    world = World(TRIP)
    outcome = await world.run()
    assert outcome == Outcome("answered", world.store.entries[-1].id)
    assert world.texts() == TRIP_ENTRIES
    assert world.store.documents["travel.plan"].value == {"steps": ["fly"]}
    assert world.model.asked[1].system == "<role>\nBe kind.\n</role>"
    assert "<plan>\nfly\n</plan>" in world.model.asked[1].words
    assert (world.store.intents, world.store.live) == ({}, {}), "nothing is left open"


async def test_a_crash_at_any_commit_costs_nothing_that_matters() -> None:
    whole = World(TRIP)
    await whole.run()
    for plug in range(1, whole.store.commits + 1):
        for after in (False, True):
            await _crashed_at(plug, after, whole)


async def _crashed_at(plug: int, after: bool, whole: World) -> None:
    world = World(TRIP)
    with pytest.raises(Crashed):
        await world.run(plug, after)
    outcome = await world.run()
    where = f"commit {plug}, {'after' if after else 'before'}"
    assert outcome.kind == "answered", where
    assert world.effects["charge 5"] <= 1, where
    assert len(set(world.keys)) == 1, f"{where}: one booking, however often it is made"
    assert world.store.documents["travel.plan"].value == {"steps": ["fly"]}, where
    shown = [text for text in world.texts() if not text.startswith(("lost:", "interrupted:", "document", "sections"))]
    expected = [text for text in TRIP_ENTRIES if not text.startswith(("document", "sections"))]
    charged = "done: charged" in shown
    assert Counter(shown) == Counter(text for text in expected if charged or text != "done: charged"), where
    assert charged or any(text.startswith("interrupted:") for text in world.texts()), where
    assert not [key for key in world.store.intents if "answer:" not in key], where
    assert world.store.live == {}, where


async def test_an_answer_that_was_being_written_is_kept_as_lost_and_asked_for_again() -> None:
    world = World(["A long answer, in many pieces."])
    journal = MemoryJournal(world.store)
    running = asyncio.create_task(world.runtime(journal).run())
    await journal.something.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await world.run()).kind == "answered"
    assert world.texts()[2].startswith("lost: A lo")
    assert world.texts()[3:] == ["answer: A long answer, in many pieces."]


async def test_failures_are_waited_out_by_the_clock_of_the_journal() -> None:
    world = World([Reply(text="At last.", fail=Fail(kind="overloaded", times=2, retry_after=7))])
    outcome = await world.run()
    assert outcome.kind == "answered"
    assert [text.split(":")[0] for text in world.texts()[2:]] == ["error", "error", "answer"]
    assert world.store.clock >= 14_000_000


async def test_a_long_wait_needs_no_memory() -> None:
    world = World([Reply(text="At last.", fail=Fail(kind="rate_limit", retry_after=600))])
    outcome = await world.run()
    assert outcome.kind == "waiting"
    assert outcome.until is not None
    assert outcome.until >= 600_000_000
    world.store.clock = outcome.until
    assert (await world.run()).kind == "answered"


async def test_what_cannot_succeed_fails_the_turn() -> None:
    world = World([Reply(fail=Fail(kind="credentials", times=9))])
    assert await world.run() == Outcome("failed", world.store.entries[-1].id, "model_error")


# --- people


async def test_a_call_that_needs_approval_waits_without_memory_and_then_runs_once() -> None:
    pay = Call(tool="pay", arguments={"amount": 5})
    world = World([Reply(text="Paying.", calls=(pay, Call(tool="search", arguments={"query": "x"}))), "Paid."])
    assert await world.run() == Outcome("waiting")
    ((answers, slot),) = world.store.questions
    assert (slot, world.effects) == (0, Counter({"search x": 1}))
    commits = world.store.commits
    assert await world.run() == Outcome("waiting")
    assert world.store.commits == commits, "a process that looks again asks nobody twice"
    world.store.verdicts[answers, slot] = Verdict(True, '{"amount": 4}')
    assert (await world.run()).kind == "answered"
    assert world.effects == Counter({"search x": 1, "pay 4": 1})


async def test_a_guard_may_block_or_have_a_person_asked() -> None:
    async def guard(view: Any, call: Any) -> Any:
        return Block("not today") if call.tool == "charge" else AskFirst("sure?") if call.tool == "book" else None

    calls = (Call(tool="charge", arguments={"amount": 5}), Call(tool="book", arguments={"flight": "LH1"}))
    world = World([Reply(calls=calls), "Done."], hooks={"before_tool": guard})
    assert await world.run() == Outcome("waiting")
    ((answers, slot),) = world.store.questions
    assert world.store.questions[answers, slot].prompt == "sure?"
    world.store.verdicts[answers, slot] = Verdict(True)
    assert (await world.run()).kind == "answered"
    assert world.effects == Counter({"book LH1": 1})
    assert "refused: Not run: not today" in world.texts()


async def test_a_message_is_placed_after_the_round_of_tools() -> None:
    world = World([Reply(calls=(Call(tool="search", arguments={"query": "x"}),)), "Found.", "And that too."])
    for number in (1, 2):
        world.store.waiting.append(
            e.Steer(id=f"s{number}", at=0, turn=1, message=f"m{number}", content=e.text_content(f"hurry {number}"))
        )
    assert (await world.run()).kind == "answered"
    assert world.texts()[3:] == [
        "done: found x",
        "user: hurry 1",
        "answer: Found.",
        "user: hurry 2",
        "answer: And that too.",
    ]


async def test_an_abort_stops_tools_and_leaves_a_whole_history() -> None:
    world = World([Reply(calls=(Call(tool="hang"), Call(tool="pay", arguments={"amount": 1}))), "never"])
    journal = MemoryJournal(world.store)
    running = asyncio.create_task(world.runtime(journal).run())
    await world.hung.wait()
    world.store.aborted = True
    journal.something.set()
    assert (await running).kind == "aborted"
    assert [text.split(":")[0] for text in world.texts()[3:]] == ["aborted", "aborted"]


async def test_an_abort_keeps_what_was_written() -> None:
    world = World([Reply(text="A long answer, in many pieces.", speed=40)])
    journal = MemoryJournal(world.store)
    running = asyncio.create_task(world.runtime(journal).run())
    await journal.something.wait()
    world.store.aborted = True
    journal.something.set()
    assert (await running).kind == "aborted"
    assert world.texts()[-1].startswith("aborted: A lo")


async def test_a_tool_that_ignores_its_cancellation_is_left_behind() -> None:
    world = World([Reply(calls=(Call(tool="stubborn"),)), "never"], grace=0.01)
    begun, free = asyncio.Event(), asyncio.Event()

    @tool
    async def stubborn(ctx: Any) -> str:
        begun.set()
        while not free.is_set():
            try:
                await free.wait()
            except asyncio.CancelledError:
                continue
        return "late"

    world.extension = Extension("stubborn", tools=[stubborn])
    journal = MemoryJournal(world.store)
    running = asyncio.create_task(world.runtime(journal).run())
    await begun.wait()
    world.store.aborted = True
    journal.something.set()
    assert (await running).kind == "aborted"
    assert world.texts()[-1].startswith("aborted:")
    assert world.reported == ["tool stubborn: it ignores that it was cancelled"]
    free.set()
    await asyncio.sleep(0)


# --- tools, hooks, summaries


async def test_a_tool_that_fails_tells_the_model_and_one_that_cancels_itself_too() -> None:
    world = World([Reply(calls=(Call(tool="broken"), Call(tool="gone"))), "Sorry."])

    @tool
    async def broken(ctx: Any) -> str:
        await ctx.output("half\n")
        raise ZeroDivisionError("oh")

    @tool
    async def gone(ctx: Any) -> str:
        raise asyncio.CancelledError

    world.extension = Extension("broken", tools=[broken, gone])
    assert (await world.run()).kind == "answered"
    assert sorted(world.texts()[3:5]) == ["failed: CancelledError", "failed: half\nZeroDivisionError: oh"]


async def test_output_details_and_remarks_of_a_call_are_kept() -> None:
    world = World([Reply(calls=(Call(tool="talk"),)), "Done."])

    @tool
    async def talk(ctx: Any) -> None:
        await ctx.output(b"line 1\n")
        await ctx.output("line 2\n")
        ctx.details({"lines": 2})
        ctx.diagnostic("slow", "It took long.")
        async with ctx.commit() as tx:
            tx.note("by the way")
        with suppress(ZeroDivisionError):
            async with ctx.commit() as tx:
                tx.note("never said")
                raise ZeroDivisionError

    world.extension = Extension("talk", tools=[talk])
    await world.run()
    (result,) = [entry for entry in world.store.entries if isinstance(entry, e.ToolResult)]
    assert (_words(result.content), result.details) == ("line 1\nline 2\n", {"lines": 2})
    assert [remark.code for remark in result.diagnostics] == ["slow"]
    assert world.texts().count("note") == 1


async def test_tools_may_end_the_turn_and_hand_over() -> None:
    world = World([Reply(calls=(Call(tool="hand_over"),)), "never"])

    @tool
    async def hand_over(ctx: Any) -> ToolResult:
        return ToolResult("Handed over.", handoff="Take it from here.")

    world.extension = Extension("hand", tools=[hand_over])
    assert (await world.run()).kind == "answered"
    assert world.texts()[-1] == "reset"


async def test_a_result_may_offer_more_tools_from_then_on() -> None:
    script = [
        Reply(calls=(Call(tool="charge", arguments={"amount": 5}), Call(tool="unlock"))),
        Reply(calls=(Call(tool="charge", arguments={"amount": 6}),)),
        "Done.",
    ]
    world = World(script, hidden=frozenset({"charge"}))

    @tool(replay="safe")
    async def unlock(ctx: Any) -> ToolResult:
        return ToolResult("Unlocked.", add_tools=("charge",))

    world.extension = Extension("unlock", tools=[unlock, *world.extension.tools])
    assert (await world.run()).kind == "answered"
    assert world.effects == Counter({"charge 6": 1})
    assert "charge" not in world.model.asked[0].tools
    assert "The tool 'charge' is available now." in world.model.asked[1].words
    assert "charge" in world.model.asked[1].tools
    reached = world.store.entries[-1].id
    world.store.entries.append(e.Summary(id="sum", at=0, turn=1, text="so far", through=reached))
    world.store.entries.append(e.UserMessage(id="more", at=0, turn=1, content=e.text_content("more")))
    world.model = ScriptedModel(["Still here."])
    assert (await world.run()).kind == "answered"
    assert "charge" in world.model.asked[0].tools, "it stays, whatever is summed up"


async def test_a_hook_may_have_the_turn_go_on() -> None:
    said = iter(["Check it again.", None])

    async def again(view: Any, answer: Any) -> str | None:
        return next(said)

    world = World(["Done.", "Checked."], hooks={"on_yield": again})
    assert (await world.run()).kind == "answered"
    assert world.texts()[2:] == ["answer: Done.", "note", "answer: Checked."]


@pytest.mark.parametrize("window", [900, 1200])
async def test_a_long_conversation_is_summed_up_and_the_plan_stays(window: int) -> None:
    summing = Reply(when="Write the memory", text="They want to fly.")
    world = World(
        Script(answers=(summing,), otherwise=Reply(text="Fine.")),
        policies=Policies(window=window, compaction=CompactionPolicy()),
    )
    first, *_ = world.store.entries
    for number in range(10):
        talk = e.UserMessage(id=f"old-{number}", at=0, turn=0, content=e.text_content("word " * 80))
        world.store.entries.insert(-1, talk)
    assert first is world.store.entries[-1]
    plan = e.SectionsChange(id="plan", at=0, turn=0, sections={"plan": "<plan>\nfly\n</plan>"})
    world.store.entries.insert(0, plan)
    assert (await world.run()).kind == "answered"
    (summary,) = [entry for entry in world.store.entries if isinstance(entry, e.Summary)]
    assert summary.text == "They want to fly."


async def test_an_overflow_is_summed_up_and_asked_again() -> None:
    script = Script(
        answers=(Reply(when="Write the memory", text="So far."), Reply(text="Fine.", fail=Fail(kind="overflow")))
    )
    world = World(script)
    world.store.entries.insert(0, e.UserMessage(id="old", at=0, turn=0, content=e.text_content("old " * 100)))
    assert (await world.run()).kind == "answered"
    kinds = [text.split(":")[0] for text in world.texts()]
    assert kinds[-3:] == ["error", "summary", "answer"]


# --- whatever is scripted, wherever it crashes

POOL = [
    Call(tool="search", arguments={"query": "x"}),
    Call(tool="book", arguments={"flight": "LH1"}),
    Call(tool="charge", arguments={"amount": 5}),
    Call(tool="pay", arguments={"amount": 7}),
    Call(tool="update_plan", arguments={"steps": ["a", "b"]}),
    Call(tool="nothing"),
    Call(tool="charge", arguments="{"),
]
replies = st.builds(
    Reply,
    text=st.sampled_from(["", "Looking at it."]),
    calls=st.lists(st.sampled_from(POOL), min_size=1, max_size=3).map(tuple),
    fail=st.none() | st.builds(Fail, kind=st.sampled_from(["overloaded", "server"]), after=st.integers(0, 3)),
    stop=st.sampled_from([None, None, "length"]),
)


@given(
    st.lists(replies, max_size=3),
    st.lists(st.tuples(st.integers(1, 8), st.booleans()), max_size=5),
    st.lists(st.sampled_from([Verdict(True), Verdict(False), Verdict(True, '{"amount": 1}')]), min_size=1),
)
@settings(max_examples=150, deadline=None)
def test_whatever_is_scripted_and_wherever_it_crashes(
    script: list[Reply], crashes: list[tuple[int, bool]], verdicts: list[Verdict]
) -> None:
    asyncio.run(_play(script, crashes, verdicts))


async def _play(script: list[Reply], crashes: list[tuple[int, bool]], verdicts: list[Verdict]) -> None:
    world = World([*script, "Done."])
    plugs = iter(crashes)
    outcome = Outcome("waiting")
    while outcome.kind == "waiting":
        commits, after = next(plugs, (10**6, False))
        with suppress(Crashed):
            outcome = await world.run(world.store.commits + commits, after)
        for number, asked in enumerate(world.store.questions):
            world.store.verdicts.setdefault(asked, verdicts[number % len(verdicts)])
    assert outcome.kind == "answered"
    answers = [entry for entry in world.store.entries if isinstance(entry, e.AssistantMessage)]
    made = [call for entry in answers if entry.stop in ("tools", "length") for call in entry.calls]
    results = [entry for entry in world.store.entries if isinstance(entry, e.ToolResult)]
    assert len(results) == len(made) == len({(entry.answers, entry.slot) for entry in results})
    assert world.effects["charge 5"] <= sum(call.arguments == '{"amount":5}' for call in made)
    paid = sum(count for what, count in world.effects.items() if what.startswith("pay"))
    assert paid <= sum(verdict.allowed for verdict in world.store.verdicts.values())
    booked = [entry for entry in results if entry.tool == "book"]
    assert len(set(world.keys)) <= len(booked), "each call has one key, however often it ran"
    if any(entry.tool == "update_plan" and not entry.is_error for entry in results):
        assert world.store.documents["travel.plan"].value == {"steps": ["a", "b"]}
