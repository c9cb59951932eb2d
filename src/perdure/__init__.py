"""Perdure: durable AI agents whose conversations, files and live memory survive crashes, deploys and silence.

The public names are loaded when they are first used, so that `import perdure` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from perdure import errors as errors
    from perdure.authoring.agent import Agent as Agent
    from perdure.authoring.image import Image as Image
    from perdure.authoring.template import Template as Template
    from perdure.errors import MessageRejected as MessageRejected
    from perdure.errors import PerdureError as PerdureError
    from perdure.records.content import ContentLike as ContentLike
    from perdure.records.content import JsonPart as JsonPart
    from perdure.records.content import TextPart as TextPart

    __version__: str

_HOMES: Final = {
    "Agent": "perdure.authoring.agent",
    "ContentLike": "perdure.records.content",
    "Image": "perdure.authoring.image",
    "JsonPart": "perdure.records.content",
    "MessageRejected": "perdure.errors",
    "PerdureError": "perdure.errors",
    "Template": "perdure.authoring.template",
    "TextPart": "perdure.records.content",
}

__all__ = [
    "Agent",
    "ContentLike",
    "Image",
    "JsonPart",
    "MessageRejected",
    "PerdureError",
    "Template",
    "TextPart",
    "__version__",
    "errors",
]


def __getattr__(name: str) -> Any:
    value: Any
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    elif name == "errors":
        value = import_module("perdure.errors")
    elif name == "__version__":
        value = import_module("importlib.metadata").version("perdure")
    else:
        raise AttributeError(f"module 'perdure' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
