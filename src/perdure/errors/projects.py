"""What a definition or a project says wrongly."""

from __future__ import annotations

from perdure.errors.base import PerdureError


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
