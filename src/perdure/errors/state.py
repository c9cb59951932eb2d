"""What the present state does not allow: to callers, to workers and to handlers."""

from __future__ import annotations

from typing import Any

from perdure.errors.base import PerdureError


class Conflict(PerdureError):
    """Base of the errors for requests that the present state refuses."""

    code = "conflict"
    status = 409


class IdempotencyConflict(Conflict):
    """Raised when an idempotency key comes again with another request."""

    code = "idempotency_conflict"

    def __init__(self, key: str) -> None:
        super().__init__(
            f"The idempotency key {key!r} was used for a different request. That one stands, this one changed nothing; "
            "send the first request again for its receipt, or use a new key."
        )


class SessionKeyConflict(Conflict):
    """Raised when a session is created under a key that another session of the agent has."""

    code = "session_key_conflict"

    def __init__(self, key: str, session_id: str) -> None:
        super().__init__(
            f"The session key {key!r} belongs to session {session_id}. Enqueue there, or use get-or-create.",
            {"session_id": session_id},
        )


class SessionNotOpen(Conflict):
    """Raised when a closing, closed or cancelled session is asked to do something new."""

    code = "session_not_open"

    def __init__(self, session_id: str, status: str) -> None:
        super().__init__(
            f"Session {session_id} is {status} and takes nothing new. What it accepted before is kept.",
            {"session_id": session_id, "status": status},
        )


class SessionHeld(Conflict):
    """Raised when `send` meets a held session; `enqueue` would wait in the queue instead."""

    code = "session_held"

    def __init__(self, session_id: str, hold_ids: list[str]) -> None:
        super().__init__(
            f"Session {session_id} is held. Nothing was sent; enqueue to wait, or resume hold {hold_ids[0]}.",
            {"session_id": session_id, "hold_ids": hold_ids},
        )


class QueueFull(Conflict):
    """Raised when a session already has its limit of queued turns."""

    code = "queue_full"

    def __init__(self, session_id: str, limit: int) -> None:
        super().__init__(
            f"Session {session_id} has {limit} queued turns, its limit. Nothing was queued; wait for some to finish.",
            {"limit": limit},
        )


class TooManyHolds(Conflict):
    """Raised when a session already has its limit of active holds."""

    code = "too_many_holds"

    def __init__(self, session_id: str, limit: int) -> None:
        super().__init__(f"Session {session_id} has {limit} holds, its limit. Release one first.", {"limit": limit})


class MessageClosed(Conflict):
    """Raised when a message is sent to a turn that does not take messages now."""

    code = "message_closed"

    def __init__(self, turn_id: str, why: str) -> None:
        super().__init__(f"Turn {turn_id} takes no messages: {why}. Nothing was sent; enqueue a new turn instead.")


class TooManyPending(Conflict):
    """Raised when a turn already has its limit of unanswered questions or undelivered messages."""

    code = "too_many_pending"

    def __init__(self, what: str, limit: int) -> None:
        super().__init__(f"The turn has {limit} pending {what}, its limit. Nothing was added.", {"limit": limit})


class AskAlreadyResponded(Conflict):
    """Raised when a question already has another answer."""

    code = "ask_already_responded"

    def __init__(self, ask_id: str) -> None:
        super().__init__(f"Question {ask_id} has been answered already. The first answer stands.")


class AskCancelled(Conflict):
    """Raised when a question is answered after its turn ended or withdrew it."""

    code = "ask_cancelled"

    def __init__(self, ask_id: str) -> None:
        super().__init__(f"Question {ask_id} was cancelled: its turn ended or withdrew it. The answer was not kept.")


class AnswerInvalid(PerdureError):
    """Raised when an answer does not fit its question's control."""

    code = "answer_invalid"
    status = 422

    def __init__(self, why: str) -> None:
        super().__init__(f"The answer does not fit the question: {why}. The question is still open.")


class NoCurrentDeployment(Conflict):
    """Raised when an environment has no deployment yet."""

    code = "no_current_deployment"

    def __init__(self, environment: str) -> None:
        super().__init__(f"Environment {environment!r} has no deployment yet. Deploy first: perdure deploy DIR.")


class CursorExpired(PerdureError):
    """Raised when events below the retention floor of a session or feed are asked for."""

    code = "cursor_expired"
    status = 410

    def __init__(self, retained_after: int | str) -> None:
        super().__init__(
            f"Events up to {retained_after} are gone by retention. Read from --after {retained_after}.",
            {"retained_after": retained_after},
        )


class StaleFence(Conflict):
    """Raised when a worker writes to a session that it no longer owns. Nothing was written."""

    code = "stale_fence"

    def __init__(self, session_id: str) -> None:
        super().__init__(f"Session {session_id} has another owner now. The write was refused and changed nothing.")


class TurnNotRunning(Conflict):
    """Raised when a handler acts for a turn that is not running any more."""

    code = "turn_not_running"

    def __init__(self, turn: str) -> None:
        super().__init__(f"Turn {turn} is not running any more. Nothing was written.")


class StepMismatch(Conflict):
    """Raised when a step is begun again, after a loss, with other arguments than the first time. It was not run."""

    code = "step_mismatch"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"The step {name!r} was begun with other arguments before the process was lost. It was not run again, and "
            "what was journaled stands; a resumable handler must call the same steps with the same arguments."
        )


class StepFailed(Conflict):
    """Raised where a step is awaited whose function raised; `details` has the code, message and type of its error."""

    code = "step_failed"

    def __init__(self, name: str, error: dict[str, Any]) -> None:
        super().__init__(f"The step {name!r} failed: {error.get('message', 'no message')}", {"step": name, **error})


class StepInterrupted(Conflict):
    """Raised where a step is awaited that was at work when its process was lost and is never run again.

    What it does may have happened, in whole, in part or not at all: look, before anything is done about it.
    """

    code = "step_interrupted"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"The step {name!r} was at work when its process was lost, and it is not run again: it may have happened. "
            'Find out, or declare it replay="safe" if running it twice does no harm.',
            {"step": name},
        )


class ResponseAlreadyStaged(Conflict):
    """Raised at the second `turn.respond` of a turn."""

    code = "response_already_staged"

    def __init__(self) -> None:
        super().__init__("This turn has a response already; respond at most once. The first response is kept.")


class OutputBudgetExceeded(PerdureError):
    """Raised when a turn's output and questions exceed 8 MiB together."""

    code = "content_limit_exceeded"
    status = 413

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            f"This turn's output would reach {size} bytes; the limit is {limit}. This write was refused, earlier ones "
            "are kept; write large results to a file.",
            {"size": size, "limit": limit},
        )


class MessageRejected(PerdureError):
    """Raise this in an `on_message` handler to reject the message; the turn goes on."""

    code = "message_rejected"
    status = 409

    def __init__(self, message: str = "The message was rejected.", details: dict[str, Any] | None = None) -> None:
        super().__init__(message, details)
