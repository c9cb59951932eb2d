"""Every error that a caller can meet, one class a situation.

`code` and `status` are what HTTP clients see; `message` says what happened, what is safe and what to do. `details`
holds what a program needs to act. The typed client raises the same classes again from a response's code.
"""

from __future__ import annotations

from typing import Any, ClassVar


class PerdureError(Exception):
    """Base of all errors of Perdure."""

    code: ClassVar[str] = "internal_error"
    status: ClassVar[int] = 500

    def __init__(self, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message: str = message
        self.details: dict[str, Any] = details or {}


def _plain(message: str, details: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"message": message, **({"details": details} if details else {})}


def envelope(error: PerdureError) -> dict[str, Any]:
    """Return the body of the response that reports `error`."""
    return {"error": {"code": error.code, **_plain(error.message, error.details)}}


# --- what a request says wrongly ---------------------------------------------------------------------------------


class BadRequest(PerdureError):
    """Raised when a request is malformed: an unknown field, a wrong type, a value out of range."""

    code = "bad_request"
    status = 400


class InvalidId(BadRequest):
    """Raised when an id is not a canonical lowercase UUIDv7."""

    code = "invalid_id"

    def __init__(self, what: str, text: str) -> None:
        super().__init__(f"{what} must be a canonical UUIDv7, not {text[:80]!r}. Nothing was changed.")


class InvalidKey(BadRequest):
    """Raised when a session key or idempotency key is empty, padded, too long or not text."""

    code = "invalid_key"

    def __init__(self, what: str, why: str) -> None:
        super().__init__(
            f"The {what} is refused: {why}. Nothing was changed; keys are 1 to 512 bytes, taken as they are."
        )


class InvalidDuration(BadRequest):
    """Raised when a duration is not a whole number followed by ms, s, m, h or d, or is over ten years."""

    code = "invalid_duration"

    def __init__(self, text: object) -> None:
        super().__init__(
            f"{text!r} is not a duration; write a whole number and a unit, such as 250ms, 90s, 5m, 1h, 1d."
        )


class InvalidJson(BadRequest):
    """Raised when text that should be JSON is not."""

    code = "invalid_json"

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"The {what} is not JSON: {why}. Nothing was changed.")


class NotJson(BadRequest):
    """Raised when a value cannot be written as JSON: NaN, an object, a key that is not text."""

    code = "not_json"

    def __init__(self, what: str, path: str, why: str) -> None:
        super().__init__(f"The {what} cannot be stored as JSON: at {path} {why}.", {"path": path})


class InvalidContent(BadRequest):
    """Raised when content is not a list of text and JSON parts."""

    code = "invalid_content"

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"The {what} is not valid content: {why}. Nothing was changed.")


class InvalidCursor(BadRequest):
    """Raised when a paging cursor belongs to another query, lies beyond the end or is not one of ours."""

    code = "invalid_cursor"


class InvalidControl(BadRequest):
    """Raised when a question's answer control is malformed."""

    code = "invalid_control"


class ContentTooLarge(PerdureError):
    """Raised when something exceeds a size limit."""

    code = "content_too_large"
    status = 413

    def __init__(self, what: str, size: str, limit: str) -> None:
        super().__init__(
            f"The {what} has {size}; the limit is {limit}. Nothing was changed; split it or store it as a file.",
            {"size": size, "limit": limit},
        )


class WorkspacePathRefused(BadRequest):
    """Raised when a path leads out of its Computer's workspace, or to something of another kind than is needed."""

    code = "workspace_path_refused"

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"The workspace path {path[:200]!r} is refused: {why}. Nothing was changed.")


class MethodNotAllowed(PerdureError):
    """Raised when a path of the API is asked with a method that it does not have."""

    code = "method_not_allowed"
    status = 405


class UnsupportedMediaType(PerdureError):
    """Raised when a request's body is of another media type than the operation takes."""

    code = "unsupported_media_type"
    status = 415


# --- who may ask ---------------------------------------------------------------------------------------------------


class AuthenticationRequired(PerdureError):
    """Raised when a request to a server that has API keys carries none that is valid."""

    code = "authentication_required"
    status = 401


class HostNotAllowed(PerdureError):
    """Raised when a request reaches a loopback server under a Host or Origin that is not loopback."""

    code = "host_not_allowed"
    status = 403


# --- what is not there ---------------------------------------------------------------------------------------------


class NotFound(PerdureError):
    """Base of the errors for things that do not exist in the scope asked."""

    code = "not_found"
    status = 404
    noun: ClassVar[str] = "thing"

    def __init__(self, reference: str, hint: str = "") -> None:
        super().__init__(f"There is no {self.noun} {reference!r} here.{' ' + hint if hint else ''}")


class AgentNotFound(NotFound):
    """Raised when the environment's current deployment has no agent of that name."""

    code = "agent_not_found"
    noun = "agent"


class SessionNotFound(NotFound):
    """Raised when the environment has no session of that id."""

    code = "session_not_found"
    noun = "session"


