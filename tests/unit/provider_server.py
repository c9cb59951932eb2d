"""A server on the loopback that answers as a provider of models would: byte by byte as a test says.

It knows the three streaming protocols, checks each request by the rules of its protocol as the real ones do, and can
break off anywhere.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.unit.provider_rules import broken_wire_rules


@dataclass
class Asked:
    """A request that came in."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass
class Stream:
    """A stream of server-sent events. `end` is how it ends: properly, torn, or not at all."""

    pieces: Sequence[bytes]
    end: Literal["close", "abort", "hang"] = "close"
    gates: dict[int, asyncio.Event] = field(default_factory=dict)


@dataclass
class Refusal:
    """An answer that is no stream."""

    status: int
    body: Any
    headers: dict[str, str] = field(default_factory=dict)


Answer = Stream | Refusal


class Provider:
    """What the server was asked, and what it will answer, in order; the last answer is given for ever."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.answers: deque[Answer] = deque()
        self.url = ""
        self.closed = asyncio.Event()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (asked := await _read(reader)) is not None:
                self.asked.append(asked)
                await self._answer(asked, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.closed.set()
            writer.close()

    async def _answer(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        broken = broken_wire_rules(asked.path, asked.body)
        if broken:
            await _refuse(writer, Refusal(400, _invalid(asked.path, "; ".join(broken))))
            return
        answer = self.answers.popleft() if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Refusal):
            await _refuse(writer, answer)
        else:
            await _stream(writer, answer)


async def _read(reader: asyncio.StreamReader) -> Asked | None:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Asked(first.split(" ")[1].partition("?")[0], headers, json.loads(body))


async def _refuse(writer: asyncio.StreamWriter, refusal: Refusal) -> None:
    body = json.dumps(refusal.body).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **refusal.headers}
    writer.write(_head(refusal.status, headers) + body)
    await writer.drain()


async def _stream(writer: asyncio.StreamWriter, stream: Stream) -> None:
    writer.write(_head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"}))
    for number, piece in enumerate(stream.pieces):
        if number in stream.gates:
            await writer.drain()
            await stream.gates[number].wait()
        writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        await writer.drain()
    if stream.end == "hang":
        await asyncio.Event().wait()
    if stream.end == "abort":
        writer.close()
        raise ConnectionResetError
    writer.write(b"0\r\n\r\n")
    await writer.drain()


def _head(status: int, headers: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} X", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode()


def _invalid(path: str, message: str) -> Any:
    if path.endswith("/messages"):
        return {"type": "error", "error": {"type": "invalid_request_error", "message": message}}
    return {"error": {"type": "invalid_request_error", "code": "invalid_value", "message": message, "param": None}}


@asynccontextmanager
async def provider() -> AsyncIterator[Provider]:
    """Serve a provider on the loopback."""
    served = Provider()
    tasks: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await served.handle(reader, writer)
        except asyncio.CancelledError:
            writer.transport.abort()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    served.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield served
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# --- what the protocols say


def sse(value: Any, event: str | None = None) -> bytes:
    """Return one server-sent event."""
    name = f"event: {event}\n" if event else ""
    return f"{name}data: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}\n\n".encode()


def anthropic(*blocks: dict[str, Any], stop: str | None = "end_turn", pieces: int = 4) -> list[bytes]:
    """Return the events of a message of Anthropic's; each block's text goes in so many pieces."""
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-opus-5-5",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 100, "output_tokens": 1, "cache_read_input_tokens": 40},
    }
    events: list[dict[str, Any]] = [{"type": "message_start", "message": message}, {"type": "ping"}]
    for index, block in enumerate(blocks):
        events += _anthropic_block(index, block, pieces)
    if stop is not None:
        delta = {"stop_reason": stop, "stop_sequence": None}
        events.append({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 25}})
        events.append({"type": "message_stop"})
    return [sse(event, event["type"]) for event in events]


def _anthropic_block(index: int, block: dict[str, Any], pieces: int) -> list[dict[str, Any]]:
    kind = block["type"]
    if kind == "text":
        begin, field_name, delta, text = {**block, "text": ""}, "text", "text_delta", block["text"]
    elif kind == "thinking":
        begin, field_name, delta, text = (
            {**block, "thinking": "", "signature": ""},
            "thinking",
            "thinking_delta",
            block["thinking"],
        )
    else:
        begin, field_name, delta, text = {**block, "input": {}}, "partial_json", "input_json_delta", block["input"]
    events: list[dict[str, Any]] = [{"type": "content_block_start", "index": index, "content_block": begin}]
    changes = [{"type": delta, field_name: piece} for piece in _pieces(text, pieces)]
    if kind == "thinking":
        changes.append({"type": "signature_delta", "signature": block["signature"]})
    events += [{"type": "content_block_delta", "index": index, "delta": change} for change in changes]
    return [*events, {"type": "content_block_stop", "index": index}]


def openai_chat(
    text: str = "", calls: Sequence[tuple[str, str, str]] = (), stop: str | None = None, pieces: int = 4
) -> list[bytes]:
    """Return the chunks of a chat completion; calls are (id, name, arguments)."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": piece} for piece in _pieces(text, pieces)]
    for index, (call_id, name, arguments) in enumerate(calls):
        begun = {"index": index, "id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}
        deltas.append({"tool_calls": [begun]})
        deltas += [
            {"tool_calls": [{"index": index, "function": {"arguments": piece}}]} for piece in _pieces(arguments, pieces)
        ]
    chunks = [_chunk([{"index": 0, "delta": delta, "finish_reason": None}]) for delta in deltas]
    chunks.append(_chunk([{"index": 0, "delta": {}, "finish_reason": stop or ("tool_calls" if calls else "stop")}]))
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 25,
        "total_tokens": 125,
        "prompt_tokens_details": {"cached_tokens": 40},
    }
    chunks.append({**_chunk([]), "usage": usage})
    return [*(sse(chunk) for chunk in chunks), sse("[DONE]")]


