"""Membership by lease: when a worker may begin work, what it claims, and when it cannot be sure any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from perdure.engine.clock import SharedClock
from perdure.engine.membership import Member
from perdure.errors import StoreError
from perdure.records.sessions import ActiveTurn, ComputerState, RunState, SessionHead
from perdure.store.leases import Leases, LeaseView
from perdure.store.port import Committed

pytestmark = pytest.mark.anyio
LEASE = 0.2
HOUR = 3_600_000_000


class FakeLeases(Leases):
    """Leases of a store whose clock is an hour ahead."""

    def __init__(self) -> None:
        self.granted = True
        self.away = False
        self.hangs: asyncio.Event | None = None
        self.names: list[str] = []
        self.others: list[str] = []
        self.free: list[list[str]] = []
        self.released: list[str] = []
        self.kept: list[str] = []
        self.asked = asyncio.Event()

    async def renew(self, worker: str, duration: int, address: str | None = None, machine: str | None = None) -> bool:
        assert duration == LEASE * 1_000_000
        self.names.append(worker)
        if self.hangs is not None:
            await self.hangs.wait()
        if self.away:
            raise StoreError("away")
        return self.granted

    async def release(self, worker: str) -> None:
        self.released.append(worker)

    async def claim(self, worker: str, machine: str | None, limit: int) -> list[str]:
        assert (worker, machine) == (self.names[-1], "here")
        self.asked.set()
        if self.away:
            raise StoreError("away")
        return self.free.pop(0) if self.free else []

    async def claimed(self, worker: str) -> list[str]:
        return self.kept

    async def owner_address(self, session_id: str) -> str | None:
        return None

    async def now(self) -> int:
        return real() + HOUR

    async def alive(self) -> list[LeaseView]:
        return [LeaseView(name, None, None, 1) for name in [self.names[-1], *self.others]]


def real() -> int:
    return int(asyncio.get_running_loop().time() * 1_000_000)


class Stage:
    """A member, and what it calls."""

    def __init__(self, *, hinted: bool = True) -> None:
        self.leases = FakeLeases()
        self.taken: list[str] = []
        self.losses: asyncio.Queue[str] = asyncio.Queue()
        self.got = asyncio.Event()
        self.fails: list[Exception] = []
        self.clock = SharedClock(lambda: 7)
        self.member = Member(
            self.leases,
            "here",
            LEASE,
            claimed=self._claimed,
            lost=self.losses.put,
            is_hinted=lambda: hinted,
            clock=self.clock,
        )

    async def _claimed(self, sessions: list[str]) -> None:
        if self.fails:
            raise self.fails.pop()
        self.taken += sessions
        self.got.set()


@pytest.fixture
async def stage() -> Stage:
    return Stage()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


def free(**fields: object) -> SessionHead:
    values = {"id": "s", "environment": "p/e", "agent": "a", "deployment": "d", "host": "inline", "created_at": 0}
    return SessionHead(**{**values, **fields})  # type: ignore[arg-type]


def running(worker: str) -> SessionHead:
    run = RunState(1, "r", "ready", "initial", 0)
    return free(run=run, worker=worker, active=ActiveTurn(1, "t", 0, 1))


def own(head: SessionHead) -> Committed:
    return Committed(head, object(), (), None)  # type: ignore[arg-type]


def hint(head: SessionHead) -> Committed:
    return Committed(head, None, (), None)


async def test_it_works_while_it_has_a_lease_and_gives_it_back(stage: Stage) -> None:
    assert not stage.member.works
    await stage.member.start()
    assert stage.member.works
    await until(lambda: len(stage.leases.names) > 3)
    assert set(stage.leases.names) == {stage.member.worker_id}
    stage.member.stop_claiming()
    assert not stage.member.works
    await stage.member.stop()
    assert stage.leases.released == [stage.member.worker_id]


async def test_a_store_that_is_away_at_the_start_is_an_error(stage: Stage) -> None:
    stage.leases.away = True
    with pytest.raises(StoreError):
        await stage.member.start()


async def test_what_is_free_is_claimed_at_the_start_and_when_news_tell_of_it(stage: Stage) -> None:
    stage.leases.free = [["one"]]
    await stage.member.start()
    await until(lambda: stage.taken == ["one"])
    stage.leases.free = [["two"]]
    assert not stage.member.wants(hint(free())), "others hear of it too, so it has to be claimed"
    await until(lambda: stage.taken == ["one", "two"])
    await stage.member.stop()


async def test_what_was_claimed_is_not_forgotten_when_it_cannot_be_driven_at_once(stage: Stage) -> None:
    stage.leases.free, stage.leases.kept = [["one"]], ["one"]
    stage.fails = [StoreError("away")]
    await stage.member.start()
    await until(lambda: stage.taken == ["one"])
    await stage.member.stop()


@pytest.mark.parametrize("trouble", [None, "fails", "hangs"])
async def test_what_a_claim_without_an_answer_has_taken_is_found(stage: Stage, trouble: str | None) -> None:
    """Nobody else would look after it while this worker is alive."""
    claims = stage.leases.claim

    async def claim(*_: object) -> list[str]:
        stage.leases.claim = claims  # type: ignore[method-assign]
        stage.leases.kept = ["one"]
        if trouble == "hangs":
            await asyncio.Event().wait()
        if trouble == "fails":
            raise StoreError("its answer was lost")
        return ["one"]

    stage.leases.claim = claim  # type: ignore[method-assign,assignment]
    await stage.member.start()
    await until(lambda: stage.taken == ["one"])
    await stage.member.stop()


@pytest.mark.parametrize("trouble", ["refused", "away", "hangs"])
async def test_a_lease_that_is_not_renewed_is_lost_and_begun_anew(stage: Stage, trouble: str) -> None:
    await stage.member.start()
    name = stage.member.worker_id
    stage.leases.granted = trouble != "refused"
    stage.leases.away = trouble == "away"
    stage.leases.hangs = asyncio.Event() if trouble == "hangs" else None
    async with asyncio.timeout(10):
        reason = await stage.losses.get()
    assert ("run out" if trouble == "refused" else "within 0.2 s") in reason
    assert not stage.member.works
    stage.leases.granted, stage.leases.away, hangs = True, False, stage.leases.hangs
    stage.leases.hangs = None
    if hangs is not None:
        hangs.set()
    await until(lambda: stage.member.works)
    assert stage.member.worker_id != name
    await stage.member.stop()


async def test_a_short_trouble_loses_nothing(stage: Stage) -> None:
    await stage.member.start()
    stage.leases.away = True
    before = len(stage.leases.names)
    await until(lambda: len(stage.leases.names) > before)
    stage.leases.away = False
    await until(lambda: len(stage.leases.names) > before + 3)
    assert stage.losses.empty()
    await stage.member.stop()


async def test_a_claim_under_a_name_that_is_lost_meanwhile_is_left(stage: Stage) -> None:
    claims, slow = stage.leases.claim, asyncio.Event()

    async def claim(*_: object) -> list[str]:
        stage.leases.claim = claims  # type: ignore[method-assign]
        stage.leases.granted = False
        await stage.losses.get()
        stage.leases.granted = True
        slow.set()
        await until(lambda: stage.member.works)
        return ["one"]

    stage.leases.claim = claim  # type: ignore[method-assign,assignment]
    await stage.member.start()
    await slow.wait()
    await stage.leases.asked.wait()
    await stage.member.stop()
    assert stage.taken == []


async def test_which_sessions_are_its_to_drive(stage: Stage) -> None:
    await stage.member.start()
    mine, computer = stage.member.worker_id, ComputerState("c", "t")
    there = ComputerState("c", "t", home="there")
    assert stage.member.wants(own(free()))
    assert stage.member.wants(own(free(computer=computer)))
    assert not stage.member.wants(own(free(computer=there))), "its files are elsewhere"
    assert stage.member.wants(hint(running(mine)))
    assert not stage.member.wants(own(running("another")))
    assert (stage.member.keeps(running(mine)), stage.member.keeps(running("another"))) == (True, False)
    await stage.member.stop()
    assert not stage.member.wants(own(free())), "it has no lease"


async def test_whose_timers_it_serves(stage: Stage) -> None:
    stage.leases.others = ["0", "zz"]
    await stage.member.start()
    mine = stage.member.worker_id
    assert stage.member.serves_timer_of(running(mine))
    assert not stage.member.serves_timer_of(running("zz"))
    assert not stage.member.serves_timer_of(free()), "another one comes first"
    stage.leases.others = ["zz"]
    known = len(stage.leases.names)
    await until(lambda: len(stage.leases.names) > known + 1)
    assert stage.member.serves_timer_of(free())
    assert stage.member.serves_timer_of(running("0")), "whose worker is gone"
    await stage.member.stop()


async def test_the_time_is_the_stores(stage: Stage) -> None:
    assert stage.clock() == 7
    await stage.member.start()
    assert abs(stage.clock() - real() - HOUR) < 100_000
    await stage.member.stop()
