"""From a function's signature and docstring to a JSON schema, and from JSON to its arguments."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, get_type_hints

from pydantic import AliasChoices, BaseModel, ConfigDict, ValidationError, create_model
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from perdure.chat.arguments import InvalidArguments
from perdure.errors import DefinitionError

_SHOWN_ERRORS: Final = 8
_SHOWN_INPUT: Final = 60
_KEPT: Final = frozenset({"default", "const", "enum", "examples"})


class Schema(NamedTuple):
    """What a model is told, and the pydantic model that checks what it sends."""

    description: str
    parameters: dict[str, Any]
    model: type[BaseModel]
    fields: dict[str, str]
    optional: frozenset[str]

    def values(self, data: bytes) -> dict[str, Any]:
        """Return the arguments in canonical JSON as the function takes them; raises `InvalidArguments`.

        Parameters that were not sent are left to the function's own defaults.
        """
        try:
            checked = self.model.model_validate_json(data)
        except ValidationError as error:
            raise InvalidArguments(_explain(error.errors(include_url=False))) from None
        except Exception as error:
            # A validator of the user's own that failed; to the model it is the arguments that do not fit.
            raise InvalidArguments(f"The arguments could not be checked: {type(error).__name__}: {error}.") from error
        sent = checked.model_fields_set
        return {
            name: getattr(checked, field)
            for field, name in self.fields.items()
            if field in sent or name not in self.optional
        }


def make_schema(name: str, function: Callable[..., Any]) -> Schema:
    """Return the schema of a tool's function; raises `DefinitionError` naming the parameter that has none."""
    description, words = _read_docstring(inspect.getdoc(function) or "")
    parameters = list(inspect.signature(function).parameters.values())[1:]
    hints = _hints(name, function, [parameter.name for parameter in parameters])
    definitions: dict[str, Any] = {}
    for number, parameter in enumerate(parameters):
        definitions[f"p{number}"] = (hints[parameter.name], _field(hints[parameter.name], parameter, words))
    try:
        # Fields have names of our own and the parameters' as aliases: a parameter may be called `json` or `copy`.
        model: type[BaseModel] = create_model(name, __config__=ConfigDict(extra="forbid"), **definitions)
        schema = model.model_json_schema()
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        raise DefinitionError(f"Tool {name!r}: no JSON schema can be made of its parameters: {error}") from None
    fields = {f"p{number}": parameter.name for number, parameter in enumerate(parameters)}
    optional = frozenset(each.name for each in parameters if each.default is not inspect.Parameter.empty)
    return Schema(description, _tidy(schema), model, fields, optional)


def _hints(name: str, function: Callable[..., Any], parameters: list[str]) -> dict[str, Any]:
    """Return the types of the parameters; those of the context and the result need not be there at run time."""

    def bare() -> None: ...

    bare.__annotations__ = {each: function.__annotations__[each] for each in parameters}
    try:
        return get_type_hints(bare, globalns=_module_names(function), include_extras=True)
    except (NameError, TypeError, SyntaxError) as error:
        raise DefinitionError(
            f"Tool {name!r}: the type of a parameter cannot be read: {error}. Types of parameters must be importable "
            "when the program runs, at the top of the module, and not under TYPE_CHECKING."
        ) from None


def _module_names(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the names that annotations of a function can mean: those of its module."""
    return dict(vars(sys.modules[function.__module__])) | dict(getattr(function, "__globals__", {}))


def _field(hint: Any, parameter: inspect.Parameter, words: Mapping[str, str]) -> FieldInfo:
    if parameter.default is inspect.Parameter.empty:
        field = FieldInfo.from_annotation(hint)
    else:
        field = FieldInfo.from_annotated_attribute(hint, parameter.default)
    spoken = field.description or words.get(parameter.name)
    return FieldInfo.merge_field_infos(
        field, alias=parameter.name, validation_alias=AliasChoices(parameter.name), description=spoken
    )


def _read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Return a docstring's text before its sections, and what it says of each parameter."""
    if not text.strip():
        return "", {}
    try:
        import griffe
    except ImportError:
        raise DefinitionError("Tools need the extra 'chat': pip install 'perdure[chat]'.") from None
    quiet: Any = {style: {"warnings": False} for style in ("google", "numpy", "sphinx")}
    docstring = griffe.Docstring(text, lineno=1)
    sections = griffe.parse_auto(docstring, method="max_sections", default="google", per_style_options=quiet)
    words: dict[str, str] = {}
    for section in sections:
        if isinstance(section, griffe.DocstringSectionParameters):
            words.update({each.name.lstrip("*"): " ".join(each.description.split()) for each in section.value})
    spoken = [section.value for section in sections if isinstance(section, griffe.DocstringSectionText)]
    return "\n\n".join(spoken).strip(), words


def _tidy(schema: Any) -> Any:
    """Return a schema without the titles that pydantic makes of names: each costs tokens and says nothing new."""
    if isinstance(schema, list):
        return [_tidy(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    tidy: dict[str, Any] = {}
    for key, value in schema.items():
        if key in ("properties", "$defs"):
            tidy[key] = {name: _tidy(each) for name, each in value.items()}
        elif key != "title":
            tidy[key] = value if key in _KEPT else _tidy(value)
    return tidy


# --- what is wrong, in words that a model can act on


def _explain(errors: Iterable[ErrorDetails]) -> str:
    lines = [f"- {_one(error)}" for error in errors]
    more = len(lines) - _SHOWN_ERRORS
    if more > 0:
        lines = [*lines[:_SHOWN_ERRORS], f"- and {more} more"]
    return "\n".join(["The arguments do not fit the tool's parameters:", *lines, "Correct them and call again."])


def _one(error: ErrorDetails) -> str:
    place = ".".join(str(step) for step in error["loc"]) or "arguments"
    if error["type"] == "missing":
        return f"{place}: is required and missing"
    if error["type"] == "extra_forbidden":
        return f"{place}: there is no such parameter; leave it out"
    return f"{place}: {error['msg']}, not {_shown(error['input'])}"


def _shown(value: Any) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= _SHOWN_INPUT else f"{text[:_SHOWN_INPUT]}…"
