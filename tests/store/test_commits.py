"""One command, one commit: what it writes, what a refusal leaves, what a repeated key gets."""

from __future__ import annotations

import json

import pytest
from store_world import ADA, ENVIRONMENT, Clock, Engine, World, enqueue, key, receipt, text

from perdure.errors import (
    IdempotencyConflict,
    SessionKeyConflict,
    SessionNotFound,
    SessionNotOpen,
    StaleFence,
    TurnNotFound,
)
from perdure.records.ids import new_id
from perdure.records.sessions import Issuer
from perdure.rules import commands
from perdure.store.port import Committed, Store


async def test_a_turn_from_input_to_outcome_is_all_there(world: World) -> None:
    session = await world.create(said="first", start=True)
    wrote = await world.output(session, 1, "half")
    await world.complete(session, "whole")

    (turn,) = await world.store.turns(session.id, 0, 10)
    assert (turn.number, turn.status, turn.input_json) == (1, "completed", text("first"))
    assert (turn.result_json, turn.response_json, turn.error_json) == (b'{"ok":true}', text("whole"), None)
    assert turn.created_at <= turn.started_at < turn.ended_at
    (run,) = await world.store.runs(session.id, 0, 10)
    assert (turn.run_id, run.recovery, run.number, run.ended_at) == (run.id, "initial", 1, None)
    assert await world.log(session) == [
        (1, "session.created"),
        (2, "turn.queued"),
        (3, "session.process_started"),
        (4, "turn.running"),
        (5, "turn.output"),
        (6, "turn.completed"),
    ]
    assert wrote.receipt == 5


async def test_events_carry_ids_and_canonical_data(world: World) -> None:
    session = await world.create(said="first", start=True)
    page = await world.store.events(session.id, 0, 10)
    created, queued, started, running = page.events
    (turn,) = await world.store.turns(session.id, 0, 10)
    (run,) = await world.store.runs(session.id, 0, 10)
    assert [(event.turn_id, event.run_id) for event in page.events] == [
        (None, None),
        (turn.id, None),
        (None, run.id),
        (turn.id, run.id),
    ]
    assert bytes(queued.data) == b'{"input":' + text("first") + b',"sequence":1}'
    assert {event.session_id for event in page.events} == {session.id}
    assert created.at == queued.at == started.at == running.at


async def test_a_failed_turn_shows_its_error_and_nothing_else(world: World) -> None:
    session = await world.create(said="first", start=True)
    failed = commands.FailTurn(session_id=session.id, fence=session.fence, turn=1, error_json=b'{"code":"x"}')
    await world.apply(failed)
    (turn,) = await world.store.turns(session.id, 0, 10)
    assert (turn.status, turn.error_json, turn.result_json, turn.response_json) == (
        "failed",
        b'{"code":"x"}',
        None,
        None,
    )


async def test_an_interrupted_turn_shows_why(world: World) -> None:
    session = await world.create(said="first", start=True)
    hold = new_id()
    await world.apply(commands.Interrupt(session_id=session.id, control_id=new_id(), hold_id=hold, issuer=ADA))
    (turn,) = await world.store.turns(session.id, 0, 10)
    assert (turn.status, turn.reason, turn.result_json) == ("interrupted", "interrupt", None)
    assert [found.id for found in (await world.head(session)).holds] == [hold]


async def test_cancelling_ends_queued_turns_too(world: World) -> None:
    session = await world.create(said="first", start=True)
    await world.enqueue(session, "second")
    await world.enqueue(session, "third")
    await world.apply(commands.Cancel(session_id=session.id, control_id=new_id(), issuer=ADA))
    turns = await world.store.turns(session.id, 0, 10)
    assert [turn.status for turn in turns] == ["cancelled"] * 3
    assert [turn.input_json for turn in turns] == [text("first"), text("second"), text("third")]


async def test_a_refusal_changes_nothing_and_is_not_told(world: World) -> None:
    session = await world.create()
    await world.apply(commands.Cancel(session_id=session.id, control_id=new_id(), issuer=ADA))
    before, log = await world.head(session), await world.log(session)
    told: list[Committed] = []
    world.store.subscribe(told.append)
    with pytest.raises(SessionNotOpen):
        await world.enqueue(session, idempotency=key("refused"))
    assert (await world.head(session), await world.log(session), told) == (before, log, [])
    with pytest.raises(SessionNotOpen):  # and its key is still free: asked again, it is decided again
        await world.enqueue(session, idempotency=key("refused"))


