"""Sections: the system prompt in named pieces, of which only what changed is told anew."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, overload

import msgspec

from perdure.chat import entries as e
from perdure.chat.transcript import changed_sections
from perdure.errors import ContentTooLarge, DefinitionError
from perdure.records import canonical

Render: TypeAlias = Callable[[Any], "str | Awaitable[str | None] | None"]

SECTION_BYTES: Final = 128 * 1024
INSTRUCTIONS: Final = "instructions"
_KEY: Final = re.compile(r"[a-z][a-z0-9_-]{0,63}")


class Section(NamedTuple):
    """A piece of the system prompt. Make one with `section`."""

    key: str
    render: Render
    tag: str | None


@overload
def section(key: str, render: str | Render, *, tag: str | bool = True) -> Section:
    """Make a section of a text or a function."""


@overload
def section(key: str, *, tag: str | bool = True) -> Callable[[Render], Section]:
    """Make a section of the function below, as `@section("plan")`."""


def section(
    key: str, render: str | Render | None = None, *, tag: str | bool = True
) -> Section | Callable[[Render], Section]:
    """Make a section of the system prompt: a text, or a function of what it may look at (async or not).

    The function is called before each model call and must be a function of what it is given: a clock in it would have
    every call pay for the whole prompt again. None leaves the section out. Its text is put between tags of its key
    (`<plan>…</plan>`), of another name, or with `tag=False` between none. Raises `DefinitionError` for a key that is
    refused.
    """
    chosen = key if tag is True else tag or None
    for name in (key, chosen):
        if name is not None and not _KEY.fullmatch(name):
            raise DefinitionError(
                f"Section {name!r} is refused: write a lowercase letter, then letters, digits, '_' and '-'."
            )
    if key == INSTRUCTIONS:
        raise DefinitionError(f"Section {key!r} is refused: that name is ours, for the agent's own instructions.")

    def make(render: str | Render) -> Section:
        return Section(key, _constant(render) if isinstance(render, str) else render, chosen)

    return make if render is None else make(render)


def _constant(text: str) -> Render:
    return lambda _: text


class Rendered(msgspec.Struct, frozen=True):
    """The sections as they are now, in order, and which of them could not be rendered and why."""

    sections: dict[str, str]
    failures: dict[str, str] = {}


async def render(sections: Sequence[Section], view: Any, shown: Mapping[str, str]) -> Rendered:
    """Return what the sections say now. One that fails goes on saying what was `shown` of it, and is reported."""
    texts: dict[str, str] = {}
    failures: dict[str, str] = {}
    for each in sections:
        try:
            text = await _text(each, view)
        except Exception as error:
            # A section is the user's code; a turn does not end because a reminder could not be written.
            failures[each.key] = f"{type(error).__name__}: {error}"
            text = shown.get(each.key)
        if text is not None:
            texts[each.key] = text
    return Rendered(texts, failures)


async def _text(each: Section, view: Any) -> str | None:
    found = each.render(view)
    text = await found if inspect.isawaitable(found) else found
    if text is None:
        return None
    if not isinstance(text, str):
        raise TypeError(f"it rendered a {type(text).__name__}, not text")
    clean = canonical.clean_text(text).strip("\n")
    if not clean.strip():
        return None
    size = len(clean.encode())
    if size > SECTION_BYTES:
        raise ContentTooLarge(f"section {each.key!r}", f"{size} bytes", f"{SECTION_BYTES} bytes")
    return f"<{each.tag}>\n{clean}\n</{each.tag}>" if each.tag else clean


class Told(msgspec.Struct, frozen=True):
    """What a conversation has been told by its entries: the sections in order, and the tools that are offered."""

    sections: dict[str, str] = {}
    tools: frozenset[str] = frozenset()

    def then(self, entry: e.SectionsChange) -> Told:
        """Return what has been told with one more entry."""
        tools = frozenset() if entry.whole else self.tools
        return Told(
            changed_sections(self.sections, entry), tools - frozenset(entry.tools_removed) | set(entry.tools_added)
        )


def told(entries: Iterable[e.Entry]) -> Told:
    """Return what the entries have told, those before a cut too."""
    found = Told()
    for entry in entries:
        if isinstance(entry, e.SectionsChange):
            found = found.then(entry)
    return found


def change(
    before: Told, now: Mapping[str, str], tools: Iterable[str], entry_id: str, at: int, *, whole: bool = False
) -> e.SectionsChange | None:
    """Return the entry that tells what is different now, or None if nothing is.

    What stays is not told again: the prompt that a provider has cached stays as it is. With `whole` all is told, as a
    conversation needs after a cut, when what was told before it is not read any more.
    """
    offered = frozenset(tools)
    if whole:
        return e.SectionsChange(
            id=entry_id, at=at, sections=dict(now), order=tuple(now), whole=True, tools_added=tuple(sorted(offered))
        )
    different: dict[str, str | None] = {key: text for key, text in now.items() if before.sections.get(key) != text}
    different.update({key: None for key in before.sections if key not in now})
    by_itself = [*(key for key in before.sections if key in now), *(key for key in now if key not in before.sections)]
    order = () if by_itself == list(now) else tuple(now)
    if not different and not order and offered == before.tools:
        return None
    return e.SectionsChange(
        id=entry_id,
        at=at,
        sections=different,
        order=order,
        tools_added=tuple(sorted(offered - before.tools)),
        tools_removed=tuple(sorted(before.tools - offered)),
    )
