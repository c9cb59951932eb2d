"""The OpenAPI 3.1 document, made of the table of operations and the pydantic models."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, models_json_schema
from pydantic_core import core_schema

from perdure.api.base import ID_PATTERN
from perdure.api.failures import ErrorEnvelope
from perdure.server.operations import Archive, Operation, Stream

_REF: Final = "#/components/schemas/{model}"
_ENVELOPE: Final = {"application/json": {"schema": {"$ref": _REF.format(model="ErrorEnvelope")}}}
_REQUEST_ID: Final = {"X-Request-ID": {"$ref": "#/components/headers/RequestId"}}
_RETRY_AFTER: Final = {"Retry-After": {"$ref": "#/components/headers/RetryAfter"}}
_DESCRIPTION: Final = (
    "Sessions, turns, events and deployments of one Perdure server. Errors come in one envelope; every response names "
    "its request in `X-Request-ID`, and every 503 says in `Retry-After` when to ask again. Unknown fields and query "
    "parameters are refused; `null`, absent and `{}` are three things. A server on loopback without API keys is open "
    "to this machine; any other needs a key as bearer token."
)


class _Schemas(GenerateJsonSchema):
    """Leaves out what says nothing: titles that repeat names, and null as the default of what may be left out."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
        return False

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        if schema.get("default", ...) is None:
            return self.generate_inner(schema["schema"])
        return super().default_schema(schema)


def openapi_document(operations: Iterable[Operation], version: str) -> dict[str, Any]:
    """Return the document that describes `operations`."""
    table = list(operations)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Perdure",
            "version": version,
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{}, {"apiKey": []}],
        "paths": _paths(table),
        "components": {
            "schemas": _component_schemas(table),
            "headers": _headers(),
            "securitySchemes": {"apiKey": {"type": "http", "scheme": "bearer", "description": "An API key, prd_sk_…"}},
        },
    }


def _headers() -> dict[str, Any]:
    again = "After how many seconds the same request may be sent again"
    return {
        "RequestId": {"description": "The request's UUIDv7", "schema": _id_schema(), "required": True},
        "RetryAfter": {"description": again, "schema": {"type": "integer", "minimum": 0}, "required": True},
    }


def _paths(table: list[Operation]) -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for operation in table:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    return paths


def _operation(operation: Operation) -> dict[str, Any]:
    made: dict[str, Any] = {
        "operationId": operation.id,
        "summary": operation.summary,
        "tags": [operation.tag],
        "parameters": [*_path_parameters(operation.path), *_query_parameters(operation)],
        "responses": {**_answers(operation), **_refusals(operation)},
    }
    if operation.body is not None:
        made["requestBody"] = _body(operation.body)
    if not operation.path.startswith("/v1/"):
        made["security"] = []
    return made


def _id_schema() -> dict[str, str]:
    return {"type": "string", "format": "uuid", "pattern": ID_PATTERN}


def _path_parameters(path: str) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": _id_schema() if name.endswith("_id") else {"type": "string", "minLength": 1},
        }
        for name in re.findall(r"\{(\w+)\}", path)
    ]


def _query_parameters(operation: Operation) -> list[dict[str, Any]]:
    schema = operation.query.model_json_schema(schema_generator=_Schemas, ref_template=_REF)
    found = [_parameter(name, each) for name, each in schema.get("properties", {}).items()]
    return [*found, *(_last_event_id(each) for each in operation.answers.values() if isinstance(each, Stream))]


def _last_event_id(stream: Stream) -> dict[str, Any]:
    return {
        "name": "Last-Event-ID",
        "in": "header",
        "required": False,
        "description": "The last `id` that the client got; wins over `after`",
        "schema": {"type": "string", "pattern": stream.id_pattern},
    }


def _parameter(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    described = {key: value for key, value in schema.items() if key != "description"}
    parameter = {"name": name, "in": "query", "required": False, "schema": described}
    return {**parameter, "description": schema["description"]} if "description" in schema else parameter


def _body(body: type[BaseModel] | Archive) -> dict[str, Any]:
    if isinstance(body, Archive):
        told = f"{body.description}; {body.limit} bytes at most"
        schema = {"type": "string", "contentMediaType": body.media_type}
        return {"required": True, "description": told, "content": {body.media_type: {"schema": schema}}}
    required = any(field.is_required() for field in body.model_fields.values())
    return {"required": required, "content": {"application/json": {"schema": _ref(body)}}}


def _ref(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": _REF.format(model=model.__name__)}


def _answers(operation: Operation) -> dict[str, Any]:
    return {
        str(status): {
            "description": answer.description if isinstance(answer, Stream) else HTTPStatus(status).phrase,
            "headers": _REQUEST_ID,
            "content": _content(answer),
        }
        for status, answer in operation.answers.items()
    }


def _content(answer: type[BaseModel] | Stream) -> dict[str, Any]:
    if not isinstance(answer, Stream):
        return {"application/json": {"schema": _ref(answer)}}
    events = [_event(name, model) for name, model in answer.data.items()]
    return {"text/event-stream": {"schema": {"description": "One event of the stream", "anyOf": events}}}


def _event(name: str, model: type[BaseModel]) -> dict[str, Any]:
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": _ref(model)}
    if name:
        return {"type": "object", "required": ["event", "data"], "properties": {"event": {"const": name}, "data": data}}
    durable = {"id": {"type": "string", "pattern": "^[1-9][0-9]*$"}, "event": {"type": "string"}, "data": data}
    return {"type": "object", "required": ["id", "event", "data"], "properties": durable}


def _refusals(operation: Operation) -> dict[str, Any]:
    codes: dict[int, set[str]] = {}
    for error in operation.all_errors:
        codes.setdefault(error.status, set()).add(error.code)
    return {
        str(status): {
            "description": ", ".join(sorted(codes[status])),
            "headers": {**_REQUEST_ID, **_RETRY_AFTER} if status == 503 else _REQUEST_ID,
            "content": _ENVELOPE,
        }
        for status in sorted(codes)
    }


def _component_schemas(table: list[Operation]) -> Mapping[str, Any]:
    models: dict[type[BaseModel], None] = {ErrorEnvelope: None}
    for operation in table:
        if isinstance(operation.body, type):
            models[operation.body] = None
        for answer in operation.answers.values():
            models.update(dict.fromkeys(answer.data.values() if isinstance(answer, Stream) else [answer]))
    pairs = [(model, "validation") for model in models]
    _, schema = models_json_schema(pairs, ref_template=_REF, schema_generator=_Schemas)  # type: ignore[arg-type]
    return dict(sorted(schema["$defs"].items()))
