"""The public operations, driven at random against a model of a session: no step may tell them apart."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import hypothesis.strategies as st
import msgspec
import pytest
import session_stage
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from session_model import MINUTE, Model
from session_stage import UNWELCOME, Stage

from perdure.api.events import EVENT_TYPES
from perdure.authoring.project import load_project
from perdure.engine import driver
from perdure.engine.deployments import Deployments
from perdure.engine.engine import Engine, Settings
from perdure.engine.operations import EngineService
from perdure.engine.service import Scope
from perdure.errors import IdempotencyConflict, PerdureError, SessionHeld, SessionKeyConflict, SessionNotOpen
from perdure.records.content import decode_content, text_of
from perdure.records.ids import new_id
from perdure.records.sessions import Issuer, SessionHead
from perdure.server import wire
from perdure.store import open_store
from perdure.store.port import Deployment, Store
from perdure.testing import History, ManualClock, Started, check_history

SCOPE: Final = Scope("demo", "development", Issuer("user", "local"))
PROJECT: Final = Path(__file__).parent / "project"
DEFINITIONS: Final = load_project(PROJECT).definitions
T = TypeVar("T")

texts = st.sampled_from(["a", "two words", "NUL \0", "ünï ☃", "x" * 300])
picks = st.integers(0, 50)
agents = st.sampled_from(["actor", "thinker"])
keys = st.none() | st.sampled_from(["ada", "bob"])


async def _never(_: object) -> NoReturn:
    """Stands for a store that a dead process does not reach any more."""
    await asyncio.Event().wait()
    raise AssertionError


class SessionMachine(RuleBasedStateMachine):
    """Sessions of one node, whose handlers, clock and death are in the machine's hands."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        # Real seconds, for which a handler that clings is waited for.
        self.patch.setattr(driver, "STOP_GRACE", 0.02)
        self.folder = Path(tempfile.mkdtemp(prefix="perdure-machine-"))
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock(1_800_000_000_000_000)
        self.models: list[Model] = []
        self.replies: list[tuple[Callable[[], Awaitable[bytes]], bytes]] = []
        self.conflicts: list[Callable[[], Awaitable[bytes]]] = []
        self.store: Store
        self.do(self.start(first=True))

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        async def bounded() -> T:
            async with asyncio.timeout(20):
                return await work

        return self.loop.run_until_complete(bounded())

    # --- the node's life

    async def start(self, *, first: bool = False) -> None:
        started = [] if first else session_stage.stage.started  # type: ignore[union-attr]
        heard = {} if first else session_stage.stage.heard  # type: ignore[union-attr]
        self.stage = session_stage.stage = Stage()
        self.stage.started += started
        self.stage.heard.update(heard)
        self.store = open_store(self.folder, clock=self.clock)
        await self.store.open()
        deployments = Deployments(self.store, self.folder)
        if first:
            made = Deployment(new_id(), SCOPE.id, "d", self.clock(), str(PROJECT), DEFINITIONS)
            await self.store.put_deployment(made)
            await deployments.promote(SCOPE.id, made.id)
        self.engine = Engine(self.store, self.folder, deployments, None, Settings(drain=0.1), self.clock)
        self.service = EngineService(self.engine)
        self.store.subscribe(lambda _: self.stage.changed.set())
        await self.engine.start()

    async def die(self) -> None:
        """End as a killed process ends: nothing is settled, nobody is told."""
        self.store.apply = _never  # type: ignore[assignment, method-assign]
        self.stage.end_clinging()
        sweeper = self.engine._sweeper
        if sweeper is not None:
            sweeper.cancel()
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in others:
                task.cancel()
            # One that was cancelled may begin to settle something, and is cancelled again.
            await asyncio.wait(others, timeout=0)
        await self.store.close()

    def teardown(self) -> None:
        self.stage.end_clinging()
        self.do(self.engine.stop())
        self.do(self.store.close())
        self.loop.close()
        shutil.rmtree(self.folder)
        self.patch.undo()

    # --- seeing

    async def head(self, model: Model) -> SessionHead:
        head = await self.store.head(model.id)
        assert head is not None
        return head

    async def until(self, model: Model) -> None:
        """Wait for the session to be as the model has it; what never comes is a failure."""
        late = self.loop.time() + 10
        while (difference := await self.difference(model)) is not None:
            assert self.loop.time() < late, f"session {model.id} does not become what it should: {difference}"
            self.stage.changed.clear()
            # Only commits and handlers give notice of themselves; that a driver has come to rest is seen by looking.
            with suppress(TimeoutError):
                async with asyncio.timeout(0.005):
                    await self.stage.changed.wait()

    async def difference(self, model: Model) -> str | None:
        head = await self.head(model)
        is_now = (
            head.status,
            head.active.number if head.active else None,
            head.queued,
            sorted(hold.id for hold in head.holds),
            head.winding.turn if head.winding else None,
            head.losses,
        )
        should = (model.status, model.active, len(model.queue), sorted(model.holds), model.winding, model.losses)
        if is_now != should:
            return f"{is_now} is not {should}"
        if model.active is not None and (model.id, model.active) not in self.stage.acts:
            return f"turn {model.active} has no handler"
        owner = self.engine._drivers.get(model.id)
        return None if owner is None or owner.is_settled else "its driver is at work"

    def pick(self, number: int, fits: Callable[[Model], bool] = lambda _: True) -> Model | None:
        fitting = [model for model in self.models if fits(model)]
        return fitting[number % len(fitting)] if fitting else None

    # --- admission

    @rule(text=texts, agent=agents, seed=picks)
    def begin(self, text: str, agent: str, seed: int) -> None:
        self.create(text, None, agent, seed)

    @rule(text=st.none() | texts, key=keys, agent=agents, seed=picks)
    def create(self, text: str | None, key: str | None, agent: str, seed: int) -> None:
        name = f"create {len(self.replies)} {seed}"

        def send() -> Awaitable[bytes]:
            return self.service.create_session(SCOPE, agent, input=text, key=key, idempotency_key=name)

        if self.named(agent, key) is not None:
            with pytest.raises(SessionKeyConflict):
                self.do(send())  # type: ignore[arg-type]
            return
        receipt = self.accepted(send)
        assert receipt["created"] is True
        self.created(receipt, agent, key, text)

    def created(self, receipt: dict[str, Any], agent: str, key: str | None, text: str | None) -> None:
        model = Model(receipt["session_id"], agent, key, self.clock())
        self.models.append(model)
        if text is not None:
            assert receipt["sequence"] == model.accept(self.clock())
        self.do(self.until(model))

    def named(self, agent: str, key: str | None) -> Model | None:
        found = [model for model in self.models if key is not None and (model.agent, model.key) == (agent, key)]
        return found[0] if found else None

    @rule(text=st.none() | texts, key=st.sampled_from(["ada", "bob"]), agent=agents, seed=picks)
    def get_or_create(self, text: str | None, key: str, agent: str, seed: int) -> None:
        name = f"get or create {len(self.replies)} {seed}"

        def send() -> Awaitable[bytes]:
            return self.service.get_or_create(SCOPE, agent, key=key, input=text, idempotency_key=name)

        model = self.named(agent, key)
        if model is not None and text is not None and model.status != "open":
            with pytest.raises(SessionNotOpen):
                self.do(send())  # type: ignore[arg-type]
        elif model is not None and text is None:
            assert json.loads(self.do(send()))["session_id"] == model.id  # type: ignore[arg-type]
        else:
            receipt = self.accepted(send)
            assert receipt["created"] is (model is None)
            if model is None:
                self.created(receipt, agent, key, text)
            else:
                assert (receipt["session_id"], receipt["sequence"]) == (model.id, model.accept(self.clock()))
                self.do(self.until(model))

    def accepted(self, send: Callable[[], Awaitable[bytes]]) -> dict[str, Any]:
        receipt = self.do(send())  # type: ignore[arg-type]
        self.replies.append((send, receipt))
        return json.loads(receipt)

    @rule(number=picks, text=texts)
    def enqueue(self, number: int, text: str) -> None:
        model = self.pick(number)
        if model is None:
            return
        name = f"enqueue {len(self.replies)}"

        def send(said: str = text) -> Awaitable[bytes]:
            return self.service.enqueue(SCOPE, model.id, said, idempotency_key=name)

        if model.status != "open":
            with pytest.raises(SessionNotOpen):
                self.do(send())  # type: ignore[arg-type]
            return
        receipt = self.accepted(send)
        self.conflicts.append(lambda: send("something else"))
        assert receipt["sequence"] == model.accept(self.clock())
        self.do(self.until(model))

    @rule(number=picks, text=texts)
    def send(self, number: int, text: str) -> None:
        model = self.pick(number)
        if model is None:
            return
        work = self.service.send(SCOPE, model.id, text)
        if model.holds or (model.status != "open" and not (model.active and model.listening)):
            with pytest.raises(PerdureError) as refused:
                self.do(work)
            assert isinstance(refused.value, SessionHeld if model.holds else SessionNotOpen)
            return
        receipt = json.loads(self.do(work))
        if model.active is not None and model.listening:
            assert receipt["kind"] == "messaged"
            model.messages.setdefault(model.active, []).append(text)
            self.do(self.heard(model, model.active))
        else:
            assert (receipt["kind"], receipt["sequence"]) == ("enqueued", model.accept(self.clock()))
            self.do(self.until(model))

    @rule(number=picks, text=texts | st.just(UNWELCOME))
    def steer(self, number: int, text: str) -> None:
        """A running turn that takes messages gets one, which it may reject."""
        model = self.at_work(number)
        if model is None or model.active is None:
            return
        if not model.listening:
            self.do(self.act(model, "listen", ""))
            model.listening = True
        told = self.do(self.service.send_to_turn(SCOPE, model.id, self.do(self.turn_id(model)), text))
        assert json.loads(told)["status"] == "admitted"
        model.messages.setdefault(model.active, []).extend([text] if text != UNWELCOME else [])
        self.do(self.heard(model, model.active))

    async def turn_id(self, model: Model) -> str:
        active = (await self.head(model)).active
        assert active is not None
        return active.id

    async def heard(self, model: Model, turn: int) -> None:
        self.stage.changed.clear()
        while (
            self.stage.heard.get((model.id, turn), []) != model.messages[turn]
            or (await self.head(model)).active.messages
        ):  # type: ignore[union-attr]
            await self.stage.changed.wait()
            self.stage.changed.clear()

    @precondition(lambda self: self.replies)
    @rule(number=picks)
    def repeat(self, number: int) -> None:
        """The same request under the same key gets the first receipt, byte for byte, whatever has happened since."""
        send, receipt = self.replies[number % len(self.replies)]
        assert self.do(send()) == receipt  # type: ignore[arg-type]

    @precondition(lambda self: self.conflicts)
    @rule(number=picks)
    def misuse(self, number: int) -> None:
        with pytest.raises(IdempotencyConflict):
            self.do(self.conflicts[number % len(self.conflicts)]())  # type: ignore[arg-type]

    # --- controls

    @rule(number=picks)
    def interrupt(self, number: int) -> None:
        model = self.pick(number)
        if model is None or len(model.holds) > 5:
            return
        work = self.service.interrupt(SCOPE, model.id)
        if model.is_over:
            with pytest.raises(SessionNotOpen):
                self.do(work)
            return
        receipt = json.loads(self.do(work))
        if model.active is not None:
            model.stop("interrupted", self.clock())
        model.hold(receipt["hold_id"], "interrupt")
        self.do(self.until(model))

    @rule(number=picks, which=picks)
    def resume(self, number: int, which: int) -> None:
        model = self.pick(number, lambda model: bool(model.holds or model.released))
        if model is None:
            return
        known = [*model.holds, *model.released]
        hold_id = known[which % len(known)]
        self.do(self.service.resume(SCOPE, model.id, hold_id))
        if hold_id in model.holds:
            model.release(hold_id, self.clock())
        self.do(self.until(model))

    @rule(number=picks)
    def close(self, number: int) -> None:
        model = self.pick(number)
        if model is not None:
            self.do(self.service.close(SCOPE, model.id))
            model.close(self.clock())
            self.do(self.until(model))

    @rule(number=picks)
    def cancel(self, number: int) -> None:
        model = self.pick(number)
        if model is not None and number % 2 == 0:
            self.do(self.service.cancel(SCOPE, model.id))
            model.cancel(self.clock())
            self.do(self.until(model))

    # --- what handlers do

    def at_work(self, number: int) -> Model | None:
        return self.pick(number, lambda model: model.active is not None and model.asking is None)

    async def act(self, model: Model, kind: str, text: str) -> object:
        assert model.active is not None
        return await self.stage.tell(model.id, model.active, kind, text).done

    @rule(number=picks, text=texts)
    def output(self, number: int, text: str) -> None:
        model = self.at_work(number)
        if model is not None and model.active is not None:
            self.do(self.act(model, "output", text))
            model.outputs.setdefault(model.active, []).append(text)

    @rule(number=picks)
    def listen(self, number: int) -> None:
        model = self.at_work(number)
        if model is not None and not model.listening:
            self.do(self.act(model, "listen", ""))
            model.listening = True

    @rule(number=picks, text=texts, well=st.booleans())
    def finish(self, number: int, text: str, well: bool) -> None:
        model = self.at_work(number)
        if model is None or model.active is None:
            return
        self.do(self.end(model, "finish" if well else "raise", text))
        if well:
            model.responses[model.active] = text
            model.losses = 0
        model.end("completed" if well else "failed", self.clock())
        model.go_on(self.clock())
        self.do(self.until(model))

    async def end(self, model: Model, kind: str, text: str) -> None:
        assert model.active is not None
        self.stage.tell(model.id, model.active, kind, text)

    @rule(number=picks)
    def cling(self, number: int) -> None:
        """The handler will not hear that it is to stop."""
        model = self.at_work(number)
        if model is not None and not model.clings:
            self.do(self.act(model, "cling", ""))
            model.clings = True

    @rule(number=picks)
    def let_go(self, number: int) -> None:
        model = self.pick(number, lambda model: model.winding is not None)
        if model is not None and model.winding is not None:
            self.stage.let_go[model.id, model.winding].set()
            model.let_go(self.clock())
            self.do(self.until(model))

    @rule(number=picks, text=texts)
    def ask(self, number: int, text: str) -> None:
        model = self.at_work(number)
        if model is not None:
            model.asking = self.do(self.asked(model, text))

    async def asked(self, model: Model, text: str) -> str:
        assert model.active is not None
        act = self.stage.tell(model.id, model.active, "ask", text)
        # What is committed while it is read counts: the mark is taken down before.
        self.stage.changed.clear()
        while not (pending := await self.service.asks(SCOPE, model.id, status="pending")):
            assert not act.done.done()
            await self.stage.changed.wait()
            self.stage.changed.clear()
        self.asking = act
        return pending[0].id

    @rule(number=picks, word=st.sampled_from(["yes", "no"]))
    def answer(self, number: int, word: str) -> None:
        model = self.pick(number, lambda model: model.asking is not None)
        if model is None or model.asking is None:
            return
        answer = {"selected": [{"id": word, "value": word}]}
        ask = self.do(self.service.answer_ask(SCOPE, model.id, model.asking, answer, f"by {word}"))
        assert ask.status == "responded"
        model.asking = None

    # --- time and death

    @rule(minutes=st.sampled_from([1, 11, 61]))
    def time_passes(self, minutes: int) -> None:
        self.clock.now += minutes * MINUTE
        self.do(self.looked_at_clock())

    async def looked_at_clock(self) -> None:
        self.engine.timers.look_again()
        for model in self.models:
            if model.winding is not None:
                # Its process is ended without it.
                model.let_go(self.clock())
            late, idle = model.is_past_deadline(self.clock()), model.is_past_idle(self.clock())
            if late:
                await self.held_for(model, "turn_deadline")
            elif idle:
                model.close(self.clock())
            await self.until(model)

    async def held_for(self, model: Model, reason: str) -> None:
        """A turn of the model's ends by itself, and a hold is placed whose id only the session knows."""
        self.stage.changed.clear()
        while not (new := [h for h in (await self.head(model)).holds if h.id not in model.holds]):
            await self.stage.changed.wait()
            self.stage.changed.clear()
        assert [hold.reason for hold in new] == [reason]
        if model.active is not None:
            model.stop("interrupted", self.clock())
        if reason == "process_failures":
            model.winding = None
        model.hold(new[0].id, reason)

    @rule()
    def sleep(self) -> None:
        """What is idle leaves the memory."""
        self.do(self.fallen_asleep())

    async def fallen_asleep(self) -> None:
        for owner in list(self.engine._drivers.values()):
            await self.engine._sleep(owner, "slept")
        for model in self.models:
            await self.until(model)

    @rule()
    def crash(self) -> None:
        """The process dies and another takes its place: what ran is interrupted, what waited goes on."""
        self.do(self.died_and_came_back())

    async def died_and_came_back(self) -> None:
        await self.die()
        await self.start()
        for model in self.models:
            model.winding = None
            if model.active is not None:
                model.losses += 1
                if model.losses >= 3:
                    await self.held_for(model, "process_failures")
                else:
                    model.end("interrupted", self.clock())
            model.go_on(self.clock())
            await self.until(model)

    # --- what holds after every step

    @invariant()
    def the_log_tells_what_happened(self) -> None:
        for model in self.models[-3:]:
            self.do(self.compare(model))

    async def compare(self, model: Model) -> None:
        turns = await self.service.turns(SCOPE, model.id, limit=100)
        expected = dict.fromkeys(model.queue, "queued") | ({model.active: "running"} if model.active else {})
        assert {turn.number: turn.status for turn in turns} == model.outcomes | expected
        for turn in turns:
            said = None if turn.response_json is None else text_of(decode_content(turn.response_json))
            assert said == model.responses.get(turn.number)
        events = (await self.service.events(SCOPE, model.id, limit=1000)).events
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        written: dict[str | None, list[str]] = {}
        for event in events:
            if event.type == "turn.output":
                written.setdefault(event.turn_id, []).append(json.loads(bytes(event.data))["content"][0]["text"])
        assert {turn.number: written[turn.id] for turn in turns if turn.id in written} == model.outputs
        started = [Started(number, run) for (session, number), run in self.stage.started if session == model.id]
        check_history(await self.history(model), started)
        SEEN.update(event.type for event in events)

    async def history(self, model: Model) -> History:
        view = await self.service.session(SCOPE, model.id)
        page = await self.service.events(SCOPE, model.id, limit=1000)
        turns = wire.turns(await self.service.turns(SCOPE, model.id, limit=100))
        runs = [wire.run(run) for run in await self.service.runs(SCOPE, model.id, limit=100)]
        events = json.loads(wire.event_page_bytes(page))["events"]
        return History(*(json.loads(msgspec.json.encode(part)) for part in (wire.session(view), turns, events, runs)))


PLAN: Final = settings(
    max_examples=120,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
SEEN: Counter[str] = Counter()
NOT_INLINE: Final = {"session.hibernated", "session.awakened", "session.init_failed"}
OF_RESUMED: Final = {"turn.resumed", "step.started", "step.completed", "step.failed", "step.interrupted"}
"""Of agents that are resumed, which this one is not."""


@pytest.mark.timeout(300)
def test_no_step_tells_a_session_from_its_model() -> None:
    SEEN.clear()
    run_state_machine_as_test(SessionMachine, settings=PLAN)
    unseen = set(EVENT_TYPES) - set(SEEN) - NOT_INLINE - OF_RESUMED
    assert not unseen, f"the machine has not met {unseen}, so it proves nothing of them"
