"""What a request says wrongly, who may ask, and what is not there."""

from __future__ import annotations

from typing import ClassVar

from perdure.errors.base import PerdureError


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


class AuthenticationRequired(PerdureError):
    """Raised when a request to a server that has API keys carries none that is valid."""

    code = "authentication_required"
    status = 401


class HostNotAllowed(PerdureError):
    """Raised when a request reaches a loopback server under a Host or Origin that is not loopback."""

    code = "host_not_allowed"
    status = 403


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


class StepNotFound(NotFound):
    """Raised when the outcome of a step comes that was never begun."""

    noun = "step"


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
