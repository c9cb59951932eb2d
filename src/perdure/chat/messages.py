"""Between our requests and answers and the model library's: nothing is lost on the way there and back."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from perdure.chat import entries as e
from perdure.chat.transcript import Answer, Answered, Message, Request, Said
from perdure.records import canonical

if TYPE_CHECKING:
    from pydantic_ai.messages import (
        ModelMessage,
        ModelRequest,
        ModelRequestPart,
        ModelResponse,
        ModelResponsePart,
        ToolReturnPart,
        UserContent,
    )

# Messages have times that no provider is sent; a fixed one makes equal requests equal.
_ALWAYS: Final = datetime(2000, 1, 1, tzinfo=UTC)


# --- there


class Translator:
    """Translates the requests of one conversation; what two of them have in common is translated once."""

    def __init__(self) -> None:
        self._ours: list[Message] = []
        self._theirs: list[ModelMessage] = []

    def messages(self, request: Request) -> list[ModelMessage]:
        """Return a request's messages; the system prompt goes with the last, where the library looks for it."""
        same = 0
        for ours, known in zip(request.messages[:-1], self._ours, strict=False):
            if ours is not known:
                break
            same += 1
        new = request.messages[same:-1]
        self._ours[same:] = new
        self._theirs[same:] = [_said(each) if isinstance(each, Said) else _answered(each) for each in new]
        last = request.messages[-1]
        return [*self._theirs, _said(last, request.system) if isinstance(last, Said) else _answered(last)]


def to_messages(request: Request) -> list[ModelMessage]:
    """Return the messages of one request."""
    return Translator().messages(request)


def _said(message: Said, system: str = "") -> ModelRequest:
    from pydantic_ai.messages import ModelRequest, UserPromptPart

    parts: list[ModelRequestPart] = [_returned(part) for part in message.parts if isinstance(part, Answer)]
    words = [_shown(part) for part in message.parts if not isinstance(part, Answer)]
    if words:
        content = words[0] if len(words) == 1 and isinstance(words[0], str) else words
        parts.append(UserPromptPart(content, timestamp=_ALWAYS))
    return ModelRequest(parts=parts, timestamp=_ALWAYS, instructions=system or None)


def _returned(answer: Answer) -> ToolReturnPart:
    from pydantic_ai.messages import ToolReturnPart

    return ToolReturnPart(
        tool_name=answer.tool,
        content=_result(answer.content),
        tool_call_id=answer.call,
        timestamp=_ALWAYS,
        outcome="failed" if answer.is_error else "success",
    )


def _result(content: e.Content) -> Any:
    """Return a result's content: its texts as one, and its files beside it."""
    texts = "\n".join(text for part in content if isinstance(text := _shown(part), str))
    files = [_shown(part) for part in content if isinstance(part, e.File)]
    if not files:
        return texts
    return [texts, *files] if texts else files


def _shown(part: e.Text | e.Json | e.File) -> UserContent:
    from pydantic_ai.messages import BinaryContent

    if isinstance(part, e.Text):
        return part.text
    if isinstance(part, e.Json):
        return canonical.encode(part.value).decode()
    return BinaryContent.narrow_type(BinaryContent(part.data, media_type=part.media_type))


def _answered(message: Answered) -> ModelResponse:
    from pydantic_ai.messages import ModelResponse

    origin = message.origin
    return ModelResponse(
        parts=[_to_part(part) for part in message.parts],
        model_name=origin.model,
        timestamp=_ALWAYS,
        provider_name=origin.provider,
        provider_url=origin.url,
        canonical_system=origin.system,
        provider_response_id=origin.response,
        provider_details=origin.details,
    )


def _to_part(part: e.AnswerPart) -> ModelResponsePart:
    from pydantic_ai import messages as m

    if isinstance(part, e.Opaque):
        return _from_library([part.value])[0]
    payload = part.payload or e.Payload()
    attached: Any = {"id": payload.id, "provider_name": payload.provider, "provider_details": payload.details}
    if isinstance(part, e.Text):
        return m.TextPart(part.text, **attached)
    if isinstance(part, e.Thinking):
        return m.ThinkingPart(part.text, signature=part.signature, **attached)
    if isinstance(part, e.ToolCall):
        return m.ToolCallPart(part.tool, part.arguments, part.id, **attached)
    return m.FilePart(m.BinaryContent.narrow_type(m.BinaryContent(part.data, media_type=part.media_type)), **attached)


# --- and back


def from_part(part: ModelResponsePart) -> e.AnswerPart:
    """Return a part of an answer as it is kept."""
    from pydantic_ai import messages as m

    if isinstance(part, m.TextPart):
        return e.Text(canonical.clean_text(part.content), _payload(part))
    if isinstance(part, m.ThinkingPart):
        return e.Thinking(canonical.clean_text(part.content), part.signature, _payload(part))
    if isinstance(part, m.ToolCallPart):
        return e.ToolCall(part.tool_call_id, part.tool_name, arguments_text(part.args), _payload(part))
    if isinstance(part, m.FilePart):
        return e.File(part.content.media_type, part.content.data, payload=_payload(part))
    return e.Opaque(part.part_kind, _to_library([part])[0])


def from_response(response: ModelResponse) -> tuple[tuple[e.AnswerPart, ...], e.Origin]:
    """Return an answer's parts and its origin as they are kept."""
    origin = e.Origin(
        model=response.model_name,
        provider=response.provider_name,
        url=response.provider_url,
        system=response.canonical_system,
        response=response.provider_response_id,
        details=_plain(response.provider_details),
        finish=response.finish_reason,
    )
    return tuple(from_part(part) for part in response.parts), origin


def arguments_text(arguments: Any) -> str:
    """Return a call's arguments as the text that the model sent, or as JSON when the library has read them."""
    if arguments is None:
        return ""
    if isinstance(arguments, str):
        return canonical.clean_text(arguments)
    return canonical.encode(_plain(arguments), "arguments").decode()


def _payload(part: Any) -> e.Payload | None:
    details = _plain(part.provider_details)
    if part.id is None and part.provider_name is None and not details:
        return None
    return e.Payload(provider=part.provider_name, id=part.id, details=details)


def _plain(value: Any) -> Any:
    """Return what a provider attached as JSON data: times as text, numbers that JSON does not have as null."""
    from pydantic_core import to_jsonable_python

    if value is None:
        return None
    return to_jsonable_python(value, inf_nan_mode="null", bytes_mode="base64", fallback=str)


def _to_library(parts: Sequence[ModelResponsePart]) -> list[Any]:
    from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse

    message = ModelResponse(parts=list(parts), timestamp=_ALWAYS)
    plain: list[Any] = ModelMessagesTypeAdapter.dump_python([message], mode="json")[0]["parts"]
    return [_plain(each) for each in plain]


def _from_library(values: Sequence[Any]) -> Sequence[ModelResponsePart]:
    from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse

    message = ModelMessagesTypeAdapter.validate_python([{"kind": "response", "parts": list(values)}])[0]
    assert isinstance(message, ModelResponse)
    return message.parts
