"""A turn of the harness: what the loop decides is done here, one commit after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, Final, Literal

import msgspec

from perdure.chat import entries as e
from perdure.chat import loop, sections
from perdure.chat.calls import Runnable
from perdure.chat.compaction import summary_request, summary_text
from perdure.chat.context import Documents, SectionView, ToolContext
from perdure.chat.deltas import Delta, Draft
from perdure.chat.extensions import Assembly
from perdure.chat.failures import ModelFailed
from perdure.chat.hooks import AskFirst, Decline, Hooks, Report
from perdure.chat.journal import Batch, Intent, Journal, Question
from perdure.chat.messages import Translator
from perdure.chat.models import Generated, Options, generate
from perdure.chat.results import Finished, fail, stopped
from perdure.chat.tools import Tool
from perdure.chat.transcript import Transcript

LIVE_INTERVAL: Final = 0.1
LONG_WAIT: Final = 60 * 1_000_000
ANSWER: Final = "answer"


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent's definition says of its turns.

    `name` is the model's name as it was asked for, `interval` the seconds between two tellings of what is written,
    `grace` those that a cancelled tool has to let go. `hidden` tools are offered once a result has asked for it.
    """

    model: Any
    name: str
    assembly: Assembly
    options: Options = Options()
    policies: loop.Policies = loop.Policies()
    interval: float = LIVE_INTERVAL
    grace: float = 10
    hidden: frozenset[str] = frozenset()


class Outcome(msgspec.Struct, frozen=True):
    """How a turn ended, or that it waits: for an instant, or for a person, and needs no memory until then."""

    kind: Literal["answered", "failed", "aborted", "waiting"]
    answer: str | None = None
    reason: str | None = None
    until: int | None = None


