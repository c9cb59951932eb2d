"""Checking that what is in a store agrees with itself. Changes nothing, and may be done beside servers and workers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, Final, TypeAlias

import msgspec

from perdure.records.sessions import SessionHead
from perdure.store.codec import unpack_head
from perdure.store.moving import KINDS, Row, Source
from perdure.store.tools.findings import Finding, in_order
from perdure.store.tools.invariants import Parts, problems
from perdure.store.tools.places import open_source

Progress: TypeAlias = Callable[[int], None]
"""Told of how many sessions have been checked."""

MOST: Final = 1_000
"""After so many findings the rest is only counted."""

_MEND: Final = "Keep a copy of the store as it is, and restore a backup from before it."
# What is looked at of a session's rows: large values stay where they are.
_SLIM: Final[dict[str, Callable[[Row], Any]]] = {
    "events": lambda row: row[1],
    "turns": lambda row: (row[1], row[2], row[3], row[4], row[8]),
    "runs": lambda row: (row[1], row[6]),
    "holds": lambda row: (row[1], row[7]),
    "asks": lambda row: (row[1], row[3]),
    "messages": lambda row: (row[1], row[3]),
    "steps": lambda row: (row[1], row[2], row[4]),
    "live": lambda row: row[1],
}


async def check(where: str, progress: Progress | None = None) -> list[Finding]:
    """Return what does not agree, the gravest first; nothing when all is well.

    Raises `StoreError` for a store that cannot be read, or whose schema is another version's.
    """
    source = open_source(where, alone=False)
    await source.open()
    try:
        checking = _Checking(source, progress or (lambda _: None))
        await checking.sessions()
        await checking.feed()
        await checking.others()
        return checking.found()
    finally:
        await source.close()


class _Rows:
    """The rows of one kind, handed out session by session in the order of their ids."""

    def __init__(self, source: Source, kind: str) -> None:
        self._rows = _all(source, kind)
        self._next: Row | None = None
        self._slim = _SLIM[kind]
        self.count = 0
        self.orphans: list[str] = []

    async def of(self, session_id: str) -> list[Any]:
        """Return the rows of a session, passing over those of sessions that are not there."""
        found: list[Any] = []
        while (row := await self._peek()) is not None and row[0] <= session_id:
            self._next = None
            self.count += 1
            if row[0] == session_id:
                found.append(self._slim(row))
            elif not self.orphans or self.orphans[-1] != row[0]:
                self.orphans.append(row[0])
        return found

    async def end(self) -> None:
        """Pass over what is left."""
        await self.of("~")

    async def _peek(self) -> Row | None:
        if self._next is None:
            self._next = await anext(self._rows, None)
        return self._next


class _Checking:
    def __init__(self, source: Source, progress: Progress) -> None:
        self._source = source
        self._progress = progress
        self._findings: list[Finding] = []
        self._left_out = 0
        self._lasts: dict[str, int] = {}
        self._deployments: dict[str, int] = {}

    def found(self) -> list[Finding]:
        more = [Finding("error", f"And {self._left_out} more.")] if self._left_out else []
        return in_order([*self._findings, *more])

    def _say(self, what: str, lost: str = "", *, severity: Any = "error", mend: str = _MEND) -> None:
        if len(self._findings) < MOST:
            self._findings.append(Finding(severity, what, lost, mend))
        else:
            self._left_out += 1

    # --- sessions

    async def sessions(self) -> None:
        rows = {kind: _Rows(self._source, kind) for kind in _SLIM}
        indexed = _columns(self._source)
        column = await anext(indexed, None)
        keys: set[tuple[str, str, str]] = set()
        async for session_id, body in _all(self._source, "sessions"):
            parts = {kind: await of.of(session_id) for kind, of in rows.items()}
            while column is not None and column[0] < session_id:
                self._say(f"Session {column[0]} has no head.")
                column = await anext(indexed, None)
            mine = column[1:] if column is not None and column[0] == session_id else None
            column = await anext(indexed, None) if mine is not None else column
            if (head := self._head(session_id, body)) is not None:
                self._session(head, mine, parts, keys)
            self._progress(len(self._lasts))
        for kind, of in rows.items():
            await of.end()
            await self._orphans(kind, of)

    def _head(self, session_id: str, body: bytes) -> SessionHead | None:
        try:
            head = unpack_head(body)
        except msgspec.MsgspecError as error:
            self._say(f"The head of session {session_id} cannot be read: {error}")
            return None
        if head.id != session_id:
            self._say(f"The head of session {session_id} says that it is {head.id}.")
        self._lasts[session_id] = head.last_seq
        self._deployments[head.deployment] = self._deployments.get(head.deployment, 0) + 1
        return head

    def _session(
        self, head: SessionHead, column: Row | None, parts: dict[str, list[Any]], keys: set[tuple[str, str, str]]
    ) -> None:
        if column is not None:
            column = (*column[:5], int(column[5]), column[6])
        names = {"seqs": parts["events"], "slots": parts["live"]}
        rest = {kind: parts[kind] for kind in ("turns", "runs", "holds", "asks", "messages", "steps")}
        for problem in problems(head, Parts(columns=column, **names, **rest)):
            self._say(f"Session {head.id}: {problem}.", "The session may do something else than it has said.")
        if head.key is not None:
            key = (head.environment, head.agent, head.key)
            if key in keys:
                self._say(f"Session {head.id} has the key {head.key!r}, which another one of its agent has too.")
            keys.add(key)

    async def _orphans(self, kind: str, rows: _Rows) -> None:
        for session_id in rows.orphans:
            self._say(f"There are {kind} of session {session_id}, which is not there.", severity="warning")
        if lost := await self._source.count(kind) - rows.count:
            self._say(f"There are {lost} {kind} of sessions that are not there.", severity="warning")

    # --- the feed

    async def feed(self) -> None:
        """Check that what sessions have is in the feed once and in order, as far back as it goes."""
        seen: dict[str, int] = {}
        async for environment, _, ranges in _all(self._source, "commits"):
            for session_id, first, last in ranges:
                if seen.get(session_id, first - 1) != first - 1:
                    self._say(
                        f"The feed of {environment} has event {first} of session {session_id} after "
                        f"{seen[session_id]}.",
                        "Readers of the feed miss something, or see it twice.",
                    )
                seen[session_id] = last
        for session_id, last in seen.items():
            if last != self._lasts.get(session_id, last):
                self._say(
                    f"The feed ends with event {last} of session {session_id}, its log with {self._lasts[session_id]}.",
                    "Readers of the feed miss something.",
                )

    # --- what belongs to no session

    async def others(self) -> None:
        environments = {row[0]: row[1] async for row in _all(self._source, "environments")}
        deployments = {row[0]: (row[1], row[2]) async for row in _all(self._source, "deployments")}
        for environment, current in environments.items():
            if current is not None and deployments.get(current, ("",))[0] != environment:
                self._say(f"The current deployment {current} of {environment} is not there.", mend="Deploy again.")
        for deployment, (environment, _) in deployments.items():
            if environment not in environments:
                self._say(f"The environment {environment} of deployment {deployment} is not there.")
        for deployment, count in self._deployments.items():
            if deployment not in deployments:
                self._say(f"{count} sessions are of deployment {deployment}, which is not there.", severity="warning")
        digests = {digest for _, digest in deployments.values()}
        async for digest, _ in _all(self._source, "archives"):
            if digest not in digests:
                self._say(f"The source {digest} is of no deployment.", severity="note", mend="")
        await self._receipts()

    async def _receipts(self) -> None:
        async for scope, _, receipt, environment, _ in _all(self._source, "receipts"):
            try:
                msgspec.json.decode(receipt)
            except msgspec.MsgspecError as error:
                self._say(
                    f"The receipt {bytes(scope).hex()} in {environment} cannot be read: {error}",
                    "Whoever sends the operation again gets no answer.",
                )


async def _all(source: Source, kind: str) -> AsyncIterator[Row]:
    assert kind in KINDS
    async for page in source.pages(kind):
        for row in page:
            yield row


async def _columns(source: Source) -> AsyncIterator[Row]:
    async for page in source.columns():
        for row in page:
            yield row
