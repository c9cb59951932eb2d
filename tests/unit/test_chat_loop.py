"""The loop of a turn: each situation's next move, and whole turns that crash anywhere."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.chat_rules import broken_rules

from perdure.chat import entries as e
from perdure.chat import loop
from perdure.chat import transcript as t
from perdure.chat.calls import Refused, decide_calls
from perdure.chat.compaction import CompactionPolicy
from perdure.chat.results import finish
from perdure.chat.tools import Tool, tool

SECOND = 1_000_000


@tool(replay="safe")
async def search(ctx: Any, query: str) -> str:
    return query


@tool
async def book(ctx: Any, seat: int) -> str:
    return str(seat)


@tool(approval=True)
async def pay(ctx: Any, amount: int) -> str:
    return str(amount)


@tool(sequential=True)
async def move(ctx: Any) -> str:
    return "moved"


OFFERED: Final[Mapping[str, Tool]] = {each.name: each for each in (search, book, pay, move)}
SEARCH = ("search", '{"query": "x"}')
BOOK = ("book", '{"seat": 3}')
PAY = ("pay", '{"amount": 5}')
MOVE = ("move", "{}")


class Turn:
    """A turn's transcript and journal, as a test writes them."""

    def __init__(self) -> None:
        self.entries: list[e.Entry] = []
        self.user("go")

    def _id(self) -> str:
        return f"e{len(self.entries)}"

    def user(self, text: str) -> None:
        self.entries.append(e.UserMessage(id=self._id(), at=0, turn=1, content=e.text_content(text)))

    def answer(self, *calls: tuple[str, str], text: str = "so", stop: e.StopReason | None = None) -> str:
        parts = (e.Text(text), *(e.ToolCall(f"c{slot}", *call) for slot, call in enumerate(calls)))
        entry_id = self._id()
        reason = stop or ("tools" if calls else "answer")
        self.entries.append(e.AssistantMessage(id=entry_id, at=0, turn=1, parts=parts, stop=reason, model="m"))
        return entry_id

    def failed(self, kind: Any, retry_after: int | None = None) -> str:
        entry_id = self._id()
        failure = e.Failure(kind, "x", retry_after)
        self.entries.append(
            e.AssistantMessage(id=entry_id, at=0, turn=1, parts=(), stop="error", model="m", failure=failure)
        )
        return entry_id

    def result(self, answers: str, slot: int, value: Any = "ok", **asked: Any) -> None:
        call = e.ToolCall("c", "search", "{}")
        made = finish(value).entry(self._id(), 0, answers, slot, call, turn=1)
        self.entries.append(type(made)(**{**{k: getattr(made, k) for k in made.__struct_fields__}, **asked}))

    def moves(self, now: int = 0, policies: loop.Policies | None = None, **more: Any) -> list[loop.Move]:
        journal = loop.Round(**{key: more.pop(key) for key in list(more) if key in loop.Round.__struct_fields__})
        return loop.next_moves(loop.View(self.entries, 1, now, journal, **more), OFFERED, policies)

    def short(self, **more: Any) -> list[str]:
        return [_short(each) for each in self.moves(**more)]


def _short(move: loop.Move) -> str:
    match move:
        case loop.Start(call, again):
            return f"{'again' if again else 'start'} {call.slot} {call.arguments.json.decode()}"
        case loop.Park(call):
            return f"park {call.slot}"
        case loop.Write(_, slot, _, result):
            return f"write {slot} {result.outcome} {result.diagnostics[0].code}"
        case loop.Stop(slot):
            return f"stop {slot}"
        case loop.Finish(outcome, _, reason):
            return f"finish {outcome}" + (f" {reason}" if reason else "")
        case loop.Generate(attempt):
            return f"generate {attempt}"
        case loop.Wait(until):
            return "wait" if until is None else f"wait until {until}"
        case loop.Summarise(through, reason, beside):
            return f"summarise {through} {reason}{' beside' if beside else ''}"


# --- the way that most turns go


def test_a_turn_from_its_input_to_its_answer() -> None:
    turn = Turn()
    assert turn.short() == ["generate 1"]
    asked = turn.answer(SEARCH, BOOK)
    assert turn.short() == ['start 0 {"query":"x"}', 'start 1 {"seat":3}']
    assert turn.short(running=frozenset({0}), started={0: "safe"}) == ['start 1 {"seat":3}', "wait"]
    turn.result(asked, 1)
    assert turn.short(running=frozenset({0}), started={0: "safe", 1: "never"}) == ["wait"]
    turn.result(asked, 0)
    assert turn.short() == ["generate 1"]
    turn.answer()
    assert turn.moves() == [loop.Finish("answered", "e4")]


