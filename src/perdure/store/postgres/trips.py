"""Round trips: statements that are sent together and answered together.

What psycopg's own pipeline does for any use, done for ours alone, on libpq's connection beneath it: all statements and
one sync leave with one flush, results are read where they arrive, and nobody is woken before the last one. A statement
that fails ends the trip: what follows it is not run, the error is psycopg's, and the connection is as after any other
failed statement.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from hashlib import blake2b
from typing import Any, Final, NamedTuple, TypeAlias

import psycopg
from psycopg import AsyncConnection
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import Diagnostic, error_from_result
from psycopg.pq import ConnStatus, ExecStatus, Format
from psycopg.pq.abc import PGconn, PGresult

Row: TypeAlias = tuple[Any, ...]
Values: TypeAlias = Sequence[Any]
Statement: TypeAlias = tuple[str, Values]

# Statements that one connection keeps prepared. There are a few dozen, some of them for several kinds of numbers.
_MOST_PREPARED: Final = 256
_DONE: Final = frozenset({ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK, ExecStatus.EMPTY_QUERY})


class Message(NamedTuple):
    """A statement as it is sent: to be run once, or under the `name` that it is or is being prepared under."""

    text: bytes
    params: Sequence[Any] | None
    types: tuple[int, ...] | None
    formats: Sequence[int] | None
    name: bytes | None
    prepare: bool


class Trips:
    """The round trips of one connection, which one task makes at a time.

    `prepares`: whether statements are prepared by name. `warned`: whether the server has warned of something, until it
    is set back. `patience`: for how many seconds an answer is waited for.
    """

    def __init__(self, connection: AsyncConnection[Any], patience: float) -> None:
        self.prepares = False
        self.warned = False
        self._connection = connection
        self._transformer = Transformer(connection)
        self._patience = patience
        connection.add_notice_handler(self._notice)
        self._names: dict[tuple[bytes, tuple[int, ...] | None], bytes] = {}
        self._failures = 0

    async def trip(self, statements: Sequence[Statement]) -> list[list[Row]]:
        """Return the rows of each statement.

        Raises `psycopg.Error`, or what psycopg raises for a value that it cannot send; then nothing was sent. A trip
        that is cancelled, or not answered in time, closes its connection: nobody could tell its answers from others.
        """
        messages = [self._message(statement, values) for statement, values in statements]
        trip = _Trip(self._connection.pgconn, asyncio.get_running_loop())
        try:
            results = iter(await trip.run(messages, self._patience))
            return [self._rows(message, results) for message in messages]
        except BaseException:
            # What was to be prepared may be or not. Another name for it does no harm.
            self._failures += 1
            for message in messages:
                if message.prepare:
                    del self._names[message.text, message.types]
            raise

    def _message(self, statement: str, values: Values) -> Message:
        text, transformer = _encode(statement), self._transformer
        params, types, formats = None, None, None
        if values:
            params = transformer.dump_sequence(values, _automatic(len(values)))
            types, formats = transformer.types, transformer.formats
        name, prepare = self._name(text, types) if self.prepares else (None, False)
        return Message(text, params, types, formats, name, prepare)

    def _name(self, text: bytes, types: tuple[int, ...] | None) -> tuple[bytes | None, bool]:
        name = self._names.get((text, types))
        if name is not None or len(self._names) >= _MOST_PREPARED:
            return name, False
        # A name always means the same statement, lest a pooler that mixes up connections make one of another.
        meaning = blake2b(repr((text, types)).encode(), digest_size=12).hexdigest()
        name = self._names[text, types] = f"perdure_{meaning}_{self._failures}".encode()
        return name, True

    def _notice(self, told: Diagnostic) -> None:
        self.warned = self.warned or told.severity_nonlocalized == "WARNING"

    def _rows(self, message: Message, results: Iterator[PGresult]) -> list[Row]:
        if message.prepare:
            next(results)
        result = next(results)
        if not result.ntuples:
            return []
        self._transformer.set_pgresult(result, format=Format.BINARY)
        return self._transformer.load_rows(0, result.ntuples, tuple)


@cache
def _encode(statement: str) -> bytes:
    return statement.encode()


@cache
def _automatic(count: int) -> list[PyFormat]:
    return [PyFormat.AUTO] * count


class _Trip:
    """One round trip under way. It reads in the event loop's callbacks, so that its task is woken once."""

    def __init__(self, connection: PGconn, loop: asyncio.AbstractEventLoop) -> None:
        self._connection = connection
        self._loop = loop
        self._done: asyncio.Future[None] = loop.create_future()
        self._results: list[PGresult] = []
        self._failed: PGresult | None = None

    async def run(self, messages: Sequence[Message], patience: float) -> list[PGresult]:
        """Return the result of each message. Raises the first error, once all answers are there."""
        connection = self._connection
        if connection.status != ConnStatus.OK:
            raise psycopg.OperationalError("the connection was lost before")
        timer = self._loop.call_later(patience, self._give_up, patience)
        try:
            await self._exchange(messages)
        except BaseException as error:
            connection.finish()
            # What the server said before it hung up tells more than that it hung up.
            if self._failed is not None and isinstance(error, psycopg.OperationalError):
                raise error_from_result(self._failed) from None
            raise
        finally:
            timer.cancel()
        if self._failed is not None:
            raise error_from_result(self._failed)
        return self._results

    async def _exchange(self, messages: Sequence[Message]) -> None:
        connection, loop, socket = self._connection, self._loop, self._connection.socket
        connection.enter_pipeline_mode()
        for message in messages:
            _send(connection, message)
        connection.pipeline_sync()
        try:
            loop.add_reader(socket, self._guarded, self._read)
            if connection.flush():
                loop.add_writer(socket, self._guarded, self._write)
            await self._done
        finally:
            loop.remove_reader(socket)
            loop.remove_writer(socket)
        connection.exit_pipeline_mode()
        while connection.notifies():
            """Some poolers give us what was meant for others."""

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self._end(error)

    def _give_up(self, patience: float) -> None:
        self._end(psycopg.OperationalError(f"the server has not answered for {patience:g} s"))

    def _end(self, error: Exception | None = None) -> None:
        if self._done.done():
            return
        if error is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(error)

    def _write(self) -> None:
        if not self._connection.flush():
            self._loop.remove_writer(self._connection.socket)

    def _read(self) -> None:
        connection = self._connection
        connection.consume_input()
        while not connection.is_busy():
            result = connection.get_result()
            if result is None:
                # Between two results; or for ever, on a connection that is lost.
                if connection.status != ConnStatus.OK:
                    raise psycopg.OperationalError("the connection was lost")
            elif result.status == ExecStatus.PIPELINE_SYNC:
                self._end()
                return
            else:
                self._take(result)
        # libuv looks no more at a socket once it has told of an error, even if there was something to read before it.
        self._loop.remove_reader(connection.socket)
        self._loop.add_reader(connection.socket, self._guarded, self._read)

    def _take(self, result: PGresult) -> None:
        if result.status in _DONE:
            self._results.append(result)
        elif result.status != ExecStatus.PIPELINE_ABORTED and self._failed is None:
            self._failed = result


def _send(connection: PGconn, message: Message) -> None:
    text, params, types, formats, name, prepare = message
    if name is None:
        connection.send_query_params(text, params, types, formats, Format.BINARY)
        return
    if prepare:
        connection.send_prepare(name, text, types)
    connection.send_query_prepared(name, params, formats, Format.BINARY)
