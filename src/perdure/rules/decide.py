"""The one entrance to the rules: which rule answers which command."""

from __future__ import annotations

from typing import Any, Final

from perdure.errors import SessionKeyConflict, SessionNotFound
from perdure.records.sessions import SessionHead
from perdure.rules import asks, commands, holds, messages, retention, runs, steps, turns
from perdure.rules.commands import Command, CreateSession, Enqueue, Send
from perdure.rules.decision import Decision, Draft, Found, Rule, data, need, receipt


def create(command: CreateSession, now: int, found: Found) -> Decision:
    """Create a session; a key that is in use is refused, naming the session that has it."""
    if command.key is not None:
        other = need(found, "key", (command.environment, command.agent, command.key))
        if other is not None:
            raise SessionKeyConflict(command.key, other)
    head = SessionHead(
        id=command.session_id,
        environment=command.environment or "",
        agent=command.agent,
        deployment=command.deployment,
        host=command.host,
        created_at=now,
        key=command.key,
        limits=command.limits,
        computer=command.computer,
        idle_since=now,
        resumes=command.resumes,
    )
    draft = Draft(head, now)
    draft.event("session.created", data(agent=command.agent, key=command.key), in_run=False)
    if command.turn is not None:
        turns.admit(draft, command.turn, command.permit)
    turn_id = command.turn.id if command.turn else None
    return draft.done(turns.admitted(draft.head, turn_id, created=True))


def send(head: SessionHead, command: Send, now: int, _: Found) -> Decision:
    """Steer the running turn if it takes messages, else enqueue; which of the two is decided here, once."""
    messages.check_not_held(head)
    draft = Draft(head, now)
    if head.active is not None and head.active.takes_messages:
        messages.admit(draft, command.message_id, command.turn.input_json)
        told: dict[str, Any] = {"kind": "messaged", "turn_id": head.active.id, "message_id": command.message_id}
    else:
        turns.admit(draft, command.turn, command.permit)
        told = {"kind": "enqueued", "turn_id": command.turn.id, "sequence": draft.head.last_turn}
    return draft.done(receipt(session_id=head.id, **told))


_RULES: Final[dict[type[Command], Rule]] = {
    Enqueue: turns.enqueue,
    Send: send,
    commands.SendToTurn: messages.send_to_turn,
    commands.Interrupt: holds.interrupt,
    commands.Resume: holds.resume,
    commands.Close: holds.close,
    commands.Cancel: holds.cancel,
    commands.Tick: holds.tick,
    commands.AnswerAsk: asks.answer,
    commands.StartRun: runs.start,
    commands.AdoptRun: runs.adopt,
    commands.RunReady: runs.ready,
    commands.InitFailed: runs.init_failed,
    commands.StopRun: runs.stop,
    commands.Sleep: runs.sleep,
    commands.PlaceHold: holds.place_hold,
    commands.RunStopped: runs.stopped,
    commands.RunLost: runs.lost,
    commands.SetResidency: runs.set_residency,
    commands.StartTurn: turns.start_turn,
    commands.WriteOutput: turns.write_output,
    commands.WriteLive: turns.write_live,
    commands.TakeMessages: messages.take,
    commands.MessageStarted: messages.started,
    commands.MessageSettled: messages.settled,
    commands.CreateAsk: asks.create,
    commands.WithdrawAsk: asks.withdraw,
    commands.CompleteTurn: turns.complete,
    commands.FailTurn: turns.fail,
    commands.HandlerReleased: runs.released,
    commands.BeginStep: steps.begin,
    commands.EndStep: steps.end,
    commands.KeepMemo: steps.keep,
    retention.Trim: retention.trim,
}


def decide(head: SessionHead | None, command: Command, now: int, found: Found) -> Decision:
    """Return what `command` does to the session.

    `head` is None for a session that does not exist. Raises a `PerdureError` when the command is refused and `Needs`
    when the rule has to see a row that is not in `found` yet. The given head is not changed.
    """
    if isinstance(command, CreateSession):
        return create(command, now, found)
    if head is None or command.environment not in (None, head.environment):
        raise SessionNotFound(command.session_id)
    return _RULES[type(command)](head, command, now, found)
