"""T7 to T9: what is sent again, what is read in pages, what is asked of people; and keys of sessions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from dev_parts import Dev, answer_text, ended, is_so, log_of, texts, types_of, until

from perdure.api.turns import Turn
from perdure.client.aio import AsyncClient
from perdure.errors import (
    AnswerInvalid,
    AskAlreadyResponded,
    AskCancelled,
    IdempotencyConflict,
    InvalidCursor,
    InvalidKey,
    MessageClosed,
    PerdureError,
    SessionKeyConflict,
)


@pytest.fixture
async def plain(shared: Dev) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of no kind of ours, that sees the bytes of answers."""
    async with httpx2.AsyncClient(base_url=shared.url, timeout=30) as http:
        yield http


# --- T7: idempotency


async def test_what_is_sent_again_gets_the_first_receipt_byte_for_byte(shared: Dev, plain: httpx2.AsyncClient) -> None:
    text = [{"type": "text", "text": "count"}]
    first = await plain.post("/v1/agents/inline/sessions", json={"input": text, "idempotency_key": "seven"})
    session = f"/v1/sessions/{first.json()['session_id']}"
    requests: list[tuple[str, dict[str, Any]]] = [
        ("/v1/agents/inline/sessions", {"input": text, "idempotency_key": "seven"}),
        (f"{session}/enqueue", {"input": text, "idempotency_key": "seven"}),
        (f"{session}/send", {"input": text, "idempotency_key": "seven"}),
        (f"{session}/interrupt", {"reason": "x", "idempotency_key": "seven"}),
        (f"{session}/close", {"idempotency_key": "seven"}),
        (f"{session}/cancel", {"idempotency_key": "seven"}),
    ]
    receipts = []
    for path, body in requests:
        reply = await plain.post(path, json=body)
        assert reply.is_success, reply.text
        receipts.append(reply.content)
    assert receipts[0] == first.content
    async with shared.client() as client:
        events = [event.type async for event in client.session(first.json()["session_id"]).iter_events(follow=True)]
    assert "session.cancelled" in events
    seen = (await plain.get(session)).json()
    assert seen["status"] == "cancelled"
    # The session is over and the order of fields is another one: the receipts are the same.
    for (path, body), receipt in zip(requests, receipts, strict=True):
        turned = json.dumps(dict(reversed(body.items())), indent=1)
        again = await plain.post(path, content=turned, headers={"content-type": "application/json"})
        assert again.content == receipt
    assert (await plain.get(session)).json() == seen


async def test_a_key_of_another_request_is_refused_and_of_another_target_is_another(client: AsyncClient) -> None:
    one = await client.agents["bare"].create_session(idempotency_key="k")
    other = await client.agents["bare"].create_session()
    session, elsewhere = client.session(one.session_id), client.session(other.session_id)
    first = await session.enqueue(text="echo a", idempotency_key="k")
    with pytest.raises(IdempotencyConflict) as refused:
        await session.enqueue(text="echo b", idempotency_key="k")
    assert refused.value.status == 409
    there = await elsewhere.enqueue(text="echo b", idempotency_key="k")
    assert (there.session_id, there.sequence) == (other.session_id, 1)
    assert await session.enqueue(text="echo a", idempotency_key="k") == first
    assert (await types_of(session)).count("turn.queued") == 1
    with pytest.raises(IdempotencyConflict):
        await client.agents["bare"].create_session(text="count", idempotency_key="k")


@pytest.mark.parametrize("key", ["", " k", "k\t", "k\n", "x" * 513, "a\0b"])
async def test_keys_are_refused_and_never_trimmed(plain: httpx2.AsyncClient, key: str) -> None:
    for body in ({"idempotency_key": key}, {"key": key}):
        reply = await plain.post("/v1/agents/bare/sessions", json=body)
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, InvalidKey.code)


async def test_the_same_request_at_the_same_time_is_done_once(client: AsyncClient) -> None:
    receipt = await client.agents["inline"].create_session()
    session = client.session(receipt.session_id)
    same = await asyncio.gather(*(session.enqueue(text="count", idempotency_key="k") for _ in range(20)))
    assert len({receipt.model_dump_json() for receipt in same}) == 1
    assert (await types_of(session)).count("turn.queued") == 1


# --- keys of sessions


async def test_a_session_key_in_use_is_refused_and_names_its_session(client: AsyncClient) -> None:
    receipt = await client.agents["bare"].create_session(key="user:ada")
    with pytest.raises(SessionKeyConflict) as refused:
        await client.agents["bare"].create_session(key="user:ada", text="count")
    assert refused.value.status == 409
    assert refused.value.details["session_id"] == receipt.session_id
    # Keys are an agent's own, and stay taken when their session is over.
    await client.agents["inline"].create_session(key="user:ada")
    await client.session(receipt.session_id).close()
    with pytest.raises(SessionKeyConflict):
        await client.agents["bare"].create_session(key="user:ada")
    assert (await client.agents["bare"].session("user:ada")).id == receipt.session_id


