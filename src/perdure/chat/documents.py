"""Documents: typed state of a conversation, such as a plan, that is committed together with transcript entries."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, ValidationError

from perdure.chat.errors import DocumentMigrationFailed, DocumentRefused, DocumentTooNew
from perdure.errors import DefinitionError, NotJson
from perdure.records import canonical

History: TypeAlias = Literal["latest", "rewindable"]
Fork: TypeAlias = Literal["as_of", "current", "initial"]
Migration: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]

DOCUMENT_BYTES: Final = 1024 * 1024
_KIND: Final = re.compile(r"[a-z][a-z0-9_-]*(\.[a-z0-9_-]+)*")
_OURS: Final = "perdure."
_FORKS: Final[dict[History, tuple[Fork, ...]]] = {
    "latest": ("current", "initial"),
    "rewindable": ("as_of", "current", "initial"),
}


class Document(BaseModel):
    """Base of documents: pydantic models whose fields all have defaults.

    `kind` names the document in storage for ever; raise `version` when the stored shape changes, and register what
    brings older values along. `history` keeps the `latest` value only, or all of them (`rewindable`). `fork` says what
    a fork of the conversation begins with: the value `as_of` the entry it forks from (rewindable ones only), the
    `current` one, or the `initial`.

        class Plan(Document, kind="travel.plan", version=2, fork="current"):
            steps: list[Step] = []

        @Plan.migration(1)
        def add_done(value):
            return {"steps": [{"text": text, "done": False} for text in value["steps"]]}

    Raises `DefinitionError` for a definition that makes no sense.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    document_kind: ClassVar[str] = ""
    document_version: ClassVar[int] = 1
    document_history: ClassVar[History] = "latest"
    document_fork: ClassVar[Fork] = "current"
    document_migrations: ClassVar[dict[int, Migration]] = {}

    def __init_subclass__(
        cls,
        *,
        kind: str | None = None,
        version: int = 1,
        history: History = "latest",
        fork: Fork | None = None,
        **kwargs: Any,
    ) -> None:
        # Only to have the options of the class statement known to type checkers; they are heeded below, when the
        # fields are there.
        super().__init_subclass__(**kwargs)

    @classmethod
    def __pydantic_init_subclass__(
        cls,
        *,
        kind: str | None = None,
        version: int = 1,
        history: History = "latest",
        fork: Fork | None = None,
        **kwargs: Any,
    ) -> None:
        """Check and keep what the class statement says of the document."""
        super().__pydantic_init_subclass__(**kwargs)
        if kind is None:
            raise DefinitionError(
                f"Document {cls.__name__}: name its kind, as in class {cls.__name__}(Document, kind=…)."
            )
        cls.document_kind = _checked_kind(cls.__name__, kind)
        cls.document_version = _checked_version(kind, version)
        if history not in _FORKS:
            raise DefinitionError(f"Document {kind!r}: history={history!r} is refused; write 'latest' or 'rewindable'.")
        allowed = _FORKS[history]
        if fork is not None and fork not in allowed:
            raise DefinitionError(
                f"Document {kind!r}: fork={fork!r} is refused; with history={history!r} write one of "
                f"{', '.join(map(repr, allowed))}."
            )
        cls.document_history = history
        cls.document_fork = fork or allowed[0]
        cls.document_migrations = {}
        required = [name for name, field in cls.model_fields.items() if field.is_required()]
        if required:
            raise DefinitionError(
                f"Document {kind!r}: {', '.join(required)} must have a default, since a conversation begins without "
                "anyone to fill it in."
            )

    @classmethod
    def migration(cls, version: int) -> Callable[[Migration], Migration]:
        """Register the function that brings a stored value of `version` to the next; use it as a decorator.

        It is given JSON data and must be pure: it runs whenever an old value is read, and again until it is written.
        """
        if not 1 <= version < cls.document_version:
            raise DefinitionError(
                f"Document {cls.document_kind!r}: there is no version {version} below {cls.document_version} to "
                "migrate from."
            )
        if version in cls.document_migrations:
            raise DefinitionError(f"Document {cls.document_kind!r} has a migration from version {version} already.")

        def register(migration: Migration) -> Migration:
            cls.document_migrations[version] = migration
            return migration

        return register

    @classmethod
    def load(cls, version: int, value: Any) -> Self:
        """Return the document of a stored value, brought to this definition's version.

        Nothing is written. Raises `DocumentTooNew` for a newer version and `DocumentMigrationFailed` for one that
        cannot be brought here.
        """
        kind, defined = cls.document_kind, cls.document_version
        if version > defined:
            raise DocumentTooNew(kind, version, defined)
        current = value
        for number in range(version, defined):
            current = cls._migrated(number, current, version)
        try:
            return cls.model_validate_json(canonical.encode(current, f"document {kind!r}"))
        except (ValidationError, NotJson) as error:
            raise DocumentMigrationFailed(kind, version, defined, f"the value does not fit: {_words(error)}") from None

    @classmethod
    def _migrated(cls, number: int, value: Any, stored: int) -> Any:
        kind, defined = cls.document_kind, cls.document_version
        migration = cls.document_migrations.get(number)
        if migration is None:
            raise DocumentMigrationFailed(kind, stored, defined, f"no migration is registered from version {number}")
        try:
            # A copy by way of JSON: what a migration changes in place must not change what is stored.
            return migration(canonical.decode(canonical.encode(value)))
        except Exception as error:
            why = f"the migration from version {number} failed: {_words(error)}"
            raise DocumentMigrationFailed(kind, stored, defined, why) from error

    def stored(self) -> Any:
        """Return the value as JSON data, checked whole; raises `DocumentRefused` for one that does not fit."""
        kind = self.document_kind
        try:
            data = canonical.encode(self.model_dump(mode="json", warnings=False), f"document {kind!r}")
            type(self).model_validate_json(data)
        except (ValidationError, NotJson, ValueError) as error:
            raise DocumentRefused(kind, _words(error)) from None
        if len(data) > DOCUMENT_BYTES:
            raise DocumentRefused(kind, f"it has {len(data)} bytes; the limit is {DOCUMENT_BYTES}")
        return canonical.decode(data)


def documents_by_kind(documents: Iterable[type[Document]]) -> dict[str, type[Document]]:
    """Return documents by their kind; raises `DefinitionError` when two definitions claim one."""
    found: dict[str, type[Document]] = {}
    for document in documents:
        other = found.setdefault(document.document_kind, document)
        if other is not document:
            raise DefinitionError(
                f"Two documents have the kind {document.document_kind!r}: {other.__module__}.{other.__qualname__} and "
                f"{document.__module__}.{document.__qualname__}. Give one of them another kind."
            )
    return found


def _checked_kind(name: str, kind: str) -> str:
    if not isinstance(kind, str) or not _KIND.fullmatch(kind) or len(kind) > 128:
        raise DefinitionError(
            f"Document {name}: kind={kind!r} is refused; write lowercase words joined by dots, such as 'travel.plan'."
        )
    if kind.startswith(_OURS):
        raise DefinitionError(f"Document {name}: kind={kind!r} is refused; kinds that begin with '{_OURS}' are ours.")
    return kind


def _checked_version(kind: str, version: int) -> int:
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise DefinitionError(f"Document {kind!r}: version={version!r} is refused; versions count from 1.")
    return version


def _words(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, first['loc'])) or 'value'}: {first['msg']}"
    return getattr(error, "message", None) or f"{type(error).__name__}: {error}"
