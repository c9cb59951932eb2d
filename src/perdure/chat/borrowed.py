"""Agents of pydantic-ai as tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from perdure.chat import entries as e
from perdure.chat.results import ToolResult
from perdure.chat.tools import Approval, RawTool, Replay
from perdure.errors import DefinitionError

if TYPE_CHECKING:
    from pydantic_ai import Agent
    from pydantic_ai.usage import RunUsage

_PROMPT: Final = {
    "type": "object",
    "properties": {"prompt": {"type": "string", "description": "What is to be done, with all that must be known."}},
    "required": ["prompt"],
    "additionalProperties": False,
}


def agent_tool(
    agent: Agent[Any, Any],
    *,
    name: str | None = None,
    description: str | None = None,
    deps: Any = None,
    replay: Replay = "never",
    approval: Approval = False,
) -> RawTool:
    """Return a tool that runs an agent of pydantic-ai once, on a prompt that the model writes.

    The agent begins anew for each call and remembers nothing; its output is the result, and what it spent is counted.
    A crash in the middle loses its work: make `replay` safe when its own tools have no effects. Raises
    `DefinitionError` for an agent without a name when none is given.
    """
    chosen = name if name is not None else agent.name
    if not chosen:
        raise DefinitionError("This pydantic_ai.Agent has no name; give one, as in agent_tool(agent, name='research').")

    async def run(ctx: Any, arguments: Mapping[str, Any]) -> ToolResult:  # noqa: ARG001 - it knows nothing of the chat
        done = await agent.run(str(arguments["prompt"]), deps=deps)
        output = done.output if isinstance(done.output, str) else e.Json(_plain(done.output))
        return ToolResult(output, usage=_usage(done.usage))

    return RawTool(
        run,
        name=chosen,
        description=description or f"Ask {chosen} to do something. It sees nothing but your prompt.",
        parameters=_PROMPT,
        replay=replay,
        approval=approval,
    )


def _plain(output: Any) -> Any:
    from pydantic_core import to_jsonable_python

    return to_jsonable_python(output)


def _usage(usage: RunUsage) -> e.Usage:
    return e.Usage(
        input=usage.input_tokens,
        output=usage.output_tokens,
        cache_read=usage.cache_read_tokens,
        cache_write=usage.cache_write_tokens,
    )