class TurnRuntime:
    """Runs one turn from wherever its journal stands. What is not committed is lost with it, and does not matter."""

    def __init__(self, setup: Setup, journal: Journal, report: Report) -> None:
        self._setup, self._journal, self._report = setup, journal, report
        self._hooks = Hooks(setup.assembly.hooks, report)
        self._transcript = Transcript()
        self._translator = Translator()
        self._documents = Documents({})
        self._told = sections.Told()
        self._added: set[str] = set()
        self._committing = asyncio.Lock()
        self._started: dict[int, str] = {}
        self._arguments: dict[int, bytes] = {}
        self._parked: set[int] = set()
        self._output: dict[int, e.Content] = {}
        self._running: dict[int, asyncio.Task[Finished]] = {}
        self._calls: dict[int, Runnable] = {}
        self._stopping: set[int] = set()
        self._abandoned: set[asyncio.Task[Finished]] = set()
        self._summing: asyncio.Task[None] | None = None
        self._unsummed = False

    async def run(self) -> Outcome:
        """Go on with the turn until it ends or waits. A cancellation leaves it as it is committed."""
        try:
            await self._load()
            while True:
                await self._collect()
                for move in loop.next_moves(self._view(), self._offered(), self._setup.policies):
                    outcome = await self._make(move)
                    if outcome is not None:
                        return outcome
                    if isinstance(move, loop.Generate | loop.Wait | loop.Finish):
                        break
        finally:
            await self._let_go()

    async def _load(self) -> None:
        loaded = await self._journal.load()
        self._take(loaded.entries)
        self._documents = Documents(loaded.documents)
        self._started, self._arguments = dict(loaded.started), dict(loaded.arguments)
        self._parked, self._output = set(loaded.parked), dict(loaded.output)
        if loaded.draft:
            lost = self._entry(e.AssistantMessage, parts=loaded.draft, stop="lost", model=self._setup.name)
            await self._commit(Batch(entries=(lost,), clears=(ANSWER,)))

    async def _let_go(self) -> None:
        tasks = [*self._running.values(), *([self._summing] if self._summing else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _view(self) -> loop.View:
        answer = self._answer()
        verdicts = self._journal.verdicts(answer.id) if answer is not None else {}
        journal = loop.Round(self._started, frozenset(self._running), frozenset(self._parked), verdicts, self._output)
        return loop.View(
            self._transcript.entries,
            self._journal.turn,
            self._journal.now(),
            journal,
            aborted=self._journal.aborted,
            summing=self._summing is not None and not self._summing.done(),
            unsummed=self._unsummed,
        )

    def _answer(self) -> e.AssistantMessage | None:
        for entry in reversed(self._transcript.entries):
            if isinstance(entry, e.AssistantMessage) and entry.stop not in ("error", "lost"):
                return entry
        return None

    async def _make(self, move: loop.Move) -> Outcome | None:
        match move:
            case loop.Generate():
                await self._generate()
            case loop.Start(call, again):
                await self._start(call, again=again)
            case loop.Park(call):
                await self._park(call, None)
            case loop.Write(answers, slot, call, result):
                await self._end_call(answers, slot, call, result)
            case loop.Stop(slot):
                await self._stop(slot)
            case loop.Wait(until):
                return await self._wait(until)
            case loop.Summarise():
                await self._summarise(move)
            case loop.Finish():
                return await self._finish(move)
        return None

    # --- commits

    async def _commit(self, batch: Batch) -> None:
        async with self._committing:
            await self._journal.commit(batch)
            self._take(batch.entries)

    def _take(self, entries: Sequence[e.Entry]) -> None:
        self._transcript.add(*entries)
        for entry in entries:
            if isinstance(entry, e.SectionsChange):
                self._told = self._told.then(entry)
            elif isinstance(entry, e.ToolResult):
                self._added.update(entry.add_tools)

    def _entry(self, kind: type[Any], **fields: Any) -> Any:
        return kind(id=self._journal.new_id(), at=self._journal.now(), turn=self._journal.turn, **fields)

    def _steers(self) -> tuple[e.Steer, ...]:
        """Return the message that is placed now: one at a time, so that each gets its answer."""
        return tuple(self._journal.steers()[:1])

    # --- the model

    async def _generate(self) -> None:
        await self._tell()
        entry_id = self._journal.new_id()
        key = f"answer:{entry_id}"
        await self._commit(Batch(intents=(Intent(key, "model"),)))
        request = await self._hooks.before_request(self._sections(), self._transcript.request())
        live = _Live(self._journal, self._setup.interval)
        asked = generate(
            self._setup.model,
            request,
            tools=[tool.schema for tool in self._offered().values()],
            options=self._setup.options,
            listen=live.hear,
            translator=self._translator,
        )
        entry = await self._answered(asked, live, entry_id)
        steers = () if entry.calls or entry.stop != "answer" else self._steers()
        self._started, self._arguments, self._output = {}, {}, {}
        self._parked.clear()
        await self._commit(
            Batch(
                entries=(entry, *steers),
                ends=(key,),
                clears=(ANSWER,),
                placed=tuple(each.message or "" for each in steers),
            )
        )
        await self._hooks.after_response(self._sections(), entry)

    async def _answered(self, asked: Coroutine[Any, Any, Generated], live: _Live, entry_id: str) -> e.AssistantMessage:
        """Return the answer's entry: whole, failed, or as far as it came when a person stopped it."""
        at, name, turn = self._journal.now, self._setup.name, self._journal.turn
        generating = asyncio.create_task(asked)
        publishing = asyncio.create_task(live.publish())
        try:
            while not generating.done() and not self._journal.aborted:
                await self._until_something({generating, publishing}, None)
                if publishing.done():
                    publishing.result()  # a journal that takes no more: nothing of this turn counts any longer
            if generating.done():
                return generating.result().entry(entry_id, at(), name, turn)
            return e.AssistantMessage(
                id=entry_id, at=at(), turn=turn, parts=live.draft.parts(), stop="aborted", model=name
            )
        except ModelFailed as failed:
            return failed.entry(entry_id, at(), name, turn)
        finally:
            for task in (generating, publishing):
                task.cancel()
            await asyncio.wait([generating, publishing])

    async def _tell(self) -> None:
        """Commit what the system prompt says differently now."""
        rendered = await sections.render(self._setup.assembly.sections, self._sections(), self._told.sections)
        for key, why in rendered.failures.items():
            self._report(f"section {key}", RuntimeError(why))
        offered = self._offered()
        at, new_id = self._journal.now(), self._journal.new_id()
        change = sections.change(self._told, rendered.sections, offered, new_id, at)
        if change is not None:
            await self._commit(Batch(entries=(msgspec.structs.replace(change, turn=self._journal.turn),)))

    def _offered(self) -> dict[str, Tool]:
        """Return the tools that the model may call now; one that was added stays, also after a cut."""
        hidden = self._setup.hidden - self._told.tools - self._added
        return {name: tool for name, tool in self._setup.assembly.tools.items() if name not in hidden}

    def _sections(self) -> SectionView:
        return SectionView(self._documents)

    # --- tools

    async def _start(self, call: Runnable, *, again: bool) -> None:
        answer = self._answer()
        assert answer is not None
        key = f"call:{answer.id}:{call.slot}"
        if again:
            stored = self._arguments.get(call.slot, call.arguments.json)
            call = Runnable(call.slot, call.call, call.tool, call.tool.arguments(stored.decode()))
        else:
            judged = await self._hooks.before_tool(self._sections(), call)
            if isinstance(judged, Finished):
                await self._end_call(answer.id, call.slot, call.call, judged)
                return
            if isinstance(judged, Runnable):
                call = judged
            elif call.slot not in self._journal.verdicts(answer.id):
                await self._park(call, judged)
                return
            await self._commit(Batch(intents=(Intent(key, "tool", call.tool.replay, call.arguments.json),)))
        self._started[call.slot] = call.tool.replay
        self._calls[call.slot] = call
        context = ToolContext(self._journal, self._documents, self._commit, key)
        self._running[call.slot] = asyncio.create_task(self._run_tool(call, context))

    async def _run_tool(self, call: Runnable, context: ToolContext) -> Finished:
        try:
            return context.finish(await call.tool.run(context, call.arguments.values))
        except asyncio.CancelledError as error:
            if call.slot in self._stopping:
                return stopped("aborted", context.buffer.content(), context.kept_details)
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return fail(error, context.buffer.content())  # nobody asked for it but the tool itself
        except Exception as error:
            self._report(f"tool {call.tool.name}", error)
            return fail(error, context.buffer.content())

    async def _stop(self, slot: int) -> None:
        """Cancel a call. One that does not let go in time is left behind; its result is written without it."""
        answer = self._answer()
        assert answer is not None
        self._stopping.add(slot)
        self._running[slot].cancel()
        await asyncio.wait([self._running[slot]], timeout=self._setup.grace)
        if not self._running[slot].done():
            self._abandoned.add(self._running.pop(slot))
            self._report(f"tool {self._calls[slot].tool.name}", TimeoutError("it ignores that it was cancelled"))
            await self._end_call(answer.id, slot, self._calls[slot].call, stopped("aborted"))

    async def _park(self, call: Runnable, asks: AskFirst | None) -> None:
        answer = self._answer()
        assert answer is not None
        prompt = asks.prompt if asks is not None and asks.prompt else f"Allow the call of {call.tool.name}?"
        question = Question(answer.id, call.slot, prompt, call.tool.name, call.arguments.json)
        await self._commit(Batch(questions=(question,)))
        self._parked.add(call.slot)

    async def _collect(self) -> None:
        """Commit the results of calls that have ended."""
        answer = self._answer()
        for slot in [slot for slot, task in self._running.items() if task.done()]:
            assert answer is not None
            result = await self._hooks.after_tool(self._sections(), self._calls[slot], self._running[slot].result())
            await self._end_call(answer.id, slot, self._calls[slot].call, result)
            del self._running[slot]

    async def _end_call(self, answers: str, slot: int, call: e.ToolCall, result: Finished) -> None:
        entry = result.entry(self._journal.new_id(), self._journal.now(), answers, slot, call, turn=self._journal.turn)
        key = f"call:{answers}:{slot}"
        results = self._results(answers)
        answer = self._answer()
        is_last = answer is not None and len({*results, slot}) == len(answer.calls) and not self._journal.aborted
        steers = self._steers() if is_last else ()
        await self._commit(
            Batch(
                entries=(entry, *steers),
                ends=(key,),
                clears=(f"tool:{key}",),
                placed=tuple(each.message or "" for each in steers),
            )
        )
        if is_last:
            await self._hooks.after_tools(self._sections(), list(self._results(answers).values()))

    def _results(self, answers: str) -> dict[int, e.ToolResult]:
        found: dict[int, e.ToolResult] = {}
        for entry in reversed(self._transcript.entries):
            if isinstance(entry, e.ToolResult) and entry.answers == answers:
                found[entry.slot] = entry
            elif entry.id == answers:
                break
        return dict(sorted(found.items()))

    # --- waiting, summing up, ending

    async def _wait(self, until: int | None) -> Outcome | None:
        tasks = {*self._running.values()}
        if not tasks and (until is None or until - self._journal.now() > LONG_WAIT):
            return Outcome("waiting", until=until)
        await self._until_something(tasks, until)
        return None

    async def _until_something(self, tasks: Iterable[asyncio.Task[Any]], until: int | None) -> None:
        happening = asyncio.create_task(self._journal.happens(until))
        try:
            await asyncio.wait({*tasks, happening}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            happening.cancel()
            await asyncio.wait([happening])

    async def _summarise(self, move: loop.Summarise) -> None:
        said = await self._hooks.before_compact(self._sections(), move.through)
        if isinstance(said, Decline):
            self._unsummed = True
        elif isinstance(said, str):
            await self._put_summary(move, said, None)
        elif move.beside:
            self._summing = asyncio.create_task(self._write_summary(move))
        else:
            await self._write_summary(move)

    async def _write_summary(self, move: loop.Summarise) -> None:
        window = self._setup.policies.window
        limit = None if window is None else window - self._setup.policies.compaction.fitted(window).reserve
        options = msgspec.structs.replace(self._setup.options, cache=False)
        if window is not None:
            output = self._setup.policies.compaction.summary_output(window, options.max_output)
            options = msgspec.structs.replace(options, max_output=output)
        try:
            request = summary_request(self._transcript.entries, move.through, limit=limit)
            made: Generated | None = await generate(self._setup.model, request, options=options)
            assert made is not None
            text = summary_text(made.parts, made.stop)
        except ModelFailed as error:
            self._report("summary", error)
            made, text = error.generated, None
        if text is None:
            self._unsummed = True
        else:
            await self._put_summary(move, text, made)

    async def _put_summary(self, move: loop.Summarise, text: str, made: Generated | None) -> None:
        entry = self._entry(
            e.Summary,
            text=text,
            through=move.through,
            reason=move.reason,
            model=self._setup.name,
            usage=made.usage if made is not None else None,
        )
        await self._commit(Batch(entries=(entry,)))

    async def _finish(self, move: loop.Finish) -> Outcome | None:
        answer = self._answer()
        if move.outcome == "answered" and move.handoff is None and answer is not None and not answer.calls:
            more = await self._hooks.on_yield(self._sections(), answer)
            if more is not None:
                await self._commit(Batch(entries=(self._entry(e.Note, text=more),)))
                return None
        if self._summing is not None and not self._journal.aborted:
            await self._summing  # beside the work, and not beyond it
        if move.handoff is not None:
            await self._commit(Batch(entries=(self._entry(e.Reset, handoff=move.handoff),)))
        if move.outcome == "aborted":
            await self._hooks.on_abort(self._sections())
        return Outcome(move.outcome, move.answer, move.reason)


class _Live:
    """What is heard of an answer while it is written, told on at most every so often."""

    def __init__(self, journal: Journal, interval: float) -> None:
        self._journal, self._interval = journal, interval
        self._heard: list[Delta] = []
        self._something = asyncio.Event()
        self.draft = Draft()

    def hear(self, delta: Delta) -> None:
        self.draft.apply(delta)
        self._heard.append(delta)
        self._something.set()

    async def publish(self) -> None:
        """Tell on what is heard, until cancelled."""
        while True:
            await self._something.wait()
            self._something.clear()
            heard: Sequence[Delta] = self._heard
            self._heard = []
            await self._journal.grow(ANSWER, heard)
            await asyncio.sleep(self._interval)
