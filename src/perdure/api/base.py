"""What all models of the HTTP API share.

`Omitted` fields are absent from a response when there is nothing to say; fields typed `… | None` are always present and
may be null. In requests, null, absent and `{}` are three things: an optional field is left out, never null.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, ClassVar, Final, TypeVar

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetJsonSchemaHandler,
    PlainSerializer,
    WithJsonSchema,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import core_schema

from perdure.records.ids import KEY_LIMIT, check_id, check_key

T = TypeVar("T")

ID_PATTERN: Final = "^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"
DURATION_PATTERN: Final = "^[1-9][0-9]*(ms|s|m|h|d)$"
INSTANT_FORM: Final = "%Y-%m-%dT%H:%M:%S.%fZ"


class Wire(BaseModel):
    """Base of what the server answers. Fields that a newer server adds are passed over."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="ignore")

    def document(self) -> dict[str, Any]:
        """Return the JSON document as the server sent it: what was absent stays absent, what was null is null."""
        return self.model_dump(mode="json", exclude_unset=True)


class RequestBody(BaseModel):
    """Base of what clients send. Unknown fields and wrong types are refused."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", strict=True)


class _NotNullable:
    """Leaves null and the default out of a field's schema: the field is given or absent."""

    def __get_pydantic_json_schema__(
        self, core: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        schema = handler(core)
        kinds = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
        if len(kinds) == 1:
            del schema["anyOf"]
            schema.update(kinds[0])
        elif kinds:
            schema["anyOf"] = kinds
        return schema


def _refuse_null(value: Any) -> Any:
    if value is None:
        raise ValueError("null is not a value here; leave the field out instead")
    return value


Omitted = Annotated[T | None, _NotNullable()]
Given = Annotated[T | None, BeforeValidator(_refuse_null), _NotNullable()]


def _write_instant(moment: datetime) -> str:
    return moment.strftime(INSTANT_FORM)


Instant = Annotated[
    AwareDatetime,
    PlainSerializer(_write_instant, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "format": "date-time", "description": "RFC 3339, UTC, microseconds"}),
]

Id = Annotated[str, WithJsonSchema({"type": "string", "format": "uuid", "pattern": ID_PATTERN})]
"""A canonical lowercase UUIDv7."""

HoldId = Annotated[
    str,
    AfterValidator(lambda text: check_id(text, "hold_id")),
    WithJsonSchema({"type": "string", "format": "uuid", "pattern": ID_PATTERN}),
]

_KEY_SCHEMA: Final = {
    "type": "string",
    "minLength": 1,
    "maxLength": KEY_LIMIT,
    "description": f"1 to {KEY_LIMIT} bytes of UTF-8, no NUL, no white space at either end; taken as it is",
}

SessionKey = Annotated[str, AfterValidator(lambda text: check_key(text, "session key")), WithJsonSchema(_KEY_SCHEMA)]
IdempotencyKey = Annotated[
    str, AfterValidator(lambda text: check_key(text, "idempotency key")), WithJsonSchema(_KEY_SCHEMA)
]
ResponseId = Annotated[str, AfterValidator(lambda text: check_key(text, "response_id")), WithJsonSchema(_KEY_SCHEMA)]
Duration = Annotated[str, WithJsonSchema({"type": "string", "pattern": DURATION_PATTERN, "examples": ["30s", "1d"]})]
