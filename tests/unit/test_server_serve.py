from __future__ import annotations

import asyncio
import socket
from typing import Any

import httpx2
import pytest
import server_fakes as fake

from perdure.errors import AddressUnavailable
from perdure.records.sessions import Turn
from perdure.server.serve import Listener, serve

WAIT = f"/v1/sessions/{fake.SESSION}/turns/{fake.TURN}/wait"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Waiting:
    """A turn that ends when the test says so."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.let_go = asyncio.Event()
        self.outcome: asyncio.Future[Turn] = asyncio.get_running_loop().create_future()
        self.timeouts: list[int] = []

    async def wait_turn(self, _: Any, __: str, ___: str, timeout: int) -> Turn:
        self.timeouts.append(timeout)
        self.begun.set()
        try:
            return await asyncio.shield(self.outcome)
        finally:
            self.let_go.set()


async def test_waiting_ends_with_the_turn_or_the_timeout() -> None:
    waiting = Waiting()
    app = fake.app_of(fake.FakeService(wait_turn=waiting.wait_turn))
    async with fake.running(app) as server, httpx2.AsyncClient(base_url=server.url) as client:
        asked = asyncio.ensure_future(client.get(WAIT + "?timeout=1500ms"))
        await waiting.begun.wait()
        assert not asked.done()
        waiting.outcome.set_result(fake.turn(status="completed", result_json=b"1", ended_at=fake.NOW))
        reply = (await asked).json()
        assert (reply["status"], reply["turn"]["status"], reply["turn"]["result"]) == ("settled", "completed", 1)
        waiting.outcome = asyncio.get_running_loop().create_future()
        waiting.outcome.set_result(fake.turn(status="running"))
        reply = (await client.get(WAIT)).json()
        assert (reply["status"], reply["turn"]["status"]) == ("timeout", "running")
    assert waiting.timeouts == [1_500_000, 30_000_000]


async def test_a_client_that_hangs_up_ends_its_wait() -> None:
    waiting = Waiting()
    app = fake.app_of(fake.FakeService(wait_turn=waiting.wait_turn))
    async with fake.running(app) as server, httpx2.AsyncClient(base_url=server.url) as client:
        asked = asyncio.ensure_future(client.get(WAIT))
        await waiting.begun.wait()
        asked.cancel()
        async with asyncio.timeout(5):
            await waiting.let_go.wait()


async def test_a_stop_answers_waits_and_finishes_what_is_under_way() -> None:
    waiting = Waiting()
    admitting, admitted = asyncio.Event(), asyncio.Event()

    async def enqueue(*_: Any, **__: Any) -> bytes:
        admitting.set()
        await admitted.wait()
        return fake.RECEIPT

    app = fake.app_of(fake.FakeService(wait_turn=waiting.wait_turn, enqueue=enqueue))
    async with fake.running(app) as server, httpx2.AsyncClient(base_url=server.url) as client:
        body = {"input": [{"type": "text", "text": "x"}]}
        wait = asyncio.ensure_future(client.get(WAIT))
        accepted = asyncio.ensure_future(client.post(f"/v1/sessions/{fake.SESSION}/enqueue", json=body))
        await asyncio.gather(waiting.begun.wait(), admitting.wait())
        server.stop()
        reply = await wait
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "unavailable")
        with pytest.raises(httpx2.ConnectError):
            await httpx2.AsyncClient().get(server.url + "/healthz")
        assert not server.ended.done()
        admitted.set()
        assert (await accepted).content == fake.RECEIPT
        async with asyncio.timeout(5):
            await server.ended


async def test_a_server_that_lingers_refuses_what_comes_and_says_when_to_ask_again() -> None:
    service = fake.FakeService(session=fake.view(), check_ready=None)
    app = fake.app_of(service)
    async with fake.running(app, linger=60) as server, httpx2.AsyncClient(base_url=server.url) as client:
        assert (await client.get(f"/v1/sessions/{fake.SESSION}")).status_code == 200
        server.stop()
        await app.state.stopping.future()
        # Clients that keep a connection are led away from it, too.
        assert (await client.get(f"/v1/sessions/{fake.SESSION}")).headers["connection"] == "close"
        async with httpx2.AsyncClient(base_url=server.url) as late:
            for path in (f"/v1/sessions/{fake.SESSION}", f"/v1/sessions/{fake.SESSION}/watch", "/readyz"):
                reply = await late.get(path)
                assert (reply.status_code, reply.json()["error"]["code"]) == (503, "unavailable")
                assert reply.headers["retry-after"] == "1"
            assert (await late.get("/healthz")).json() == {"status": "ok"}
        assert not server.ended.done()
        server.ended.cancel()
        with pytest.raises(asyncio.CancelledError):
            await server.ended
    assert len(service.calls) == 1


async def test_a_request_that_never_ends_does_not_hold_the_stop_for_ever() -> None:
    begun = asyncio.Event()

    async def stuck(*_: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    app = fake.app_of(fake.FakeService(session=stuck))
    async with fake.running(app, drain_seconds=1) as server, httpx2.AsyncClient(base_url=server.url) as client:
        asked = asyncio.ensure_future(client.get(f"/v1/sessions/{fake.SESSION}"))
        await begun.wait()
        server.stop()
        async with asyncio.timeout(10):
            await server.ended
        await asyncio.gather(asked, return_exceptions=True)


async def test_an_idle_connection_does_not_hold_the_stop() -> None:
    app = fake.app_of(fake.FakeService(session=fake.view()))
    async with fake.running(app) as server, httpx2.AsyncClient(base_url=server.url) as client:
        assert (await client.get(f"/v1/sessions/{fake.SESSION}")).status_code == 200
        server.stop()
        async with asyncio.timeout(3):
            await server.ended


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_port_in_use_is_told(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AddressUnavailable, match=f"{host}:{port}: another program listens there"):
            await serve(fake.app_of(fake.FakeService()), host, port)


@pytest.mark.parametrize(("host", "port"), [("192.0.2.1", 0), ("no.such.host.invalid", 0), ("127.0.0.1", 99_999)])
async def test_an_address_that_cannot_be_had_is_told(host: str, port: int) -> None:
    with pytest.raises(AddressUnavailable, match="Cannot listen"):
        Listener(host, port)


async def test_a_started_server_tells_its_address_and_ends_when_cancelled() -> None:
    started: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = asyncio.ensure_future(serve(fake.app_of(fake.FakeService()), "127.0.0.1", 0, started.set_result))
    url = await started
    async with httpx2.AsyncClient(base_url=url) as client:
        assert (await client.get("/healthz")).json() == {"status": "ok"}
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    with pytest.raises(httpx2.ConnectError):
        await httpx2.AsyncClient().get(url + "/healthz")


async def test_the_same_port_can_be_had_again_at_once() -> None:
    app = fake.app_of(fake.FakeService())
    async with fake.running(app) as server, httpx2.AsyncClient(base_url=server.url) as client:
        assert (await client.get("/healthz")).status_code == 200
        port = server.port
    Listener("127.0.0.1", port).close()
