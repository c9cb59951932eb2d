"""The loop of a turn: from the transcript, and what runs now, to what is to be done next.

A pure decision, made anew after each commit. Nothing is remembered beside entries and the journal of the open round, so
a worker that takes a turn over goes on exactly where it stood: an answer that was being written is asked for again, a
call that had begun is run again or told to have been interrupted, a wait goes on until its deadline.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from perdure.chat import entries as e
from perdure.chat.calls import Decision, Refused, Runnable, decide_calls, ends_turn, handed_over, order_of
from perdure.chat.compaction import CompactionPolicy, choose_through, context_tokens, needed
from perdure.chat.results import Finished, refuse, replay_after_crash, stopped
from perdure.chat.retries import RetryPolicy, retry_at
from perdure.chat.tools import Tool
from perdure.records import canonical

ROUNDS: Final = 256


class Verdict(msgspec.Struct, frozen=True):
    """What a person said of a call that needs approval. `arguments` are the text to run it with instead, if any."""

    allowed: bool
    arguments: str | None = None
    reason: str | None = None


class Round(msgspec.Struct, frozen=True):
    """What is known of the calls of the newest answer beside the transcript, by their place.

    `started` has the replay policy of each call whose intent was committed; `running` are those that this process runs
    now, `parked` those that wait for a person, `output` what a call had put out when it was last heard of.
    """

    started: Mapping[int, str] = {}
    running: frozenset[int] = frozenset()
    parked: frozenset[int] = frozenset()
    verdicts: Mapping[int, Verdict] = {}
    output: Mapping[int, e.Content] = {}


class Policies(msgspec.Struct, frozen=True):
    """How patient, how long and how parallel a turn is. `window` is that of the model, in tokens."""

    retry: RetryPolicy = RetryPolicy()
    compaction: CompactionPolicy = CompactionPolicy()
    window: int | None = None
    sequential: bool = False
    rounds: int = ROUNDS


class View(msgspec.Struct, frozen=True):
    """What a decision is made of. `entries` are those since the newest cut or more, the turn's own among them.

    `summing` says that a summary is being written beside the work, `unsummed` that writing one has failed.
    """

    entries: Sequence[e.Entry]
    turn: int
    now: int
    round: Round = Round()
    aborted: bool = False
    summing: bool = False
    unsummed: bool = False


# --- what may be done


class Generate(msgspec.Struct, frozen=True):
    """Ask the model. `attempt` counts from 1."""

    attempt: int = 1


class Start(msgspec.Struct, frozen=True):
    """Commit the intent of a call, then run it; `again` when it had begun before and its intent is there."""

    call: Runnable
    again: bool = False


class Park(msgspec.Struct, frozen=True):
    """Ask a person whether a call may run; nothing is held in memory until the answer."""

    call: Runnable


class Write(msgspec.Struct, frozen=True):
    """Commit the result of a call that does not run."""

    answers: str
    slot: int
    call: e.ToolCall
    result: Finished


class Stop(msgspec.Struct, frozen=True):
    """Cancel a call that runs; its result is written when it has let go."""

    slot: int


class Wait(msgspec.Struct, frozen=True):
    """Do nothing until an instant, or until something happens."""

    until: int | None = None


class Summarise(msgspec.Struct, frozen=True):
    """Have a summary written that stands for all up to `through`: now, or beside the work."""

    through: str
    reason: Literal["threshold", "overflow"]
    beside: bool = False


class Finish(msgspec.Struct, frozen=True):
    """End the turn. `answer` is the id of the answer that ends it; `handoff` begins the conversation anew."""

    outcome: Literal["answered", "failed", "aborted"]
    answer: str | None = None
    reason: str | None = None
    handoff: str | None = None


Move: TypeAlias = Generate | Start | Park | Write | Stop | Wait | Summarise | Finish


def next_moves(view: View, offered: Mapping[str, Tool], policies: Policies | None = None) -> list[Move]:
    """Return what is to be done next, at least one thing; a `Wait` alone when all that can go on does.

    `offered` are the tools that the newest answer could call.
    """
    chosen = policies or Policies()
    answer = _newest_answer(view)
    if answer is not None:
        moves = list(_round_moves(view, answer, offered, chosen))
        if moves:
            return moves
    if view.aborted:
        return [Finish("aborted", reason="aborted")]
    tail = _Tail(view.entries)
    if tail.failures:
        return [_after_failure(view, tail, chosen)]
    if answer is not None and _is_of(tail.newest, answer) and (finish := _end_of(view, answer)) is not None:
        return [finish]
    if isinstance(tail.newest, e.Abort | e.Reset):
        return [Finish("aborted", reason="aborted" if isinstance(tail.newest, e.Abort) else "reset")]
    return _generate(view, tail, chosen, 1)


def _newest_answer(view: View) -> e.AssistantMessage | None:
    """Return the turn's newest answer that came to an end; what tools and people said since may stand behind it."""
    for entry in reversed(view.entries):
        if isinstance(entry, e.AssistantMessage) and entry.stop not in ("error", "lost"):
            return entry if entry.turn == view.turn else None
    return None


