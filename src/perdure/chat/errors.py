"""What the chat harness refuses: entries, tools, documents and models that it cannot use."""

from __future__ import annotations

from perdure.errors import PerdureError


class EntryInvalid(PerdureError):
    """Raised when a stored transcript entry cannot be read: it is damaged, or was not written by Perdure."""

    code = "entry_invalid"

    def __init__(self, why: str) -> None:
        super().__init__(f"A transcript entry cannot be read: {why}. Nothing was changed.")


class EntryTooNew(PerdureError):
    """Raised when a transcript entry was written by a newer Perdure than this one."""

    code = "entry_too_new"
    status = 409

    def __init__(self, version: int, newest: int) -> None:
        super().__init__(
            f"A transcript entry has format {version}; this Perdure reads formats up to {newest}. Nothing was changed; "
            "run a version of Perdure that is at least as new as the one that wrote it.",
            {"version": version, "newest": newest},
        )


class DocumentRefused(PerdureError):
    """Raised when a document's value does not fit its definition, or is used after its commit."""

    code = "document_refused"
    status = 400

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(f"The document {kind!r} is refused: {why}. Nothing was changed.", {"kind": kind})


class DocumentTooNew(PerdureError):
    """Raised when a document was stored by a newer definition than the one that reads it."""

    code = "document_too_new"
    status = 409

    def __init__(self, kind: str, stored: int, defined: int) -> None:
        super().__init__(
            f"The document {kind!r} is stored in version {stored}; this deployment defines version {defined}. Nothing "
            "was changed; deploy a definition of that version or a later one.",
            {"kind": kind, "stored": stored, "defined": defined},
        )


class DocumentMigrationFailed(PerdureError):
    """Raised when a stored document cannot be brought to the version that is defined now; it is kept as it was."""

    code = "document_migration_failed"

    def __init__(self, kind: str, stored: int, defined: int, why: str) -> None:
        super().__init__(
            f"The document {kind!r} cannot be brought from version {stored} to {defined}: {why}. It is kept as it was; "
            "deploy a definition whose migrations accept it.",
            {"kind": kind, "stored": stored, "defined": defined},
        )


class ModelNotAvailable(PerdureError):
    """Raised when a model cannot be had: an unknown name, a missing package, a missing key."""

    code = "model_not_available"
    status = 400

    def __init__(self, model: str, why: str) -> None:
        super().__init__(f"The model {model!r} cannot be used: {why}", {"model": model})


class ModelNotAllowed(PerdureError):
    """Raised when a conversation is asked to use a model that its agent does not offer."""

    code = "model_not_allowed"
    status = 403

    def __init__(self, model: str) -> None:
        super().__init__(f"This agent does not offer the model {model!r}. Nothing was changed.", {"model": model})


class ServerNotAvailable(PerdureError):
    """Raised when an MCP server cannot be reached, or is lost in the middle of a call, which may have had an effect."""

    code = "server_not_available"
    status = 502

    def __init__(self, server: str, why: str) -> None:
        super().__init__(f"The MCP server {server!r} is not there: {why}", {"server": server})
