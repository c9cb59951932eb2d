"""A batch on SQLite: sessions have numbers, what is missing is read in the writer's thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from perdure.records.sessions import SessionHead
from perdure.store import batch
from perdure.store.batch import Columns, Entry, Request, Thing
from perdure.store.codec import columns, unpack_head
from perdure.store.sqlite.codec import pack_id
from perdure.store.sqlite.database import Database, one
from perdure.store.sqlite.lookups import find_key, look_up
from perdure.store.sqlite.rows import Rows
from perdure.store.sqlite.statements import sql

_FIND_RECEIPT: Final = sql("find_receipt")
_LOAD_HEAD: Final = sql("load_head")

Mark: TypeAlias = tuple[dict[str, Entry], dict[Thing, Any], int]


class Batch(batch.Batch[Rows]):
    """One transaction in the making; `next_sid` is the number of the next session, `numbers` those of commits."""

    def __init__(
        self, known: Mapping[str, Entry], next_sid: int, clock: Callable[[], int], numbers: Iterator[int]
    ) -> None:
        super().__init__(known, Rows(numbers), clock)
        self._numbers = numbers
        self.next_sid = next_sid

    def _columns(self, head: SessionHead) -> Columns:
        return (*columns(head), head.ended_at)

    def _new_sid(self, _: SessionHead) -> int:
        sid, self.next_sid = self.next_sid, self.next_sid + 1
        return sid

    def mark(self) -> Mark:
        """Return what `back_to` needs to take back commands that are added from here on."""
        return self.entries.copy(), self._read.copy(), self.next_sid

    def back_to(self, mark: Mark) -> None:
        """Take back the commands since a mark."""
        self.entries, self._read, self.next_sid = mark[0].copy(), mark[1].copy(), mark[2]
        self.rows = Rows(self._numbers)

    def read(self, database: Database, request: Request, things: list[Thing]) -> None:
        """Read things for a command. Rows gathered so far must have been written."""
        for thing in things:
            kind, key = thing
            if kind == "receipt":
                self._read[thing] = one(database, _FIND_RECEIPT, (key,))
            elif kind == "key":
                self._read[thing] = find_key(database, key)
            elif kind == "session":
                self._load(database, key)
            else:
                entry = self._entry(request.command.session_id)
                assert entry is not None
                request.found[thing] = look_up(database, entry.head.id, entry.sid, kind, key)

    def _load(self, database: Database, session_id: str) -> None:
        row = one(database, _LOAD_HEAD, (pack_id(session_id),))
        if row is None:
            self._read["session", session_id] = None
        elif session_id not in self.entries:
            head = unpack_head(row[1])
            self.entries[session_id] = Entry(row[0], head, self._columns(head), bool(row[2]))
