"""A store against a session in memory that obeys the same rules: after anything, both tell the same story.

The commands are those of the rules' own random walk; here they go to a store in groups, as many callers send them, with
some of them sent twice, and now and then the store is closed and opened again in between.
"""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rules_session import NotNow, Session
from store_world import Clock, Engine
from test_rules_always import ACTS, hosts, limits

from perdure.errors import PerdureError
from perdure.records.sessions import Turn
from perdure.rules.commands import Command
from perdure.store.port import Applied, Store

Step = tuple[int, Command, Any]

plans = st.lists(st.tuples(st.sampled_from(sorted(ACTS)), st.integers(0, 100)), min_size=5, max_size=60)


class Recorded(Session):
    """Remembers each command, when it was given and what it was answered or refused with."""

    def __init__(self, *args: Any, **more: Any) -> None:
        self.steps: list[Step] = []
        super().__init__(*args, **more)

    def do(self, command: Command) -> Any:
        try:
            answer = super().do(command)
        except PerdureError as refusal:
            self.steps.append((self.now, command, type(refusal)))
            raise
        self.steps.append((self.now, command, answer))
        return answer


def walk(host: Any, times: dict[str, int], plan: list[tuple[str, int]]) -> Recorded:
    session = Recorded(host, **times)
    for name, pick in plan:
        try:
            ACTS[name](session, pick)
        except (PerdureError, NotNow):
            continue
    return session


def groups(steps: list[Step], sizes: list[int]) -> list[list[Step]]:
    """Cut the steps into groups of one instant each, no longer than the sizes say in turn."""
    found: list[list[Step]] = []
    for step in steps:
        full = found and len(found[-1]) >= sizes[len(found) % len(sizes)]
        if not found or full or found[-1][0][0] != step[0]:
            found.append([])
        found[-1].append(step)
    return found


async def send(store: Store, group: list[Step]) -> None:
    answers = await asyncio.gather(*[store.apply(command) for _, command, _ in group], return_exceptions=True)
    for (_, command, expected), answer in zip(group, answers, strict=True):
        if isinstance(expected, type) and issubclass(expected, PerdureError):
            assert type(answer) is expected, (command, answer)
            continue
        assert isinstance(answer, Applied), (command, answer)
        if not isinstance(answer.receipt, bytes):
            assert answer.receipt == expected


async def compare(store: Store, session: Recorded) -> None:
    seen = await store.snapshot(session.id, 1000)
    assert seen is not None
    assert seen.head == session.h == await store.head(session.id)
    await compare_log(store, session)
    assert [told(turn) for turn in seen.turns] == [told(turn) for turn in session.turns.values()]
    assert await store.runs(session.id, 0, 1000) == list(session.runs.values())
    assert {ask.id: ask for ask in await store.asks(session.id, None, "", 1000)} == session.asks
    pending = {key: ask for key, ask in session.asks.items() if ask.status == "pending"}
    assert {ask.id: ask for ask in await store.asks(session.id, "pending", "", 1000)} == pending
    for message_id, message in session.messages.items():
        assert await store.message(session.id, message_id) == message
    assert {slot: found.content_json for slot, found in seen.live.items()} == session.live


async def compare_log(store: Store, session: Recorded) -> None:
    ids = {number: turn.id for number, turn in session.turns.items()}
    runs = {number: run.id for number, run in session.runs.items()}
    page = await store.events(session.id, 0, 10_000)
    assert [(e.seq, e.type, bytes(e.data), e.at, e.turn_id, e.run_id) for e in page.events] == [
        (e.seq, e.type, e.data, e.at, ids.get(e.turn or 0), runs.get(e.run or 0)) for e in session.events
    ]


def told(turn: Turn) -> tuple[Any, ...]:
    return (
        turn.number,
        turn.id,
        turn.status,
        turn.created_at,
        turn.started_at,
        turn.ended_at,
        turn.reason,
        turn.run_id,
    )


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(host=hosts, times=limits, plan=plans, sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5), data=st.data())
def test_a_store_tells_the_story_that_the_rules_tell(
    engine: Engine,
    clock: Clock,
    host: Any,
    times: dict[str, int],
    plan: list[tuple[str, int]],
    sizes: list[int],
    data: st.DataObject,
) -> None:
    session = walk(host, times, plan)
    cut = groups(session.steps, sizes)
    reopen = data.draw(st.integers(0, len(cut)), "reopen after")

    async def live() -> None:
        store = engine.store()
        await store.open()
        for index, group in enumerate(cut):
            clock.freeze(group[0][0])
            await send(store, group)
            if index == reopen:
                await store.close()
                store = engine.store()
                await store.open()
        await compare(store, session)
        await store.close()
        clock.thaw()

    asyncio.run(live())
