"""Extensions: tools, sections, documents and hooks under one name, and what an agent has when all are put together."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from perdure.chat.documents import Document, documents_by_kind
from perdure.chat.sections import Section
from perdure.chat.tools import Tool
from perdure.errors import DefinitionError

Hook: TypeAlias = Callable[..., Awaitable[Any]]
Wrapper: TypeAlias = Callable[[Tool], Tool]

HOOKS: Final = (
    "before_request",
    "after_response",
    "on_yield",
    "after_tools",
    "before_tool",
    "after_tool",
    "on_abort",
    "before_compact",
)
_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,63}")


class Extension:
    """A named bundle. Two extensions of an agent may not have a tool, a section or a document kind in common.

    `replaces` names tools of extensions before this one that its own take the place of; `wraps` has functions from tool
    to tool that decorate whichever tool has that name. Hooks are coroutine functions by the name of their moment; see
    `HOOKS`. Raises `DefinitionError`.
    """

    def __init__(
        self,
        name: str,
        *,
        tools: Iterable[Tool] = (),
        sections: Iterable[Section] = (),
        documents: Iterable[type[Document]] = (),
        hooks: Mapping[str, Hook] | None = None,
        wraps: Mapping[str, Wrapper] | None = None,
        replaces: Collection[str] = (),
    ) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise DefinitionError(
                f"Extension {name!r} is refused: write a lowercase letter, then letters, digits, '_' and '-'."
            )
        self.name: str = name
        self.tools: tuple[Tool, ...] = _all_of(f"Extension {name!r}: tools", tools, Tool, "make it with @tool")
        self.sections: tuple[Section, ...] = _all_of(
            f"Extension {name!r}: sections", sections, Section, "make it with section(...)"
        )
        self.documents: tuple[type[Document], ...] = tuple(documents)
        documents_by_kind(self.documents)
        self.hooks: dict[str, Hook] = _checked_hooks(name, hooks or {})
        self.wraps: dict[str, Wrapper] = dict(wraps or {})
        self.replaces: frozenset[str] = frozenset([replaces] if isinstance(replaces, str) else replaces)

    def __repr__(self) -> str:
        return f"<Extension {self.name!r}>"


def _all_of(what: str, values: Iterable[Any], kind: type[Any], hint: str) -> tuple[Any, ...]:
    found = tuple(values)
    for value in found:
        if not isinstance(value, kind):
            raise DefinitionError(f"{what} holds a {type(value).__name__}, {value!r}; {hint}.")
    return found


def _checked_hooks(name: str, hooks: Mapping[str, Hook]) -> dict[str, Hook]:
    for moment, hook in hooks.items():
        if moment not in HOOKS:
            raise DefinitionError(f"Extension {name!r} has no moment {moment!r} to hook; there are {', '.join(HOOKS)}.")
        if not inspect.iscoroutinefunction(hook):
            raise DefinitionError(f"Extension {name!r}: the hook {moment!r} must be a coroutine function.")
    return dict(hooks)


class Assembly(msgspec.Struct, frozen=True):
    """All that an agent has: tools by name, sections in order, documents by kind, hooks in order by moment."""

    tools: dict[str, Tool]
    sections: tuple[Section, ...]
    documents: dict[str, type[Document]]
    hooks: dict[str, tuple[Hook, ...]]


def assemble(extensions: Sequence[Extension]) -> Assembly:
    """Return what the extensions have together, in their order; raises `DefinitionError` for what they dispute."""
    _once("extensions", [(each.name, each) for each in extensions])
    sections = [(each.key, extension, each) for extension in extensions for each in extension.sections]
    _once("sections", [(key, extension) for key, extension, _ in sections])
    return Assembly(
        _tools(extensions),
        tuple(each for _, _, each in sections),
        documents_by_kind(each for extension in extensions for each in extension.documents),
        {
            moment: hooks
            for moment in HOOKS
            if (hooks := tuple(each.hooks[moment] for each in extensions if moment in each.hooks))
        },
    )


def _once(what: str, named: Iterable[tuple[str, Extension]]) -> None:
    seen: dict[str, Extension] = {}
    for name, extension in named:
        if name in seen:
            raise DefinitionError(
                f"Two {what} are named {name!r}: in extension {seen[name].name!r} and in {extension.name!r}. Rename "
                "one."
            )
        seen[name] = extension


def _tools(extensions: Sequence[Extension]) -> dict[str, Tool]:
    tools: dict[str, Tool] = {}
    owners: dict[str, str] = {}
    for extension in extensions:
        own: set[str] = set()
        for tool in extension.tools:
            if tool.name in own or (tool.name in tools and tool.name not in extension.replaces):
                raise DefinitionError(
                    f"Two tools are named {tool.name!r}: in extension {owners[tool.name]!r} and in {extension.name!r}. "
                    f"Rename one, or say Extension({extension.name!r}, replaces=[{tool.name!r}]) to take its place."
                )
            own.add(tool.name)
            tools[tool.name] = tool
            owners[tool.name] = extension.name
    return _wrapped(tools, extensions)


def _wrapped(tools: dict[str, Tool], extensions: Sequence[Extension]) -> dict[str, Tool]:
    for extension in extensions:
        for name, wrapper in extension.wraps.items():
            if name not in tools:
                continue
            wrapped = wrapper(tools[name])
            if not isinstance(wrapped, Tool) or wrapped.name != name:
                raise DefinitionError(
                    f"Extension {extension.name!r}: what wraps the tool {name!r} must return a tool of that name."
                )
            tools[name] = wrapped
    return tools


class Selection(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which of its agent's extensions and tools a conversation uses; None means all.

    Names that are not installed any more are passed over, and count again when they are back.
    """

    extensions: tuple[str, ...] | None = None
    without_extensions: tuple[str, ...] = ()
    tools: tuple[str, ...] | None = None
    without_tools: tuple[str, ...] = ()


def select(extensions: Sequence[Extension], selection: Selection) -> Assembly:
    """Return what a conversation has of its agent's extensions."""
    chosen = [
        each
        for each in extensions
        if (selection.extensions is None or each.name in selection.extensions)
        and each.name not in selection.without_extensions
    ]
    assembly = assemble(chosen)
    tools = {
        name: tool
        for name, tool in assembly.tools.items()
        if (selection.tools is None or name in selection.tools) and name not in selection.without_tools
    }
    return Assembly(tools, assembly.sections, assembly.documents, assembly.hooks)
