"""One execution of a turn's handler: from its call to its settlement.

The order at the end is: check the result, close to new questions and messages, let started message handlers and writes
finish, then settle. A handler that leaves a question unjoined breaks its contract and fails the turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

from perdure.crashpoints import areach
from perdure.errors import (
    BadRequest,
    ContentTooLarge,
    MessageRejected,
    PerdureError,
    ResponseAlreadyStaged,
    StoreError,
    TurnNotRunning,
)
from perdure.hosts.context import Answer, AnswerControl, Message, MessageHandler, Option, Output, Turn, TurnContext
from perdure.hosts.failures import error_json
from perdure.hosts.journal import Journal
from perdure.hosts.protocol import (
    Answered,
    Begin,
    Deliver,
    Link,
    Live,
    MessageBegun,
    MessageDone,
    OpenMessages,
    Question,
    Raised,
    Request,
    Returned,
    Withdraw,
)
from perdure.hosts.protocol import Output as OutputRequest
from perdure.records import canonical
from perdure.records.content import ContentLike, decode_content, encode_content
from perdure.records.ids import new_id
from perdure.rules.answers import check_control

log = logging.getLogger("perdure.run")

RESULT_BYTES: Final = 1024 * 1024
_RETRY_FIRST: Final = 0.05
_RETRY_LONGEST: Final = 2.0
_FAILURES_BORNE: Final = 6

TurnHandler: TypeAlias = Callable[[Turn, Any], Awaitable[Any]]


def is_failure(error: BaseException, *, cancelled: bool, shared: bool) -> bool:
    """Whether what user code raised is a failure of its own, rather than the end of its task or its process.

    `cancelled` tells whether somebody else cancelled its task. Code that has its process to itself may end it; code
    that shares the worker's (`shared`) may not.
    """
    if isinstance(error, asyncio.CancelledError):
        return not cancelled
    return shared or not isinstance(error, SystemExit | KeyboardInterrupt)


def is_cancelled() -> bool:
    """Whether the present task was cancelled, and did not raise `CancelledError` by itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def call_surely(link: Link, request: Request) -> Any:
    """Send what must not get lost: again for as long as the store cannot take it, and some times after other failures.

    Raises refusals, and the last of too many failures.
    """
    delay, others = _RETRY_FIRST, 0
    while True:
        try:
            return await link.call(request)
        except Exception as error:
            others += not isinstance(error, StoreError)
            if is_refusal(error) or others >= _FAILURES_BORNE:
                raise
            log.warning("%s could not be reported yet: %s", type(request).__name__, error)
        await asyncio.sleep(delay)
        delay = min(delay * 2, _RETRY_LONGEST)


async def call_patiently(link: Link, request: Request) -> Any:
    """Send what user code waits for: again for as long as the store cannot take it, whose troubles are not its own.

    The same request again is known by its number or its id. Raises all other failures.
    """
    delay = _RETRY_FIRST
    while True:
        try:
            return await link.call(request)
        except StoreError as error:
            log.warning("%s has to wait: %s", type(request).__name__, error)
        await asyncio.sleep(delay)
        delay = min(delay * 2, _RETRY_LONGEST)


def is_refusal(error: BaseException) -> bool:
    """Whether an error is the driver's considered answer, rather than a failure of its own."""
    return isinstance(error, PerdureError) and error.status < 500


