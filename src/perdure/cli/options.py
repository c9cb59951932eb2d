"""Options that many commands share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias

from cyclopts import Group, Parameter

_SERVER: Final = Group("Server", sort_key=1)
_OUTPUT: Final = Group("Output", sort_key=2)


@Parameter(name="*")
@dataclass(frozen=True)
class Server:
    """Which server a command speaks to, as whom, and in which scope."""

    api_url: Annotated[
        str | None,
        Parameter(
            name=("--api-url", "-a"),
            group=_SERVER,
            help="Address of the server. Else PERDURE_API_URL, the saved login, http://127.0.0.1:7373.",
        ),
    ] = None
    api_key: Annotated[
        str | None,
        Parameter(name="--api-key", group=_SERVER, help="API key. Else PERDURE_API_KEY, the saved login's."),
    ] = None
    project: Annotated[
        str | None,
        Parameter(name=("--project", "-p"), group=_SERVER, help="Project. Else that of ./perdure.toml, demo."),
    ] = None
    environment: Annotated[
        str | None, Parameter(name=("--env", "-e"), group=_SERVER, help="Environment. Else development.")
    ] = None


@Parameter(name="*")
@dataclass(frozen=True)
class Output:
    """How a command prints."""

    json: Annotated[
        bool, Parameter(name="--json", negative="", group=_OUTPUT, show_default=False, help="Print one JSON document.")
    ] = False


@Parameter(name="*")
@dataclass(frozen=True)
class Rows:
    """How a command prints many things."""

    json: Annotated[
        bool, Parameter(name="--json", negative="", group=_OUTPUT, show_default=False, help="Print one JSON document.")
    ] = False
    jsonl: Annotated[
        bool,
        Parameter(name="--jsonl", negative="", group=_OUTPUT, show_default=False, help="Print a JSON document a line."),
    ] = False


@Parameter(name="*")
@dataclass(frozen=True)
class InputOptions:
    """An input: text, or JSON, or a file of either."""

    text: Annotated[str | None, Parameter(name="--text", allow_leading_hyphen=True, help="Input text.")] = None
    json: Annotated[
        str | None,
        Parameter(
            name="--input-json",
            allow_leading_hyphen=True,
            help="JSON: a list of parts, a part, or any value, which becomes a JSON part. - is standard input.",
        ),
    ] = None
    file: Annotated[
        str | None,
        Parameter(
            name="--input-file",
            allow_leading_hyphen=True,
            help="A file: JSON as above if its name ends in .json, else text. - is text from standard input.",
        ),
    ] = None


HERE: Final = Server()
PLAIN: Final = Output()
TABLE: Final = Rows()
NO_INPUT: Final = InputOptions()

InSession: TypeAlias = Annotated[str, Parameter(name="--session", help="Id of the session.")]
IdempotencyKey: TypeAlias = Annotated[
    str | None,
    Parameter(
        name="--idempotency-key",
        help="Makes the command safe to repeat: with the same key, it is done once and its receipt comes again.",
    ),
]
Limit: TypeAlias = Annotated[int | None, Parameter(help="How many at most.")]
Cursor: TypeAlias = Annotated[str | None, Parameter(help="Where the last page ended: its next_cursor.")]
After: TypeAlias = Annotated[int, Parameter(help="Only what comes after this sequence number.")]
Flag: TypeAlias = Annotated[bool, Parameter(negative="", show_default=False)]
