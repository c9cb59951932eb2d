"""Commands that share a commit: none disturbs another, all are told in order, nothing is numbered twice."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from store_world import ADA, World, enqueue, key, permit, receipt, text

from perdure import crashpoints
from perdure.crashpoints import POINTS
from perdure.errors import PerdureError, SessionKeyConflict, SessionNotFound, StoreError, TurnNotRunning, Unavailable
from perdure.records.ids import new_id
from perdure.records.sessions import SessionHead
from perdure.rules import commands
from perdure.rules.commands import Command, NewTurn
from perdure.store.port import Applied, Committed, Store


async def together(store: Store, *batch: Command) -> list[Applied | PerdureError]:
    """Apply commands at once and return each one's answer or error."""
    found = await asyncio.gather(*map(store.apply, batch), return_exceptions=True)
    for one in found:
        assert isinstance(one, Applied | PerdureError), one
    return found  # type: ignore[return-value]


async def test_a_refusal_touches_no_other_command_of_its_commit(world: World) -> None:
    good, closed = await world.create(), await world.create(name="taken")
    await world.apply(commands.Cancel(session_id=closed.id, control_id=new_id(), issuer=ADA))
    answers = await together(
        world.store,
        enqueue(good.id, "1"),
        enqueue(closed.id),
        enqueue(new_id()),
        enqueue(good.id, "2", idempotency=key("k")),
        enqueue(good.id, "3", idempotency=key("k", "different")),
        enqueue(good.id, "4", idempotency=key("k")),
    )
    assert [type(answer).__name__ for answer in answers] == [
        "Applied",
        "SessionNotOpen",
        "SessionNotFound",
        "Applied",
        "IdempotencyConflict",
        "Applied",
    ]
    assert [turn.input_json for turn in await world.store.turns(good.id, 0, 10)] == [text("1"), text("2")]
    assert answers[5].receipt == answers[3].receipt  # type: ignore[union-attr]
    assert [kind for _, kind in await world.log(closed)] == ["session.created", "session.cancelled"]


@dataclass(frozen=True)
class Unstorable:
    """A value that no rule looks at and no database takes."""

    name: str
    command: Command


def unstorable(session: SessionHead) -> list[Unstorable]:
    def turn(turn_id: object, said: object) -> Command:
        return commands.Enqueue(session_id=session.id, turn=NewTurn(turn_id, said))  # type: ignore[arg-type]

    def created(agent: object) -> Command:
        return commands.CreateSession(
            session_id=new_id(),
            environment="demo/development",
            agent=agent,  # type: ignore[arg-type]
            deployment=new_id(),
            host="inline",
            limits=session.limits,
        )

    return [
        Unstorable("a lone surrogate as an id", turn("\ud83d", text("x"))),
        Unstorable("a lone surrogate as a name", created("half an emoji \ud83d")),
        Unstorable("an integer beyond 64 bits", turn(2**70, text("x"))),
        Unstorable("an object", turn(object(), text("x"))),
        Unstorable("an id twice", turn(session.id, text("x"))),
        Unstorable("an id twice, again", turn(session.id, text("x"))),
        Unstorable("text where bytes belong", turn(new_id(), "text")),
    ]


async def test_a_value_that_cannot_be_stored_fails_alone_and_leaves_nothing_locked(world: World) -> None:
    session, other = await world.create(said="hello"), await world.create()
    bad = unstorable(session)
    last = enqueue(session.id, "last", idempotency=key("last"))
    batch = [enqueue(session.id), *[one.command for one in bad], last, enqueue(other.id, idempotency=key("k"))]
    answers = await together(world.store, *batch)
    assert isinstance(answers[0], Applied)
    assert [isinstance(answer, Applied) for answer in answers[-2:]] == [True, True]
    taken = [one.name for one, answer in zip(bad, answers[1:-2], strict=True) if isinstance(answer, Applied)]
    assert taken == ["an id twice"]  # once is fine
    await world.turns(await world.create(), 1)
    assert [turn.input_json for turn in await world.store.turns(session.id, 3, 10)] == [text("last")]
    log = await world.log(session)
    assert [number for number, _ in log] == list(range(1, len(log) + 1))
    seen = await world.store.snapshot(session.id, 0)
    assert seen is not None
    assert (seen.head, seen.head.last_seq) == (await world.head(session), len(log))