def test_calls_that_cannot_run_are_answered_and_the_others_run() -> None:
    turn = Turn()
    turn.answer(("nothing", "{}"), SEARCH, ("book", '{"seat": "x"}'))
    assert turn.short() == [
        "write 0 refused tool_unavailable",
        'start 1 {"query":"x"}',
        "write 2 invalid invalid_arguments",
    ]


def test_a_sequential_tool_makes_the_round_go_one_by_one() -> None:
    turn = Turn()
    asked = turn.answer(SEARCH, MOVE, ("nothing", "{}"), BOOK)
    assert turn.short() == ['start 0 {"query":"x"}']
    assert turn.short(running=frozenset({0}), started={0: "safe"}) == ["wait"]
    turn.result(asked, 0)
    turn.result(asked, 1)
    assert turn.short() == ["write 2 refused tool_unavailable", 'start 3 {"seat":3}']
    parallel = Turn()
    parallel.answer(SEARCH, BOOK)
    assert len(parallel.short(policies=loop.Policies(sequential=True))) == 1


def test_what_a_tool_says_in_the_middle_of_a_round_does_not_end_the_round() -> None:
    turn = Turn()
    asked = turn.answer(SEARCH, BOOK)
    turn.result(asked, 0)
    turn.entries.append(e.Note(id="n", at=0, turn=1, text="by the way"))
    assert turn.short() == ['start 1 {"seat":3}']
    turn.result(asked, 1)
    turn.entries.append(e.Steer(id="s", at=0, turn=1, content=e.text_content("hurry")))
    assert turn.short() == ["generate 1"]


def test_calls_of_an_earlier_turn_are_left_alone() -> None:
    turn = Turn()
    turn.answer(BOOK)
    turn.entries.append(e.UserMessage(id="later", at=0, turn=2, content=e.text_content("again")))
    assert loop.next_moves(loop.View(turn.entries, 2, 0), OFFERED) == [loop.Generate()]


def test_tools_may_end_the_turn() -> None:
    turn = Turn()
    asked = turn.answer(SEARCH, BOOK)
    turn.result(asked, 0, terminate=True)
    turn.result(asked, 1, terminate=True)
    assert turn.moves() == [loop.Finish("answered", asked)]
    turn = Turn()
    asked = turn.answer(SEARCH, BOOK)
    turn.result(asked, 0, handoff="from here")
    turn.result(asked, 1)
    assert turn.moves() == [loop.Finish("answered", asked, handoff="from here")]


@pytest.mark.parametrize(
    ("stop", "short"),
    [("length", "finish answered"), ("refused", "finish failed refused"), ("aborted", "finish aborted aborted")],
)
def test_how_an_answer_ends_a_turn(stop: Any, short: str) -> None:
    turn = Turn()
    turn.answer(stop=stop)
    assert turn.short() == [short]


def test_a_turn_does_not_go_round_for_ever() -> None:
    turn = Turn()
    for _ in range(3):
        turn.result(turn.answer(SEARCH), 0)
    assert turn.short(policies=loop.Policies(rounds=3)) == ["finish failed too_many_rounds"]
    assert turn.short(policies=loop.Policies(rounds=4)) == ["generate 1"]


# --- after a crash


def test_a_call_that_had_begun_runs_again_only_if_it_is_safe() -> None:
    turn = Turn()
    turn.answer(SEARCH, BOOK)
    output = {1: e.text_content("half")}
    moves = turn.moves(started={0: "safe", 1: "never"}, output=output)
    assert [_short(each) for each in moves] == ['again 0 {"query":"x"}', "write 1 interrupted interrupted"]
    assert isinstance(moves[1], loop.Write)
    assert moves[1].result.content == output[1]
    assert turn.short(started={0: "never", 1: "never"})[0] == "write 0 interrupted interrupted"


def test_a_call_that_had_begun_and_whose_tool_is_gone_was_interrupted_not_refused() -> None:
    turn = Turn()
    turn.answer(("gone", "{}"))
    assert turn.short(started={0: "safe"}) == ["write 0 interrupted interrupted"]


def test_an_answer_that_was_lost_is_asked_for_again() -> None:
    turn = Turn()
    turn.entries.append(e.AssistantMessage(id="l", at=0, turn=1, parts=(e.Text("ha"),), stop="lost", model="m"))
    assert turn.short() == ["generate 1"]


# --- people