class TurnExecution:
    """The handler of one turn at work, and what it does through its `turn` object."""

    def __init__(self, begin: Begin, link: Link, *, shared: bool = False, resumes: bool = False) -> None:
        self.number: Final = begin.turn
        self._begin = begin
        self._link = link
        self._shared = shared
        self._op = 0
        self._response: bytes | None = None
        self._open = True
        self._writes = 0
        self._quiet: asyncio.Event | None = None
        self._questions: dict[str, asyncio.Future[Answered]] = {}
        self._message_handler: MessageHandler | None = None
        self._registration: asyncio.Task[None] | None = None
        self._messages: asyncio.Queue[Deliver] | None = None
        self._seen_messages: set[str] = set()
        self._courier: asyncio.Task[None] | None = None
        self._callback_error: BaseException | None = None
        self.stopped = False
        self.journal: Final = Journal(self) if resumes else None

    # --- the course of a turn

    async def run(self, handler: TurnHandler, context: TurnContext) -> None:
        """Call the handler and settle the turn. Cancelling this task stops the handler without settling."""
        try:
            settlement = await self._outcome(handler, context)
        finally:
            self._open = False
            await self._end_courier()
        await areach("runtime.settle.before", type(settlement).__name__)
        await call_surely(self._link, settlement)
        await areach("runtime.settle.after", type(settlement).__name__)

    async def _outcome(self, handler: TurnHandler, context: TurnContext) -> Returned | Raised:
        turn = Turn(
            self._begin.id,
            self.number,
            decode_content(self._begin.input_json),
            self._begin.created_at,
            Output(self),
            self,
        )
        try:
            await areach("runtime.handler.before")
            result = await handler(turn, context)
            await areach("runtime.handler.after")
            result_json = _encode_result(result)
            await self._drain()
            return Returned(self.number, result_json, self._response)
        except BaseException as error:
            if not is_failure(error, cancelled=self.stopped, shared=self._shared):
                raise
            log.exception("turn %s failed", self.number)
            return Raised(self.number, error_json(error))

    async def _drain(self) -> None:
        """Close the turn to new questions and messages, then wait for what was begun."""
        self._open = False
        if self._questions:
            raise BadRequest("The handler returned with an unjoined question; await every turn.ask.")
        if self._registration is not None:
            await self._registration
        await self._finish_messages()
        if self._writes:
            self._quiet = asyncio.Event()
            await self._quiet.wait()
        if self._callback_error is not None:
            raise self._callback_error

    async def report(self, request: Request) -> Any:
        """Have something of the journal committed, for as long as the turn runs."""
        self._check_running()
        return await call_surely(self._link, request)

    # --- output and response

    async def write(self, content: ContentLike) -> int:
        self._check_running()
        data = encode_content(content, "output")
        self._op += 1
        op = self._op
        await areach("runtime.output.before")
        self._writes += 1
        try:
            seq: int = await call_patiently(self._link, OutputRequest(self.number, op, data))
        finally:
            self._writes -= 1
            if not self._writes and self._quiet is not None:
                self._quiet.set()
        await areach("runtime.output.after")
        return seq

    async def write_live(self, slot: str, content: ContentLike) -> None:
        self._check_running()
        data = encode_content(content, "live content")
        await areach("runtime.live.before")
        await call_patiently(self._link, Live(self.number, slot, data))
        await areach("runtime.live.after")

    def respond(self, content: ContentLike) -> None:
        self._check_open()
        if self._response is not None:
            raise ResponseAlreadyStaged
        # No parts are an answer that says nothing, which is another thing than no answer.
        self._response = encode_content("" if content == [] else content, "response")

    def _check_running(self) -> None:
        if self.stopped:
            raise TurnNotRunning(self._begin.id)

    def _check_open(self) -> None:
        self._check_running()
        if not self._open:
            raise TurnNotRunning(self._begin.id)

    # --- questions

    async def ask(self, prompt: ContentLike, answer: AnswerControl) -> Answer:
        self._check_open()
        ask_id = new_id() if self.journal is None else await self.journal.ask_id()
        question = Question(self.number, ask_id, encode_content(prompt, "question"), control_json(answer))
        future: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        self._questions[ask_id] = future
        try:
            await areach("runtime.ask.before")
            await call_patiently(self._link, question)
            await areach("runtime.ask.asked")
            given = await future
            await areach("runtime.ask.after")
        except asyncio.CancelledError:
            await self._withdraw(ask_id)
            raise
        finally:
            self._questions.pop(ask_id, None)
        return _read_answer(given, self._begin.id)

    async def _withdraw(self, ask_id: str) -> None:
        """Take a question back before the cancellation goes on; after a stop its turn's end has cancelled it."""
        if not self.stopped:
            await areach("runtime.withdraw.before")
            await asyncio.shield(asyncio.ensure_future(call_patiently(self._link, Withdraw(self.number, ask_id))))
            await areach("runtime.withdraw.after")

    def answered(self, directive: Answered) -> None:
        """Give a question's answer to whoever waits for it."""
        future = self._questions.get(directive.ask_id)
        if future is not None and not future.done():
            future.set_result(directive)

    # --- steering messages

    def on_message(self, handler: MessageHandler) -> asyncio.Task[None]:
        self._check_open()
        if self._message_handler is not None:
            raise BadRequest("This turn has a message handler already; register one.")
        self._message_handler = handler
        self._messages = asyncio.Queue()
        self._courier = asyncio.create_task(self._carry_messages(self._messages))
        self._registration = asyncio.create_task(self._register())
        return self._registration

    async def _register(self) -> None:
        await areach("runtime.open_messages.before")
        await call_patiently(self._link, OpenMessages(self.number))
        await areach("runtime.open_messages.after")

    def deliver(self, directive: Deliver) -> None:
        """Queue a message for the handler; the same one again changes nothing."""
        if self._messages is not None and directive.message_id not in self._seen_messages:
            self._seen_messages.add(directive.message_id)
            self._messages.put_nowait(directive)

    async def _carry_messages(self, messages: asyncio.Queue[Deliver]) -> None:
        while True:
            directive = await messages.get()
            try:
                await self._hand_over(directive)
            finally:
                messages.task_done()

    async def _hand_over(self, directive: Deliver) -> None:
        assert self._message_handler is not None
        rejected: str | None = None
        try:
            await areach("runtime.message.before")
            await call_surely(self._link, MessageBegun(self.number, directive.message_id))
            await areach("runtime.message.started")
            await self._message_handler(Message(directive.message_id, decode_content(directive.content_json)))
        except MessageRejected:
            rejected = "message_rejected"
        except BaseException as error:
            if not is_failure(error, cancelled=is_cancelled(), shared=self._shared):
                raise
            log.exception("the message handler of turn %s failed", self.number)
            rejected, self._callback_error = "callback_failed", error
        try:
            await areach("runtime.message.after")
            await call_surely(self._link, MessageDone(self.number, directive.message_id, rejected))
            await areach("runtime.message.settled")
        except Exception as error:
            # Later messages are dealt with all the same, and the turn fails when its handler has returned.
            log.exception("the outcome of a message to turn %s could not be reported", self.number)
            self._callback_error = self._callback_error or error

    async def _finish_messages(self) -> None:
        """Let the messages that were taken be dealt with, unless dealing with one has failed."""
        if self._messages is not None and self._callback_error is None:
            await self._messages.join()

    async def _end_courier(self) -> None:
        if self._courier is not None:
            self._courier.cancel()
            await asyncio.wait([self._courier])


def control_json(control: AnswerControl) -> bytes:
    """Return an answer control as canonical JSON; raises `InvalidControl`."""
    if isinstance(control, str):
        return check_control({"type": control})
    if isinstance(control, Mapping):
        return check_control(dict(control))
    options = [option if isinstance(option, Option) else Option(option, option) for option in control]
    return check_control({"type": "choice", "options": [option.as_json() for option in options]})


def _read_answer(given: Answered, turn_id: str) -> Answer:
    if given.answer_json is None or given.responder is None:
        raise TurnNotRunning(turn_id)
    return Answer(canonical.decode(given.answer_json), given.responder.kind, given.responder.id)


def _encode_result(result: Any) -> bytes:
    data = canonical.encode(result, "result")
    if len(data) > RESULT_BYTES:
        raise ContentTooLarge("result", f"{len(data)} bytes", f"{RESULT_BYTES} bytes")
    return data