@pytest.mark.parametrize(
    "session_id",
    ["01920000-0000-7000-8000-000000000000", "", "nonsense", "x" * 5000, "ABCDEF00-0000-7000-8000-000000000000"],
)
async def test_an_unknown_session_is_not_found(world: World, session_id: str) -> None:
    with pytest.raises(SessionNotFound):
        await world.apply(enqueue(session_id))
    with pytest.raises(SessionNotFound):
        await world.store.events(session_id, 0, 10)
    assert await world.store.head(session_id) is None
    assert await world.store.snapshot(session_id, 10) is None
    assert await world.store.turns(session_id, 0, 10) == []


async def test_a_session_of_another_environment_is_not_found(world: World) -> None:
    session = await world.create(environment="demo/staging")
    with pytest.raises(SessionNotFound):
        await world.enqueue(session)


async def test_a_turn_of_another_session_is_not_found(world: World) -> None:
    one, other = await world.create(said="a", start=True), await world.create(said="b", start=True)
    (turn,) = await world.store.turns(other.id, 0, 1)
    assert await world.store.turn(one.id, turn.id) is None
    assert await world.store.turn(other.id, turn.id) == turn == await world.store.turn_by_number(other.id, 1)
    steer = commands.SendToTurn(session_id=one.id, turn_id=turn.id, message_id=new_id(), content_json=text("x"))
    with pytest.raises(TurnNotFound):
        await world.apply(steer)


# --- keys of sessions


async def test_a_session_key_belongs_to_one_session_of_an_agent(world: World) -> None:
    first = await world.create(name="user:ada")
    with pytest.raises(SessionKeyConflict) as refused:
        await world.create(name="user:ada")
    assert refused.value.details == {"session_id": first.id}
    other_agent = await world.create(name="user:ada", agent="other")
    other_environment = await world.create(name="user:ada", environment="demo/staging")
    assert await world.store.find_key(ENVIRONMENT, "assistant", "user:ada") == first.id
    assert await world.store.find_key(ENVIRONMENT, "other", "user:ada") == other_agent.id
    assert await world.store.find_key("demo/staging", "assistant", "user:ada") == other_environment.id
    assert await world.store.find_key(ENVIRONMENT, "assistant", "User:ada") is None


# --- idempotency


async def test_the_same_request_gets_the_first_receipt_byte_for_byte(world: World, engine: Engine) -> None:
    session = await world.create()
    first = await world.enqueue(session, idempotency=key("k"))
    assert not first.replayed
    await world.apply(commands.Close(session_id=session.id, control_id=new_id(), issuer=ADA))
    await world.apply(commands.Cancel(session_id=session.id, control_id=new_id(), issuer=ADA))
    again = await world.enqueue(session, "other turn id, same request", idempotency=key("k"))
    assert (again.receipt, again.replayed) == (first.receipt, True)
    assert again.head == await world.head(session)

    await world.store.close()
    reopened = engine.store()
    await reopened.open()
    later = await reopened.apply(enqueue(session.id, idempotency=key("k")))
    await reopened.close()
    assert (later.receipt, later.replayed) == (first.receipt, True)


async def test_creating_twice_under_a_key_makes_one_session(world: World) -> None:
    first = await world.create(said="hello", name="user:ada", idempotency=key("create"))
    command = commands.CreateSession(
        session_id=new_id(),
        environment=ENVIRONMENT,
        agent="assistant",
        deployment=new_id(),
        host="inline",
        limits=first.limits,
        key="user:ada",
        idempotency=key("create"),
    )
    again = await world.apply(command)
    assert receipt(again)["session_id"] == first.id
    assert (again.replayed, again.head) == (True, None)
    assert await world.store.head(command.session_id) is None


async def test_another_request_under_a_key_is_refused(world: World) -> None:
    session = await world.create()
    await world.enqueue(session, idempotency=key("k"))
    with pytest.raises(IdempotencyConflict, match="'k'"):
        await world.enqueue(session, idempotency=key("k", "different"))
    assert (await world.head(session)).last_turn == 1


