"""What a turn does through its link: the store's troubles are waited out, refusals are the handler's to hear."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from perdure.errors import OutputBudgetExceeded, PerdureError, StoreError, StoreFull
from perdure.hosts import turns
from perdure.hosts.protocol import Begin, Live, OpenMessages, Output, Question, Request, Withdraw
from perdure.hosts.turns import TurnExecution

pytestmark = pytest.mark.anyio


class Trouble:
    """A link that fails so many times with each request, and then answers."""

    def __init__(self, error: PerdureError, times: int) -> None:
        self.asked: list[Request] = []
        self._error = error
        self._times = times

    async def call(self, request: Request) -> Any:
        self.asked.append(request)
        if self.asked.count(request) <= self._times:
            raise self._error
        return 7


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_RETRY_FIRST", 0.001)


def execution(link: Trouble) -> TurnExecution:
    return TurnExecution(Begin(1, "t", b"[]", 0), link)


ACTS: dict[type[Request], Callable[[TurnExecution], Any]] = {
    Output: lambda turn: turn.write("x"),
    Live: lambda turn: turn.write_live("s", "x"),
}


@pytest.mark.parametrize("error", [StoreError("away"), StoreFull("full")])
@pytest.mark.parametrize("kind", ACTS)
async def test_the_troubles_of_the_store_are_not_the_turns(kind: type[Request], error: StoreError) -> None:
    link = Trouble(error, 3)
    await ACTS[kind](execution(link))
    assert len(link.asked) == 4
    assert {type(request) for request in link.asked} == {kind}
    assert len({str(request) for request in link.asked}) == 1, "it is the same request again"


@pytest.mark.parametrize("kind", ACTS)
async def test_a_refusal_is_heard_at_once(kind: type[Request]) -> None:
    link = Trouble(OutputBudgetExceeded(10, 5), 1)
    with pytest.raises(OutputBudgetExceeded):
        await ACTS[kind](execution(link))
    assert len(link.asked) == 1


async def test_a_question_and_its_withdrawal_outlast_the_store() -> None:
    link = Trouble(StoreError("away"), 2)
    asking = asyncio.create_task(execution(link).ask("well?", "text"))
    while sum(isinstance(request, Question) for request in link.asked) < 3:
        await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert sum(isinstance(request, Withdraw) for request in link.asked) == 3


async def test_taking_messages_outlasts_the_store() -> None:
    link = Trouble(StoreError("away"), 2)
    turn = execution(link)

    async def hear(_: object) -> None: ...

    await turn.on_message(hear)
    assert link.asked == [OpenMessages(1)] * 3
    await turn._end_courier()
