"""What is stored: the rows of all sessions in memory, and what readers and rules may ask of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from perdure.errors import DeploymentNotFound, SessionNotFound, StoreTooNew
from perdure.records.sessions import Ask, Event, Hold, LoggedEvent, Message, QueuedTurn, Run, SessionHead
from perdure.records.sessions import Turn as TurnRecord
from perdure.records.steps import Step
from perdure.rules import decision as d
from perdure.rules.commands import Idempotency
from perdure.rules.decision import Decision
from perdure.store import batch
from perdure.store.batch import Columns, Entry, MustRead, Outcome, Request, Thing
from perdure.store.codec import columns
from perdure.store.leases import LeaseView
from perdure.store.logs import cut, join
from perdure.store.port import (
    ApiKey,
    Deployment,
    Environment,
    LiveSlot,
)
from perdure.store.records import check_receipt, to_turn, turn_input

if TYPE_CHECKING:
    from tests.simulation.memory_store import MemoryStore


class TurnRow:
    """A turn as it is stored: its input and its end are in the log."""

    __slots__ = ("created_at", "ended_at", "ended_seq", "id", "number", "queued_seq", "reason", "run", "started_at",
                 "status")  # fmt: skip

    def __init__(self, made: d.InsertTurn) -> None:
        self.number = made.number
        self.id = made.id
        self.queued_seq = made.queued_seq
        self.created_at = made.created_at
        self.status: Any = "queued"
        self.run: int | None = None
        self.started_at: int | None = None
        self.ended_at: int | None = None
        self.ended_seq: int | None = None
        self.reason: str | None = None


class SessionRows:
    """All that is stored of one session beside its head."""

    def __init__(self, session_id: str) -> None:
        self.id: Final = session_id
        self.owner: str | None = None
        self.home = ""
        self.events: list[Event] = []
        self.turns: list[TurnRow] = []
        self.runs: list[Run] = []
        self.asks: dict[str, Ask] = {}
        self.messages: dict[str, Message] = {}
        self.holds: dict[str, Hold] = {}
        self.live: dict[str, LiveSlot] = {}
        self.steps: dict[tuple[int, str], Step] = {}
        self.memos: dict[tuple[int, str], bytes] = {}

    def turn(self, number: int) -> TurnRecord | None:
        """Return a turn as readers get it."""
        if not 1 <= number <= len(self.turns):
            return None
        row = self.turns[number - 1]
        return to_turn(
            self.id,
            row.number,
            row.id,
            row.status,
            self.events[row.queued_seq - 1].data,
            row.created_at,
            None if row.ended_seq is None else self.events[row.ended_seq - 1].data,
            row.reason,
            None if row.run is None else self.runs[row.run - 1].id,
            row.started_at,
            row.ended_at,
        )

    def turn_by_id(self, turn_id: str) -> TurnRecord | None:
        """Return a turn by its id."""
        return next((self.turn(row.number) for row in self.turns if row.id == turn_id), None)

    def event(self, event: Event) -> LoggedEvent:
        """Return an event as readers get it."""
        turn = None if event.turn is None else self.turns[event.turn - 1].id
        run = None if event.run is None else self.runs[event.run - 1].id
        return LoggedEvent(self.id, event.seq, event.type, msgspec.Raw(event.data), turn, run, event.at)

    def find(self, kind: str, key: Any) -> Any:
        """Return the row that a rule asks for."""
        if kind == "queued":
            row = self.turns[key - 1]
            return QueuedTurn(key, row.id, turn_input(self.events[row.queued_seq - 1].data), row.created_at)
        if kind == "turn":
            return self.turn(key)
        if kind == "turn_id":
            return self.turn_by_id(key)
        if kind == "output_seq":
            turn, op, after = key
            return next((e.seq for e in self.events[after:] if (e.turn, e.op) == (turn, op)), None)
        rows = {"ask": self.asks, "message": self.messages, "hold": self.holds, "step": self.steps, "memo": self.memos}
        return rows[kind].get(key)


class Writes:
    """Takes decisions straight into the rows: all of a transaction happens at one instant."""

    size = 0

    def __init__(self, truth: Truth) -> None:
        self._truth = truth

    def add(self, sid: SessionRows, made: Decision, before: Columns | None, after: Columns) -> None:
        head = made.head
        if before is None:
            self._truth.rows[head.id] = sid
            if head.key is not None:
                self._truth.keys[head.environment, head.agent, head.key] = head.id
        if before != after:
            *_, sid.owner, sid.home = after
        assert not made.events or made.events[0].seq == len(sid.events) + 1, "the log has a gap"
        sid.events += made.events
        self._truth.order += [(head.environment, sid, event) for event in made.events]
        for change in made.changes:
            take = _TAKE.get(type(change))
            if take is not None:
                take(sid, change)

    def remember(self, scope: bytes, asked: bytes, receipt: bytes, environment: str, now: int) -> None:
        self._truth.receipts[scope] = (asked, receipt)

    def put_live(self, sid: SessionRows, change: d.PutLive, now: int) -> None:
        sid.live[change.slot] = LiveSlot(sid.turns[change.turn - 1].id, change.content_json, now)

    def clear_live(self, sid: SessionRows) -> None:
        sid.live.clear()


def _insert_turn(rows: SessionRows, change: d.InsertTurn) -> None:
    assert change.number == len(rows.turns) + 1
    rows.turns.append(TurnRow(change))


def _start_turn(rows: SessionRows, change: d.TurnStarted) -> None:
    row = rows.turns[change.number - 1]
    row.status, row.run, row.started_at = "running", change.run, change.at


def _end_turn(rows: SessionRows, change: d.TurnEnded) -> None:
    row = rows.turns[change.number - 1]
    row.status, row.ended_seq, row.ended_at, row.reason = change.status, change.ended_seq, change.at, change.reason


def _put_run(rows: SessionRows, change: d.PutRun) -> None:
    assert change.run.number == len(rows.runs) + 1
    rows.runs.append(change.run)


def _end_run(rows: SessionRows, change: d.EndRun) -> None:
    rows.runs[change.number - 1] = replace(rows.runs[change.number - 1], ended_at=change.at, end_reason=change.reason)


def _put_hold(rows: SessionRows, change: d.PutHold) -> None:
    rows.holds[change.hold.id] = change.hold


def _put_ask(rows: SessionRows, change: d.PutAsk) -> None:
    rows.asks[change.ask.id] = change.ask


def _end_ask(rows: SessionRows, change: d.EndAsk) -> None:
    rows.asks[change.id] = replace(rows.asks[change.id], status="cancelled", ended_at=change.at)


def _put_message(rows: SessionRows, change: d.PutMessage) -> None:
    rows.messages[change.message.id] = change.message


def _end_message(rows: SessionRows, change: d.EndMessage) -> None:
    rows.messages[change.id] = replace(rows.messages[change.id], status="rejected", reason=change.reason)


def _put_step(rows: SessionRows, change: d.PutStep) -> None:
    rows.steps[change.step.turn, change.step.name] = change.step


def _put_memo(rows: SessionRows, change: d.PutMemo) -> None:
    rows.memos[change.turn, change.name] = change.value_json


_TAKE: Final[dict[type, Callable[[SessionRows, Any], None]]] = {
    d.InsertTurn: _insert_turn,
    d.TurnStarted: _start_turn,
    d.TurnEnded: _end_turn,
    d.PutRun: _put_run,
    d.EndRun: _end_run,
    d.PutHold: _put_hold,
    d.PutAsk: _put_ask,
    d.EndAsk: _end_ask,
    d.PutMessage: _put_message,
    d.EndMessage: _end_message,
    d.PutStep: _put_step,
    d.PutMemo: _put_memo,
}


class Batch(batch.Batch[Writes]):
    """One transaction, decided and written at one instant."""

    def __init__(self, truth: Truth, asker: str) -> None:
        super().__init__(truth.entries, Writes(truth), truth.clock)
        self._truth = truth
        self._asker = asker

    def _new_sid(self, made: SessionHead, /) -> SessionRows:
        return SessionRows(made.id)

    def _columns(self, head: SessionHead) -> Columns:
        # As on PostgreSQL, where a claim is a column, too: it stands until the session's run begins or ends.
        home = None if head.computer is None else head.computer.home
        return (*columns(head), None if head.run is None else head.worker, home or "")

    def decide(self, request: Request) -> Outcome:
        """Decide one command, reading what its rule asks for."""
        entry = self._entry(request.command.session_id)
        before = None if entry is None else entry.head
        while True:
            try:
                outcome = self.add(request)
            except MustRead as must:
                for thing in must.things:
                    self._look_up(request, thing)
            else:
                if self._truth.on_commit is not None:
                    self._truth.on_commit(self._asker, before, request, outcome)
                return outcome

    def _look_up(self, request: Request, thing: Thing) -> None:
        kind, key = thing
        if kind == "receipt":
            self._read[thing] = self._truth.receipts.get(key)
        elif kind == "key":
            self._read[thing] = self._truth.keys.get(key)
        elif kind == "session":
            self._read[thing] = None
        else:
            entry = self._entry(request.command.session_id)
            assert entry is not None
            request.found[thing] = entry.sid.find(kind, key)

    def commit(self) -> None:
        """Make it the truth."""
        self._truth.entries.update(self.entries)


class Lease(msgspec.Struct, frozen=True):
    """A worker's lease, by the truth's clock."""

    expires_at: int
    address: str | None
    machine: str | None


class Truth:
    """All that is stored, with a clock of its own. `up` is whether it answers; `on_commit` sees each command."""

    def __init__(self, clock: Callable[[], int], *, newer: bool = False) -> None:
        self.clock: Final = clock
        self.newer = newer
        self.up = True
        self.entries: dict[str, Entry] = {}
        self.rows: dict[str, SessionRows] = {}
        self.keys: dict[tuple[str, str, str], str] = {}
        self.receipts: dict[bytes, tuple[bytes, bytes]] = {}
        self.environments: dict[str, Environment] = {}
        self.deployments: dict[str, Deployment] = {}
        self.order: list[tuple[str, SessionRows, Event]] = []
        self.archives: dict[str, bytes] = {}
        self.keys_of_api: dict[str, ApiKey] = {}
        self.logs: dict[str, dict[int, bytes]] = {}
        self.leases: dict[str, Lease] = {}
        self.views: list[MemoryStore] = []
        self.on_commit: Callable[[str, SessionHead | None, Request, Outcome], None] | None = None

    def check_version(self) -> None:
        """Raise `StoreTooNew` where a test has marked it as newer."""
        if self.newer:
            raise StoreTooNew("The store was written by a newer Perdure.")

    # --- reading

    def head(self, session_id: str) -> SessionHead | None:
        entry = self.entries.get(session_id)
        return None if entry is None else entry.head

    def changed(self, known: dict[str, int]) -> list[SessionHead]:
        heads = (self.head(session_id) for session_id in known)
        return [head for head in heads if head is not None and head.last_seq > known[head.id]]

    def receipt(self, identity: Idempotency) -> bytes | None:
        return check_receipt(self.receipts.get(batch.digest(identity.scope)), identity)

    def find_key(self, environment: str, agent: str, key: str) -> str | None:
        return self.keys.get((environment, agent, key))

    def all_rows(self, session_id: str) -> SessionRows:
        rows = self.rows.get(session_id)
        if rows is None:
            raise SessionNotFound(session_id)
        return rows

    # --- environments and deployments

    def environment(self, environment: str) -> Environment | None:
        return self.environments.get(environment)

    def put_deployment(self, made: Deployment, archive: bytes | None) -> Deployment:
        if archive is not None:
            self.archives.setdefault(made.digest, archive)
        self.environments.setdefault(made.environment, Environment(made.environment, None, made.created_at))
        where = (made.environment, made.digest)
        first = next((one for one in self.deployments.values() if (one.environment, one.digest) == where), None)
        return first or self.deployments.setdefault(made.id, made)

    def promote(self, environment: str, deployment_id: str) -> Environment:
        found = self.deployments.get(deployment_id)
        if found is None or found.environment != environment:
            raise DeploymentNotFound(deployment_id)
        known = self.environments[environment]
        self.environments[environment] = replace(known, current_deployment=deployment_id)
        return self.environments[environment]

    def archive(self, deployment_id: str) -> bytes | None:
        found = self.deployments.get(deployment_id)
        return None if found is None else self.archives.get(found.digest)

    # --- keys

    def put_api_key(self, key: ApiKey) -> None:
        self.keys_of_api.setdefault(key.id, key)

    def end_api_key(self, key_id: str, at: int) -> bool:
        key = self.keys_of_api.get(key_id)
        if key is None or key.ended_at is not None:
            return False
        self.keys_of_api[key_id] = replace(key, ended_at=at)
        return True

    # --- leases

    def is_alive(self, worker: str | None) -> bool:
        """Whether a worker's lease has not run out."""
        return worker in self.leases and self.leases[worker].expires_at > self.clock()

    def renew(self, worker: str, duration: int, address: str | None, machine: str | None) -> bool:
        if worker in self.leases and not self.is_alive(worker):
            return False
        self.leases[worker] = Lease(self.clock() + duration, address, machine)
        return True

    def release(self, worker: str) -> None:
        if self.is_alive(worker):
            self.leases[worker] = replace(self.leases[worker], expires_at=self.clock())

    def claim(self, worker: str, machine: str | None, limit: int) -> list[str]:
        if not self.is_alive(worker):
            return []
        marked = [rows for key, rows in self.rows.items() if self.entries[key].columns[2]]
        near = [rows for rows in marked if rows.home in ("", machine)]
        free = [rows for rows in near if rows.owner is None]
        orphans = [rows for rows in near if rows.owner is not None and not self.is_alive(rows.owner)]
        taken = (free + orphans)[:limit]
        for rows in taken:
            rows.owner = worker
        return [rows.id for rows in taken]

    def claimed(self, worker: str) -> list[str]:
        return [rows.id for key, rows in self.rows.items() if self.entries[key].columns[2] and rows.owner == worker]

    def alive(self) -> list[LeaseView]:
        now = self.clock()
        living = [(worker, lease) for worker, lease in sorted(self.leases.items()) if lease.expires_at > now]
        return [LeaseView(worker, one.address, one.machine, one.expires_at - now) for worker, one in living]

    def owner_address(self, session_id: str) -> str | None:
        rows = self.rows.get(session_id)
        alive = rows is not None and rows.owner is not None and self.is_alive(rows.owner)
        return self.leases[rows.owner].address if alive else None  # type: ignore[union-attr,index]

    # --- what runs print

    def append_log(self, run_id: str, offset: int, data: bytes) -> None:
        kept = self.logs.setdefault(run_id, {})
        for start, piece in cut(offset, data):
            if len(piece) > len(kept.get(start, b"")):
                kept[start] = piece

    def log(self, run_id: str, offset: int, limit: int) -> bytes:
        return join(offset, limit, sorted(self.logs.get(run_id, {}).items()))
