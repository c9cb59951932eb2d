"""Writes the pages of the reference that the code itself knows: `python -m docs.make_reference`.

The tests compare the pages with what this would write.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import perdure
from perdure import errors
from perdure.cli import main
from perdure.client import sync
from perdure.server.openapi import openapi_document
from perdure.server.operations import Operation
from perdure.server.table import OPERATIONS

HERE: Final = Path(__file__).parent / "reference"
MARK: Final = "<!-- From here on written by `python -m docs.make_reference`, which the tests compare. -->\n\n"


# --- the command line


def cli_page() -> str:
    """Return what the page on the command line says of each command: the help that it prints."""
    return "\n".join(_command_sections([]))


def _command_sections(words: list[str]) -> Iterator[str]:
    for name in _subcommands(_help(words)):
        inner = [*words, name]
        text = _help(inner)
        if _subcommands(text):
            yield from _command_sections(inner)
        else:
            yield _command_section(inner, text)


def _help(words: list[str]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), _environ(COLUMNS="1000"):
        code = main.run([*words, "--help"])
    if code != 0:
        raise RuntimeError(f"perdure {' '.join(words)} --help ended with {code}")
    return printed.getvalue()


@contextlib.contextmanager
def _environ(**variables: str) -> Iterator[None]:
    kept = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in kept.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _blocks(text: str) -> dict[str, list[str]]:
    """Return the titled lists of a help page: `Arguments`, `Parameters`, `Commands` …"""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if re.fullmatch(r"\w+:", line):
            lines = found.setdefault(line[:-1], [])
        elif line.startswith("  "):
            lines.append(line.strip())
    return found


def _subcommands(text: str) -> list[str]:
    return [re.split(r"[:\s]", line)[0] for line in _blocks(text).get("Commands", [])]


def _command_section(words: list[str], text: str) -> str:
    usage, _, rest = text.partition("\n\n")
    about = rest.partition("\n\n")[0].strip()
    blocks = _blocks(text)
    lines = [f"## perdure {' '.join(words)}", "", f"`{usage.removeprefix('Usage: ')}`", "", about, ""]
    for block in ("Arguments", "Parameters"):
        lines += [_option(line) for line in blocks.get(block, [])]
    common = ["the [server options](#server)"] if "Server" in blocks else []
    output = [line.split(":")[0] for line in blocks.get("Output", [])]
    if also := [*common, *(f"`{each}`" for each in output)]:
        lines.append(f"- and {', '.join(also)}.")
    return "\n".join(lines) + "\n"


def _option(line: str) -> str:
    name, _, about = line.partition(": ")
    return f"- `{name}`: {about}"


# --- errors


def errors_page() -> str:
    """Return the table of the page on errors: the classes that are raised."""
    lines = ["| code | status | class | raised when |", "| --- | --- | --- | --- |"]
    kinds = [kind for kind in errors.by_code().values() if kind.__module__.startswith("perdure.errors.")]
    lines += [_error_row(kind) for kind in sorted(kinds, key=lambda kind: (kind.status, kind.code))]
    return "\n".join(lines) + "\n"


def _error_row(kind: type[errors.PerdureError]) -> str:
    about = " ".join((kind.__doc__ or "").split())
    about = re.sub(r"^Raised when ", "", about)
    return f"| `{kind.code}` | {kind.status} | `{kind.__name__}` | {about} |"


# --- the HTTP API


def http_page() -> str:
    """Return what the page on the HTTP API says of each operation and document: what OpenAPI says."""
    described = openapi_document(OPERATIONS, "0")
    parts = []
    tag = ""
    for operation in sorted(OPERATIONS, key=lambda each: _TAGS.index(each.tag)):
        if operation.tag != tag:
            tag = operation.tag
            parts.append(f"## {tag.capitalize()}\n")
        parts.append(_operation_section(operation, described))
    parts.append("## Documents\n")
    parts += [_schema_section(name, each) for name, each in sorted(described["components"]["schemas"].items())]
    return "\n".join(parts)


_TAGS: Final = tuple(dict.fromkeys(operation.tag for operation in OPERATIONS))


def _operation_section(operation: Operation, described: dict[str, Any]) -> str:
    made = described["paths"][operation.path][operation.method.lower()]
    lines = [f"### {operation.method} {operation.path}", "", f"{made['summary']}.", ""]
    queries = [each for each in made["parameters"] if each["in"] != "path"]
    if queries:
        lines.append("- Query: " + ", ".join(_parameter(each) for each in queries))
    lines += [f"- Body: {_media(made['requestBody'])}"] if "requestBody" in made else []
    for status, answer in made["responses"].items():
        if int(status) < 300:
            lines.append(f"- {status}: {_media(answer)}")
    codes = sorted({(kind.status, kind.code) for kind in operation.errors})
    if codes:
        lines.append("- Errors of its own: " + ", ".join(f"`{code}` ({status})" for status, code in codes))
    return "\n".join(lines) + "\n"


def _parameter(each: dict[str, Any]) -> str:
    where = " (header)" if each["in"] == "header" else ""
    return f"`{each['name']}`{where}"


def _media(holder: dict[str, Any]) -> str:
    return ", ".join(
        _type(each["schema"]) if kind == "application/json" else f"`{kind}`" for kind, each in holder["content"].items()
    )


def _schema_section(name: str, schema: dict[str, Any]) -> str:
    lines = [f"### {name}", "", " ".join(schema.get("description", "").split()), ""]
    required = schema.get("required", [])
    for field, each in schema.get("properties", {}).items():
        optional = "" if field in required else ", may be absent"
        about = f": {each['description']}" if "description" in each else ""
        lines.append(f"- `{field}` ({_type(each)}{optional}){about}")
    if "properties" not in schema:
        lines.append(_type({key: value for key, value in schema.items() if key != "description"}))
    return "\n".join(lines) + "\n"


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices:
        return " or ".join(_type(each) for each in choices)
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return " or ".join(f"`{each}`" for each in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(schema.get("format") or schema.get("type") or "any JSON")


# --- Python


def python_page() -> str:
    """Return what the page on Python says of each public name: its signature and its docstring."""
    names = [name for name in perdure.__all__ if inspect.isclass(getattr(perdure, name))]
    sections = [_class_section(getattr(perdure, name)) for name in names if name not in _ELSEWHERE]
    handles = [(f"perdure.client.sync.{name}", getattr(sync, name)) for name in _HANDLES]
    return "\n".join([*sections, *(_class_section(kind, shown) for shown, kind in handles)])


_ELSEWHERE: Final = ("AsyncClient", "PerdureError", "MessageRejected")
_MADE_BY_USERS: Final = ("Agent", "Client", "Image", "JsonPart", "Option", "Template", "TextPart")
_HANDLES: Final = ("Agents", "AgentHandle", "Sessions", "SessionHandle", "TurnHandle", "AskHandle", "Deployments")


def _class_section(kind: type, shown: str = "") -> str:
    lines = [f"## {shown or f'perdure.{kind.__name__}'}", ""]
    lines += [f"`{kind.__name__}{_signature(kind)}`", ""] if kind.__name__ in _MADE_BY_USERS else []
    lines += [_doc(kind), ""]
    if dataclasses.is_dataclass(kind):
        fields = [f"`.{each.name}`" for each in dataclasses.fields(kind) if not each.name.startswith("_")]
        lines.append(f"- {', '.join(fields)}")
    for name, member in vars(kind).items():
        if name.startswith("_") and name != "__getitem__":
            continue
        if isinstance(member, property):
            lines.append(f"- `.{name}`: {_doc(member)}")
        elif inspect.isfunction(member):
            awaited = "await " if inspect.iscoroutinefunction(member) else ""
            called = f"[{_signature(member)[1:-1]}]" if name == "__getitem__" else f".{name}{_signature(member)}"
            lines.append(f"- `{awaited}{called}`: {_doc(member) or 'A handle, without asking whether there is one.'}")
    return "\n".join(lines) + "\n"


def _signature(called: Any) -> str:
    parameters = [
        each.replace(annotation=inspect.Parameter.empty)
        for name, each in inspect.signature(called).parameters.items()
        if name != "self" and not name.startswith("_")
    ]
    return str(inspect.Signature(parameters))


def _doc(thing: Any) -> str:
    lines = [line for line in (inspect.getdoc(thing) or "").splitlines() if ">>>" not in line]
    return " ".join(" ".join(lines).split())


PAGES: Final = {"cli.md": cli_page, "errors.md": errors_page, "http-api.md": http_page, "python.md": python_page}


def page(file: str) -> str:
    """Return a page of the reference as it should be: what a person has written, then what the code says."""
    written, _, _ = (HERE / file).read_text("utf-8").partition(MARK)
    return written + MARK + PAGES[file]()


if __name__ == "__main__":
    for each in PAGES:
        (HERE / each).write_text(page(each), "utf-8")
