"""What providers accept, stated as one checker: the rules of Anthropic and of both OpenAI protocols together."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise

from perdure.chat import entries as e
from perdure.chat.transcript import Answer, Answered, Message, Request, Said

ID = re.compile(r"[a-zA-Z0-9_-]{1,40}")
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def broken_rules(request: Request) -> list[str]:
    """Return the rules that a request breaks, in words."""
    return [*_turns(request.messages), *_words(request.messages), *_calls(request.messages), *_pairs(request.messages)]


def _turns(messages: tuple[Message, ...]) -> Iterator[str]:
    if not messages:
        yield "there is a message"
        return
    if not isinstance(messages[0], Said):
        yield "the user speaks first"
    if not isinstance(messages[-1], Said):
        yield "the user speaks last"
    if any(type(one) is type(other) for one, other in pairwise(messages)):
        yield "user and assistant take turns"


def _words(messages: tuple[Message, ...]) -> Iterator[str]:
    for message in messages:
        if not message.parts:
            yield "a message has a part"
        for part in message.parts:
            texts = part.content if isinstance(part, Answer) else (part,)
            if not texts:
                yield "a result has content"
            if any(isinstance(text, e.Text) and not text.text.strip() for text in texts):
                yield "a text says something"
        if isinstance(message, Answered) and isinstance(message.parts[-1], e.Thinking):
            yield "reasoning is followed by what it led to"


def _calls(messages: tuple[Message, ...]) -> Iterator[str]:
    calls = [part for message in messages for part in message.parts if isinstance(part, e.ToolCall)]
    if len({call.id for call in calls}) != len(calls):
        yield "call ids are unique"
    for call in calls:
        if not ID.fullmatch(call.id):
            yield f"call ids have safe characters and a length, not {call.id!r}"
        if not NAME.fullmatch(call.tool):
            yield f"tools have safe names, not {call.tool!r}"
        if not isinstance(_strict_json(call.arguments), dict):
            yield f"arguments are a JSON object, not {call.arguments!r}"


def _strict_json(text: str) -> object:
    def refuse(name: str) -> object:
        raise ValueError(name)

    text.encode("utf-8")
    return json.loads(text, parse_constant=refuse)


def _pairs(messages: tuple[Message, ...]) -> Iterator[str]:
    asked: list[tuple[str, str]] = []
    for message in messages:
        if isinstance(message, Answered):
            asked = [(part.id, part.tool) for part in message.parts if isinstance(part, e.ToolCall)]
            continue
        answers = [part for part in message.parts if isinstance(part, Answer)]
        if [(answer.call, answer.tool) for answer in answers] != asked:
            yield "the results of an answer follow it at once, one for each call, in their order"
        if any(isinstance(part, Answer) for part in message.parts[len(answers) :]):
            yield "results come before all else"
        asked = []