def test_a_call_that_needs_approval_waits_for_a_person() -> None:
    turn = Turn()
    turn.answer(PAY, SEARCH)
    assert turn.short() == ["park 0", 'start 1 {"query":"x"}']
    assert turn.short(parked=frozenset({0}), running=frozenset({1}), started={1: "safe"}) == ["wait"]
    parked = frozenset({0})
    assert turn.short(parked=parked, verdicts={0: loop.Verdict(True)})[0] == 'start 0 {"amount":5}'
    edited = loop.Verdict(True, '{"amount": 4}')
    assert turn.short(parked=parked, verdicts={0: edited})[0] == 'start 0 {"amount":4}'
    assert turn.short(parked=parked, verdicts={0: loop.Verdict(False, reason="no")})[0] == "write 0 refused denied"
    wrong = loop.Verdict(True, '{"amount": "much"}')
    assert turn.short(parked=parked, verdicts={0: wrong})[0] == "write 0 invalid invalid_arguments"
    assert turn.short(parked=parked, verdicts={0: edited}, started={0: "never"})[0].startswith("write 0 interrupted")


def test_an_abort_ends_calls_and_leaves_each_with_a_result() -> None:
    turn = Turn()
    asked = turn.answer(SEARCH, BOOK, PAY)
    assert turn.short(aborted=True, running=frozenset({0}), started={0: "safe", 1: "never"}) == [
        "stop 0",
        "write 1 aborted aborted",
        "write 2 aborted aborted",
    ]
    for slot in range(3):
        turn.result(asked, slot)
    assert turn.short(aborted=True) == ["finish aborted aborted"]
    assert Turn().short(aborted=True) == ["finish aborted aborted"]


def test_an_abort_ends_a_wait_for_the_provider() -> None:
    turn = Turn()
    turn.failed("overloaded")
    assert turn.short(aborted=True) == ["finish aborted aborted"]


def test_a_reset_or_abort_that_was_placed_ends_the_turn() -> None:
    turn = Turn()
    turn.entries.append(e.Reset(id="r", at=0, turn=1))
    assert turn.short() == ["finish aborted reset"]
    turn.entries.append(e.Abort(id="a", at=0, turn=1))
    assert turn.short() == ["finish aborted aborted"]


# --- the provider


def test_a_failure_is_waited_out_and_tried_again_until_it_is_enough() -> None:
    turn = Turn()
    turn.failed("overloaded", 7 * SECOND)
    (wait,) = turn.moves()
    assert isinstance(wait, loop.Wait)
    assert wait.until is not None
    assert wait.until >= 7 * SECOND
    assert turn.moves() == [wait], "the same on every worker"
    assert turn.short(now=wait.until) == ["generate 2"]
    turn.failed("cut")
    turn.failed("server")
    assert turn.short(now=10**9) == ["generate 4"]
    turn.failed("server")
    assert turn.short(now=10**9) == ["finish failed model_error"]


def test_a_success_in_between_begins_the_count_anew() -> None:
    turn = Turn()
    for _ in range(3):
        turn.failed("server")
    turn.result(turn.answer(SEARCH), 0)
    turn.failed("server")
    assert turn.short(now=10**9) == ["generate 2"]


def test_what_cannot_succeed_is_not_tried_again() -> None:
    turn = Turn()
    turn.failed("credentials")
    assert turn.short(now=10**9) == ["finish failed model_error"]


def test_an_overflow_is_summed_up_once() -> None:
    turn = Turn()
    reached = turn.answer(text="long " * 100)
    turn.user("more")
    turn.failed("overflow")
    (move,) = turn.moves()
    assert isinstance(move, loop.Summarise)
    assert move.reason == "overflow"
    assert turn.short(unsummed=True) == ["finish failed model_error"]
    off = loop.Policies(compaction=CompactionPolicy(enabled=False))
    assert turn.short(policies=off) == ["finish failed model_error"]
    turn.entries.append(e.Summary(id="sum", at=0, turn=1, text="so far", through=reached, reason="overflow"))
    assert turn.short() == ["generate 1"]
    turn.failed("server")
    assert turn.short(now=10**9) == ["generate 2"]
    turn.failed("overflow")
    assert turn.short(now=10**9) == ["finish failed model_error"]


