"""Tools: functions that a model may call, with names, words and a schema taken from the function itself."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, overload

import msgspec

from perdure.chat.arguments import Arguments, InvalidArguments, plain_arguments
from perdure.errors import DefinitionError
from perdure.records import canonical

if TYPE_CHECKING:
    from perdure.chat.schemas import Schema

Replay: TypeAlias = Literal["safe", "never"]
ToolFunction: TypeAlias = Callable[..., Awaitable[Any]]
Approval: TypeAlias = "bool | Callable[[Mapping[str, Any]], bool]"

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


class ToolSchema(msgspec.Struct, frozen=True):
    """What a model is told of a tool. `parameters` is a JSON schema of an object."""

    name: str
    description: str
    parameters: dict[str, Any]


class Tool:
    """A function that a model may call. Make one with `@tool`.

    `replay` says what happens after a crash in the middle of a call: `safe` runs it again with the same arguments and
    memos, `never` tells the model that it was interrupted. `approval` has a person agree first: always, or when a
    function of the arguments says so. A `sequential` tool makes the calls of its round run one after the other.

    Raises `DefinitionError` for a function or a name that cannot be a tool.
    """

    def __init__(
        self,
        function: ToolFunction,
        *,
        name: str | None = None,
        description: str | None = None,
        replay: Replay = "never",
        approval: Approval = False,
        sequential: bool = False,
    ) -> None:
        self.function: ToolFunction = function
        self.name: str = _checked_name(name if name is not None else getattr(function, "__name__", ""))
        _check_function(self.name, function)
        if replay not in ("safe", "never"):
            raise DefinitionError(f"Tool {self.name!r}: replay={replay!r} is refused; write 'safe' or 'never'.")
        if not isinstance(approval, bool) and not callable(approval):
            raise DefinitionError(
                f"Tool {self.name!r}: approval={approval!r} is refused; write True, False, or a function that is given "
                "the arguments and tells whether a person must agree."
            )
        self.replay: Replay = replay
        self.sequential: bool = sequential
        self._approval: Approval = approval
        self._description: str | None = description

    @cached_property
    def _inner(self) -> Schema:
        from perdure.chat.schemas import make_schema

        return make_schema(self.name, self.function)

    @property
    def description(self) -> str:
        """What a model is told of the tool: the text that was given, or the docstring without its sections."""
        return self._description if self._description is not None else self._inner.description

    @property
    def schema(self) -> ToolSchema:
        """What a model is told of the tool; raises `DefinitionError` for a signature that has no schema."""
        return ToolSchema(self.name, self.description, self._inner.parameters)

    def arguments(self, text: str) -> Arguments:
        """Return the values of a model's arguments; raises `InvalidArguments` with what the model did wrong."""
        data = plain_arguments(text)
        return Arguments(self._inner.values(data), data)

    def needs_approval(self, arguments: Mapping[str, Any]) -> bool:
        """Tell whether a person must agree to a call with these arguments; a predicate that fails means yes."""
        if isinstance(self._approval, bool):
            return self._approval
        try:
            return bool(self._approval(arguments))
        except Exception:
            # Whoever cannot say that no one need be asked has not said so.
            return True

    async def run(self, ctx: Any, values: Mapping[str, Any]) -> Any:
        """Call the function with the values of arguments that fit."""
        return await self.function(ctx, **values)

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function as it was written, as a test of it does."""
        return await self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Tool {self.name!r} (replay={self.replay})>"


class RawTool(Tool):
    """A tool whose schema somebody else has written: another agent, a server, a plugin.

    The function gets the context and the arguments as one mapping. `parameters` is a JSON schema of an object; that
    required arguments are there and unknown ones are not is checked here, the rest by whoever wrote it.
    """

    def __init__(
        self,
        function: ToolFunction,
        *,
        name: str,
        description: str = "",
        parameters: Mapping[str, Any] | None = None,
        replay: Replay = "never",
        approval: Approval = False,
        sequential: bool = False,
    ) -> None:
        super().__init__(
            _any_arguments,
            name=name,
            description=description,
            replay=replay,
            approval=approval,
            sequential=sequential,
        )
        self.function = function
        self._parameters: dict[str, Any] = dict(parameters or {"type": "object", "properties": {}})
        if self._parameters.get("type") != "object":
            raise DefinitionError(f"Tool {name!r}: its parameters must be a JSON schema of an object.")

    @property
    def description(self) -> str:
        """What a model is told of the tool."""
        return self._description or ""

    @property
    def schema(self) -> ToolSchema:
        """What a model is told of the tool."""
        return ToolSchema(self.name, self.description, self._parameters)

    def arguments(self, text: str) -> Arguments:
        """Return a model's arguments; raises `InvalidArguments` for what is missing or unknown."""
        data = plain_arguments(text)
        values: dict[str, Any] = canonical.decode(data)
        wrong = [
            f"- {name}: is required and missing" for name in self._parameters.get("required", ()) if name not in values
        ]
        if self._parameters.get("additionalProperties") is False:
            known = self._parameters.get("properties", {})
            wrong += [f"- {name}: there is no such parameter; leave it out" for name in values if name not in known]
        if wrong:
            lines = ["The arguments do not fit the tool's parameters:", *wrong, "Correct them and call again."]
            raise InvalidArguments("\n".join(lines))
        return Arguments(values, data)

    async def run(self, ctx: Any, values: Mapping[str, Any]) -> Any:
        """Call the function with the arguments as one mapping."""
        return await self.function(ctx, values)


