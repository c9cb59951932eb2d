"""All cases: every point, for each of its purposes, with each action, in an act that comes by.

A point without an entry here gets the whole `DEFAULT`; so does a new label. A case whose point is not reached fails.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator
from typing import Final

from crash_case import Case

from perdure.crashpoints import POINTS, Action
from perdure.hosts.protocol import Directive, Request
from perdure.rules import commands
from perdure.rules.dispatch import Action as Step

ACTIONS: Final[tuple[Action, ...]] = typing.get_args(Action)

Acts = tuple[str, ...]
"""Acts and agents, as `act-agent`."""

DEFAULT: Final[Acts] = ("talk-plain", "talk-guest")

COMMANDS: Final[dict[str, Acts]] = {
    "Send": ("steering-plain",),
    "SendToTurn": ("steering-plain",),
    "Interrupt": ("interruption-plain",),
    "Resume": ("interruption-plain",),
    "Cancel": ("cancellation-plain",),
    "AnswerAsk": ("question-plain",),
    "Tick": ("deadline-hasty",),
    "StartRun": ("talk-warm",),
    "AdoptRun": ("server_killed-guest",),
    "RunReady": ("talk-warm",),
    "InitFailed": ("broken_init-moody",),
    "StopRun": ("talk-guest",),
    "Sleep": ("server_stopped-plain",),
    "RunStopped": ("talk-guest",),
    "RunLost": ("server_killed-plain", "loss-guest"),
    "SetResidency": ("hibernation-sleeper",),
    "TakeMessages": ("steering-plain",),
    "MessageStarted": ("steering-plain",),
    "MessageSettled": ("rejection-plain",),
    "CreateAsk": ("question-plain",),
    "WithdrawAsk": ("withdrawal-plain",),
    "FailTurn": ("failure-plain",),
    "HandlerReleased": ("interruption-plain",),
    "PlaceHold": ("disappearance-plain",),
    "StartTurn": ("interruption-plain", "impatience-guest"),
    "BeginStep": ("journey-steady",),
    "EndStep": ("journey-steady",),
    "KeepMemo": ("journey-steady",),
}

REQUESTS: Final[dict[str, str]] = {
    "InitRaised": "broken_init",
    "OpenMessages": "steering",
    "MessageBegun": "steering",
    "MessageDone": "steering",
    "Question": "question",
    "Withdraw": "withdrawal",
    "Raised": "failure",
    "Released": "interruption",
    "StepBegun": "journey",
    "StepEnded": "journey",
    "MemoKept": "journey",
}

DIRECTIVES: Final[dict[str, str]] = {"Stop": "interruption", "Deliver": "steering", "Answered": "question"}

STEPS: Final[dict[str, Acts]] = {
    "start_run": ("talk-warm", "loss-guest"),
    "start_guest": ("talk-warm", "talk-guest"),
    "start_turn": ("interruption-plain", "impatience-guest"),
    "stop_run": ("talk-plain", "talk-guest"),
    "resume_computer": ("hibernation-sleeper",),
    "hibernate": ("hibernation-sleeper",),
    "recover": ("server_killed-plain", "server_killed-guest", "server_killed_asleep-sleeper"),
    "settle_loss": ("server_killed-plain", "loss-guest"),
    "brief": ("server_killed-guest",),
    "retire": ("replacement-plain", "replacement-guest"),
}

OPERATIONS: Final[dict[str, Acts]] = {
    "create_session": ("talk-plain",),
    "enqueue": ("talk-plain",),
    "close": ("talk-plain",),
    "answer_ask": ("question-plain",),
}
"""The ways in; what the server does for others is the same."""

TIMES: Final[Acts] = ("deadline-hasty", "idleness-brief", "hibernation-sleeper")

UNLABELLED: Final[dict[str, Acts]] = {
    "engine.spawn": ("talk-warm", "talk-guest"),
    "engine.begin": ("talk-plain", "talk-warm", "talk-guest"),
    "engine.hibernate": ("hibernation-sleeper",),
    "engine.resume": ("hibernation-sleeper",),
    "engine.recover": ("server_killed-guest", "server_killed_asleep-sleeper"),
    "engine.sleep": ("server_stopped-plain",),
    "engine.tick": TIMES,
    "runtime.init": ("talk-warm", "talk-guest"),
    "runtime.ready": ("talk-warm", "talk-guest"),
    "runtime.ask": ("question-plain", "question-guest"),
    "runtime.withdraw": ("withdrawal-plain", "withdrawal-guest"),
    "runtime.open_messages": ("steering-plain", "steering-guest"),
    "runtime.message": ("steering-plain", "steering-guest"),
    "runtime.step": ("journey-steady", "journey-steady_guest"),
    "runtime.memo": ("journey-steady", "journey-steady_guest"),
    "runtime.stop": ("interruption-plain", "interruption-guest", "deadline-hasty"),
    "runtime.release": ("interruption-plain", "interruption-guest"),
    "host.quiesce": ("hibernation-sleeper",),
    "host.resume": ("hibernation-sleeper",),
    "host.adopt": ("server_killed-guest", "server_killed_asleep-sleeper"),
    "host.ended": ("loss-guest",),
    "host": ("talk-guest",),
    "guest.quiesce": ("hibernation-sleeper",),
    "guest": ("talk-guest",),
    "forkserver.exit": ("loss-guest",),
    "forkserver": ("talk-guest",),
}

MAIN_COMMANDS: Final = ("CreateSession", "Enqueue", "StartRun", "RunReady", "WriteOutput", "CompleteTurn", "Close")
MAIN_REQUESTS: Final = ("Ready", "Output", "Returned")


def cases() -> list[Case]:
    """Return all cases, in order of points."""
    return [
        Case(point, label, action, *act.split("-"))
        for point in POINTS
        for label, act in _purposes(point)
        for action in ACTIONS
    ]


def _purposes(point: str) -> Iterator[tuple[str, str]]:
    """Yield the labels of a point, each with the acts that come by for it."""
    room = point.rpartition(".")[0]
    if room == "store.commit":
        yield from _by_command(_names(commands.Command))
    elif room.startswith("store."):
        yield from _by_command(MAIN_COMMANDS)
    elif room == "engine.admit":
        outside = set(_names(commands.Command)) - set(_names(commands.WorkerCommand)) - INSIDE
        yield from _by_command(sorted(outside))
    elif room.startswith("server."):
        yield from ((label, act) for label, acts in OPERATIONS.items() for act in acts)
    elif room == "engine.act":
        yield from ((label, act) for label in _steps() for act in STEPS.get(label, DEFAULT))
    elif room == "engine.request":
        yield from _by_request(_tags(Request), "plain")
        yield from _by_request(MAIN_REQUESTS, "guest")
    elif point in ("host.reply.before", "guest.request.after"):
        yield from _by_request(_tags(Request), "guest")
    elif point in ("host.request", "host.reply.after", "guest.request.before", "guest.reply.after"):
        yield from _by_request(MAIN_REQUESTS, "guest")
    elif point.startswith(("host.tell", "guest.directive")):
        yield from ((name, f"{DIRECTIVES.get(name, 'talk')}-guest") for name in _tags(Directive))
    else:
        yield from (("", act) for act in _unlabelled(point))


INSIDE: Final = {"Tick", "StartRun", "AdoptRun", "PlaceHold", "RunStopped", "RunLost"}
"""Commands of the engine's own that are no owner's."""


def _by_command(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    for name in names:
        yield from ((name, act) for act in COMMANDS.get(name, ("talk-plain",)))


def _by_request(names: Iterable[str], agent: str) -> Iterator[tuple[str, str]]:
    """Yield an act for each request; `init` is seen with agents that have one."""
    for name in names:
        if name == "InitRaised":
            # Inline, the driver ends an `init` that has failed before that hears the answer.
            yield name, "broken_init-moody_guest"
        else:
            needs_init = name == "Ready" and agent == "plain"
            act = REQUESTS.get(name, "talk")
            yield name, f"{act}-{_agent(act, 'warm' if needs_init else agent)}"


def _agent(act: str, agent: str) -> str:
    """Return who plays an act: steps are for agents that are resumed."""
    steady = {"plain": "steady", "guest": "steady_guest"}
    return steady[agent] if act == "journey" else agent


def _unlabelled(point: str) -> Acts:
    name = point
    while name:
        if name in UNLABELLED:
            return UNLABELLED[name]
        name = name.rpartition(".")[0]
    return DEFAULT


def _names(base: type) -> list[str]:
    """Return the names of all commands below a base class, but not of bases and of what no session does by itself."""
    found: list[str] = []
    for kind in base.__subclasses__():
        if kind.__module__ == commands.__name__:
            found += _names(kind) or [kind.__name__]
    return found


def _tags(union: object) -> list[str]:
    return [kind.__name__ for kind in typing.get_args(union)]


def _steps() -> list[str]:
    """Return what drivers do: what the rules tell them, and what they see for themselves."""
    told = [step for step in typing.get_args(Step) if step != "wait"]
    return [*told, *(step for step in STEPS if step not in told)]
