"""The rules by which providers refuse a request, checked on the very JSON that they are sent."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

_ID = re.compile(r"[a-zA-Z0-9_-]+")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def broken_wire_rules(path: str, body: dict[str, Any]) -> list[str]:
    """Return the rules that a request's body breaks, by the protocol of its path."""
    if path.endswith("/messages"):
        return list(_anthropic(body))
    if path.endswith("/chat/completions"):
        return list(_chat(body))
    if path.endswith("/responses"):
        return list(_responses(body))
    if path.endswith(":streamGenerateContent"):
        return list(_google(body))
    return [f"no such path: {path}"]


# --- Anthropic


def _anthropic(body: dict[str, Any]) -> Iterator[str]:
    messages = [(message["role"], _blocks(message["content"])) for message in body["messages"]]
    if not messages:
        yield "messages: at least one message is required"
        return
    if messages[0][0] != "user":
        yield "messages: first message must use the user role"
    if messages[-1][0] == "assistant":
        yield "this model does not support assistant message prefill"
    yield from _anthropic_blocks(messages)
    yield from _anthropic_pairs(messages)


def _blocks(content: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _anthropic_blocks(messages: list[tuple[str, list[dict[str, Any]]]]) -> Iterator[str]:
    seen: set[str] = set()
    for role, blocks in messages:
        if not blocks:
            yield "all messages must have non-empty content"
        for block in blocks:
            yield from _anthropic_block(role, block, seen)
        if role == "assistant" and blocks and blocks[-1]["type"] == "thinking":
            yield "the final block in an assistant message cannot be thinking"


def _anthropic_block(role: str, block: dict[str, Any], seen: set[str]) -> Iterator[str]:
    kind = block["type"]
    if kind == "text" and not block["text"].strip():
        yield "text content blocks must contain non-whitespace text"
    if kind == "thinking" and not block.get("signature"):
        yield "thinking blocks must have a signature"
    if kind in ("thinking", "redacted_thinking", "tool_use") and role != "assistant":
        yield f"{kind} blocks can only be in assistant messages"
    if kind == "tool_use":
        if not _ID.fullmatch(block["id"]):
            yield f"tool_use.id: {block['id']!r} does not match the pattern"
        if block["id"] in seen:
            yield "tool_use ids must be unique"
        if not _NAME.fullmatch(block["name"]):
            yield f"tool_use.name: {block['name']!r} does not match the pattern"
        if not isinstance(block["input"], dict):
            yield "tool_use.input: must be a dictionary"
        seen.add(block["id"])


def _anthropic_pairs(messages: list[tuple[str, list[dict[str, Any]]]]) -> Iterator[str]:
    open_ids: list[str] = []
    for role, blocks in messages:
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        if role == "user":
            if sorted(results) != sorted(open_ids):
                yield f"tool_use ids {open_ids} need tool_result blocks immediately after, not {results}"
            if any(block["type"] != "tool_result" for block in blocks[: len(results)]):
                yield "tool_result blocks must come first"
            open_ids = []
        else:
            if open_ids:
                yield f"tool_use ids {open_ids} were found without tool_result blocks immediately after"
            open_ids = [block["id"] for block in blocks if block["type"] == "tool_use"]
    if open_ids:
        yield f"tool_use ids {open_ids} were found without tool_result blocks"


# --- OpenAI's chat completions


def _chat(body: dict[str, Any]) -> Iterator[str]:
    open_ids: list[str] = []
    for message in body["messages"]:
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_ids:
                yield "messages with role 'tool' must be a response to a preceding message with 'tool_calls'"
            else:
                open_ids.remove(message["tool_call_id"])
            continue
        if open_ids:
            yield f"tool_call_ids did not have response messages: {open_ids}"
        if message["role"] == "assistant":
            calls = message.get("tool_calls") or []
            if not calls and not message.get("content"):
                yield "assistant messages need content or tool_calls"
            yield from _chat_calls(calls)
            open_ids = [call["id"] for call in calls]
    if open_ids:
        yield f"tool_call_ids did not have response messages: {open_ids}"


def _chat_calls(calls: list[dict[str, Any]]) -> Iterator[str]:
    for call in calls:
        if not 0 < len(call["id"]) <= 40:
            yield "tool_calls.id: expected a string with maximum length 40"
        if not _NAME.fullmatch(call["function"]["name"]):
            yield "tool_calls.function.name does not match the pattern"
        if not isinstance(json.loads(call["function"]["arguments"]), dict):
            yield "tool_calls.function.arguments must be a JSON object"
    if len({call["id"] for call in calls}) != len(calls):
        yield "tool_calls ids must be unique"


# --- OpenAI's responses


def _responses(body: dict[str, Any]) -> Iterator[str]:
    items = body["input"] if isinstance(body["input"], list) else []
    calls = [item for item in items if item.get("type") == "function_call"]
    outputs = [item["call_id"] for item in items if item.get("type") == "function_call_output"]
    if sorted(call["call_id"] for call in calls) != sorted(outputs):
        yield "no tool output found for function call, or no tool call found for function call output"
    if len(set(outputs)) != len(outputs):
        yield "function call outputs must be unique"
    for call in calls:
        if not 0 < len(call["call_id"]) <= 64:
            yield "call_id: expected a string with maximum length 64"
        if not _NAME.fullmatch(call["name"]):
            yield "function_call.name does not match the pattern"
    yield from _reasoning(items)


def _reasoning(items: list[dict[str, Any]]) -> Iterator[str]:
    for item, following in zip(items, [*items[1:], {}], strict=True):
        is_answer = following.get("type") in ("function_call", "reasoning") or following.get("role") == "assistant"
        if item.get("type") == "reasoning" and not is_answer:
            yield "item of type 'reasoning' was provided without its required following item"


# --- Google


def _google(body: dict[str, Any]) -> Iterator[str]:
    contents = body["contents"]
    if not contents or contents[-1]["role"] == "model":
        yield "contents must end with a user turn"
    open_calls: list[str] = []
    for content in contents:
        parts = content["parts"]
        if not parts:
            yield "parts must not be empty"
        answers = [part["functionResponse"]["name"] for part in parts if "functionResponse" in part]
        if content["role"] == "user" and answers != open_calls:
            yield "the number of function response parts must equal that of the function call parts of the turn before"
        open_calls = [part["functionCall"]["name"] for part in parts if "functionCall" in part]
        if any(not _NAME.fullmatch(name) for name in open_calls):
            yield "a function name must be valid"
