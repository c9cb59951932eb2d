"""What the processes of `perdure dev`, `serve` and `worker` have in common: their loop, their stdout, their signals."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any, Final, TextIO, TypeAlias

import msgspec

Say: TypeAlias = Callable[..., None]
"""Says what happens: called with the name of an event, a text for people, and fields for programs."""

_AT_ONCE: Final = 130


def run_process(main: Callable[[Say], Coroutine[Any, Any, None]], *, json: bool) -> None:
    """Run `main` in a loop of its own until it ends. What it says are lines of text, or with `json` JSON documents.

    Meanwhile stdout is for what is said; what modules and child processes of user code print goes to stderr.
    """
    with _own_stdout() as out, _loop_runner() as runner:
        runner.run(main(partial(_say_json if json else _say_text, out)))


@contextlib.contextmanager
def _own_stdout() -> Iterator[TextIO]:
    sys.stdout.flush()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # As stderr is: what is printed is to be seen at once.
        sys.stdout.reconfigure(line_buffering=True)
    ours = os.dup(1)
    try:
        os.dup2(2, 1)
        with open(os.dup(ours), "w", encoding="utf-8", errors="replace") as out:
            yield out
    finally:
        os.dup2(ours, 1)
        os.close(ours)


def _loop_runner() -> asyncio.Runner:
    if sys.platform == "win32":
        return asyncio.Runner()
    import uvloop

    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


def stop_on_signals() -> asyncio.Event:
    """Return what is set at the first SIGINT or SIGTERM; the second one ends the process at once."""
    stop = asyncio.Event()

    def heard() -> None:
        if stop.is_set():
            # Somebody does not want to wait. It is as safe as kill -9: the next start settles what ran.
            os._exit(_AT_ONCE)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, heard)
    return stop


async def end_task(task: asyncio.Task[None] | None) -> None:
    """Cancel a task, if there is one, and wait until it has let go."""
    if task is not None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def _say_text(out: TextIO, _event: str, text: str, **_fields: Any) -> None:
    print(text, file=out, flush=True)


def _say_json(out: TextIO, event: str, _text: str, **fields: Any) -> None:
    print(msgspec.json.encode({"event": event, **fields}).decode(), file=out, flush=True)
