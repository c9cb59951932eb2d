"""Content on the wire: 1 to 64 text and JSON parts, 256 KiB of canonical JSON at most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from perdure.records.content import CONTENT_PARTS, ContentLike


class TextPart(BaseModel):
    """Text for a person or a model. Adjacent text parts are read as if joined, without a separator."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", strict=True)

    type: Literal["text"]
    text: str


class JsonPart(BaseModel):
    """Any JSON value for a program."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", strict=True)

    type: Literal["json"]
    value: Any


Part: TypeAlias = Annotated[TextPart | JsonPart, Field(discriminator="type")]
Content: TypeAlias = Annotated[list[Part], Field(min_length=1, max_length=CONTENT_PARTS)]


def text_of(content: Sequence[TextPart | JsonPart] | None) -> str:
    """Return the joined text of the text parts; nothing for no content."""
    return "".join(part.text for part in content or () if isinstance(part, TextPart))


def as_input(content: ContentLike | Sequence[TextPart | JsonPart] | TextPart | JsonPart) -> ContentLike:
    """Return content with the parts that a response had turned into what `encode_content` takes."""
    if isinstance(content, BaseModel):
        return content.model_dump()
    if isinstance(content, list | tuple):
        return [part.model_dump() if isinstance(part, BaseModel) else part for part in content]
    return content  # type: ignore[return-value]  # a sequence that is no list is refused by `encode_content`
