"""What a runtime asks, as commands on its session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

from perdure.hosts.protocol import (
    InitRaised,
    Live,
    MemoKept,
    MessageBegun,
    MessageDone,
    OpenMessages,
    Output,
    Question,
    Raised,
    Ready,
    Released,
    Request,
    Returned,
    StepBegun,
    StepEnded,
    Withdraw,
)
from perdure.records.ids import new_id
from perdure.rules import commands as c


def _output(sid: str, fence: int, _: bool, r: Output) -> c.Command:
    return c.WriteOutput(session_id=sid, fence=fence, turn=r.turn, op=r.op, content_json=r.content_json)


def _live(sid: str, fence: int, _: bool, r: Live) -> c.Command:
    return c.WriteLive(session_id=sid, fence=fence, turn=r.turn, slot=r.slot, content_json=r.content_json)


def _returned(sid: str, fence: int, start: bool, r: Returned) -> c.Command:
    return c.CompleteTurn(
        session_id=sid,
        fence=fence,
        start=start,
        turn=r.turn,
        result_json=r.result_json,
        response_json=r.response_json,
    )


def _raised(sid: str, fence: int, start: bool, r: Raised) -> c.Command:
    return c.FailTurn(session_id=sid, fence=fence, start=start, turn=r.turn, error_json=r.error_json)


def _released(sid: str, fence: int, start: bool, r: Released) -> c.Command:
    return c.HandlerReleased(session_id=sid, fence=fence, start=start, turn=r.turn)


def _ready(sid: str, fence: int, start: bool, r: Ready) -> c.Command:
    return c.RunReady(session_id=sid, fence=fence, start=start, run_id=r.run_id)


def _init_raised(sid: str, fence: int, _: bool, r: InitRaised) -> c.Command:
    return c.InitFailed(session_id=sid, fence=fence, run_id=r.run_id, error_json=r.error_json, hold_id=new_id())


def _open_messages(sid: str, fence: int, _: bool, r: OpenMessages) -> c.Command:
    return c.TakeMessages(session_id=sid, fence=fence, turn=r.turn)


def _message_begun(sid: str, fence: int, _: bool, r: MessageBegun) -> c.Command:
    return c.MessageStarted(session_id=sid, fence=fence, turn=r.turn, message_id=r.message_id)


def _message_done(sid: str, fence: int, _: bool, r: MessageDone) -> c.Command:
    return c.MessageSettled(session_id=sid, fence=fence, turn=r.turn, message_id=r.message_id, rejected=r.rejected)


def _question(sid: str, fence: int, _: bool, r: Question) -> c.Command:
    return c.CreateAsk(
        session_id=sid,
        fence=fence,
        turn=r.turn,
        ask_id=r.ask_id,
        prompt_json=r.prompt_json,
        control_json=r.control_json,
    )


def _withdraw(sid: str, fence: int, _: bool, r: Withdraw) -> c.Command:
    return c.WithdrawAsk(session_id=sid, fence=fence, turn=r.turn, ask_id=r.ask_id)


def _step_begun(sid: str, fence: int, _: bool, r: StepBegun) -> c.Command:
    return c.BeginStep(session_id=sid, fence=fence, turn=r.turn, name=r.name, replay=r.replay, request=r.request)


def _step_ended(sid: str, fence: int, _: bool, r: StepEnded) -> c.Command:
    status: Literal["completed", "failed"] = "completed" if r.status == "completed" else "failed"
    return c.EndStep(session_id=sid, fence=fence, turn=r.turn, name=r.name, status=status, outcome_json=r.outcome_json)


def _memo_kept(sid: str, fence: int, _: bool, r: MemoKept) -> c.Command:
    return c.KeepMemo(session_id=sid, fence=fence, turn=r.turn, name=r.name, value_json=r.value_json)


_TABLE: Final[dict[type, Callable[[str, int, bool, Any], c.Command]]] = {
    Output: _output,
    Live: _live,
    Returned: _returned,
    Raised: _raised,
    Released: _released,
    Ready: _ready,
    InitRaised: _init_raised,
    OpenMessages: _open_messages,
    MessageBegun: _message_begun,
    MessageDone: _message_done,
    Question: _question,
    Withdraw: _withdraw,
    StepBegun: _step_begun,
    StepEnded: _step_ended,
    MemoKept: _memo_kept,
}


def to_command(session_id: str, fence: int, start: bool, request: Request) -> c.Command:
    """Return the command that does what a runtime asks; `start` tells whether the worker takes more work."""
    return _TABLE[type(request)](session_id, fence, start, request)
