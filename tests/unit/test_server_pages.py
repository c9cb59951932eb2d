from __future__ import annotations

from typing import Any

import pytest
import server_fakes as fake
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import InvalidCursor
from perdure.records.ids import new_id
from perdure.server.cursors import make_cursor, read_cursor
from perdure.store.port import Deployment

ID = fake.SESSION


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def test_a_cursor_belongs_to_its_query() -> None:
    cursor = make_cursor(ID, of="sessions", status=["open"], key=None)
    assert read_cursor(cursor, of="sessions", status=["open"], key=None) == ID
    assert read_cursor(None, of="sessions") is None
    others: list[dict[str, Any]] = [
        {"of": "sessions", "status": ["open"], "key": "k"},
        {"of": "asks", "status": ["open"], "key": None},
        {"of": "sessions", "status": [], "key": None},
    ]
    for other in others:
        with pytest.raises(InvalidCursor, match="other filters"):
            read_cursor(cursor, **other)


@given(st.text() | st.from_regex("[A-Za-z0-9_-]{0,700}", fullmatch=True))
def test_what_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(InvalidCursor):
        read_cursor(text, of="sessions")


@given(st.integers(0, 200), st.sampled_from("AQgw_-=+/é"))
def test_a_changed_cursor_is_refused_or_the_same(place: int, letter: str) -> None:
    cursor = make_cursor(ID, of="sessions")
    place %= len(cursor)
    changed = cursor[:place] + letter + cursor[place + 1 :]
    try:
        assert read_cursor(changed, of="sessions") is not None
    except InvalidCursor:
        assert changed != cursor


async def pages(service: fake.FakeService, path: str, name: str, step: str) -> list[str]:
    """Return the ids of all pages."""
    found: list[str] = []
    async with fake.client_of(fake.app_of(service)) as client:
        query = "limit=2"
        while True:
            reply = await client.get(f"{path}?{query}")
            assert reply.status_code == 200, reply.text
            page = reply.json()
            assert len(page[name]) <= 2
            found += [each["id"] for each in page[name]]
            if step not in page:
                return found
            assert len(page[name]) == 2
            query = f"limit=2&{step.removeprefix('next_')}={page[step]}"


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5])
async def test_pages_give_every_row_once(count: int) -> None:
    newest_first = [new_id() for _ in range(count)][::-1]
    oldest_first = newest_first[::-1]

    async def sessions(_: Any, *, before: str | None, limit: int, **__: Any) -> list[Any]:
        return [fake.view(id=each) for each in newest_first if before is None or each < before][:limit]

    async def deployments(_: Any, *, before: str | None, limit: int) -> list[Deployment]:
        ids = [each for each in newest_first if before is None or each < before][:limit]
        return [Deployment(each, "demo/development", "d", fake.NOW, "/", ()) for each in ids]

    async def asks(*_: Any, after: str, limit: int, **__: Any) -> list[Any]:
        return [fake.ask(id=each) for each in oldest_first if each > after][:limit]

    async def turns(*_: Any, after: int, limit: int) -> list[Any]:
        return [fake.turn(n + 1, id=each) for n, each in enumerate(oldest_first)][after : after + limit]

    async def runs(*_: Any, after: int, limit: int) -> list[Any]:
        return [fake.run(n + 1) for n, _ in enumerate(oldest_first)][after : after + limit]

    service = fake.FakeService(sessions=sessions, deployments=deployments, asks=asks, turns=turns, runs=runs)
    inside = f"/v1/sessions/{ID}"
    assert await pages(service, "/v1/sessions", "sessions", "next_cursor") == newest_first
    assert await pages(service, "/v1/deployments", "deployments", "next_cursor") == newest_first
    assert await pages(service, f"{inside}/asks", "asks", "next_cursor") == oldest_first
    assert await pages(service, f"{inside}/turns", "turns", "next_after") == oldest_first
    assert await pages(service, f"{inside}/runs", "runs", "next_after") == [fake.RUN] * count


async def test_filters_reach_the_service_and_their_order_does_not_matter_to_a_cursor() -> None:
    async def sessions(_: Any, **named: Any) -> list[Any]:
        return [fake.view(id=new_id()) for _ in range(named["limit"])]

    service = fake.FakeService(sessions=sessions)
    async with fake.client_of(fake.app_of(service)) as client:
        first = await client.get("/v1/sessions?status=open&status=closed&agent=a&key=k&limit=1")
        cursor = first.json()["next_cursor"]
        same = await client.get(f"/v1/sessions?key=k&status=closed&status=open&agent=a&limit=7&cursor={cursor}")
        other = await client.get(f"/v1/sessions?key=k&status=open&agent=a&cursor={cursor}")
        elsewhere = await client.get(
            f"/v1/sessions?status=open&status=closed&agent=a&key=k&environment=e&cursor={cursor}"
        )
    assert service.calls[0][2] == {
        "agent": "a",
        "key": "k",
        "statuses": ("closed", "open"),
        "before": None,
        "limit": 2,
    }
    assert service.calls[1][2]["before"] == first.json()["sessions"][0]["id"]
    assert same.status_code == 200
    for reply in (other, elsewhere):
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_cursor")
