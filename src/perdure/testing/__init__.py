"""What users test their agents with: a ledger of effects, a node in the test's process, `perdure dev` as a process of
its own that can be crashed at a named point, and a checker of what a session's log promises.

The names are loaded when they are first used, so that handlers can import `Ledger` at no cost.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from perdure.testing.arming import CrashFile as CrashFile
    from perdure.testing.arming import CrashNote as CrashNote
    from perdure.testing.dev import DevServer as DevServer
    from perdure.testing.dev import ServerNotStarted as ServerNotStarted
    from perdure.testing.history import History as History
    from perdure.testing.history import HistoryBroken as HistoryBroken
    from perdure.testing.history import Started as Started
    from perdure.testing.history import check_history as check_history
    from perdure.testing.history import problems as problems
    from perdure.testing.ledger import Ledger as Ledger
    from perdure.testing.node import LocalNode as LocalNode
    from perdure.testing.node import ManualClock as ManualClock
    from perdure.testing.node import local_node as local_node

_HOMES: Final = {
    "CrashFile": "perdure.testing.arming",
    "CrashNote": "perdure.testing.arming",
    "DevServer": "perdure.testing.dev",
    "History": "perdure.testing.history",
    "HistoryBroken": "perdure.testing.history",
    "Ledger": "perdure.testing.ledger",
    "LocalNode": "perdure.testing.node",
    "ManualClock": "perdure.testing.node",
    "ServerNotStarted": "perdure.testing.dev",
    "Started": "perdure.testing.history",
    "check_history": "perdure.testing.history",
    "local_node": "perdure.testing.node",
    "problems": "perdure.testing.history",
}

__all__ = [
    "CrashFile",
    "CrashNote",
    "DevServer",
    "History",
    "HistoryBroken",
    "Ledger",
    "LocalNode",
    "ManualClock",
    "ServerNotStarted",
    "Started",
    "check_history",
    "local_node",
    "problems",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'perdure.testing' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value