async def test_a_key_of_another_scope_is_another_key(world: World) -> None:
    session = await world.create()
    await world.enqueue(session, idempotency=commands.Idempotency("k", b"scope 1", b"r"))
    await world.enqueue(session, idempotency=commands.Idempotency("k", b"scope 2", b"r"))
    assert (await world.head(session)).last_turn == 2


async def test_a_control_that_changes_nothing_keeps_its_key_all_the_same(world: World) -> None:
    session = await world.create()
    await world.apply(commands.Close(session_id=session.id, control_id=new_id(), issuer=ADA))
    first = await world.apply(
        commands.Close(session_id=session.id, control_id=new_id(), issuer=ADA, idempotency=key("again"))
    )
    second = await world.apply(
        commands.Close(session_id=session.id, control_id=new_id(), issuer=ADA, idempotency=key("again"))
    )
    assert (second.receipt, second.replayed) == (first.receipt, True)


# --- fences


async def test_a_worker_that_lost_its_session_writes_nothing(world: World) -> None:
    session = await world.create(said="first", start=True)
    assert session.run is not None
    stale = await world.write(session)
    await world.apply(
        commands.AdoptRun(session_id=session.id, fence=session.fence, worker="worker-2", run_id=session.run.id)
    )
    log = await world.log(session)
    with pytest.raises(StaleFence):
        await world.apply(stale)
    assert await world.log(session) == log
    await world.output(session)  # the new owner's fence is the head's


# --- rows that rules ask for


async def test_a_write_sent_again_gets_the_first_ones_number(world: World) -> None:
    session = await world.create(said="first", start=True)
    sent = [await world.write(session, op) for op in (1, 2, 3)]
    numbers = [(await world.apply(write)).receipt for write in sent]
    assert numbers == [5, 6, 7]
    assert [(await world.apply(write)).receipt for write in sent] == numbers
    assert len(await world.log(session)) == 7


async def test_a_settlement_sent_again_is_answered_with_the_outcome(world: World) -> None:
    session = await world.create(said="first", start=True)
    done = commands.CompleteTurn(session_id=session.id, fence=session.fence, turn=1, result_json=b"1")
    failed = commands.FailTurn(session_id=session.id, fence=session.fence, turn=1, error_json=b"{}")
    assert [(await world.apply(command)).receipt for command in (done, done, failed)] == ["completed"] * 3


async def test_queued_turns_start_in_order_in_the_commit_that_ends_the_one_before(world: World) -> None:
    session = await world.create(said="1", start=True)
    for said in ("2", "3"):
        await world.enqueue(session, said)
    told: list[Committed] = []
    world.store.subscribe(told.append)
    for _ in range(3):
        await world.complete(session)
    started = [committed.started for committed in told]
    assert [(turn.number, turn.input_json) if turn else None for turn in started] == [
        (2, text("2")),
        (3, text("3")),
        None,
    ]


async def test_questions_are_asked_answered_and_cancelled(world: World) -> None:
    session = await world.create(said="first", start=True)
    ids = sorted(new_id() for _ in range(3))
    for ask_id in ids:
        command = commands.CreateAsk(
            session_id=session.id,
            fence=session.fence,
            turn=1,
            ask_id=ask_id,
            prompt_json=text("well?"),
            control_json=b'{"type":"text"}',
        )
        asked = await world.apply(command)
        assert (await world.apply(command)).receipt == asked.receipt == await world.store.ask(session.id, ask_id)
    answer = commands.AnswerAsk(
        session_id=session.id, ask_id=ids[0], answer_json=b'"yes"', response_id="r1", issuer=Issuer("user", "bob")
    )
    answered = await world.apply(answer)
    assert (await world.apply(answer)).receipt == answered.receipt == await world.store.ask(session.id, ids[0])
    await world.apply(commands.WithdrawAsk(session_id=session.id, fence=session.fence, turn=1, ask_id=ids[1]))

    asks = await world.store.asks(session.id, None, "", 10)
    assert [(ask.id, ask.status) for ask in asks] == list(zip(ids, ["responded", "cancelled", "pending"], strict=True))
    assert (asks[0].answer_json, asks[0].responder) == (b'"yes"', Issuer("user", "bob"))
    assert {ask.turn_id for ask in asks} == {session.active.id if session.active else None}
    await world.complete(session)
    assert [ask.id for ask in await world.store.asks(session.id, "cancelled", "", 10)] == ids[1:]
    assert await world.store.asks(session.id, "pending", "", 10) == []
    assert [ask.id for ask in await world.store.asks(session.id, None, ids[0], 1)] == [ids[1]]


