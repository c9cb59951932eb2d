"""The tutorial as a story: what a user does, what is done to the machine meanwhile, and what must hold."""

from __future__ import annotations

import os
import signal
from typing import Any

from demo.stage import Stage
from demo.world import World, state_of

Document = dict[str, Any]


class Story:
    """One session from its first turn to its end."""

    def __init__(self, world: World, stage: Stage) -> None:
        self._world = world
        self._stage = stage
        self._session = ""
        self._last: Document = {}
        self._inputs: list[str] = []

    async def tell(self) -> None:
        """Tell all of it."""
        self._stage.title(
            "Perdure: a durable agent remembers",
            "A real server, a real process, real kills; the agent is demo/project/agents/assistant.py.",
        )
        await self._begins()
        await self._two_turns()
        await self._hibernation()
        await self._process_lost()
        await self._server_lost()
        await self._interrupt()
        await self._close()

    # --- scenes

    async def _begins(self) -> None:
        self._stage.scene(
            "Start", "Server and worker in one process, everything embedded, on a free port of 127.0.0.1."
        )
        await self._world.start()

    async def _two_turns(self) -> None:
        self._stage.scene(
            "Two turns", "`init` makes a live object once a process; each turn counts on it and writes to a file."
        )
        create = ["session", "create", "assistant", "--text", "first", "--key", "user:ada"]
        create += ["--idempotency-key", "tutorial:assistant:1"]
        receipt = await self._world.run(*create)
        self._session = receipt["session_id"]
        self._stage.answer(f"session_id: {self._session}\nturn_id: {receipt['turn_id']}")
        self._inputs.append("first")
        self._expect(await self._wait(receipt["turn_id"]), counter=1, started_as="initial")
        again = await self._world.run(*create)
        self._promise("The same command again gives the same receipt and starts nothing", again == receipt, str(again))
        second = await self._enqueue("second")
        self._expect(await self._wait(second), counter=2, started_as="initial")
        self._promise("The counter is a live object: `init` ran once", self._counter == 2, str(self._last))

    async def _hibernation(self) -> None:
        self._stage.scene(
            "Hibernation", "hibernate_after_idle is 1s here: leave the session alone, and its process is stopped."
        )
        events = await self._world.run("session", "events", self._session, "--limit", "1000")
        last = events["events"][-1]
        after = last["seq"] - (last["type"] == "session.hibernated")
        slept = await self._world.event(self._session, "session.hibernated", after=after)
        self._stage.happens(f"event {slept.seq}: session.hibernated")
        session = await self._world.run("session", "get", self._session)
        self._stage.answer(f"computer.residency: {session['computer']['residency']}")
        self._promise(
            "`session get` shows it hibernated", session["computer"]["residency"] == "hibernated", str(session)
        )
        self._promise("Its process is stopped, not ended", state_of(self._pid) == "T", f"state {state_of(self._pid)!r}")
        pid = self._pid
        self._expect(await self._wait(await self._enqueue("third")), counter=3, started_as="initial")
        self._promise("The next input wakes the same process, and its memory", self._pid == pid, str(self._last))

    async def _process_lost(self) -> None:
        self._stage.scene(
            "kill -9 of the session's process, in mid-turn",
            "It dies with a turn in its hands; another turn waits behind that one.",
        )
        running = await self._enqueue("think of something")
        await self._world.event(self._session, "turn.output", running)
        waiting = await self._enqueue("fifth")
        self._stage.happens(f"kill -9 {self._pid}   (the session's process)")
        os.kill(self._pid, signal.SIGKILL)
        lost = await self._wait(running)
        self._promise(
            "The turn is interrupted, and says why",
            (lost["status"], lost.get("reason")) == ("interrupted", "process_lost"),
            str(lost),
        )
        self._expect(await self._wait(waiting), counter=1, started_as="reconstructed")
        self._promise(
            "The queued turn ran in a new process, which knows that it is one", self._counter == 1, str(self._last)
        )
        self._promise("The file is kept, and the lost input was not run again", self._entries == 5, str(self._last))

    async def _server_lost(self) -> None:
        self._stage.scene(
            "kill -9 of the server, in mid-turn",
            "The session's process does not belong to the server: it waits for the next one.",
        )
        pid = self._pid
        running = await self._enqueue("think again")
        await self._world.event(self._session, "turn.output", running)
        await self._world.kill()
        self._promise("The session's process lives on without a server", state_of(pid) != "", "it is gone")
        seconds = await self._world.start()
        self._stage.happens(f"the server is back after {seconds:.1f} s and adopts the process")
        await self._world.run("session", "turn", "send", running, "--session", self._session, "--text", "go on")
        self._expect(await self._wait(running), counter=2, started_as="reconstructed")
        self._promise("The very turn that was running has completed", self._counter == 2, str(self._last))
        self._promise("In the same process, with the state of its `init`", self._pid == pid, str(self._last))

    async def _interrupt(self) -> None:
        self._stage.scene(
            "Interrupt, hold, resume",
            "Stop the running turn; what is queued waits until exactly this hold is released.",
        )
        pid, turns = self._pid, self._counter
        running = await self._enqueue("think for ever")
        await self._world.event(self._session, "turn.output", running)
        waiting = await self._enqueue("eighth")
        control = await self._world.run("session", "interrupt", self._session, "--reason", "enough of that")
        stopped = await self._wait(running)
        self._promise("The running turn is interrupted", stopped["status"] == "interrupted", str(stopped))
        session = await self._world.run("session", "get", self._session)
        holds = [hold["id"] for hold in session["holds"]]
        self._stage.answer(f"holds: {len(holds)}, queued: {session['queued']}")
        self._promise(
            "The session is held, and the next turn waits",
            holds == [control["hold_id"]] and session["queued"] == 1,
            str(session),
        )
        await self._world.run("session", "resume", self._session, "--hold", control["hold_id"])
        self._expect(await self._wait(waiting), counter=turns + 2, started_as="reconstructed")
        kept = (self._pid, self._counter) == (pid, turns + 2)
        self._promise("The process let go of the turn and kept the state of its `init`", kept, str(self._last))

    async def _close(self) -> None:
        self._stage.scene(
            "Close", "Finish what was accepted, then end. The log says all that happened, once and in order."
        )
        pid = self._pid
        await self._world.run("session", "close", self._session)
        await self._world.event(self._session, "session.closed")
        code, said = await self._world.run_refused("session", "enqueue", self._session, "--text", "too late")
        self._stage.answer(said)
        self._promise(
            "A closed session takes nothing new: one line, exit code 1", code == 1 and said.count("\n") == 0, said
        )
        await self._check_log()
        code = await self._world.stop()
        self._promise("The server stops when asked, with exit code 0", code == 0, f"exit code {code}")
        self._promise("The session's process has ended with its session", state_of(pid) == "", f"process {pid} lives")

    async def _check_log(self) -> None:
        turns = (await self._world.run("session", "turn", "list", self._session))["turns"]
        self._stage.table(["#", "INPUT", "STATUS", "OUTCOME"], [_row(turn) for turn in turns])
        events = (await self._world.run("session", "events", self._session, "--limit", "1000"))["events"]
        numbers = [event["seq"] for event in events]
        self._promise(
            f"The log has no gap: events 1 to {len(numbers)}", numbers == list(range(1, len(numbers) + 1)), str(numbers)
        )
        starts = [event["turn_id"] for event in events if event["type"] == "turn.running"]
        self._promise(
            "Every input was accepted once and started once",
            sorted(starts) == sorted(turn["id"] for turn in turns),
            str(starts),
        )
        file = next(self._world.data.glob("computers/*/workspace/log.txt")).read_text()
        expected = "".join(f"{number}: {text}\n" for number, text in enumerate(self._inputs, 1))
        self._promise("The file on the Computer's disk has each input once, in order", file == expected, file)

    # --- pieces

    async def _enqueue(self, text: str) -> str:
        self._inputs.append(text)
        key = f"tutorial:assistant:{len(self._inputs)}"
        receipt = await self._world.run("session", "enqueue", self._session, "--text", text, "--idempotency-key", key)
        return str(receipt["turn_id"])

    async def _wait(self, turn: str) -> Document:
        words = ("session", "turn", "wait", turn, "--session", self._session, "--timeout", "30s")
        found: Document = (await self._world.run(*words))["turn"]
        self._stage.answer(_outcome(found))
        if found["status"] == "completed":
            self._last = found["result"]
        return found

    def _expect(self, turn: Document, *, counter: int, started_as: str) -> None:
        """Hold a completed turn against what the tutorial says of it."""
        found = (turn["status"], self._counter, self._entries, self._last.get("started_as"))
        if found != ("completed", counter, len(self._inputs), started_as):
            expected = f"turn {counter} of a process that is {started_as}, with {len(self._inputs)} log entries"
            self._promise(f"The turn is {expected}", False, str(turn))

    def _promise(self, text: str, held: bool, instead: str) -> None:
        self._stage.promise(text, held, instead)

    @property
    def _counter(self) -> int:
        return int(self._last["turns_in_process"])

    @property
    def _entries(self) -> int:
        return int(self._last["log_entries"])

    @property
    def _pid(self) -> int:
        return int(self._last["pid"])


def _outcome(turn: Document) -> str:
    if turn["status"] == "completed":
        said = "".join(part.get("text", "") for part in turn["response"])
        return f"completed: {said} started_as {turn['result']['started_as']}"
    return f"{turn['status']}: {turn.get('reason', '')}"


def _row(turn: Document) -> list[str]:
    said = "".join(part["text"] for part in turn["input"])
    return [str(turn["sequence"]), said, turn["status"], _outcome(turn).partition(": ")[2]]