class TurnNotFound(NotFound):
    """Raised when the session has no turn of that id."""

    code = "turn_not_found"
    noun = "turn"


class HoldNotFound(NotFound):
    """Raised when the session never had a hold of that id."""

    code = "hold_not_found"
    noun = "hold"


class AskNotFound(NotFound):
    """Raised when the session has no question of that id."""

    code = "ask_not_found"
    noun = "question"


class MessageNotFound(NotFound):
    """Raised when the session has no steering message of that id."""

    code = "message_not_found"
    noun = "message"


class RunNotFound(NotFound):
    """Raised when the session has no run of that id."""

    code = "run_not_found"
    noun = "run"


class DeploymentNotFound(NotFound):
    """Raised when the environment has no deployment of that id."""

    code = "deployment_not_found"
    noun = "deployment"


class EnvironmentNotFound(NotFound):
    """Raised when a project or environment does not exist."""

    code = "environment_not_found"
    noun = "environment"


class WorkspaceFileNotFound(NotFound):
    """Raised when a Computer's workspace has no entry of that path."""

    code = "workspace_file_not_found"
    noun = "workspace file"


# --- what the state does not allow ---------------------------------------------------------------------------------


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
    """Raised when events below a session's retention floor are asked for."""

    code = "cursor_expired"
    status = 410

    def __init__(self, retained_after: int) -> None:
        super().__init__(
            f"Events up to {retained_after} are gone by retention. Read from --after {retained_after}.",
            {"retained_after": retained_after},
        )


# --- what workers and handlers meet --------------------------------------------------------------------------------


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


# --- what a definition or a project says wrongly -------------------------------------------------------------------


class DefinitionError(PerdureError):
    """Raised when an agent, template or image is defined wrongly."""

    code = "definition_invalid"
    status = 400


class ProjectError(PerdureError):
    """Raised when a project cannot be read, archived or loaded."""

    code = "project_invalid"
    status = 400


class ProjectImportError(ProjectError):
    """Raised when importing a project fails; names the file, the line and the last line of the traceback."""

    code = "project_import_failed"


class NoAgentsFound(ProjectError):
    """Raised when a project defines no agent."""

    code = "no_agents_found"


class DuplicateDefinition(ProjectError):
    """Raised when two agents, templates or images of a project have one id; names both places."""

    code = "duplicate_definition"


class DiscoveryFailed(ProjectError):
    """Raised when the process that reads a project's definitions hangs, crashes or ends itself."""

    code = "project_discovery_failed"


class SourceRefused(ProjectError):
    """Raised when a project's folder holds what must not be deployed: secrets, environments, links that leave it."""

    code = "source_refused"


class SourceTooLarge(ProjectError):
    """Raised when a project's source exceeds a size limit."""

    code = "source_too_large"
    status = 413


class ArchiveInvalid(ProjectError):
    """Raised when an uploaded source archive is damaged or holds what it must not. Nothing was unpacked."""

    code = "archive_invalid"


class ProjectExists(ProjectError):
    """Raised when a new project would overwrite files. Nothing was written."""

    code = "project_exists"
    status = 409


# --- what the machine does not give --------------------------------------------------------------------------------


class StoreError(PerdureError):
    """Raised when the store cannot do what was asked for a reason of the machine's; nothing of it was committed."""

    code = "store_unavailable"
    status = 503


class StoreInUse(StoreError):
    """Raised when a data folder is opened while another process has it open."""

    code = "store_in_use"


class StoreFull(StoreError):
    """Raised when the disk or quota under the store is full; nothing of the command was committed."""

    code = "store_full"


class StoreReadOnly(StoreError):
    """Raised when the data folder or its database cannot be written by this user."""

    code = "store_read_only"


class StoreCorrupt(StoreError):
    """Raised when the database file is damaged or is no database."""

    code = "store_corrupt"


class StoreTooNew(StoreError):
    """Raised when a store was written by a newer Perdure; it is left unchanged."""

    code = "store_too_new"


class NotSupported(PerdureError):
    """Raised when a backend or store cannot do what was asked, and says so."""

    code = "not_supported"
    status = 501


class ProcessStartFailed(PerdureError):
    """Raised when a session's process cannot be started; its input stays queued."""

    code = "process_start_failed"
    status = 503


class Unavailable(PerdureError):
    """Raised when the server is stopping or cannot be reached; retry with the same idempotency key."""

    code = "unavailable"
    status = 503


class AddressUnavailable(PerdureError):
    """Raised when the server cannot listen where it was told to: port in use, address not of this machine."""

    code = "address_unavailable"
    status = 503


def by_code() -> dict[str, type[PerdureError]]:
    """Return the classes by their code, for the client."""
    found: dict[str, type[PerdureError]] = {}
    pending: list[type[PerdureError]] = [PerdureError]
    while pending:
        kind = pending.pop()
        found.setdefault(kind.code, kind)
        pending.extend(kind.__subclasses__())
    return found