async def test_a_key_of_a_command_that_could_not_be_stored_is_free(world: World) -> None:
    session = await world.create(said="hello")
    assert session.last_turn == 1
    (taken,) = await world.store.turns(session.id, 0, 1)
    bad = commands.Enqueue(session_id=session.id, turn=NewTurn(taken.id, text("bad")), idempotency=key("k"))
    answers = await together(world.store, bad, enqueue(session.id, "good", idempotency=key("k")))
    assert isinstance(answers[0], PerdureError)
    assert isinstance(answers[1], Applied)
    assert not answers[1].replayed
    assert [turn.input_json for turn in await world.store.turns(session.id, 1, 10)] == [text("good")]


async def test_commands_of_one_session_are_decided_in_the_order_in_which_they_were_sent(world: World) -> None:
    session = await world.create()
    await together(world.store, *[enqueue(session.id, str(number)) for number in range(100)])
    turns = await world.store.turns(session.id, 0, 200)
    assert [turn.input_json for turn in turns] == [text(str(number)) for number in range(100)]


async def test_a_command_that_must_be_looked_up_keeps_its_place(world: World) -> None:
    """The keyed ones need the disk, the others do not: they must not overtake."""
    session = await world.create()
    batch = [
        enqueue(session.id, str(number), idempotency=key(f"k{number}") if number % 3 == 0 else None)
        for number in range(30)
    ]
    await together(world.store, *batch)
    turns = await world.store.turns(session.id, 0, 100)
    assert [turn.input_json for turn in turns] == [text(str(number)) for number in range(30)]


async def test_a_whole_turn_in_one_commit_sees_itself(world: World) -> None:
    """Each command rests on what those before it did, though none of that is on disk yet."""
    session = await world.create(said="1", start=True)
    worker = {"session_id": session.id, "fence": session.fence}
    answers = await together(
        world.store,
        enqueue(session.id, "2"),
        commands.WriteOutput(turn=1, op=1, content_json=text("a"), **worker),
        commands.WriteOutput(turn=1, op=1, content_json=text("a"), **worker),
        commands.CompleteTurn(turn=1, result_json=b"1", **worker),
        commands.WriteOutput(turn=1, op=2, content_json=text("late"), **worker),
        commands.CompleteTurn(turn=1, result_json=b"1", **worker),
        commands.WriteOutput(turn=2, op=1, content_json=text("b"), **worker),
        commands.CompleteTurn(turn=2, result_json=b"2", **worker),
    )
    assert isinstance(answers[4], TurnNotRunning)
    assert answers[1].receipt == answers[2].receipt  # type: ignore[union-attr]
    turns = await world.store.turns(session.id, 0, 10)
    assert [(turn.status, turn.result_json) for turn in turns] == [("completed", b"1"), ("completed", b"2")]


async def test_two_that_create_under_one_session_key_in_one_commit(world: World) -> None:
    answers = await asyncio.gather(*[world.create(name="same") for _ in range(5)], return_exceptions=True)
    winners = [answer for answer in answers if isinstance(answer, SessionHead)]
    losers = [answer for answer in answers if isinstance(answer, SessionKeyConflict)]
    assert (len(winners), len(losers)) == (1, 4)
    assert {loser.details["session_id"] for loser in losers} == {winners[0].id}


async def test_two_that_create_under_one_idempotency_key_in_one_commit(world: World) -> None:
    answers = await together(
        world.store,
        *[
            commands.CreateSession(
                session_id=new_id(),
                environment="demo/development",
                agent="assistant",
                deployment=new_id(),
                host="inline",
                limits=(await world.create()).limits,
                idempotency=key("create"),
            )
            for _ in range(5)
        ],
    )
    receipts = {answer.receipt for answer in answers if isinstance(answer, Applied)}
    assert len(receipts) == 1
    assert [answer.replayed for answer in answers if isinstance(answer, Applied)].count(False) == 1


