from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import (
    ContentTooLarge,
    IdempotencyConflict,
    OutputBudgetExceeded,
    PerdureError,
    StaleFence,
    StoreError,
)
from perdure.hosts.process import wire
from perdure.hosts.process.wire import (
    FROM_GUEST,
    FROM_WORKER,
    Ask,
    Connection,
    Failure,
    FrameError,
    Frames,
    Hello,
    Quiesce,
    Reply,
    Tell,
    Told,
    Welcome,
    connect,
    describe_failure,
    encode,
    rebuild_failure,
)
from perdure.hosts.protocol import Answered, Begin, Output, Returned
from perdure.records.sessions import Issuer

GUEST_WORDS = [Hello(1, "run", 3), Ask(1, 1, Output(1, 2, b"[1]")), Ask(2, 1, Returned(1, b"null", None)), Told(4)]
WORKER_WORDS = [
    Welcome(3, "a"),
    Reply(1, {"deep": [1, None, "x"]}),
    Reply(2, error=Failure("stale_fence", "no", {"a": 1})),
    Tell(1, Begin(1, "id", b"[]", 5)),
    Tell(2, Answered(1, "ask", b'"yes"', Issuer("user", "ada"))),
    Quiesce(),
]


@pytest.mark.parametrize(("words", "decoder"), [(GUEST_WORDS, FROM_GUEST), (WORKER_WORDS, FROM_WORKER)])
def test_frames_come_out_as_they_went_in_however_they_are_cut(words: list[Any], decoder: Any) -> None:
    stream = b"".join(encode(word) for word in words)
    for size in range(1, len(stream) + 1):
        frames = Frames(decoder)
        pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
        assert [word for piece in pieces for word in frames.feed(piece)] == words


@given(st.binary(max_size=64))
def test_no_bytes_do_more_than_be_refused(data: bytes) -> None:
    with contextlib.suppress(FrameError):
        list(Frames(FROM_GUEST).feed(data))


def test_a_frame_over_the_bound_is_refused_from_its_length_alone() -> None:
    allowed, refused = wire.LARGEST_FRAME, wire.LARGEST_FRAME + 1
    assert list(Frames(FROM_GUEST).feed(allowed.to_bytes(4, "big"))) == []
    with pytest.raises(FrameError, match="9437185 bytes"):
        list(Frames(FROM_GUEST).feed(refused.to_bytes(4, "big")))


def test_a_message_over_the_bound_is_not_sent() -> None:
    assert len(encode(Ask(1, 1, Output(1, 1, bytes((9 << 20) - 128))))) < wire.LARGEST_FRAME
    with pytest.raises(ContentTooLarge, match="message between session and worker"):
        encode(Ask(1, 1, Output(1, 1, bytes(9 << 20))))


@pytest.mark.parametrize(
    "error",
    [
        OutputBudgetExceeded(2, 1),
        IdempotencyConflict("k"),
        StaleFence("s"),
        StoreError("full", {"free": 0}),
        PerdureError("odd"),
    ],
)
def test_errors_come_out_as_they_went_in(error: PerdureError) -> None:
    failure = msgspec.msgpack.decode(msgspec.msgpack.encode(describe_failure(error)), type=Failure)
    rebuilt = rebuild_failure(failure)
    assert type(rebuilt) is type(error)
    assert (rebuilt.message, rebuilt.details, str(rebuilt)) == (error.message, error.details, str(error))


def test_an_error_of_a_newer_version_is_still_an_error() -> None:
    assert type(rebuild_failure(Failure("not_known_yet", "text", {}))) is PerdureError


async def pair(take: Callable[[Any], None], lost: Callable[[str], None]) -> tuple[Connection, socket.socket]:
    ours, its = socket.socketpair()
    connection = Connection(FROM_GUEST, lambda _, message: take(message), lambda _, why: lost(why))
    await asyncio.get_running_loop().create_unix_connection(lambda: connection, sock=ours)
    its.setblocking(False)
    return connection, its


async def test_a_connection_that_talks_nonsense_is_closed_with_the_reason() -> None:
    why: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    taken: list[Any] = []
    _, other = await pair(taken.append, why.set_result)
    with other:
        other.sendall(encode(Told(1)) + b"\xff\xff\xff\xff")
        assert "a frame of 4294967295 bytes" in await why
        assert taken == [Told(1)]
        assert other.recv(1) == b""


async def test_what_is_sent_after_the_close_is_dropped_and_the_other_end_sees_the_end_despite_a_duplicate() -> None:
    gone = asyncio.Event()
    connection, other = await pair(lambda _: None, lambda _: gone.set())
    assert connection.transport is not None
    duplicate = connection.transport.get_extra_info("socket").dup()
    with other, duplicate:
        connection.send(b"last")
        connection.close("enough")
        connection.send(b"too late")
        connection.close("enough")
        await gone.wait()
        connection.send(b"too late")
        assert other.recv(100) == b"last"
        assert other.recv(100) == b""


async def test_a_connection_closed_before_it_is_made_ends_at_once() -> None:
    ours, its = socket.socketpair()
    gone = asyncio.Event()
    connection = Connection(FROM_GUEST, lambda *_: None, lambda *_: gone.set())
    connection.close("too early")
    with its:
        await asyncio.get_running_loop().create_unix_connection(lambda: connection, sock=ours)
        await gone.wait()
        assert its.recv(1) == b""


async def test_an_end_that_is_not_taken_is_cut_off() -> None:
    gone = asyncio.Event()
    connection, other = await pair(lambda _: None, lambda _: gone.set())
    with other:
        connection.send(bytes(4 << 20))
        connection.close("enough")
        await connection.until_gone(0.01)
        await gone.wait()


async def test_connecting_to_nobody_is_an_error_and_leaves_no_socket(tmp_path) -> None:
    connection = Connection(FROM_GUEST, lambda *_: None, lambda *_: None)
    with pytest.raises(FileNotFoundError):
        await connect(connection, str(tmp_path / "none"))
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "silent"))
        with pytest.raises(ConnectionRefusedError):
            await connect(connection, str(tmp_path / "silent"))