async def test_messages_go_from_admitted_to_their_end(world: World) -> None:
    session = await world.create(said="first", start=True)
    assert session.active is not None
    await world.apply(commands.TakeMessages(session_id=session.id, fence=session.fence, turn=1))
    sent = [new_id(), new_id(), new_id()]
    for message_id in sent:
        steer = commands.SendToTurn(
            session_id=session.id, turn_id=session.active.id, message_id=message_id, content_json=text("psst")
        )
        await world.apply(steer)
    worker = {"session_id": session.id, "fence": session.fence, "turn": 1}
    await world.apply(commands.MessageStarted(message_id=sent[0], **worker))
    await world.apply(commands.MessageSettled(message_id=sent[0], **worker))
    await world.apply(commands.MessageSettled(message_id=sent[1], rejected="handler_failed", **worker))
    await world.complete(session)
    messages = [await world.store.message(session.id, message_id) for message_id in sent]
    assert [(found.status, found.reason) for found in messages if found] == [
        ("delivered", None),
        ("rejected", "handler_failed"),
        ("rejected", "turn_ended"),
    ]
    assert messages[0] is not None
    assert (messages[0].content_json, messages[0].turn_id) == (text("psst"), session.active.id)


async def test_a_hold_is_released_once_and_known_for_ever(world: World) -> None:
    session = await world.create(said="first")
    hold = new_id()
    await world.apply(commands.Interrupt(session_id=session.id, control_id=new_id(), hold_id=hold, issuer=ADA))
    for _ in range(2):
        await world.apply(commands.Resume(session_id=session.id, control_id=new_id(), hold_id=hold, issuer=ADA))
    assert [kind for _, kind in await world.log(session)].count("session.resumed") == 1


async def test_runs_are_numbered_and_say_how_they_ended(world: World, store: Store) -> None:
    session = await world.create(said="first", start=True)
    assert session.run is not None
    lost = commands.RunLost(
        session_id=session.id, fence=session.fence, worker="w", run_id=session.run.id, reason="killed", hold_id=new_id()
    )
    await world.apply(lost)
    await world.enqueue(session, start=True)
    first, second = await store.runs(session.id, 0, 10)
    assert (first.number, first.recovery, first.end_reason) == (1, "initial", "process_lost")
    assert (second.number, second.recovery, second.end_reason) == (2, "reconstructed", None)
    assert first.ended_at is not None
    assert await store.run(session.id, first.id) == first
    assert await store.run((await world.create()).id, first.id) is None
    assert await store.runs(session.id, 1, 10) == [second]


# --- live slots


async def test_live_slots_are_overwritten_and_gone_with_their_turn(world: World, clock: Clock) -> None:
    session = await world.create(said="first", start=True)
    told: list[Committed] = []
    world.store.subscribe(told.append)
    for slot, said in (("text", "a"), ("text", "ab"), ("tool", "{}")):
        live = commands.WriteLive(
            session_id=session.id, fence=session.fence, turn=1, slot=slot, content_json=json.dumps(said).encode()
        )
        await world.apply(live)
    assert [(committed.live, committed.events) for committed in told] == [(True, [])] * 3
    seen = await world.store.snapshot(session.id, 10)
    assert seen is not None
    assert {slot: found.content_json for slot, found in seen.live.items()} == {"text": b'"ab"', "tool": b'"{}"'}
    assert seen.live["text"].at <= clock.now
    assert {found.turn_id for found in seen.live.values()} == {session.active.id if session.active else None}
    await world.complete(session)
    gone = await world.store.snapshot(session.id, 10)
    assert gone is not None
    assert gone.live == {}
    assert told[-1].live
    await world.turns(session, 1)
    assert not told[-1].live  # there was nothing to clear


async def test_a_receipt_can_be_read_without_deciding_anew(world: World) -> None:
    session = await world.create()
    applied = await world.apply(enqueue(session.id, idempotency=key("first", "asked")))
    assert await world.store.receipt(key("first", "asked")) == applied.receipt
    assert await world.store.receipt(key("never used", "asked")) is None
    with pytest.raises(IdempotencyConflict):
        await world.store.receipt(key("first", "something else"))