def _is_of(newest: e.Entry | None, answer: e.AssistantMessage) -> bool:
    return newest is answer or (isinstance(newest, e.ToolResult) and newest.answers == answer.id)


class _Tail:
    """The end of a transcript: the newest entry that says something, and the failures since."""

    def __init__(self, entries: Sequence[e.Entry]) -> None:
        self.failures: list[e.AssistantMessage] = []
        self.summed_since: bool = False
        self.overflows: int = 0
        self.newest: e.Entry | None = None
        self._read(entries)

    def _read(self, entries: Sequence[e.Entry]) -> None:
        for entry in reversed(entries):
            if isinstance(entry, e.Summary):
                self.summed_since = True
            elif isinstance(entry, e.AssistantMessage) and entry.stop in ("error", "lost"):
                self._read_failure(entry)
            elif not isinstance(entry, e.SectionsChange | e.DocumentChange):
                self.newest = entry
                return

    def _read_failure(self, entry: e.AssistantMessage) -> None:
        if entry.failure is None:
            return  # its process was lost, which says nothing of the model
        is_overflow = entry.failure.kind == "overflow"
        self.overflows += is_overflow
        if not (is_overflow and self.summed_since):
            self.failures.append(entry)


# --- tools


def _round_moves(
    view: View, answer: e.AssistantMessage, offered: Mapping[str, Tool], policies: Policies
) -> Iterator[Move]:
    if answer.stop in ("aborted", "refused"):
        return
    decisions = decide_calls(answer, offered)
    in_turn = policies.sequential or order_of(decisions) == "sequential"
    results = _results(view.entries, answer)
    waits = False
    for decision in decisions:
        if decision.slot in results:
            continue
        move = _aborted_move(view, answer, decision) if view.aborted else _call_move(view, answer, decision)
        if move is not None:
            yield move
        waits = waits or move is None
        if in_turn and not view.aborted and not isinstance(move, Write):
            break
    if waits:
        yield Wait()


def _results(entries: Sequence[e.Entry], answer: e.AssistantMessage) -> dict[int, e.ToolResult]:
    found: dict[int, e.ToolResult] = {}
    for entry in entries:
        if isinstance(entry, e.ToolResult) and entry.answers == answer.id:
            found.setdefault(entry.slot, entry)
    return found


def _call_move(view: View, answer: e.AssistantMessage, decision: Decision) -> Move | None:
    """Return what is done with a call that has no result yet; None while it runs or waits."""
    slot, state = decision.slot, view.round
    if slot in state.running:
        return None
    if slot in state.started:
        return _after_crash(view, answer, decision)
    if isinstance(decision, Refused):
        return Write(answer.id, slot, decision.call, decision.result)
    verdict = state.verdicts.get(slot)
    if verdict is not None:
        return _judged(answer, decision, verdict)
    if slot in state.parked:
        return None
    return Park(decision) if decision.tool.needs_approval(decision.arguments.values) else Start(decision)


def _after_crash(view: View, answer: e.AssistantMessage, decision: Decision) -> Move:
    slot, state = decision.slot, view.round
    if isinstance(decision, Runnable) and replay_after_crash(state.started[slot], decision.tool):
        return Start(_with_verdict(decision, state.verdicts.get(slot)) or decision, again=True)
    return Write(answer.id, slot, decision.call, stopped("interrupted", state.output.get(slot, ())))


