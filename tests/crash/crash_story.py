"""A client's life with one session: it asks until it is answered, follows the log, and at the end compares all."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any, TypeVar

import httpx2
from crash_world import World

from perdure.api.events import Event
from perdure.api.sessions import ControlReceipt, Receipt
from perdure.client.aio import AsyncClient, AsyncSessionHandle
from perdure.client.retry import Retry
from perdure.computers.identity import identify, is_alive
from perdure.errors import MessageClosed, PerdureError
from perdure.testing import History, Started, check_history
from perdure.testing.history import ENDS

T = TypeVar("T")

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Made once: to make one for each client takes longer than all that the client does."""
PROCESS_AGENTS = ("guest", "sleeper", "moody_guest", "steady_guest")
QUICK = Retry(attempts=1000, first=0.01, longest=0.05)


class Recorder(httpx2.AsyncBaseTransport):
    """Keeps what the server answered to each request that changes something."""

    def __init__(self) -> None:
        self._inner = httpx2.AsyncHTTPTransport(verify=NO_TLS)
        self.answered: dict[tuple[str, bytes], bytes] = {}

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await self._inner.handle_async_request(request)
        if request.method == "POST" and response.is_success and "/deployments" not in request.url.path:
            asked = str(request.url), request.content
            answer = await response.aread()
            assert self.answered.setdefault(asked, answer) == answer, "a request sent again had another answer"
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class Story:
    """One session as its client sees it."""

    def __init__(self, world: World, agent: str, name: str) -> None:
        self.world = world
        self.agent = agent
        self.name = name
        self.recorder = Recorder()
        self.client = AsyncClient(world.url, retry=QUICK, transport=self.recorder)
        self._plain = httpx2.AsyncClient(transport=httpx2.AsyncHTTPTransport(verify=NO_TLS))
        self.receipts: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.attended = True
        """Whether what the system holds is resumed at once."""
        self._keys = 0
        self._news = asyncio.Condition()
        self._following: asyncio.Task[None] | None = None
        self._session: AsyncSessionHandle | None = None

    @property
    def session(self) -> AsyncSessionHandle:
        assert self._session is not None
        return self._session

    async def close(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
        await self.client.close()
        await self._plain.aclose()

    # --- asking

    def key(self) -> str:
        self._keys += 1
        return f"{self.name}:{self._keys}"

    async def surely(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask again for as long as the server fails; the client itself waits out restarts."""
        while True:
            try:
                return await ask()
            except PerdureError as error:
                if error.status != 500:
                    raise
            await asyncio.sleep(0.01)

    async def create(self, text: str | None = None) -> Receipt:
        key = self.key()
        agent = self.client.agents[self.agent]
        receipt = await self.surely(lambda: agent.create_session(text=text, idempotency_key=key))
        self._session = self.client.session(receipt.session_id)
        self._following = asyncio.create_task(self._follow())
        return self._accepted(receipt)

    async def enqueue(self, text: str) -> Receipt:
        key = self.key()
        return self._accepted(await self.surely(lambda: self.session.enqueue(text=text, idempotency_key=key)))

    def _accepted(self, receipt: Receipt) -> Receipt:
        if receipt.turn_id is not None:
            self.receipts.append(receipt.document())
        return receipt

    async def interrupt(self) -> ControlReceipt:
        key = self.key()
        return await self.surely(lambda: self.session.interrupt(reason="stop", idempotency_key=key))

    async def resume(self, hold_id: str) -> None:
        key = self.key()
        await self.surely(lambda: self.session.resume(hold_id, idempotency_key=key))

    async def end(self, how: str = "close") -> None:
        """Close or cancel the session, and return once nothing more will happen in it."""
        key = self.key()
        await self.surely(lambda: getattr(self.session, how)(idempotency_key=key))
        assert self._following is not None
        await self._following

    async def answer(self, ask_id: str, text: str) -> None:
        key = self.key()
        await self.surely(lambda: self.session.ask(ask_id).answer(text, response_id=key))

    async def send(self, receipt: Receipt, text: str) -> None:
        """Say something to a running turn, unless it has ended."""
        key = self.key()
        assert receipt.turn_id is not None
        turn = self.session.turn(receipt.turn_id)
        try:
            await self.surely(lambda: turn.send(text=text, idempotency_key=key))
        except MessageClosed:
            await self.ended(receipt)

    async def persist(self, receipt: Receipt, text: str) -> None:
        """Say something to a running turn again and again, until it has ended."""
        rejected = 0
        while True:
            event = await self.heard("message.rejected", *ENDS, receipt=receipt, count=rejected + 1)
            if event["type"] != "message.rejected":
                return
            rejected += 1
            await self.send(receipt, text)

    async def steer(self, text: str) -> None:
        """Say something to whichever turn runs; it becomes a turn where none takes messages."""
        key = self.key()
        told = await self.surely(lambda: self.session.send(text=text, idempotency_key=key))
        if told.kind == "enqueued":
            self.receipts.append({"turn_id": told.turn_id, "sequence": told.sequence})

    async def deploy(self, project: Path) -> None:
        key = self.key()
        await self.surely(lambda: self.client.deploy(project, idempotency_key=key))

    # --- hearing

    async def _follow(self) -> None:
        async with aclosing(self.session.watch(after=0)) as items:
            async for item in items:
                if isinstance(item, Event):
                    async with self._news:
                        self.events.append(item.document())
                        self._news.notify_all()
                    await self._operate(self.events[-1])

    async def _operate(self, event: dict[str, Any]) -> None:
        """Do what an operator does: have a session that the system has held go on."""
        if self.attended and event["type"] == "session.held" and event["data"]["issuer"]["kind"] == "system":
            await self.resume(event["data"]["hold_id"])

    async def heard(self, *kinds: str, receipt: Receipt | None = None, count: int = 1) -> dict[str, Any]:
        """Return the event of such a kind with that number, about the turn if one is given."""

        def found() -> list[dict[str, Any]]:
            turn = None if receipt is None else receipt.turn_id
            events = [event for event in self.events if receipt is None or event["turn_id"] == turn]
            return [event for event in events if event["type"] in kinds]

        async with self._news:
            await self._news.wait_for(lambda: len(found()) >= count)
            return found()[count - 1]

    async def heard_unless_restarted(self, *kinds: str) -> None:
        """Return once there is such an event, or once the server was started again and may have forgotten it."""
        waits = [asyncio.ensure_future(self.heard(*kinds)), asyncio.ensure_future(self.world.restarted.wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        await asyncio.wait(waits)

    async def ended(self, *receipts: Receipt) -> list[str]:
        """Wait for the turns' ends, and return how they ended."""
        return [ENDS[(await self.heard(*ENDS, receipt=receipt))["type"]] for receipt in receipts]

    async def until(self, kind: str, receipt: Receipt) -> dict[str, Any] | None:
        """Return the turn's first event of that kind, or None if it ends without one."""
        event = await self.heard(kind, *ENDS, receipt=receipt)
        return event if event["type"] == kind else None

    # --- the end

    async def check(self) -> History:
        """Check all that the session promises, once it has ended."""
        history = await self._history()
        assert history.events == self.events, "the watch has told another log"
        entries = self.world.ledger.entries(kind="turn", session=self.session.id)
        started = [Started(entry["sequence"], entry["run"], entry["pid"]) for entry in entries]
        if self.agent not in PROCESS_AGENTS:
            started = [Started(each.sequence, each.run_id) for each in started]
        check_history(history, started, self.receipts)
        self._check_effects(history, started)
        await self._check_replays()
        await self._check_processes()
        return history

    async def _history(self) -> History:
        session = await self.surely(self.session.get)
        turns = [turn.document() async for turn in self.session.iter_turns()]
        events = [event.document() async for event in self.session.iter_events()]
        runs = [run.document() for run in (await self.session.runs(limit=100)).runs]
        return History(session.document(), turns, events, runs)

    def _check_effects(self, history: History, started: list[Started]) -> None:
        handled = {each.sequence for each in started}
        for turn in history.turns:
            if turn["status"] == "completed":
                assert turn["sequence"] in handled, f"turn {turn['sequence']} completed without a handler"
                assert turn["result"]["turn"] == turn["sequence"]
        inits = [entry["run"] for entry in self.world.ledger.entries(kind="init", session=self.session.id)]
        assert len(inits) == len(set(inits)), f"init ran twice in a process: {inits}"

    async def _check_replays(self) -> None:
        for (url, content), answer in self.recorder.answered.items():
            headers = {"content-type": "application/json"}
            again = await self._plain.post(url, content=content, headers=headers)
            assert again.is_success, again.text
            assert again.content == answer, f"the receipt of {url} was {answer!r} and is {again.content!r}"

    async def _check_processes(self) -> None:
        """No process of a session is left when that has ended."""
        pids = {entry["pid"] for entry in self.world.ledger.entries(session=self.session.id)}
        for pid in pids if self.agent in PROCESS_AGENTS else ():
            identity = identify(pid)
            assert identity is None or not is_alive(identity), f"process {pid} of {self.session.id} still lives"
