"""What the tests of the process host share: a project, a driver that takes notes, and a clean end."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from perdure.authoring.project import load_project
from perdure.computers.identity import ProcessIdentity, identify, read_stat, send_signal
from perdure.computers.tree import MARK, process_table
from perdure.hosts.process.host import ProcessHost
from perdure.hosts.process.remote import RemoteGuest
from perdure.hosts.protocol import Begin, Ready, Request, RunSpec
from perdure.records.ids import new_id

PATIENCE = 10.0

PROJECT = '''
import asyncio, json, logging, os, random, subprocess, sys, time, uuid
import perdure
import uuid_utils

log = logging.getLogger("project")
template = perdure.Template(
    "small", image=perdure.Image("base").from_("python:3.12-slim"), cpu=1, memory="256MiB",
    env={"COLOUR": "blue"}, pass_env=["PASSED"],
)
agent = perdure.Agent("worker", template=template)

@agent.init
async def init(ctx):
    print("init on stdout")
    print("init on stderr", file=sys.stderr)
    log.info("init in a log")
    with open("inits", "a") as file:
        file.write("x")
    return {"turns": 0}

@agent.turn
async def turn(turn, ctx):
    state = ctx.init_result
    state["turns"] += 1
    command, _, argument = turn.text.partition(" ")
    with open("handlers", "a") as file:
        file.write(f"{turn.sequence}\\n")
    return await COMMANDS[command](turn, state, argument)

async def count(turn, state, argument):
    await turn.output.write(argument)
    return state["turns"]

async def describe(turn, state, argument):
    return {
        "cwd": os.getcwd(), "environ": dict(os.environ), "pid": os.getpid(), "sid": os.getsid(0),
        "fds": sorted(os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if int(fd) > 2
                      and os.path.exists(f"/proc/self/fd/{fd}")),
        "stdin": os.readlink("/proc/self/fd/0"), "stdout": os.readlink("/proc/self/fd/1"),
        "random": [random.random(), str(uuid.uuid4()), str(uuid_utils.uuid7())[14:]],
    }

async def family(turn, state, argument):
    """Start a counting child, one in a session of its own, and an orphaned daemon that never execs."""
    child = subprocess.Popen(["sh", "-c", "n=0; while :; do n=$((n+1)); echo $n > counted; sleep 0.002; done"])
    apart = subprocess.Popen(["sleep", "600"], start_new_session=True)
    down, up = os.pipe()
    middle = os.fork()
    if middle == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(up, b"%d" % os.getpid())
            time.sleep(600)
        os._exit(0)
    os.waitpid(middle, 0)
    daemon = int(os.read(down, 20))
    return [child.pid, apart.pid, daemon]

async def wait(turn, state, argument):
    await turn.output.write("waiting")
    while not os.path.exists(argument):
        await asyncio.sleep(0.005)
    await turn.output.write("went on")
    return state["turns"]

async def leave(turn, state, argument):
    os._exit(int(argument))

async def exit(turn, state, argument):
    sys.exit(int(argument))

async def hog(turn, state, argument):
    return len(bytearray(512 << 20))

async def blow(turn, state, argument):
    raise ValueError("on purpose")

async def last_words(turn, state, argument):
    asyncio.get_running_loop().call_later(0.02, os._exit, 0)
    return "said"

async def write(turn, state, argument):
    try:
        await turn.output.write("x")
    except perdure.PerdureError as error:
        return [type(error).__name__, error.code, error.message, error.details]

async def block(turn, state, argument):
    open("blocking", "w").close()
    time.sleep(float(argument))
    return "unblocked"

COMMANDS = {name: value for name, value in globals().items() if asyncio.iscoroutinefunction(value)}
'''


class Notes:
    """A driver that notes what it is asked and answers it."""

    def __init__(self, answer: Callable[[Request], Any] = lambda _: 1) -> None:
        self.requests: list[Request] = []
        self.reasons: list[str] = []
        self.answer = answer
        self._changed = asyncio.Condition()

    async def handle(self, request: Request) -> Any:
        self.requests.append(request)
        async with self._changed:
            self._changed.notify_all()
        answer = self.answer(request)
        return await answer if asyncio.iscoroutine(answer) else answer

    def lost(self, reason: str) -> None:
        self.reasons.append(reason)
        asyncio.get_running_loop().create_task(self._wake())

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def of(self, kind: type[Request]) -> list[Any]:
        return [request for request in self.requests if isinstance(request, kind)]

    async def until(self, kind: type[Request], count: int = 1) -> Any:
        """Wait for the request of that kind with that number and return it."""
        async with asyncio.timeout(20), self._changed:
            await self._changed.wait_for(lambda: len(self.of(kind)) >= count)
        return self.of(kind)[count - 1]

    async def until_lost(self) -> str:
        async with asyncio.timeout(20), self._changed:
            await self._changed.wait_for(lambda: bool(self.reasons))
        return self.reasons[0]


class Stage:
    """A folder with a project, and hosts on it."""

    def __init__(self, root: Path, source: str = PROJECT) -> None:
        self.root = root
        self.project = root / "project"
        (self.project / "agents").mkdir(parents=True)
        (self.project / "agents" / "worker.py").write_text(source)
        self.definition = load_project(self.project).definitions[0] if source == PROJECT else None

    def host(self, patience: float = PATIENCE) -> ProcessHost:
        return ProcessHost(self.root / "computers", self.root / "servers", patience=patience)

    def spec(self, **changes: Any) -> RunSpec:
        computer_id = new_id()
        plain: dict[str, Any] = {
            "session_id": new_id(),
            "run_id": new_id(),
            "number": 1,
            "agent": self.definition,
            "deployment_id": "deployment-1",
            "source": str(self.project),
            "log_path": str(self.root / f"{computer_id}.log"),
            "epoch": 1,
            "recovery": "initial",
            "computer_id": computer_id,
            "computer_path": str(self.root / "computers" / computer_id),
        }
        return RunSpec(**{**plain, **changes})

    def workspace(self, spec: RunSpec) -> Path:
        return Path(str(spec.computer_path)) / "workspace"

    def end_everything(self) -> None:
        """Kill what still runs out of this folder; tests that fail must leave nothing behind."""
        for pid in process_table():
            if pid != os.getpid() and str(self.root) in _seen(pid) and (identity := identify(pid)):
                send_signal(identity, signal.SIGKILL)

    def servers(self) -> list[int]:
        """Return the pids of living fork servers of this folder."""
        forked = self._forked()
        # What was forked a moment ago does not have its name yet, but it has a parent.
        return [pid for pid in forked if _comm(pid).startswith("python") and _parent(pid) not in forked]

    def spares(self) -> list[ProcessIdentity]:
        """Return the processes that wait to become a session's."""
        waiting = [pid for pid in self._forked() if _comm(pid) == "perdure-guest" and f"{MARK}=---" in _seen(pid)]
        return [identity for pid in waiting if (identity := identify(pid))]

    def _forked(self) -> list[int]:
        return [pid for pid in process_table() if f"forkserver\0{self.project}\0" in _seen(pid)]


def _parent(pid: int) -> int | None:
    stat = read_stat(pid)
    return stat.parent if stat else None


def _comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _seen(pid: int) -> str:
    parts = []
    for name in ("cmdline", "environ"):
        try:
            parts.append(Path(f"/proc/{pid}/{name}").read_text(errors="replace"))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return "".join(parts)


def begin(number: int, text: str) -> Begin:
    return Begin(number, new_id(), msgspec.json.encode([{"type": "text", "text": text}]), 0)


@asynccontextmanager
async def running(stage: Stage, **changes: Any) -> AsyncIterator[tuple[RemoteGuest, Notes, RunSpec]]:
    """Start a session's process on a host of its own, wait for its `init`, and end both after."""
    host, notes, spec = stage.host(), Notes(), stage.spec(**changes)
    guest = await host.start(spec, notes)
    try:
        await notes.until(Ready)
        yield guest, notes, spec
    finally:
        await guest.stop(grace=0)
        await host.close()
