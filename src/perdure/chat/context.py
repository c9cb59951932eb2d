"""What tools and sections see of the conversation that they belong to."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from perdure.chat import changes, results
from perdure.chat import entries as e
from perdure.chat.documents import Document
from perdure.chat.journal import Batch, Journal, StoredDocument
from perdure.chat.output import OutputBuffer
from perdure.errors import BadRequest

if TYPE_CHECKING:
    from types import TracebackType

_Document = TypeVar("_Document", bound=Document)
Commit = Callable[[Batch], Awaitable[None]]


class Documents:
    """The documents of a conversation as they are committed."""

    def __init__(self, stored: Mapping[str, StoredDocument]) -> None:
        self.stored: dict[str, StoredDocument] = dict(stored)

    def read(self, document: type[_Document]) -> _Document | None:
        """Return a document's value, or None if it was never written; a change of the object changes nothing."""
        found = self.stored.get(document.document_kind)
        return None if found is None else document.load(found.version, found.value)


class SectionView:
    """What sections are rendered from."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents

    def document(self, document: type[_Document]) -> _Document | None:
        """Return a document's value, or None if it was never written."""
        return self._documents.read(document)


class Transaction:
    """Changes that are committed together when its block ends, and not at all when it raises."""

    def __init__(self, journal: Journal, documents: Documents, commit: Commit) -> None:
        self._journal, self._documents, self._commit = journal, documents, commit
        self._drafts: dict[str, Document] = {}
        self._notes: list[str] = []
        self._open = True

    async def document(self, document: type[_Document]) -> _Document:
        """Return a document to be changed in place; its initial value if it was never written."""
        if not self._open:
            raise BadRequest("This transaction has ended; open another with `async with ctx.commit() as tx`.")
        draft = self._drafts.get(document.document_kind)
        if draft is None:
            draft = self._documents.read(document) or document()
            self._drafts[document.document_kind] = draft
        assert isinstance(draft, document)
        return draft

    def note(self, text: str) -> None:
        """Tell the model something, in the place where a user would speak."""
        self._notes.append(text)

    async def __aenter__(self) -> Transaction:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        if error is None:
            await self._end()

    async def _end(self) -> None:
        entries: list[e.Entry] = []
        stored: dict[str, StoredDocument | None] = {}
        for kind, draft in self._drafts.items():
            change, value = self._changed(kind, draft)
            if change is not None:
                entries.append(change)
                stored[kind] = value
        entries += [self._entry(e.Note, text=text) for text in self._notes]
        if entries:
            await self._commit(Batch(entries=tuple(entries), documents=stored))
            self._documents.stored.update({kind: value for kind, value in stored.items() if value is not None})

    def _changed(self, kind: str, draft: Document) -> tuple[e.DocumentChange | None, StoredDocument]:
        before = self._documents.stored.get(kind)
        value, version = draft.stored(), draft.document_version
        if before is None or before.version != version:
            base, delta = value, None
        else:
            base, delta = changes.record(before.value, value, before.since_base)
        since = 0 if delta is None or before is None else before.since_base + 1
        stored = StoredDocument(version, value, since)
        if delta is not None and not delta:
            return None, stored
        patch = None if delta is None else tuple(delta)
        return self._entry(e.DocumentChange, document=kind, version=version, base=base, changes=patch), stored

    def _entry(self, kind: type[Any], **fields: Any) -> Any:
        journal = self._journal
        return kind(id=journal.new_id(), at=journal.now(), turn=journal.turn, **fields)


class ToolContext:
    """What a tool gets as `ctx`. `key` names its call, the same when it runs again after a crash."""

    def __init__(self, journal: Journal, documents: Documents, commit: Commit, key: str) -> None:
        self._journal, self._documents, self._commit = journal, documents, commit
        self.key: str = key
        self.buffer: OutputBuffer = OutputBuffer()
        self.kept_details: Any = None
        self.remarks: list[e.Diagnostic] = []

    async def memo(self, name: str, factory: Callable[[], Any]) -> Any:
        """Return a value that is made once and kept with this call: the same when it runs again, after a crash too.

        The factory may be async. Make idempotency keys for outside APIs so.
        """
        made = factory()
        return await self._journal.memo(self.key, name, await made if inspect.isawaitable(made) else made)

    def commit(self) -> Transaction:
        """Return a transaction, for `async with ctx.commit() as tx`."""
        return Transaction(self._journal, self._documents, self._commit)

    def document(self, document: type[_Document]) -> _Document | None:
        """Return a document's committed value, or None if it was never written."""
        return self._documents.read(document)

    async def output(self, piece: str | bytes) -> None:
        """Show what the call puts out while it runs; without a result of its own, it is the result."""
        self.buffer.add(piece)
        await self._journal.grow(
            f"tool:{self.key}", [piece if isinstance(piece, str) else piece.decode("utf-8", "replace")]
        )

    def details(self, value: Any) -> None:
        """Set what programs and people see beside the result."""
        self.kept_details = value

    def diagnostic(self, code: str, message: str) -> None:
        """Add a remark that the model reads after the result."""
        self.remarks.append(e.Diagnostic(code, message))

    def finish(self, value: Any) -> results.Finished:
        """Return what the tool returned together with what it put out, set and remarked while it ran."""
        made = results.finish(value)
        fallback = value is None or (isinstance(value, results.ToolResult) and not value.content)
        content = self.buffer.content() if fallback and not made.content else made.content
        remarks = (*made.diagnostics, *self.remarks, *(self.buffer.diagnostics() if fallback else ()))
        if made.details is not None or self.kept_details is None:
            return _with(made, content=content, diagnostics=remarks)
        kept = results.finish(results.ToolResult(details=self.kept_details))
        return _with(made, content=content, details=kept.details, diagnostics=(*remarks, *kept.diagnostics))


def _with(made: results.Finished, **changed: Any) -> results.Finished:
    return results.Finished(**{**{name: getattr(made, name) for name in made.__struct_fields__}, **changed})
