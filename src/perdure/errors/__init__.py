"""Every error that a caller can meet, one class a situation.

`code` and `status` are what HTTP clients see; `message` says what happened, what is safe and what to do. `details`
holds what a program needs to act. The typed client raises the same classes again from a response's code.
"""

from __future__ import annotations

from perdure.errors.base import (
    PerdureError,
    envelope,
)
from perdure.errors.machine import (
    AddressUnavailable,
    NotSupported,
    ProcessStartFailed,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreInUse,
    StoreReadOnly,
    StoreTooNew,
    Unavailable,
)
from perdure.errors.projects import (
    ArchiveInvalid,
    DefinitionError,
    DiscoveryFailed,
    DuplicateDefinition,
    NoAgentsFound,
    ProjectError,
    ProjectExists,
    ProjectImportError,
    SourceRefused,
    SourceTooLarge,
)
from perdure.errors.requests import (
    AgentNotFound,
    AskNotFound,
    AuthenticationRequired,
    BadRequest,
    ContentTooLarge,
    DeploymentNotFound,
    EnvironmentNotFound,
    HoldNotFound,
    HostNotAllowed,
    InvalidContent,
    InvalidControl,
    InvalidCursor,
    InvalidDuration,
    InvalidId,
    InvalidJson,
    InvalidKey,
    MessageNotFound,
    MethodNotAllowed,
    NotFound,
    NotJson,
    RunNotFound,
    SessionNotFound,
    TurnNotFound,
    UnsupportedMediaType,
    WorkspaceFileNotFound,
    WorkspacePathRefused,
)
from perdure.errors.state import (
    AnswerInvalid,
    AskAlreadyResponded,
    AskCancelled,
    Conflict,
    CursorExpired,
    IdempotencyConflict,
    MessageClosed,
    MessageRejected,
    NoCurrentDeployment,
    OutputBudgetExceeded,
    QueueFull,
    ResponseAlreadyStaged,
    SessionHeld,
    SessionKeyConflict,
    SessionNotOpen,
    StaleFence,
    TooManyHolds,
    TooManyPending,
    TurnNotRunning,
)


def by_code() -> dict[str, type[PerdureError]]:
    """Return the classes by their code, for the client."""
    found: dict[str, type[PerdureError]] = {}
    pending: list[type[PerdureError]] = [PerdureError]
    while pending:
        kind = pending.pop()
        found.setdefault(kind.code, kind)
        pending.extend(kind.__subclasses__())
    return found


__all__ = [
    "AddressUnavailable",
    "AgentNotFound",
    "AnswerInvalid",
    "ArchiveInvalid",
    "AskAlreadyResponded",
    "AskCancelled",
    "AskNotFound",
    "AuthenticationRequired",
    "BadRequest",
    "Conflict",
    "ContentTooLarge",
    "CursorExpired",
    "DefinitionError",
    "DeploymentNotFound",
    "DiscoveryFailed",
    "DuplicateDefinition",
    "EnvironmentNotFound",
    "HoldNotFound",
    "HostNotAllowed",
    "IdempotencyConflict",
    "InvalidContent",
    "InvalidControl",
    "InvalidCursor",
    "InvalidDuration",
    "InvalidId",
    "InvalidJson",
    "InvalidKey",
    "MessageClosed",
    "MessageNotFound",
    "MessageRejected",
    "MethodNotAllowed",
    "NoAgentsFound",
    "NoCurrentDeployment",
    "NotFound",
    "NotJson",
    "NotSupported",
    "OutputBudgetExceeded",
    "PerdureError",
    "ProcessStartFailed",
    "ProjectError",
    "ProjectExists",
    "ProjectImportError",
    "QueueFull",
    "ResponseAlreadyStaged",
    "RunNotFound",
    "SessionHeld",
    "SessionKeyConflict",
    "SessionNotFound",
    "SessionNotOpen",
    "SourceRefused",
    "SourceTooLarge",
    "StaleFence",
    "StoreCorrupt",
    "StoreError",
    "StoreFull",
    "StoreInUse",
    "StoreReadOnly",
    "StoreTooNew",
    "TooManyHolds",
    "TooManyPending",
    "TurnNotFound",
    "TurnNotRunning",
    "Unavailable",
    "UnsupportedMediaType",
    "WorkspaceFileNotFound",
    "WorkspacePathRefused",
    "by_code",
    "envelope",
]
