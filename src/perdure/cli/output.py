"""Printing: one JSON document, JSON lines, `key: value` lines, or rows.

Rows are a table on a terminal and tab separated otherwise; everything else is the same in both.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol, TypeAlias

from perdure.cli.text import block, cell, one_line
from perdure.errors import BadRequest

Fields: TypeAlias = Iterable[tuple[str, Any]]

BOLD: Final = 1
DIM: Final = 2
_UNSAFE: Final = re.compile("[\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


class _Json(Protocol):
    @property
    def json(self) -> bool: ...


class _Jsonl(_Json, Protocol):
    @property
    def jsonl(self) -> bool: ...


def is_terminal() -> bool:
    """Tell whether a person reads what is printed."""
    return sys.stdout.isatty()


def styled(style: int, text: str) -> str:
    """Return text in a style of the terminal's, if one is there that has styles."""
    plain = not is_terminal() or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    return text if plain else f"\x1b[{style}m{text}\x1b[0m"


def as_json(value: Any, indent: int | None = None) -> str:
    """Return JSON text with no control character that a terminal would obey."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def print_document(document: Any) -> None:
    """Print one JSON document: on one line, unless a person reads it."""
    print(as_json(document, indent=2 if is_terminal() else None))


def print_line(document: Any) -> None:
    """Print one JSON document of many, on a line, at once."""
    print(as_json(document), flush=True)


def show(document: dict[str, Any], output: _Json, fields: Fields | None = None) -> None:
    """Print a document as JSON, or for people: its `fields`, which are those of the document if not given."""
    if output.json:
        print_document(document)
    else:
        print_fields(flat(document) if fields is None else fields)


def flat(document: dict[str, Any], prefix: str = "") -> Fields:
    """Yield a document's fields, those of an object inside it as `outer.inner`."""
    for name, value in document.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def print_fields(fields: Fields) -> None:
    """Print `key: value` lines. Text of several lines follows its key, indented; what is null is left out."""
    for key, value in fields:
        if value is None:
            continue
        lines = block(shown(value)).rstrip("\n").split("\n")
        if len(lines) > 1:
            print(f"{cell(key)}:", *(f"  {line}" for line in lines), sep="\n")
        else:
            print(f"{cell(key)}: {lines[0]}")


def shown(value: Any) -> str:
    """Return a value as people read it: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else as_json(value)


def show_rows(
    page: dict[str, Any], items: Iterable[Any], output: _Jsonl, columns: Sequence[str], rows: Iterable[Sequence[Any]]
) -> None:
    """Print many things: the page as one document, a document a line, or rows for people."""
    if check_rows(output).json:
        print_document(page)
    elif output.jsonl:
        for item in items:
            print_line(item)
    elif is_terminal():
        _print_table(columns, rows)
    else:
        for row in rows:
            print("\t".join(cell(shown("" if value is None else value)) for value in row))


def check_rows(output: _Jsonl) -> _Jsonl:
    """Return the output options; raises `BadRequest` for ones that exclude each other."""
    if output.json and output.jsonl:
        raise BadRequest("--json and --jsonl exclude each other: one document, or one a line.")
    return output


def _print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(one_line(shown("" if value is None else value))) for value in row))
    Console().print(table)


def progress(text: str) -> None:
    """Show a person how far something is, in place of what was shown before; nothing at its end."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{one_line(text)}")
        sys.stderr.flush()


def note(text: str) -> None:
    """Tell a person something that is no part of the output."""
    if sys.stderr.isatty():
        print(one_line(text), file=sys.stderr)
