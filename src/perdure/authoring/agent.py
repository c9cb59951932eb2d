"""Agents: a name, a few times, and the handlers that users write."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from perdure.authoring.checks import check_duration, check_name
from perdure.authoring.template import Template
from perdure.errors import DefinitionError
from perdure.records.definitions import AgentDefinition
from perdure.records.sessions import HostKind

InitHandler: TypeAlias = Callable[[Any], Awaitable[Any]]
TurnHandler: TypeAlias = Callable[[Any, Any], Awaitable[Any]]
_Init = TypeVar("_Init", bound=InitHandler)
_Turn = TypeVar("_Turn", bound=TurnHandler)


class Place(NamedTuple):
    """Where in a user's source something was defined."""

    module: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}"


class Agent:
    """The definition of an agent. Give it its handlers with `@agent.init` and `@agent.turn`.

    Without a template the handlers run in the worker (sleeping sessions cost nothing); with one, each session has a
    process of its own in a Computer made from the template. `close_after_idle` closes a session after that time without
    work, `hibernate_after_idle` puts its Computer to sleep, `max_turn_duration` interrupts a turn that takes longer.
    Times are text such as `90s`, `5m` or `1d`; None means never.

    `recovery` says what becomes of a turn whose process is lost. `interrupt`, the default, is for handlers with live
    state: the turn is interrupted and never run again. With `resume` the handler is called again in the next process,
    and what it did by `ctx.step` and `ctx.memo` before is in its journal: it goes on from its last committed step.

    Raises `DefinitionError` for an id, time or template that makes no sense, and for `hibernate_after_idle` without a
    template, since there is no Computer to hibernate then.
    """

    def __init__(
        self,
        id: str,
        *,
        template: Template | None = None,
        close_after_idle: str | None = None,
        hibernate_after_idle: str | None = None,
        max_turn_duration: str | None = None,
        recovery: Literal["interrupt", "resume"] = "interrupt",
    ) -> None:
        self.id: str = check_name("Agent", id)
        if template is not None and not isinstance(template, Template):
            raise DefinitionError(f"{self}: template must be a perdure.Template, not a {type(template).__name__}.")
        if hibernate_after_idle is not None and template is None:
            raise DefinitionError(
                f"{self}: hibernate_after_idle needs a template, because only a Computer can hibernate. An agent "
                "without one sleeps by itself when it is idle; leave hibernate_after_idle out, or give it a template."
            )
        self.template: Template | None = template
        self.close_after_idle: int | None = check_duration(str(self), "close_after_idle", close_after_idle)
        self.hibernate_after_idle: int | None = check_duration(str(self), "hibernate_after_idle", hibernate_after_idle)
        self.max_turn_duration: int | None = check_duration(str(self), "max_turn_duration", max_turn_duration)
        if recovery not in ("interrupt", "resume"):
            raise DefinitionError(f'{self}: recovery is "interrupt" or "resume", not {recovery!r}.')
        self.recovery: Literal["interrupt", "resume"] = recovery
        self.init_handler: InitHandler | None = None
        self.turn_handler: TurnHandler | None = None
        self.place: Place = _caller()

    @property
    def host(self) -> HostKind:
        """Where the handlers run: `inline` in the worker, or `process` in a Computer."""
        return "inline" if self.template is None else "process"

    def init(self, handler: _Init) -> _Init:
        """Register `async def init(ctx)`: called once in each process, before its first turn.

        What it returns is live and stays in memory as `ctx.init_result`.
        """
        if self.init_handler is not None:
            raise DefinitionError(f"{self} has an init handler already, {_name(self.init_handler)!r}.")
        self.init_handler = self._checked("init", handler, "(ctx)", 1)
        return handler

    def turn(self, handler: _Turn) -> _Turn:
        """Register `async def turn(turn, ctx)`: called once for each accepted input. Its return value is the result."""
        if self.turn_handler is not None:
            raise DefinitionError(f"{self} has a turn handler already, {_name(self.turn_handler)!r}.")
        self.turn_handler = self._checked("turn", handler, "(turn, ctx)", 2)
        return handler

    def definition(self, root: Path | None = None) -> AgentDefinition:
        """Return the agent as plain data, with its file relative to `root`.

        Raises `DefinitionError` when it has no turn handler.
        """
        if self.turn_handler is None:
            raise DefinitionError(
                f"{self} ({self.shown_place(root)}) has no turn handler; write one with @agent.turn above "
                "`async def turn(turn, ctx)`."
            )
        return AgentDefinition(
            id=self.id,
            module=self.place.module,
            file=_relative(self.place.file, root),
            line=self.place.line,
            template=self.template.definition() if self.template else None,
            has_init=self.init_handler is not None,
            close_after_idle=self.close_after_idle,
            hibernate_after_idle=self.hibernate_after_idle,
            max_turn_duration=self.max_turn_duration,
            resumes=self.recovery == "resume",
        )

    def shown_place(self, root: Path | None = None) -> str:
        """Return where the agent was defined, for people: `agents/assistant.py, line 5`."""
        return str(self.place._replace(file=_relative(self.place.file, root)))

    def _checked(self, kind: str, handler: Any, shape: str, arguments: int) -> Any:
        name = _name(handler)
        if not inspect.iscoroutinefunction(handler):
            raise DefinitionError(
                f"{self}: the {kind} handler {name!r} must be a coroutine function; write `async def {name}{shape}`. "
                "Run blocking work with `await asyncio.to_thread(...)`."
            )
        try:
            inspect.signature(handler).bind(*[None] * arguments)
        except TypeError as error:
            raise DefinitionError(f"{self}: the {kind} handler {name!r} must take {shape}: {error}.") from None
        return handler

    def __str__(self) -> str:
        return f"Agent {self.id!r}"

    def __repr__(self) -> str:
        return f"<Agent {self.id!r} ({self.host}) at {self.place}>"


def _name(handler: Any) -> str:
    return str(getattr(handler, "__name__", None) or type(handler).__name__)


def _caller() -> Place:
    """Return where the constructor of an agent was called, past the constructors of subclasses."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_name == "__init__":
        frame = frame.f_back
    return Place(str(frame.f_globals.get("__name__", "?")), frame.f_code.co_filename, frame.f_lineno)


def _relative(file: str, root: Path | None) -> str:
    path = Path(file)
    return path.relative_to(root).as_posix() if root and path.is_relative_to(root) else file