async def _any_arguments(ctx: Any) -> None:
    """Stand in for the signature of a tool that has none of its own."""


@overload
def tool(function: ToolFunction, /) -> Tool:
    """Make a tool of a function, as `@tool`."""


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    replay: Replay = "never",
    approval: Approval = False,
    sequential: bool = False,
) -> Callable[[ToolFunction], Tool]:
    """Make a tool of a function with options, as `@tool(replay="safe")`."""


def tool(
    function: ToolFunction | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    replay: Replay = "never",
    approval: Approval = False,
    sequential: bool = False,
) -> Tool | Callable[[ToolFunction], Tool]:
    """Make a tool of `async def name(ctx, …)`, as `@tool` or `@tool(replay="safe")`; see `Tool` for the options."""

    def make(function: ToolFunction) -> Tool:
        return Tool(
            function,
            name=name,
            description=description,
            replay=replay,
            approval=approval,
            sequential=sequential,
        )

    return make if function is None else make(function)


# --- what may be a tool


def _checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise DefinitionError(
            f"A tool cannot be named {name!r}; providers accept 1 to 64 letters, digits, '_' and '-'. Give it a name "
            "with @tool(name=...)."
        )
    return name


def _check_function(name: str, function: ToolFunction) -> None:
    if not inspect.iscoroutinefunction(function):
        raise DefinitionError(
            f"Tool {name!r} must be a coroutine function; write `async def {name}(ctx, ...)`. Run blocking work with "
            "`await asyncio.to_thread(...)`."
        )
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters or parameters[0].name != "ctx" or parameters[0].kind is inspect.Parameter.KEYWORD_ONLY:
        raise DefinitionError(f"Tool {name!r} must take the context first: `async def {name}(ctx, ...)`.")
    for parameter in parameters[1:]:
        _check_parameter(name, parameter)


def _check_parameter(name: str, parameter: inspect.Parameter) -> None:
    if parameter.kind not in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY):
        raise DefinitionError(
            f"Tool {name!r}: a model calls by name, so '{parameter}' cannot be a parameter of a tool. Name each one."
        )
    if parameter.annotation is inspect.Parameter.empty:
        raise DefinitionError(
            f"Tool {name!r}: the parameter {parameter.name!r} has no type, so a model cannot be told what to send. "
            f"Annotate it, such as `{parameter.name}: str`."
        )
