"""Changes between two values of JSON data: small when little changed, exact always."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from perdure.chat.errors import DocumentRefused
from perdure.records import canonical

TAIL: Final = 50
_CELLS: Final = 64


def diff(old: Any, new: Any) -> list[dict[str, Any]]:
    """Return the changes that make `new` of `old`: `set` and `unset` of a key, `splice` of a list, whole `set`s.

    A change is `{"path": [key or place, …], …}`, applied in order.
    """
    return list(_diff(old, new, ()))


def _diff(old: Any, new: Any, path: tuple[str | int, ...]) -> Iterator[dict[str, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        yield from _diff_keys(old, new, path)
    elif isinstance(old, list) and isinstance(new, list):
        yield from _diff_items(old, new, path)
    elif not _same(old, new):
        yield {"path": list(path), "set": new}


def _diff_keys(old: dict[str, Any], new: dict[str, Any], path: tuple[str | int, ...]) -> Iterator[dict[str, Any]]:
    for key in old.keys() - new.keys():
        yield {"path": [*path, key], "unset": True}
    for key, value in new.items():
        if key in old:
            yield from _diff(old[key], value, (*path, key))
        else:
            yield {"path": [*path, key], "set": value}


def _diff_items(old: list[Any], new: list[Any], path: tuple[str | int, ...]) -> Iterator[dict[str, Any]]:
    head = 0
    while head < min(len(old), len(new)) and _same(old[head], new[head]):
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and _same(old[-1 - tail], new[-1 - tail]):
        tail += 1
    removed, added = old[head : len(old) - tail], new[head : len(new) - tail]
    if not removed and not added:
        return
    if len(removed) == len(added) <= _CELLS:
        for offset, (one, other) in enumerate(zip(removed, added, strict=True)):
            yield from _diff(one, other, (*path, head + offset))
    else:
        yield {"path": list(path), "splice": [head, len(removed), added]}


def _same(one: Any, other: Any) -> bool:
    """Tell whether two values are the same JSON: 1, 1.0 and true are three things."""
    return one is other or canonical.encode(one) == canonical.encode(other)


def apply(value: Any, changes: Iterable[dict[str, Any]], kind: str = "value") -> Any:
    """Return `value` with changes applied, itself unchanged; raises `DocumentRefused` for changes of another value."""
    current = canonical.decode(canonical.encode(value))
    try:
        for change in changes:
            current = _applied(current, change)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise DocumentRefused(kind, f"its changes do not fit its base ({type(error).__name__}: {error})") from None
    return current


def _applied(value: Any, change: dict[str, Any]) -> Any:
    path: Sequence[str | int] = change["path"]
    if not path:
        return change["set"] if "set" in change else _spliced(value, change["splice"])
    holder = value
    for step in path[:-1]:
        holder = holder[step]
    last = path[-1]
    if "unset" in change:
        del holder[last]
    elif "splice" in change:
        holder[last] = _spliced(holder[last], change["splice"])
    else:
        holder[last] = change["set"]
    return value


def _spliced(items: list[Any], splice: Sequence[Any]) -> list[Any]:
    start, removed, added = splice
    if start + removed > len(items):
        raise IndexError(f"{start + removed} of {len(items)}")
    return [*items[:start], *added, *items[start + removed :]]


def record(old: Any, new: Any, since_base: int) -> tuple[Any, list[dict[str, Any]] | None]:
    """Return what is stored for a new value: `(base, None)`, or `(None, changes)` when they are the smaller.

    `since_base` counts the changes stored since the last base; beyond 50 a base is due, so that reading a value never
    takes longer and longer. No changes at all are an empty list.
    """
    changes = diff(old, new)
    if changes and (since_base >= TAIL or len(canonical.encode(changes)) > len(canonical.encode(new)) // 2):
        return new, None
    return None, changes
