"""What must hold between a session's head and its rows. Pure; yields what does not hold, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from perdure.records.sessions import ENDED, SessionHead
from perdure.rules.dispatch import wake_at
from perdure.store.codec import columns


class Parts(msgspec.Struct, kw_only=True):
    """A session's rows, as far as they are looked at; see `perdure.store.moving` for columns."""

    columns: tuple[Any, ...] | None
    seqs: Sequence[int]
    turns: Sequence[tuple[int, str, str, int, int | None]]
    runs: Sequence[tuple[int, int | None]]
    holds: Sequence[tuple[str, int | None]]
    asks: Sequence[tuple[str, str]]
    messages: Sequence[tuple[str, str]]
    steps: Sequence[tuple[int, str, str]]
    slots: Sequence[str]


def problems(head: SessionHead, parts: Parts) -> Iterator[str]:
    """Yield what does not hold for a session."""
    status, look, owned = columns(head)
    # A session that no later version has written to is still looked at at its very wake time.
    for at in (look, wake_at(head)):
        expected = (head.environment, head.agent, head.key, status, at, owned, head.ended_at)
        if parts.columns == expected:
            break
    else:
        yield f"its index says {parts.columns}, its head {expected}"
    yield from _log(head, parts.seqs)
    yield from _turns(head, parts)
    yield from _runs(head, parts)
    yield from _open_things(head, parts)


def _log(head: SessionHead, seqs: Sequence[int]) -> Iterator[str]:
    if not seqs:
        if head.last_seq > head.retained_after:
            yield f"its log is empty, and should have the events {head.retained_after + 1} to {head.last_seq}"
        return
    if seqs[0] > head.retained_after + 1:
        yield f"its log begins with event {seqs[0]}, and should with {head.retained_after + 1}"
    if seqs[-1] != head.last_seq:
        yield f"its log ends with event {seqs[-1]}, its head with {head.last_seq}"
    if gap := next((before for before, after in pairwise(seqs) if after != before + 1), None):
        yield f"its log has a gap after event {gap}"


def _turns(head: SessionHead, parts: Parts) -> Iterator[str]:
    numbers = [number for number, *_ in parts.turns]
    if numbers and numbers != list(range(numbers[0], head.last_turn + 1)):
        yield f"its turns are not numbered up to {head.last_turn} without a gap"
    running = {head.active.number} if head.active else set()
    queued = set(range(head.first_queued, head.last_turn + 1)) if head.queued else set()
    for status, wanted in (("running", running), ("queued", queued)):
        found = {number for number, _, is_now, _, _ in parts.turns if is_now == status}
        if found != wanted:
            yield f"the turns {sorted(found)} are {status}, and should be {sorted(wanted)}"
    for number, turn_id, status, queued_seq, ended_seq in parts.turns:
        if (status in ENDED) != (ended_seq is not None):
            yield f"turn {number} ({turn_id}) is {status}, with {ended_seq} as the event of its end"
        if max(queued_seq, ended_seq or 0) > head.last_seq:
            yield f"turn {number} ({turn_id}) points beyond the end of the log"
        if ended_seq is None and queued_seq <= head.retained_after:
            yield f"turn {number} ({turn_id}) has not ended, and its input is gone by retention"


def _runs(head: SessionHead, parts: Parts) -> Iterator[str]:
    going = [number for number, ended_at in parts.runs if ended_at is None]
    wanted = [head.run.number] if head.run else []
    if going != wanted:
        yield f"the runs {going} have not ended, and should be {wanted}"
    if parts.runs and parts.runs[-1][0] != head.runs:
        yield f"its newest run is {parts.runs[-1][0]}, its head knows of {head.runs}"


def _open_things(head: SessionHead, parts: Parts) -> Iterator[str]:
    active = head.active
    for what, found, wanted in (
        ("holds", (hold for hold, released in parts.holds if released is None), (hold.id for hold in head.holds)),
        ("questions", (one for one, status in parts.asks if status == "pending"), active.asks if active else ()),
        (
            "messages",
            (one for one, status in parts.messages if status in ("admitted", "started")),
            active.messages if active else (),
        ),
        (
            "steps",
            (name for turn, name, status in parts.steps if active and turn == active.number and status == "running"),
            active.at_work if active else (),
        ),
    ):
        ours, theirs = sorted(found), sorted(wanted)
        if ours != theirs:
            yield f"the {what} {ours} are open, and should be {theirs}"
    if parts.slots and active is None:
        yield f"it has live slots ({', '.join(parts.slots)}) without a running turn"
