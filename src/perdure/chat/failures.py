"""How a model call can fail, and what that means for the next one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from perdure.chat import entries as e
from perdure.chat.entries import Failure
from perdure.chat.entries import FailureKind as Kind

if TYPE_CHECKING:
    from perdure.chat.models import Generated

_RETRYABLE_STATUS: Final = frozenset({408, 409, 425, 429})
_MESSAGE_CHARACTERS: Final = 2000
_SECOND: Final = 1_000_000


class ModelFailed(Exception):
    """Raised when a model call fails. `generated` is what had come by then, with its usage, if anything had."""

    def __init__(self, failure: Failure, generated: Generated | None = None) -> None:
        super().__init__(f"{failure.kind}: {failure.message}")
        self.failure: Failure = failure
        self.generated: Generated | None = generated

    @property
    def parts(self) -> tuple[e.AnswerPart, ...]:
        """The parts of the answer that had come."""
        return self.generated.parts if self.generated is not None else ()

    def entry(self, entry_id: str, at: int, model: str, turn: int | None = None) -> e.AssistantMessage:
        """Return the failed answer as a transcript entry; models are never shown it."""
        return e.AssistantMessage(
            id=entry_id,
            at=at,
            turn=turn,
            parts=self.parts,
            stop="error",
            model=model,
            origin=self.generated.origin if self.generated is not None else e.Origin(),
            usage=self.generated.usage if self.generated is not None else None,
            failure=self.failure,
        )


def classify(error: Exception, *, streaming: bool) -> Failure:
    """Return what an exception of a model call means.

    While an answer streams, an exception that is none of the model library's own comes from events that do not fit
    together: the provider's doing, and gone with the next call. Before, it is a request that can never be sent.
    """
    from pydantic_ai import exceptions as x

    if isinstance(error, x.ModelAPIError):
        return _api_failure(error)
    if isinstance(error, x.ContentFilterError):
        return _failure("refused", error)
    if isinstance(error, x.UserError):
        return _failure("misused", error)
    if _is_transport(error):
        is_timeout = "Timeout" in type(error).__name__ or isinstance(error, TimeoutError)
        return _failure("timeout" if is_timeout else "connection", error)
    if isinstance(error, x.UnexpectedModelBehavior) or streaming:
        return _failure("malformed", error)
    return _failure("misused", error)


def _api_failure(error: Exception) -> Failure:
    from pydantic_ai import exceptions as x

    assert isinstance(error, x.ModelAPIError)
    status = error.status_code if isinstance(error, x.ModelHTTPError) else None
    asked = None if error.retry_after is None else max(0, round(error.retry_after * _SECOND))
    kinds: tuple[tuple[type[x.ModelAPIError], Kind], ...] = (
        (x.ModelRateLimitError, "rate_limit"),
        (x.ModelOverloadedError, "overloaded"),
        (x.ModelUnavailableError, "server"),
        (x.ModelQuotaExceededError, "quota"),
        (x.ModelServerError, "server"),
        (x.ModelTimeoutError, "timeout"),
        (x.ModelRequestTimeout, "timeout"),
        (x.ModelConnectionError, "connection"),
        (x.ModelContextWindowExceededError, "overflow"),
        (x.ModelAuthenticationError, "credentials"),
        (x.ModelNotFoundError, "not_found"),
        (x.ModelRequestRejectedError, "rejected"),
    )
    found = next((kind for base, kind in kinds if isinstance(error, base)), None)
    return Failure(found or _kind_of_status(status), _words(error), asked, status)


def _kind_of_status(status: int | None) -> Kind:
    """Return the kind of an error that the library has no name for; without a status it came inside a stream."""
    if status is None:
        return "malformed"
    if status in _RETRYABLE_STATUS or status >= 500:
        return "server"
    return "overflow" if status == 413 else "rejected"


def _is_transport(error: Exception) -> bool:
    return isinstance(error, OSError) or type(error).__module__.partition(".")[0] in ("httpx", "httpx2", "httpcore")


def _failure(kind: Kind, error: Exception) -> Failure:
    return Failure(kind, _words(error))


def _words(error: Exception) -> str:
    text = str(error) or type(error).__name__
    return text if len(text) <= _MESSAGE_CHARACTERS else text[:_MESSAGE_CHARACTERS] + "…"
