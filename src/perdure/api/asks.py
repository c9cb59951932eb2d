"""Questions that running turns ask of people."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from perdure.api.base import Id, Instant, Omitted, Wire
from perdure.api.content import Content
from perdure.api.sessions import Issuer
from perdure.records.sessions import AskStatus


class TextControl(Wire):
    """The answer is text that is not empty."""

    type: Literal["text"]


class Option(Wire):
    """One choice of a question."""

    id: str
    label: str
    value: Any
    description: Omitted[str] = None


class ChoiceControl(Wire):
    """The answer is `{"selected": [{"id", "value"} …], "text"?}` with options in the order of their declaration."""

    type: Literal["choice"]
    options: list[Option]
    multiple: Omitted[bool] = None
    allow_text: Omitted[bool] = None


Control: TypeAlias = Annotated[TextControl | ChoiceControl, Field(discriminator="type")]


class Ask(Wire):
    """A question and, once it has been given, its answer."""

    id: Id
    session_id: Id
    turn_id: Id
    status: AskStatus
    prompt: Content
    answer_control: Control
    answer: Any = None
    responded_by: Omitted[Issuer] = None
    created_at: Instant
    ended_at: Omitted[Instant] = None


class AskPage(Wire):
    """Questions, oldest first. No `next_cursor` means that there are no more now."""

    asks: list[Ask]
    next_cursor: Omitted[str] = None