def test_a_long_conversation_is_summed_up_before_the_next_call_or_beside_it() -> None:
    turn = Turn()
    for _ in range(20):
        turn.answer(text="word " * 80)
        turn.user("word " * 80)
    policies = loop.Policies(window=5_000)
    assert turn.short(policies=policies)[0].startswith("summarise")
    assert turn.short(policies=policies, unsummed=True) == ["generate 1"]
    wider = loop.Policies(window=7_000)
    assert [each.split()[0] for each in turn.short(policies=wider)] == ["generate", "summarise"]
    assert turn.short(policies=wider)[1].endswith("beside")
    assert turn.short(policies=wider, summing=True) == ["generate 1"]
    assert turn.short(policies=loop.Policies(window=100_000)) == ["generate 1"]
    turn.entries.append(e.Summary(id="s", at=0, turn=1, text="word " * 4_000, through=turn.entries[-3].id))
    assert turn.short(policies=policies) == ["generate 1"], "a long summary is not summed up for ever"


# --- whole turns that crash anywhere


class World:
    """What is committed, what runs, and what calls have really done."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.entries: list[e.Entry] = []
        self.started: dict[tuple[str, int], str] = {}
        self.parked: set[tuple[str, int]] = set()
        self.verdicts: dict[tuple[str, int], loop.Verdict] = {}
        self.effects: Counter[tuple[str, int, str, bytes]] = Counter()
        self.running: dict[int, str] = {}
        self.aborted = self.unsummed = False
        self.now = 0
        self.sequential = False
        self.rounds = chance.randint(0, 4)
        self.crashes = chance.randint(0, 6)
        self.add(e.UserMessage(id="input", at=0, turn=1, content=e.text_content("go")))

    def add(self, entry: e.Entry) -> None:
        self.entries.append(entry)
        assert broken_rules(t.build(self.entries)) == []

    def new_id(self) -> str:
        return f"id{len(self.entries)}"

    @property
    def answer(self) -> e.AssistantMessage | None:
        answers = [each for each in self.entries if isinstance(each, e.AssistantMessage)]
        ended = [each for each in answers if each.stop not in ("error", "lost")]
        return ended[-1] if ended else None

    def view(self) -> loop.View:
        answer_id = self.answer.id if self.answer else ""
        journal = loop.Round(
            started={slot: policy for (answers, slot), policy in self.started.items() if answers == answer_id},
            running=frozenset(self.running),
            parked=frozenset(slot for answers, slot in self.parked if answers == answer_id),
            verdicts={slot: each for (answers, slot), each in self.verdicts.items() if answers == answer_id},
        )
        return loop.View(self.entries, 1, self.now, journal, aborted=self.aborted, unsummed=self.unsummed)

    def play(self, policies: loop.Policies) -> loop.Finish:
        self.sequential = policies.sequential
        for _ in range(400):
            moves = loop.next_moves(self.view(), OFFERED, policies)
            assert moves
            if isinstance(moves[0], loop.Finish):
                assert len(moves) == 1
                return moves[0]
            for chosen in moves:
                if not self.make(chosen) or self.maybe_crash():
                    break
        raise AssertionError("the turn does not end")

    def maybe_crash(self) -> bool:
        if self.crashes and self.chance.random() < 0.2:
            self.crashes -= 1
            self.running.clear()
            self.unsummed = False
            return True
        self.aborted = self.aborted or self.chance.random() < 0.02
        return False

    def make(self, chosen: loop.Move) -> bool:
        """Make a move; False when others that were decided with it do not hold any more."""
        if isinstance(chosen, loop.Start):
            return self.start(chosen)
        if isinstance(chosen, loop.Park):
            assert self.answer is not None
            self.parked.add((self.answer.id, chosen.call.slot))
        elif isinstance(chosen, loop.Write):
            self.add(chosen.result.entry(self.new_id(), self.now, chosen.answers, chosen.slot, chosen.call, turn=1))
        elif isinstance(chosen, loop.Stop):
            self.end_call(chosen.slot, "aborted")
        elif isinstance(chosen, loop.Wait):
            self.wait(chosen)
            return False
        elif isinstance(chosen, loop.Summarise):
            self.summarise(chosen)
            return False
        elif isinstance(chosen, loop.Generate):
            self.generate()
            return False
        return True

    def start(self, chosen: loop.Start) -> bool:
        assert self.answer is not None
        key = (self.answer.id, chosen.call.slot)
        assert chosen.call.slot not in self.running
        assert chosen.again == (key in self.started)
        one_by_one = self.sequential or any(call.tool == "move" for call in self.answer.calls if call.arguments == "{}")
        if one_by_one and all(call.id != "same" for call in self.answer.calls):
            assert not self.running, "one after the other"
        self.started.setdefault(key, chosen.call.tool.replay)
        if self.maybe_crash():
            return False
        self.effects[(*key, chosen.call.tool.name, chosen.call.arguments.json)] += 1
        self.running[chosen.call.slot] = chosen.call.tool.name
        return True

    def end_call(self, slot: int, value: str) -> None:
        assert self.answer is not None
        call = self.answer.calls[slot]
        del self.running[slot]
        self.add(finish(value).entry(self.new_id(), self.now, self.answer.id, slot, call, turn=1))

    def wait(self, chosen: loop.Wait) -> None:
        if chosen.until is not None:
            assert chosen.until > self.now
            self.now = chosen.until
            return
        assert self.answer is not None
        open_asks = [key for key in self.parked if key not in self.verdicts and key[0] == self.answer.id]
        waits = [*self.running, *open_asks]
        assert waits, "it waits for nothing"
        happens = self.chance.choice(waits)
        if isinstance(happens, int):
            if self.chance.random() < 0.2:
                self.add(e.Note(id=self.new_id(), at=self.now, turn=1, text="by the way"))
            self.end_call(happens, "done")
        else:
            edited = self.chance.choice([None, '{"amount": 1}', '{"amount": "x"}'])
            self.verdicts[happens] = loop.Verdict(self.chance.random() < 0.7, edited)

    def summarise(self, chosen: loop.Summarise) -> None:
        if self.chance.random() < 0.3:
            self.unsummed = True
        else:
            through, reason = chosen.through, chosen.reason
            self.add(e.Summary(id=self.new_id(), at=0, turn=1, text="so far", through=through, reason=reason))

    def generate(self) -> None:
        if self.crashes and self.chance.random() < 0.3:
            self.crashes -= 1
            self.running.clear()
            self.add(self.message("lost", (e.Text("ha"), e.ToolCall("c", *SEARCH))))
        elif self.chance.random() < 0.2:
            kind = self.chance.choice(["overloaded", "cut", "overflow", "credentials"])
            failure = e.Failure(kind, "x", self.chance.choice([None, SECOND]))
            self.add(self.message("error", (), failure))
        elif self.rounds:
            self.rounds -= 1
            pool = [SEARCH, BOOK, PAY, MOVE, ("nothing", "{}"), ("book", "{")]
            calls = [self.chance.choice(pool) for _ in range(self.chance.randint(1, 4))]
            ids = ["same" if self.chance.random() < 0.2 else f"c{slot}" for slot in range(len(calls))]
            parts = [e.ToolCall(call_id, *call) for call_id, call in zip(ids, calls, strict=True)]
            self.add(self.message(self.chance.choice(["tools", "tools", "length"]), tuple(parts)))
        else:
            self.add(self.message("answer", (e.Text("done"),)))

    def message(self, stop: Any, parts: tuple[Any, ...], failure: e.Failure | None = None) -> e.AssistantMessage:
        return e.AssistantMessage(
            id=self.new_id(), at=self.now, turn=1, parts=parts, stop=stop, model="m", failure=failure
        )


@given(st.integers(0, 2**32), st.sampled_from([None, 60, 400]), st.booleans())
@settings(max_examples=400, deadline=None)
def test_whatever_crashes_a_turn_ends_and_nothing_unsafe_is_done_twice(
    seed: int, window: int | None, sequential: bool
) -> None:
    world = World(random.Random(seed))
    end = world.play(loop.Policies(window=window, sequential=sequential))
    check_effects(world)
    check_results(world)
    if end.outcome == "answered":
        assert not world.aborted
        assert end.answer in {entry.id for entry in world.entries}


def check_effects(world: World) -> None:
    answers = {entry.id: entry for entry in world.entries if isinstance(entry, e.AssistantMessage)}
    seen: set[tuple[str, int]] = set()
    for (answer_id, slot, name, _), count in world.effects.items():
        assert (answer_id, slot) not in seen, "a call that runs again has the same arguments"
        seen.add((answer_id, slot))
        decision = decide_calls(answers[answer_id], OFFERED)[slot]
        assert not isinstance(decision, Refused), "what was refused has not run"
        assert answers[answer_id].stop in ("tools", "length")
        assert count == 1 or OFFERED[name].replay == "safe"
        if name == "pay":
            assert world.verdicts[answer_id, slot].allowed


def check_results(world: World) -> None:
    results = Counter((entry.answers, entry.slot) for entry in world.entries if isinstance(entry, e.ToolResult))
    expected = {
        (entry.id, slot)
        for entry in world.entries
        if isinstance(entry, e.AssistantMessage) and entry.stop in ("tools", "length")
        for slot in range(len(entry.calls))
    }
    assert set(results) == expected, "each call has a result when the turn ends"
    assert set(results.values()) <= {1}, "and only one"