def _judged(answer: e.AssistantMessage, decision: Runnable, verdict: Verdict) -> Move:
    if not verdict.allowed:
        why = f": {verdict.reason}" if verdict.reason else ""
        result = refuse("denied", f"Not run: a person did not allow this call{why}.")
        return Write(answer.id, decision.slot, decision.call, result)
    judged = _with_verdict(decision, verdict)
    if judged is None:
        result = refuse(
            "invalid_arguments", "Not run: the arguments that a person gave do not fit the tool.", "invalid"
        )
        return Write(answer.id, decision.slot, decision.call, result)
    return Start(judged)


def _with_verdict(decision: Runnable, verdict: Verdict | None) -> Runnable | None:
    """Return the call with the arguments that a person gave it; None if they do not fit."""
    from perdure.chat.arguments import InvalidArguments

    if verdict is None or verdict.arguments is None:
        return decision
    try:
        arguments = decision.tool.arguments(verdict.arguments)
    except InvalidArguments:
        return None
    return Runnable(decision.slot, decision.call, decision.tool, arguments)


def _aborted_move(view: View, answer: e.AssistantMessage, decision: Decision) -> Move:
    slot, state = decision.slot, view.round
    if slot in state.running:
        return Stop(slot)
    if slot in state.started:
        return Write(answer.id, slot, decision.call, stopped("aborted", state.output.get(slot, ())))
    result = refuse("aborted", "Not run: a person stopped the work.", "aborted")
    return Write(answer.id, slot, decision.call, result)


# --- how it goes on


def _end_of(view: View, answer: e.AssistantMessage) -> Finish | None:
    """Return how an answer ends the turn, or None if the model is asked again."""
    if answer.stop == "aborted":
        return Finish("aborted", answer.id, "aborted")
    if answer.stop == "refused":
        return Finish("failed", answer.id, "refused")
    if not answer.calls:
        return Finish("answered", answer.id)
    results = [result for _, result in sorted(_results(view.entries, answer).items())]
    return Finish("answered", answer.id, handoff=handed_over(results)) if ends_turn(results) else None


def _after_failure(view: View, tail: _Tail, policies: Policies) -> Move:
    newest = tail.failures[0]
    failure = newest.failure
    assert failure is not None
    if failure.kind == "overflow":
        return _after_overflow(view, tail, policies)
    tries = sum(each.failure is not None and each.failure.kind != "overflow" for each in tail.failures)
    until = retry_at(policies.retry, failure, tries, newest.at, _chance(newest.id))
    if until is None:
        return Finish("failed", newest.id, "model_error")
    return Wait(until) if until > view.now else _generate(view, tail, policies, tries + 1)[0]


def _after_overflow(view: View, tail: _Tail, policies: Policies) -> Move:
    """A request that was too long is made again once, with a summary in place of its beginning."""
    newest = tail.failures[0]
    if tail.overflows > 1 or view.unsummed or not policies.compaction.enabled:
        return Finish("failed", newest.id, "model_error")
    keep = policies.compaction.keep_recent
    keep = policies.compaction.fitted(policies.window).keep_recent if policies.window is not None else keep
    through = choose_through(view.entries, keep, must=True)
    return Finish("failed", newest.id, "model_error") if through is None else Summarise(through, "overflow")


def _chance(entry_id: str) -> float:
    """Return a number from 0 to 1 that is the entry's own: the same on every worker, another for each failure."""
    return int.from_bytes(canonical.digest(entry_id.encode())[:6], "big") / 2**48


def _generate(view: View, tail: _Tail, policies: Policies, attempt: int) -> list[Move]:
    rounds = sum(
        isinstance(entry, e.AssistantMessage) and entry.turn == view.turn and entry.stop not in ("error", "lost")
        for entry in view.entries
    )
    if rounds >= policies.rounds:
        return [Finish("failed", reason="too_many_rounds")]
    need = needed(policies.compaction, policies.window, context_tokens(view.entries))
    if need == "none" or view.unsummed or tail.summed_since or policies.window is None:
        return [Generate(attempt)]
    keep = policies.compaction.fitted(policies.window).keep_recent
    through = choose_through(view.entries, keep, must=need == "blocking")
    if through is None:
        return [Generate(attempt)]
    if need == "blocking":
        return [Summarise(through, "threshold")]
    return [Generate(attempt)] if view.summing else [Generate(attempt), Summarise(through, "threshold", beside=True)]
