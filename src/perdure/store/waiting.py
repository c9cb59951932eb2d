"""Commands whose callers wait, and how they are answered once their commit is flushed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from perdure.crashpoints import CrashPointReached, reach
from perdure.errors import PerdureError, StoreError
from perdure.rules.commands import Command
from perdure.store.batch import Batch, MustRead, Outcome, Request, Thing
from perdure.store.port import Applied, Committed


class Waiting(Request):
    """A command whose caller waits for the answer."""

    __slots__ = ("answer", "outcome")

    def __init__(self, command: Command, answer: asyncio.Future[Applied]) -> None:
        super().__init__(command)
        self.answer = answer
        self.outcome: Outcome | None = None


Errors = dict[int, StoreError]
"""What went wrong after the commit, by the command's place in it."""

Missing = list[tuple[Waiting, list[Thing]]]
"""Commands that cannot be decided yet, and what has to be read for each."""


def decide_all(batch: Batch[Any], pending: Sequence[Waiting], largest: int) -> tuple[Missing, list[Waiting]]:
    """Decide what can be; returns what cannot yet, and what is left once the batch has more than `largest` bytes."""
    missing: Missing = []
    held: set[str] = set()
    for index, request in enumerate(pending):
        if batch.rows.size > largest:
            return missing, list(pending[index:])
        session_id = request.command.session_id
        if session_id in held:
            missing.append((request, []))
            continue
        try:
            request.outcome = batch.add(request)
        except MustRead as must:
            # Later commands of the session wait too: they are decided in the order in which they came.
            held.add(session_id)
            missing.append((request, must.things))
    return missing, []


def committed(taken: Sequence[Waiting]) -> Errors:
    """Pass the crash point after the commit for each command; returns what was raised there."""
    errors: Errors = {}
    for index, request in enumerate(taken):
        _reach(errors, index, "store.commit.after", request)
    return errors


def publish(taken: Sequence[Waiting], errors: Errors, tell: Callable[[Committed], None]) -> None:
    """Tell listeners what was committed, in order, then answer the callers."""
    for index, request in enumerate(taken):
        assert request.outcome is not None
        _reach(errors, index, "store.publish.before", request)
        if request.outcome.committed is not None:
            tell(request.outcome.committed)
        _reach(errors, index, "store.publish.after", request)
    for index, request in enumerate(taken):
        assert request.outcome is not None
        answer(request.answer, errors.get(index) or request.outcome.answer)


def _reach(errors: Errors, index: int, point: str, request: Waiting) -> None:
    try:
        reach(point, request.label)
    except CrashPointReached as error:
        errors[index] = StoreError(f"{error}. The command was committed; read the state before you send it again.")


def answer(waiting: asyncio.Future[Any], result: object) -> None:
    """Answer a caller who may have been cancelled."""
    if waiting.done():
        return
    if isinstance(result, PerdureError):
        waiting.set_exception(result)
    else:
        waiting.set_result(result)
