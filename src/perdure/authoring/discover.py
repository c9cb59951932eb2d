"""Reading a project's definitions in a process of its own, so that no user code runs in a server that deploys it.

`python -m perdure.authoring.discover ROOT FOLDER` is that process: it writes its result as JSON to FOLDER/result.json
and, before each import, the file's name to FOLDER/importing. What user code prints goes to pipes that are only looked
at when something goes wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import re
import signal
import sys
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec

from perdure.errors import DiscoveryFailed, PerdureError, ProjectError, by_code
from perdure.records.definitions import AgentDefinition

TIMEOUT: Final = 60.0
RESULT_BYTES: Final = 64 * 1024 * 1024
_OUTPUT_KEPT: Final = 64 * 1024
_GRACE: Final = 1.0
_PASSED: Final = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV")


class Discovery(msgspec.Struct, frozen=True):
    """What a project defines: its name, where `perdure.toml` gives one, and its agents sorted by id."""

    project: str | None
    definitions: tuple[AgentDefinition, ...]


class _Failure(msgspec.Struct, frozen=True):
    code: str
    message: str
    details: dict[str, msgspec.Raw]


class _Result(msgspec.Struct, frozen=True):
    found: Discovery | None = None
    failure: _Failure | None = None


async def discover(path: str | Path, *, timeout: float = TIMEOUT, env: Mapping[str, str] | None = None) -> Discovery:
    """Import a project in another process and return its definitions.

    `timeout` is in seconds; cancelling ends the process too. `env` is the process's environment; without one it gets no
    more of this process's than what programs need to start, so that it sees no secrets.

    Raises what `load_project` raises, and `DiscoveryFailed` when the process hangs, crashes or ends itself.
    """
    root = await asyncio.to_thread(Path(path).resolve)
    with tempfile.TemporaryDirectory(prefix="perdure-discover-") as folder:
        ended = await _run(root, Path(folder), timeout, _environment(env))
        result = _read_result(Path(folder))
        if result is None:
            raise _crash(root, _importing(Path(folder)), ended, timeout)
    if result.failure:
        raise _raised(result.failure, os.environ.keys() if env is None else frozenset())
    assert result.found is not None
    return result.found


class _Ended(msgspec.Struct, frozen=True):
    """How the process ended; `code` is None when it had to be ended. `output` is the last that it printed."""

    code: int | None
    output: str


def _environment(env: Mapping[str, str] | None) -> dict[str, str]:
    given = {name: os.environ[name] for name in _PASSED if name in os.environ} if env is None else dict(env)
    return {**given, "PYTHONUNBUFFERED": "1"}


async def _run(root: Path, folder: Path, timeout: float, env: dict[str, str]) -> _Ended:
    command = (sys.executable, "-P", "-B", "-m", "perdure.authoring.discover", str(root), str(folder))
    reading, writing = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=writing, stderr=writing, env=env, start_new_session=True
        )
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    output = bytearray()
    draining = asyncio.create_task(_drain(reading, output))
    try:
        code = await _ended_within(process, timeout)
    finally:
        _end_group(process.pid)
        await process.wait()
        await _finish(draining)
    return _Ended(code, output.decode("utf-8", "replace"))


async def _ended_within(process: asyncio.subprocess.Process, timeout: float) -> int | None:
    """Return the exit code, or None after a process that took too long was asked where it is."""
    try:
        return await asyncio.wait_for(process.wait(), timeout)
    except TimeoutError:
        # faulthandler answers this signal with the stack, which tells the user where the import hangs.
        with contextlib.suppress(TimeoutError, ProcessLookupError):
            process.send_signal(signal.SIGABRT)
            await asyncio.wait_for(process.wait(), _GRACE)
        return None


def _end_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


async def _drain(reading: int, output: bytearray) -> None:
    """Read what the process prints, keeping the end of it."""
    stream = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(reading, "rb", 0)
    )
    try:
        while data := await stream.read(_OUTPUT_KEPT):
            output += data
            del output[:-_OUTPUT_KEPT]
    finally:
        transport.close()


async def _finish(draining: asyncio.Task[None]) -> None:
    # A grandchild in a session of its own may hold the pipe open for as long as it likes.
    await asyncio.wait([draining], timeout=_GRACE)
    draining.cancel()
    await asyncio.wait([draining])


def _read_result(folder: Path) -> _Result | None:
    path = folder / "result.json"
    if not path.exists():
        return None
    if path.stat().st_size > RESULT_BYTES:
        raise DiscoveryFailed(f"The project's definitions take more than {RESULT_BYTES} bytes. Nothing was deployed.")
    return msgspec.json.decode(path.read_bytes(), type=_Result)


def _importing(folder: Path) -> str:
    path = folder / "importing"
    return path.read_text("utf-8", "replace") if path.exists() else "its first file"


def _crash(root: Path, importing: str, ended: _Ended, timeout: float) -> DiscoveryFailed:
    base = root if root.is_dir() else root.parent
    _, died, dump = ended.output.rpartition("Fatal Python error")
    stack = re.search(rf'File "{re.escape(str(base))}/([^"\n]+)", line (\d+)', dump) if died else None
    at = f" at {stack[1]}, line {stack[2]}" if stack else ""
    if ended.code is None:
        what = f"took longer than {timeout:g} s{at} and was ended. A module that is imported must not wait or serve"
    elif ended.code < 0:
        what = f"was killed by {signal.Signals(-ended.code).name}{at}"
    else:
        what = f"ended by itself with exit code {ended.code}{at}, as os._exit() does"
    details = {"file": importing, "exit_code": ended.code, "output": ended.output[-4000:]}
    return DiscoveryFailed(f"Importing {importing} {what}. Nothing was deployed.", details)


def _raised(failure: _Failure, unseen: Collection[str]) -> PerdureError:
    kind = by_code().get(failure.code, ProjectError)
    error = kind.__new__(kind)
    details = {key: msgspec.json.decode(value) for key, value in failure.details.items()}
    PerdureError.__init__(error, failure.message + _hint(details, unseen), details)
    return error


def _hint(details: Mapping[str, Any], unseen: Collection[str]) -> str:
    """Explain a failure that speaks of a variable which this process has, and user code was not given."""
    named = [name for name in re.findall(r"[A-Z][A-Z0-9_]{2,}", str(details.get("error", ""))) if name in unseen]
    if not named or named[0] in _PASSED:
        return ""
    return (
        f". {named[0]} is set in this server's environment, which modules do not see while a deployment is made; read "
        "it in init or in a handler"
    )


def _report(folder: Path, result: _Result) -> NoReturn:
    """Leave the result and end without waiting for threads and exit handlers that user code started."""
    whole = folder / "result.tmp"
    whole.write_bytes(msgspec.json.encode(result))
    whole.rename(folder / "result.json")
    os._exit(0)


def _main(root: Path, folder: Path) -> NoReturn:
    from perdure.authoring.project import import_error, load_project

    os.chdir(root if root.is_dir() else root.parent)
    faulthandler.enable()
    sys.argv[:] = [""]
    stage = folder / "importing"
    try:
        project = load_project(root, exclusive=True, on_import=stage.write_text)  # type: ignore[arg-type]
    except PerdureError as error:
        failure = error
    except BaseException as error:
        failure = import_error(error, root, _importing(folder))
    else:
        _report(folder, _Result(found=Discovery(project.name, project.definitions)))
    details = {key: msgspec.Raw(msgspec.json.encode(value)) for key, value in failure.details.items()}
    _report(folder, _Result(failure=_Failure(failure.code, failure.message, details)))


if __name__ == "__main__":
    _main(Path(sys.argv[1]), Path(sys.argv[2]))
