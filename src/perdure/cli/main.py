"""The entry point: what every command has in common, from its arguments to its exit code.

Exit codes: 0 done (a wait that timed out included), 1 an error, told in one line on stderr, 130 interrupted. Commands
that examine something end with codes of their own.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from typing import Final

from perdure.errors import PerdureError

FAILED: Final = 1
INTERRUPTED: Final = 130
_READER_GONE: Final = 141


def main() -> None:
    """Run the command line with the process's arguments, and end the process."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code."""
    _speak_utf8()
    try:
        code = _dispatch(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has left; nothing more may be written to it, not even by the interpreter's exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _READER_GONE
    except PerdureError as error:
        return _fail(f"{error.message} ({error.code})")
    except OSError as error:
        return _fail(_told(error))
    return code


def _dispatch(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] in ("--help", "-h", "help"):
        from perdure.cli.commands import overview

        sys.stdout.write(overview())
        return 0
    given = ["version"] if list(arguments) == ["--version"] else list(arguments)
    from cyclopts import CycloptsError

    from perdure.cli.commands import make_app

    try:
        code = make_app()(given)
    except CycloptsError as error:
        raise _Usage(str(error)) from error
    return code if isinstance(code, int) else 0


class _Usage(PerdureError):
    """Raised when a command line cannot be understood."""

    code = "usage"
    status = 400


def _speak_utf8() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="replace")


def _fail(message: str) -> int:
    """Print an error as one line, whatever it holds."""
    from perdure.cli.text import one_line

    print(f"error: {one_line(message)}", file=sys.stderr)
    return FAILED


def _told(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}"


if __name__ == "__main__":
    main()
