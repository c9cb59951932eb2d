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
    from perdure.client.aio import AsyncClient as AsyncClient
    from perdure.client.sync import Client as Client
    from perdure.errors import MessageRejected as MessageRejected
    from perdure.errors import PerdureError as PerdureError
    from perdure.hosts.context import Answer as Answer
    from perdure.hosts.context import AnswerControl as AnswerControl
    from perdure.hosts.context import ComputerInfo as ComputerInfo
    from perdure.hosts.context import InitContext as InitContext
    from perdure.hosts.context import Message as Message
    from perdure.hosts.context import Option as Option
    from perdure.hosts.context import Output as Output
    from perdure.hosts.context import RecoveryInfo as RecoveryInfo
    from perdure.hosts.context import RunInfo as RunInfo
    from perdure.hosts.context import SessionInfo as SessionInfo
    from perdure.hosts.context import Turn as Turn
    from perdure.hosts.context import TurnContext as TurnContext
    from perdure.records.content import ContentLike as ContentLike
    from perdure.records.content import JsonPart as JsonPart
    from perdure.records.content import Part as Part
    from perdure.records.content import TextPart as TextPart

    __version__: str

_HOMES: Final = {
    "Agent": "perdure.authoring.agent",
    "Answer": "perdure.hosts.context",
    "AnswerControl": "perdure.hosts.context",
    "AsyncClient": "perdure.client.aio",
    "Client": "perdure.client.sync",
    "ComputerInfo": "perdure.hosts.context",
    "ContentLike": "perdure.records.content",
    "Image": "perdure.authoring.image",
    "InitContext": "perdure.hosts.context",
    "JsonPart": "perdure.records.content",
    "Message": "perdure.hosts.context",
    "MessageRejected": "perdure.errors",
    "Option": "perdure.hosts.context",
    "Output": "perdure.hosts.context",
    "Part": "perdure.records.content",
    "PerdureError": "perdure.errors",
    "RecoveryInfo": "perdure.hosts.context",
    "RunInfo": "perdure.hosts.context",
    "SessionInfo": "perdure.hosts.context",
    "Template": "perdure.authoring.template",
    "TextPart": "perdure.records.content",
    "Turn": "perdure.hosts.context",
    "TurnContext": "perdure.hosts.context",
}

__all__ = [
    "Agent",
    "Answer",
    "AnswerControl",
    "AsyncClient",
    "Client",
    "ComputerInfo",
    "ContentLike",
    "Image",
    "InitContext",
    "JsonPart",
    "Message",
    "MessageRejected",
    "Option",
    "Output",
    "Part",
    "PerdureError",
    "RecoveryInfo",
    "RunInfo",
    "SessionInfo",
    "Template",
    "TextPart",
    "Turn",
    "TurnContext",
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