async def test_200_commands_at_once_over_20_sessions_leave_no_gap(world: World) -> None:
    sessions = [await world.create() for _ in range(20)]
    told: dict[str, list[int]] = {session.id: [] for session in sessions}

    def note(committed: Committed) -> None:
        told[committed.head.id] += [event.seq for event in committed.events]

    world.store.subscribe(note)
    batch = [enqueue(session.id, f"{number}", start=True) for number in range(10) for session in sessions]
    answers = await together(world.store, *batch)
    assert all(isinstance(answer, Applied) for answer in answers)
    for session in sessions:
        log = [number for number, _ in await world.log(session)]
        assert log == list(range(1, len(log) + 1))
        assert told[session.id] == log[1:]
        turns = await world.store.turns(session.id, 0, 100)
        assert [(turn.number, turn.status) for turn in turns] == [
            (number, "running" if number == 1 else "queued") for number in range(1, 11)
        ]
        assert await world.head(session) == (await world.store.snapshot(session.id, 0)).head  # type: ignore[union-attr]


# --- who is told what, when


async def test_listeners_are_told_before_the_callers_and_in_commit_order(world: World) -> None:
    session = await world.create()
    order: list[str] = []
    world.store.subscribe(lambda committed: order.append(f"told {committed.head.last_turn}"))

    async def ask(number: int) -> None:
        applied = await world.store.apply(enqueue(session.id))
        order.append(f"answered {receipt(applied)['sequence']}")

    await asyncio.gather(*[ask(number) for number in range(10)])
    told = [entry for entry in order if entry.startswith("told")]
    assert told == [f"told {number}" for number in range(1, 11)]
    for number in range(1, 11):
        assert order.index(f"told {number}") < order.index(f"answered {number}")


async def test_what_is_told_can_be_read(world: World) -> None:
    session = await world.create()
    reads: list[asyncio.Task[int]] = []

    async def count() -> int:
        return len(await world.store.turns(session.id, 0, 1000))

    world.store.subscribe(lambda committed: reads.append(asyncio.ensure_future(count())))
    await together(world.store, *[enqueue(session.id) for _ in range(20)])
    seen = await asyncio.gather(*reads)
    assert all(found >= number for number, found in enumerate(seen, 1))


async def test_what_is_told_is_the_decision(world: World) -> None:
    told: list[Committed] = []
    world.store.subscribe(told.append)
    session = await world.create(said="first", start=True)
    (committed,) = told
    assert committed.head == session
    assert isinstance(committed.command, commands.CreateSession)
    assert [event.type for event in committed.events] == [kind for _, kind in await world.log(session)]
    assert committed.started is not None
    assert committed.started.input_json == text("first")
    assert not committed.live


async def test_a_listener_that_has_ended_its_subscription_is_not_told(world: World) -> None:
    told: list[Committed] = []
    stop = world.store.subscribe(told.append)
    await world.create()
    stop()
    await world.create()
    assert len(told) == 1


async def test_a_listener_that_fails_harms_nobody(world: World) -> None:
    told: list[Committed] = []
    reported: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

    def fail(_: Committed) -> None:
        raise ValueError("listener")

    world.store.subscribe(fail)
    world.store.subscribe(told.append)
    await world.create()
    assert len(told) == 1
    assert [str(context["exception"]) for context in reported] == ["listener"]


async def test_nothing_is_told_of_commands_that_change_nothing(world: World) -> None:
    session = await world.create(said="first", start=True)
    write = await world.write(session)
    await world.apply(write)
    told: list[Committed] = []
    world.store.subscribe(told.append)
    await world.apply(write)
    await world.apply(commands.StartTurn(session_id=session.id, fence=session.fence))
    assert told == []


async def test_a_caller_that_was_cancelled_disturbs_nobody(world: World) -> None:
    session = await world.create()
    callers = [asyncio.ensure_future(world.store.apply(enqueue(session.id))) for _ in range(10)]
    await asyncio.sleep(0)
    for caller in callers[::2]:
        caller.cancel()
    answers = await asyncio.gather(*callers, return_exceptions=True)
    assert [isinstance(answer, Applied) for answer in answers] == [False, True] * 5
    log = [number for number, _ in await world.log(session)]
    assert log == list(range(1, len(log) + 1))


