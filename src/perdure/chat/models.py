"""Models: from a name to a model, and from a request to an answer that streams in."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from perdure.chat import entries as e
from perdure.chat import messages
from perdure.chat.deltas import Became, Begun, Delta, Draft, Grew
from perdure.chat.entries import Failure
from perdure.chat.errors import ModelNotAvailable
from perdure.chat.failures import ModelFailed, classify
from perdure.chat.tools import ToolSchema
from perdure.chat.transcript import Request

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse, ModelResponseStreamEvent
    from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
    from pydantic_ai.settings import ModelSettings

Listener: TypeAlias = Callable[[Delta], None]

# Models whose protocol has each answer end with a reason; one without it was cut, however cleanly.
_STATE_REASONS: Final = frozenset({"AnthropicModel", "OpenAIChatModel", "OpenAIResponsesModel", "GoogleModel"})
_EXTRAS: Final = {"anthropic": "anthropic", "openai": "openai", "google": "google"}


class Options(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a model is to answer.

    `timeout` is the longest silence, in seconds; `extra` are settings of the library's. An answer that ends without a
    reason was cut; some servers that imitate OpenAI's never give one, and `states_reasons=False` trusts them.
    """

    max_output: int | None = None
    temperature: float | None = None
    thinking: bool | str | None = None
    timeout: float | None = None
    cache: bool = True
    states_reasons: bool = True
    extra: dict[str, Any] = {}


class Generated(msgspec.Struct, frozen=True):
    """A model's answer, or what there is of it."""

    parts: tuple[e.AnswerPart, ...]
    stop: e.StopReason
    origin: e.Origin
    usage: e.Usage

    def entry(self, entry_id: str, at: int, model: str, turn: int | None = None) -> e.AssistantMessage:
        """Return the answer as a transcript entry."""
        return e.AssistantMessage(
            id=entry_id,
            at=at,
            turn=turn,
            parts=self.parts,
            stop=self.stop,
            model=model,
            origin=self.origin,
            usage=self.usage,
        )


async def generate(
    model: Model,
    request: Request,
    *,
    tools: Sequence[ToolSchema] = (),
    options: Options | None = None,
    listen: Listener | None = None,
    translator: messages.Translator | None = None,
) -> Generated:
    """Return a model's answer; `listen` hears each change while it streams, and must return at once.

    A `translator` that is kept with the conversation spares the translation of what was asked before.

    The call is made once: whether and when it is made again is decided by whoever can remember that. Raises
    `ModelFailed`; a cancellation ends the stream.
    """
    from pydantic_ai.direct import model_request_stream

    chosen = options or Options()
    draft = Draft()
    stream: StreamedResponse | None = None
    try:
        async with model_request_stream(
            model,
            (translator or messages.Translator()).messages(request),
            model_settings=_settings(chosen),
            model_request_parameters=_parameters(tools),
        ) as stream:
            async for event in stream:
                if (delta := _delta(event)) is not None:
                    draft.apply(delta)
                    if listen is not None:
                        listen(delta)
            response = stream.get()
        is_cut = chosen.states_reasons and _has_no_reason(model, response)
        return _checked(response, is_cut=is_cut)
    except ModelFailed:
        raise
    except Exception as error:
        partial = None if stream is None else _partial(stream, draft)
        raise ModelFailed(classify(error, streaming=stream is not None), partial) from error


def _parameters(tools: Sequence[ToolSchema]) -> ModelRequestParameters:
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.tools import ToolDefinition

    definitions = [
        ToolDefinition(name=tool.name, description=tool.description or None, parameters_json_schema=tool.parameters)
        for tool in tools
    ]
    return ModelRequestParameters(function_tools=definitions, allow_text_output=True)


def _settings(options: Options) -> ModelSettings:
    """Return the library's settings. Its clients do not retry by themselves: their waits would not be remembered."""
    chosen = {
        "max_tokens": options.max_output,
        "temperature": options.temperature,
        "thinking": options.thinking,
        "timeout": options.timeout,
        "cache": options.cache,
        "max_retries": 0,
        **options.extra,
    }
    settings: Any = {name: value for name, value in chosen.items() if value is not None}
    found: ModelSettings = settings
    return found


# --- what streams in


def _delta(event: ModelResponseStreamEvent) -> Delta | None:
    from pydantic_ai import messages as m

    if isinstance(event, m.PartStartEvent):
        return Begun(event.index, messages.from_part(event.part))
    if isinstance(event, m.PartEndEvent):
        return Became(event.index, messages.from_part(event.part))
    if isinstance(event, m.PartDeltaEvent):
        more = _growth(event.delta)
        return Grew(event.index, more) if more else None
    return None


def _growth(delta: Any) -> str | None:
    from pydantic_ai import messages as m

    if isinstance(delta, m.TextPartDelta | m.ThinkingPartDelta):
        return delta.content_delta
    if isinstance(delta, m.ToolCallPartDelta) and isinstance(delta.args_delta, str):
        return delta.args_delta
    return None  # whole arguments and names come with the part's end


