from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import client_fakes as fake
import httpx2
import pytest
from client_fakes import HOLD, SESSION, TURN, Script, answer, durable, failure, snapshot, sse, stream

from perdure import errors
from perdure.api.events import Event, LiveData, SnapshotData
from perdure.client.failures import NotUnderstood
from perdure.client.retry import Retry
from perdure.client.waiting import Waiting
from perdure.client.watching import CaughtUp, End
from perdure.errors import CursorExpired

Make = Callable[..., Any]
BEAT = b": heartbeat\n\n"
LOST = httpx2.ReadError("connection reset by peer")
SILENT = httpx2.ReadTimeout("no bytes")


@pytest.fixture(params=["sync", "async"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Make a client of either kind; both have the same face."""
    loop = asyncio.new_event_loop()
    clients: list[Any] = []

    def make(script: Any, **settings: Any) -> Any:
        if request.param == "sync":
            clients.append(fake.sync_client(script, **settings))
        else:
            clients.append(fake.Blocking(fake.async_client(script, **settings), loop))
        return clients[-1]

    yield make
    for client in clients:
        client.close()
    loop.close()


def caught_up(cursor: int) -> bytes:
    return sse("caught_up", {"cursor": cursor})


def end(cursor: int) -> bytes:
    return sse("end", {"cursor": cursor})


def live(text: str) -> bytes:
    return sse("live", {"turn_id": TURN, "slot": "answer", "content": [{"type": "text", "text": text}]})


def seqs(items: list[Any]) -> list[int]:
    return [item.seq for item in items if isinstance(item, Event)]


# --- watches ---


def test_a_watch_gives_typed_items_in_order_and_ends(make: Make) -> None:
    body = [snapshot(2), live("so far"), caught_up(2), durable(3), BEAT, durable(4, "session.closed"), end(4)]
    script = Script(stream(*body))
    items = list(make(script).session(SESSION).watch())
    assert [type(item) for item in items] == [SnapshotData, LiveData, CaughtUp, Event, Event, End]
    assert items[0].session.id == SESSION
    assert items[1].content[0].text == "so far"
    assert items[2].cursor == 2
    assert items[3].data["content"][0]["text"] == "output 3"
    request = script.requests[0]
    assert request.url.path == f"/v1/sessions/{SESSION}/watch"
    assert "after" not in request.url.params
    assert "last-event-id" not in request.headers
    assert request.extensions["timeout"]["read"] == 45.0


def test_after_is_asked_for_once_and_then_the_last_event(make: Make) -> None:
    script = Script(stream(durable(6), durable(7)), stream(caught_up(7), end(7)))
    assert seqs(list(make(script).session(SESSION).watch(after=5))) == [6, 7]
    first, second = script.requests
    assert (first.url.params["after"], first.headers.get("last-event-id")) == ("5", None)
    assert (second.url.params.get("after"), second.headers["last-event-id"]) == (None, "7")


def test_after_a_snapshot_the_watch_goes_on_from_its_cursor(make: Make) -> None:
    script = Script(stream(snapshot(41), LOST), stream(durable(42), end(42)))
    assert seqs(list(make(script).session(SESSION).watch())) == [42]
    assert script.requests[1].headers["last-event-id"] == "41"


class Log:
    """A server that keeps a log and cuts its first stream after some bytes, and no later one."""

    def __init__(self, length: int, cut: int, ending: Exception | None = None) -> None:
        self._events = [durable(seq, data={"text": "é" * seq, "n": seq}) for seq in range(1, length + 1)]
        self._cut: int | None = cut
        self._ending = ending
        self.connections = 0

    def body(self, after: int) -> bytes:
        length = len(self._events)
        head = b"\xef\xbb\xbf: hello\n\n"
        return b"".join([head, *self._events[after:], live("x"), caught_up(length), end(length)])

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.connections += 1
        body = self.body(int(request.headers.get("last-event-id") or request.url.params["after"]))
        place, self._cut = self._cut, None
        if place is None:
            return stream(body)
        return stream(body[:place], *([self._ending] if self._ending else []))


@pytest.mark.parametrize("ending", [None, LOST, SILENT])
def test_a_stream_cut_after_any_byte_reassembles_to_exactly_the_log(make: Make, ending: Exception | None) -> None:
    for place in range(len(Log(3, 0).body(0))):
        log = Log(3, place, ending)
        items = list(make(log).session(SESSION).watch(after=0))
        events = [item for item in items if isinstance(item, Event)]
        assert [(event.seq, event.data["n"]) for event in events] == [(1, 1), (2, 2), (3, 3)]
        assert isinstance(items[-1], End)
        assert log.connections == 2


def test_events_that_come_again_are_not_given_again(make: Make) -> None:
    script = Script(stream(durable(1), durable(2), durable(1), durable(2), durable(3), end(3)))
    assert seqs(list(make(script).session(SESSION).watch(after=0))) == [1, 2, 3]


def test_a_gap_is_read_again_from_the_last_good_event(make: Make) -> None:
    script = Script(stream(durable(1), durable(3)), stream(durable(2), durable(3), end(3)))
    assert seqs(list(make(script).session(SESSION).watch(after=0))) == [1, 2, 3]
    assert script.requests[1].headers["last-event-id"] == "1"


@pytest.mark.parametrize("bad", [durable(3), b"id: 2\nevent: turn.output\ndata: {\n\n", sse("live", {"slot": 1})])
def test_a_stream_that_stays_broken_is_given_up(make: Make, bad: bytes) -> None:
    script = Script(*(stream(durable(1), bad) for _ in range(5)))
    watch = make(script).session(SESSION).watch(after=0)
    assert next(watch).seq == 1
    with pytest.raises(NotUnderstood, match="is broken"):
        next(watch)
    assert script.done()


def test_a_reader_that_fell_behind_gets_a_snapshot_and_goes_on_after_it(make: Make) -> None:
    script = Script(stream(durable(1), snapshot(90), durable(91), end(91)))
    items = list(make(script).session(SESSION).watch(after=0))
    assert seqs(items) == [1, 91]
    assert isinstance(items[1], SnapshotData)


def test_markers_of_a_newer_server_are_passed_over(make: Make) -> None:
    script = Script(stream(sse("of_tomorrow", {"x": 1}), durable(1, "turn.of_tomorrow"), end(1)))
    assert [item.type for item in make(script).session(SESSION).watch(after=0) if isinstance(item, Event)] == [
        "turn.of_tomorrow"
    ]


def test_a_watch_outlasts_a_server_that_is_away_for_long(make: Make) -> None:
    away = [httpx2.ConnectError("refused") for _ in range(50)]
    script = Script(stream(durable(1)), *away, failure("unavailable", 503), stream(durable(2), end(2)))
    told: list[tuple[str, float]] = []
    items = make(script).session(SESSION).watch(after=0, on_lost=lambda error, delay: told.append((error.code, delay)))
    assert seqs(list(items)) == [1, 2]
    assert told == [("unavailable", 0.0)] * 52


def test_a_watch_that_never_was_connected_fails_like_any_request(make: Make) -> None:
    script = Script(*(httpx2.ConnectError("refused") for _ in range(4)))
    with pytest.raises(errors.Unavailable, match="perdure dev"):
        next(make(script).session(SESSION).watch())
    assert script.done()


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("session_not_found", 404, errors.SessionNotFound),
        ("invalid_cursor", 400, errors.InvalidCursor),
        ("cursor_expired", 410, errors.CursorExpired),
        ("authentication_required", 401, errors.AuthenticationRequired),
    ],
)
def test_what_reconnecting_cannot_help_is_raised(
    make: Make, code: str, status: int, kind: type[errors.PerdureError]
) -> None:
    for before in ([], [stream(durable(1))]):
        script = Script(*before, failure(code, status))
        with pytest.raises(kind):
            list(make(script).session(SESSION).watch(after=0))
        assert script.done()


def test_an_answer_that_is_no_stream_is_told(make: Make) -> None:
    with pytest.raises(NotUnderstood, match="not an event stream"):
        list(make(Script(answer({}))).session(SESSION).watch())


def test_waits_between_connections_grow_until_something_comes(make: Make) -> None:
    empty = [stream(BEAT) for _ in range(6)]
    script = Script(stream(durable(1)), *empty, stream(durable(2)), stream(end(2)))
    waits: list[float] = []
    retry = Retry(first=1e-6, longest=1.0)
    watch = make(script, retry=retry).session(SESSION).watch(after=0, on_lost=lambda error, delay: waits.append(delay))
    list(watch)
    assert waits[6] > 10 * waits[0]
    assert waits[7] < 2e-6


def test_events_are_followed_without_markers(make: Make) -> None:
    script = Script(stream(durable(3), live("x"), caught_up(3), durable(4), end(4)))
    items = list(make(script).session(SESSION).iter_events(after=2, follow=True))
    assert [type(item) for item in items] == [Event, Event]


def test_a_feed_goes_on_after_its_last_page(make: Make) -> None:
    one, two, three = (fake.sse_page(f"c{number}", fake.event(number)) for number in (1, 2, 3))
    again = fake.sse_page("c2")
    script = Script(stream(one, two[:30], LOST), stream(BEAT, two), failure("unavailable", 503), stream(again, three))
    pages = make(script).follow_events(after="now")
    assert [next(pages).cursor for _ in range(3)] == ["c1", "c2", "c3"]
    pages.close()
    asked = [(request.headers.get("last-event-id"), request.url.params.get("after")) for request in script.requests]
    assert asked == [(None, "now"), ("c1", None), ("c2", None), ("c2", None)]
    assert {request.url.path for request in script.requests} == {"/v1/events/watch"}


def test_a_feed_says_first_where_it_begins_and_then_only_what_is_new(make: Make) -> None:
    script = Script(
        stream(fake.sse_page("c0"), fake.sse_page("c0"), sse("other", {}), fake.sse_page("c1", fake.event(7)))
    )
    pages = make(script).follow_events()
    assert [len(next(pages).events) for _ in range(2)] == [0, 1]
    pages.close()


def test_a_feed_that_begins_below_what_is_kept_is_told(make: Make) -> None:
    with pytest.raises(CursorExpired):
        next(make(Script(failure("cursor_expired", 410))).follow_events(after="c1"))


def test_a_watch_that_is_left_closes_its_connection(make: Make) -> None:
    closed: list[bool] = []

    class Noticed(fake.Pieces):
        def close(self) -> None:
            closed.append(True)

        async def aclose(self) -> None:
            closed.append(True)

    body = Noticed(durable(1), durable(2))
    script = Script(httpx2.Response(200, headers={"Content-Type": "text/event-stream"}, stream=body))
    watch = make(script).session(SESSION).watch(after=0)
    assert next(watch).seq == 1
    watch.close()
    assert closed


# --- waits ---


def settled() -> httpx2.Response:
    return answer({"status": "settled", "turn": fake.completed_turn()})


def timed_out() -> httpx2.Response:
    return answer({"status": "timeout", "turn": fake.turn(status="running")})


def test_a_wait_is_as_many_polls_as_it_takes(make: Make) -> None:
    script = Script(timed_out(), timed_out(), settled())
    result = make(script).session(SESSION).turn(TURN).wait("10m")
    assert (result.status, result.turn.status, result.turn.result) == ("settled", "completed", {"turns": 1})
    for request in script.requests:
        assert request.url.path == f"/v1/sessions/{SESSION}/turns/{TURN}/wait"
        assert request.url.params["timeout"] == "30s"
        assert request.extensions["timeout"]["read"] > 45.0


@pytest.mark.parametrize("timeout", ["1ms", 0, 0.0005])
def test_a_wait_that_times_out_says_so(make: Make, timeout: Any) -> None:
    def slow(request: httpx2.Request) -> httpx2.Response:
        assert request.url.params["timeout"] == "1ms"
        deadline = time.monotonic() + 0.001
        while time.monotonic() < deadline:
            pass
        return timed_out()

    script = Script(slow)
    result = make(script).session(SESSION).turn(TURN).wait(timeout)
    assert (result.status, result.turn.status) == ("timeout", "running")


def test_a_wait_outlasts_a_restart_of_the_server(make: Make) -> None:
    away = [httpx2.ConnectError("refused") for _ in range(12)]
    script = Script(timed_out(), LOST, *away, failure("unavailable", 503), settled())
    assert make(script).session(SESSION).turn(TURN).wait("1h").status == "settled"


def test_a_wait_for_nobody_fails_like_any_request(make: Make) -> None:
    script = Script(*(httpx2.ConnectError("refused") for _ in range(4)))
    with pytest.raises(errors.Unavailable):
        make(script).session(SESSION).turn(TURN).wait("1h")
    assert script.done()


def test_a_wait_does_not_retry_beyond_its_time(make: Make) -> None:
    script = Script(LOST)
    with pytest.raises(errors.Unavailable):
        make(script).session(SESSION).turn(TURN).wait(0)
    assert script.done()


@pytest.mark.parametrize("timeout", ["", "10", "0s", "1.5s", "soon", -1, float("nan"), True])
def test_what_is_no_time_is_refused(make: Make, timeout: Any) -> None:
    script = Script()
    with pytest.raises(errors.InvalidDuration):
        make(script).session(SESSION).turn(TURN).wait(timeout)
    assert script.requests == []


def test_without_a_timeout_a_wait_has_no_end() -> None:
    waiting = Waiting(None, Retry())
    assert waiting.next_poll() == 30_000_000
    assert waiting.goes_on("timeout")
    assert not waiting.goes_on("settled")


def test_a_hold_id_is_what_resume_takes(make: Make) -> None:
    script = Script(answer(fake.control()), answer(fake.control()))
    session = make(script).session(SESSION)
    session.resume(session.interrupt().hold_id)
    assert script.bodies[1]["hold_id"] == HOLD