def _chunk(choices: list[Any]) -> dict[str, Any]:
    return {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-5", "choices": choices}


def openai_responses(*items: dict[str, Any], status: str = "completed", pieces: int = 4) -> list[bytes]:
    """Return the events of a response; items are those of its output, whole."""
    events: list[dict[str, Any]] = [{"type": "response.created", "response": _response([], "in_progress")}]
    for index, item in enumerate(items):
        events += _item_events(index, item, pieces)
    final = _response(list(items), status)
    if status == "incomplete":
        final["incomplete_details"] = {"reason": "max_output_tokens"}
    events.append({"type": f"response.{status}", "response": final})
    return [sse({**event, "sequence_number": n}, event["type"]) for n, event in enumerate(events)]


def _item_events(index: int, item: dict[str, Any], pieces: int) -> list[dict[str, Any]]:
    place = {"output_index": index, "item_id": item["id"]}
    begun = {"type": "response.output_item.added", "output_index": index}
    ended = {"type": "response.output_item.done", "output_index": index, "item": item}
    if item["type"] == "message":
        text = item["content"][0]["text"]
        part = {"type": "output_text", "text": "", "annotations": []}
        return [
            {**begun, "item": {**item, "content": [], "status": "in_progress"}},
            {"type": "response.content_part.added", **place, "content_index": 0, "part": part},
            *(
                {"type": "response.output_text.delta", **place, "content_index": 0, "delta": piece, "logprobs": []}
                for piece in _pieces(text, pieces)
            ),
            {"type": "response.output_text.done", **place, "content_index": 0, "text": text, "logprobs": []},
            ended,
        ]
    if item["type"] == "function_call":
        return [
            {**begun, "item": {**item, "arguments": "", "status": "in_progress"}},
            *(
                {"type": "response.function_call_arguments.delta", **place, "delta": piece}
                for piece in _pieces(item["arguments"], pieces)
            ),
            {"type": "response.function_call_arguments.done", **place, "arguments": item["arguments"]},
            ended,
        ]
    return [{**begun, "item": {**item, "encrypted_content": None}}, ended]


def _response(output: list[Any], status: str) -> dict[str, Any]:
    usage = {
        "input_tokens": 100,
        "output_tokens": 25,
        "total_tokens": 125,
        "input_tokens_details": {"cached_tokens": 40},
        "output_tokens_details": {"reasoning_tokens": 7},
    }
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "gpt-5",
        "output": output,
        "status": status,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": usage if status != "in_progress" else None,
    }


def google(
    text: str = "", calls: Sequence[tuple[str, str, str]] = (), stop: str | None = "STOP", pieces: int = 4
) -> list[bytes]:
    """Return the chunks of a response of Google's; calls are (id, name, arguments) and come whole."""
    parts: list[dict[str, Any]] = [{"text": piece} for piece in _pieces(text, pieces)]
    for call_id, name, arguments in calls:
        parts.append({"functionCall": {"id": call_id, "name": name, "args": json.loads(arguments)}})
    usage = {"promptTokenCount": 100, "candidatesTokenCount": 25, "totalTokenCount": 125, "cachedContentTokenCount": 40}
    chunks = []
    for number, part in enumerate(parts, 1):
        candidate: dict[str, Any] = {"index": 0, "content": {"role": "model", "parts": [part]}}
        if number == len(parts) and stop is not None:
            candidate["finishReason"] = stop
        chunks.append({"candidates": [candidate], "usageMetadata": usage, "modelVersion": "gemini-2.5-pro"})
    return [sse(chunk) for chunk in chunks]


def _pieces(text: str, number: int) -> list[str]:
    size = max(1, -(-len(text) // number))
    return [text[start : start + size] for start in range(0, len(text), size)]