# --- how it ended


def _has_no_reason(model: Model, response: ModelResponse) -> bool:
    kinds = {kind.__name__ for kind in type(model).__mro__}
    if "OpenAIChatModel" in kinds:
        # For this protocol the library makes up a reason of its own when none came.
        return not (response.provider_details or {}).get("finish_reason")
    return response.finish_reason is None and not _STATE_REASONS.isdisjoint(kinds)


def _checked(response: ModelResponse, *, is_cut: bool) -> Generated:
    finish = response.finish_reason
    if is_cut and finish != "content_filter":
        raise ModelFailed(Failure("cut", "The answer ended without a reason."), _generated(response, "error"))
    if finish == "error":
        raise ModelFailed(Failure("server", "The provider ended the answer."), _generated(response, "error"))
    if finish == "content_filter":
        return _generated(response, "refused")
    if finish == "length":
        return _generated(response, "length")
    has_calls = any(part.part_kind == "tool-call" for part in response.parts)
    return _generated(response, "tools" if has_calls else "answer")


def _generated(response: ModelResponse, stop: e.StopReason) -> Generated:
    parts, origin = messages.from_response(response)
    return Generated(parts, stop, origin, _usage(response))


def _partial(stream: StreamedResponse, draft: Draft) -> Generated:
    """Return what had come: our own draft of it, for after an event without sense the library's may have none."""
    from pydantic_ai.messages import ModelResponse

    response = ModelResponse(
        parts=[],
        usage=stream.usage,
        model_name=stream.model_name,
        provider_name=stream.provider_name,
        provider_url=stream.provider_url,
    )
    _, origin = messages.from_response(response)
    return Generated(draft.parts(), "error", origin, _usage(response))


def _usage(response: ModelResponse) -> e.Usage:
    usage = response.usage
    return e.Usage(
        input=usage.input_tokens,
        output=usage.output_tokens,
        cache_read=usage.cache_read_tokens,
        cache_write=usage.cache_write_tokens,
        details={name: count for name, count in usage.details.items() if count},
        cost=_cost(response),
    )


def _cost(response: ModelResponse) -> str | None:
    """Return the price in US dollars, or None where it is not known: for models that nobody sells, for one."""
    if not response.model_name or not response.usage.has_values():
        return None
    try:
        return format(response.cost().total_price, "f")
    except (LookupError, ValueError, AssertionError):
        return None


# --- from a name to a model


class Models:
    """The models that a worker uses, each made once with its own connections. Close it when the worker ends."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str | None, str | None], Model] = {}
        self._stack = AsyncExitStack()

    async def get(self, model: str | Model, *, base_url: str | None = None, api_key: str | None = None) -> Model:
        """Return the model of a name such as `anthropic:claude-opus-5-5`, or the model itself if it is one.

        Without `api_key` the provider's environment variable counts. Raises `ModelNotAvailable`.
        """
        if not isinstance(model, str):
            return model
        key = (model, base_url, api_key)
        if key not in self._found:
            self._found[key] = await self._stack.enter_async_context(make_model(*key))
        return self._found[key]

    async def close(self) -> None:
        """Close all connections."""
        self._found.clear()
        await self._stack.aclose()


def make_model(name: str, base_url: str | None = None, api_key: str | None = None) -> Model:
    """Return a new model of a name; raises `ModelNotAvailable` saying what is missing."""
    if name.startswith("scripted:"):
        from perdure.chat.scripted import ScriptedModel

        return ScriptedModel.from_file(name.removeprefix("scripted:"))
    provider, colon, model = name.partition(":")
    if not colon or not provider or not model:
        raise ModelNotAvailable(name, "write the provider and the model, such as 'anthropic:claude-opus-5-5'.")
    try:
        from pydantic_ai.models import infer_model

        return infer_model(name, lambda kind: _provider(name, kind, base_url, api_key))
    except ImportError as error:
        extra = _EXTRAS.get(provider.split("-")[0], "chat")
        why = f"its package is not installed; pip install 'perdure[{extra}]'. ({error})"
        raise ModelNotAvailable(name, why) from None
    except Exception as error:
        # Each provider has errors of its own for a name, a key or an address that will not do.
        if isinstance(error, ModelNotAvailable):
            raise
        raise ModelNotAvailable(name, f"{error}") from error


def _provider(name: str, kind: str, base_url: str | None, api_key: str | None) -> Any:
    from pydantic_ai.providers import infer_provider, infer_provider_class

    given = {key: value for key, value in (("base_url", base_url), ("api_key", api_key)) if value is not None}
    if not given:
        return infer_provider(kind)
    provider = infer_provider_class(kind)
    unknown = set(given) - set(inspect.signature(provider).parameters)
    if unknown:
        raise ModelNotAvailable(name, f"its provider takes no {' and no '.join(sorted(unknown))}.")
    return provider(**given)