async def test_a_race_of_get_or_create_makes_one_session(client: AsyncClient) -> None:
    agent = client.agents["process"]
    receipts = await asyncio.gather(*(agent.get_or_create("team", text="count") for _ in range(20)))
    assert len({receipt.session_id for receipt in receipts}) == 1
    assert sum(receipt.created for receipt in receipts) == 1
    assert sorted(receipt.sequence or 0 for receipt in receipts) == list(range(1, 21))
    session = client.session(receipts[0].session_id)
    results = [(await ended(session, receipt)).result["turns"] for receipt in receipts]
    assert sorted(results) == list(range(1, 21))
    assert (await agent.get_or_create("team")).turn_id is None


async def test_a_get_or_create_sent_again_enqueues_once(client: AsyncClient) -> None:
    agent = client.agents["bare"]
    first = await agent.get_or_create("again", text="echo 1", idempotency_key="1")
    assert first.created
    assert await agent.get_or_create("again", text="echo 1", idempotency_key="1") == first
    second = await agent.get_or_create("again", text="echo 2", idempotency_key="2")
    assert (second.session_id, second.created) == (first.session_id, False)
    assert await agent.get_or_create("again", text="echo 2", idempotency_key="2") == second
    assert (await types_of(client.session(first.session_id))).count("turn.queued") == 2


# --- T8: pages


async def test_pages_have_no_gap_and_no_repeat_while_a_writer_appends(client: AsyncClient) -> None:
    receipt = await client.agents["bare"].create_session(text="many 5000")
    session = client.session(receipt.session_id)
    await ended(session, receipt)
    full = await session.events(limit=1000)
    await session.enqueue(text="many 1500")
    seen, after, pages = list(full.events), full.next_after, 1
    while full.has_more:
        full = await session.events(after=after, limit=1000)
        assert len(full.events) == 1000 or not full.has_more
        assert full.next_after == after + len(full.events)
        seen += full.events
        after, pages = full.next_after, pages + 1
    assert pages > 5
    assert [event.seq for event in seen] == list(range(1, after + 1))
    written = [event.data["content"][0]["value"] for event in seen if event.type == "turn.output"]
    assert written[:5000] == list(range(5000))
    assert written[5000:] == list(range(len(written) - 5000))
    last = await until(session, "turn.completed", count=2)
    end = await session.events(after=last.seq)
    assert (end.events, end.has_more, end.next_after) == ([], False, last.seq)
    for wrong in (last.seq + 1, -1):
        with pytest.raises(PerdureError) as refused:
            await session.events(after=wrong)
        assert refused.value.status == 400
    with pytest.raises(InvalidCursor):
        await session.events(after=last.seq + 1)


# --- T9: questions


async def test_a_question_takes_the_first_valid_answer(client: AsyncClient) -> None:
    receipt = await client.agents["process"].create_session(text="choose")
    session = client.session(receipt.session_id)
    asked = await until(session, "ask.created")
    ask = session.ask(asked.data["ask_id"])
    wrong: list[Any] = [
        "b", {"selected": [{"id": "b", "value": 2}]}, {"selected": [{"id": "c", "value": 1}]}, {"selected": []},
        {"selected": [{"id": "a", "value": 1}, {"id": "b", "value": [2]}]}, {"text": "neither"}, None, 7,
    ]  # fmt: skip
    for answer in wrong:
        with pytest.raises(AnswerInvalid) as refused:
            await ask.answer(answer)
        assert refused.value.status == 422
    assert [pending.id for pending in (await session.asks(status="pending")).asks] == [ask.id]
    given = {"selected": [{"id": "b", "value": [2]}]}
    answered = await ask.answer(given, response_id="mine")
    assert (answered.status, answered.answer) == ("responded", given)
    assert await ask.answer(given, response_id="mine") == answered
    for response, value in (("other", given), ("mine", {"selected": [{"id": "a", "value": 1}]})):
        with pytest.raises(AskAlreadyResponded):
            await ask.answer(value, response_id=response)
    assert (await ended(session, receipt)).result == [[2]]
    assert await ask.answer(given, response_id="mine") == answered


@pytest.mark.parametrize("agent", ["inline", "process"])
async def test_of_two_answers_at_once_one_wins(client: AsyncClient, agent: str) -> None:
    receipt = await client.agents[agent].create_session(text="ask")
    session = client.session(receipt.session_id)
    asked = await until(session, "ask.created")
    ask = session.ask(asked.data["ask_id"])
    answers = (ask.answer(f"name {number}", response_id=str(number)) for number in range(10))
    outcomes = await asyncio.gather(*answers, return_exceptions=True)
    (winner,) = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
    losers = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert {type(loser) for loser in losers} == {AskAlreadyResponded}
    result = (await ended(session, receipt)).result
    assert (result["value"], result["by"]) == (winner.answer, ["user", "local"])