async def test_closing_finishes_what_was_sent_and_refuses_the_rest(world: World) -> None:
    session = await world.create()
    callers = [asyncio.ensure_future(world.store.apply(enqueue(session.id))) for _ in range(50)]
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(world.store.close())
    again = asyncio.ensure_future(world.store.close())
    await asyncio.sleep(0)
    with pytest.raises(Unavailable):
        await world.store.apply(enqueue(session.id))
    with pytest.raises(Unavailable):
        await world.store.turns(session.id, 0, 10)
    await asyncio.gather(closing, again)
    assert all(isinstance(answer, Applied) for answer in await asyncio.gather(*callers))


# --- when the machine fails


@pytest.fixture
def disarmed() -> object:
    yield
    crashpoints.arm(None)


BEFORE = ("store.decide.before", "store.decide.after", "store.commit.before")
AFTER = ("store.commit.after", "store.publish.before")


@pytest.mark.parametrize("point", BEFORE + AFTER)
async def test_an_exception_at_a_crash_point_is_an_error_and_the_store_goes_on(
    world: World, point: str, disarmed: object
) -> None:
    assert point in POINTS
    session, other = await world.create(said="first", start=True), await world.create()
    told: list[Committed] = []
    world.store.subscribe(told.append)
    crashpoints.arm(f"{point}=WriteOutput:raise")
    with pytest.raises(StoreError, match=point):
        await world.output(session)
    committed = [kind for _, kind in await world.log(session)].count("turn.output")
    assert committed == len(told) == (1 if point in AFTER else 0)
    assert (await world.head(session)).last_seq == len(await world.log(session))

    await world.output(session, op=2)
    await world.turns(other, 2)
    log = [number for number, _ in await world.log(session)]
    assert log == list(range(1, len(log) + 1))


@pytest.mark.parametrize("point", BEFORE[:2] + AFTER)
async def test_an_exception_for_one_command_is_not_for_its_neighbours(
    world: World, point: str, disarmed: object
) -> None:
    sessions = [await world.create() for _ in range(6)]
    crashpoints.arm(f"{point}:raise:3")
    answers = await together(world.store, *[enqueue(session.id) for session in sessions])
    assert [isinstance(answer, Applied) for answer in answers] == [True, True, False, True, True, True]
    stored = [len(await world.store.turns(session.id, 0, 10)) for session in sessions]
    assert stored == ([1] * 6 if point in AFTER else [1, 1, 0, 1, 1, 1])


async def test_a_commit_that_fails_fails_for_all_of_it_and_leaves_nothing(world: World, disarmed: object) -> None:
    sessions = [await world.create(said="first", start=True) for _ in range(6)]
    heads = [await world.head(session) for session in sessions]
    told: list[Committed] = []
    world.store.subscribe(told.append)
    crashpoints.arm("store.commit.before:raise")
    writes = [await world.write(session) for session in sessions]
    answers = await together(world.store, *writes)
    assert all(isinstance(answer, StoreError) for answer in answers)
    assert told == []
    assert [await world.head(session) for session in sessions] == heads
    again = await together(world.store, *writes)
    assert [answer.receipt for answer in again if isinstance(answer, Applied)] == [5] * 6


async def test_the_loop_goes_on_while_the_store_commits(world: World) -> None:
    """Answers come later than the loop's next turn: nothing is flushed on the loop."""
    session = await world.create()
    answer = asyncio.ensure_future(world.store.apply(enqueue(session.id)))
    turns = 0
    while not answer.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 2


async def test_a_session_that_nobody_knows_can_be_asked_for_many_times_at_once(world: World) -> None:
    missing = new_id()
    answers = await together(world.store, *[enqueue(missing) for _ in range(5)])
    assert all(isinstance(answer, SessionNotFound) for answer in answers)


async def test_permits_start_only_the_first_of_many(world: World) -> None:
    session = await world.create()
    answers = await together(
        world.store,
        *[
            commands.Enqueue(session_id=session.id, turn=NewTurn(new_id(), text(str(number))), permit=permit())
            for number in range(5)
        ],
    )
    heads = [answer.head for answer in answers if isinstance(answer, Applied)]
    assert {head.active.number for head in heads if head and head.active} == {1}
    assert len(await world.store.runs(session.id, 0, 10)) == 1