@pytest.mark.parametrize("agent", ["inline", "process"])
async def test_a_question_ends_with_its_turn(client: AsyncClient, agent: str) -> None:
    receipt = await client.agents[agent].create_session(text="ask")
    session = client.session(receipt.session_id)
    asked = await until(session, "ask.created")
    control = await session.interrupt()
    assert (await ended(session, receipt)).status == "interrupted"
    ask = session.ask(asked.data["ask_id"])
    assert (await ask.get()).status == "cancelled"
    with pytest.raises(AskCancelled) as refused:
        await ask.answer("Ada")
    assert (refused.value.status, refused.value.code) == (409, "ask_cancelled")
    assert control.hold_id is not None
    await session.resume(control.hold_id)
    done = await ended(session, await session.enqueue(text="count"))
    assert done.result == {"turns": 2, "started_as": "initial", "reason": None}


@pytest.mark.parametrize("agent", ["inline", "process"])
async def test_a_handler_that_leaves_a_question_unjoined_fails(client: AsyncClient, gate: Path, agent: str) -> None:
    receipt = await client.agents[agent].create_session(text=f"unjoined {gate}")
    session = client.session(receipt.session_id)
    asked = await until(session, "ask.created")
    gate.touch()
    failed = await ended(session, receipt)
    assert failed.error is not None
    assert (failed.status, failed.result) == ("failed", None)
    assert "unjoined question" in failed.error.message
    assert (await session.ask(asked.data["ask_id"]).get()).status == "cancelled"
    assert (await ended(session, await session.enqueue(text="count"))).result["turns"] == 2


@pytest.mark.parametrize("agent", ["inline", "process"])
async def test_a_question_that_is_taken_back_is_cancelled(client: AsyncClient, gate: Path, agent: str) -> None:
    receipt = await client.agents[agent].create_session(text=f"withdrawn {gate}")
    session = client.session(receipt.session_id)
    asked = await until(session, "ask.created")
    gate.touch()
    done = await ended(session, receipt)
    assert (done.status, done.result) == ("completed", True)
    assert (await session.ask(asked.data["ask_id"]).get()).status == "cancelled"
    assert await types_of(session, "ask.") == ["ask.created", "ask.cancelled"]


# --- responses and output


@pytest.mark.parametrize("agent", ["inline", "process"])
async def test_a_response_is_staged_once_and_seen_when_its_turn_completes(client: AsyncClient, agent: str) -> None:
    receipt = await client.agents[agent].create_session()
    session = client.session(receipt.session_id)

    async def respond(*responses: Any) -> Turn:
        return await ended(session, await session.enqueue(text=f"respond {json.dumps(responses)}"))

    turn = await respond("one", "two", "three")
    assert (answer_text(turn), turn.result) == ("one", ["response_already_staged"] * 2)
    assert answer_text(await respond([{"type": "text", "text": "a"}, {"type": "json", "value": 1}])) == "a"
    assert (answer_text(await respond("")), answer_text(await respond([]))) == ("", "")
    assert answer_text(await respond()) is None
    failed = await respond("lost", None)
    assert (failed.status, failed.response) == ("failed", None)
    refused = await respond(300_000, "small")
    assert (answer_text(refused), refused.result) == ("small", ["content_too_large"])
    assert "lost" not in str([event.data for event in await log_of(session) if event.type == "turn.failed"])


@pytest.mark.parametrize("agent", ["inline", "process"])
async def test_what_was_piped_before_a_fragment_that_fails_stays(client: AsyncClient, agent: str) -> None:
    receipt = await client.agents[agent].create_session(text="pipe")
    session = client.session(receipt.session_id)
    turn = await ended(session, receipt)
    assert turn.error is not None
    assert (turn.status, turn.error.code) == ("failed", "not_json")
    assert texts(await log_of(session), turn.id) == ["one", "two"]


# --- steering


@pytest.mark.parametrize("agent", ["inline", "process"])
async def test_messages_reach_the_running_turn_in_order(client: AsyncClient, agent: str) -> None:
    receipt = await client.agents[agent].create_session(text="steered 3")
    session = client.session(receipt.session_id)
    turn = session.turn(str(receipt.turn_id))
    await until(session, "turn.output")
    kinds = [(await session.send(text=text)).kind for text in ("one", "nonsense")]
    await turn.send(text="two")
    kinds.append((await session.send(text="three")).kind)
    assert kinds == ["messaged"] * 3
    assert (await ended(session, receipt)).result == ["one", "two", "three"]
    told = [event.type.removeprefix("message.") for event in await log_of(session) if event.type[0] == "m"]
    assert [kind for kind in told if kind not in ("admitted", "started")] == [
        "delivered", "rejected", "delivered", "delivered",
    ]  # fmt: skip
    with pytest.raises(MessageClosed):
        await turn.send(text="late")
    enqueued = await session.send(text="count")
    assert (enqueued.kind, enqueued.sequence) == ("enqueued", 2)
    assert (await ended(session, enqueued.turn_id)).result["turns"] == 2


async def test_a_turn_without_a_message_handler_takes_none(client: AsyncClient, gate: Path) -> None:
    receipt = await client.agents["inline"].create_session(text=f"wait {gate}")
    session = client.session(receipt.session_id)
    await until(session, "turn.output")
    with pytest.raises(MessageClosed):
        await session.turn(str(receipt.turn_id)).send(text="hello")
    assert (await session.send(text="count")).kind == "enqueued"
    gate.touch()
    await is_so(session, lambda seen: seen.active_turn_id is None and not seen.queued)
