"""What is old is said by the store, whose clock all machines share, and not by the one who prunes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from perdure.cli import store as commands
from perdure.records import instants
from perdure.store.tools import prune as tools

pytestmark = pytest.mark.anyio
THERE = 1_700_000_000_000_000
HERE = 2_000_000_000_000_000


@pytest.mark.parametrize("shared", [True, False])
async def test_the_time_is_the_stores(shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def there() -> int:
        return THERE

    asked: list[int] = []

    async def pruned(_store: Any, now: int, _only: Any, **_: Any) -> dict[str, Any]:
        asked.append(now)
        return {}

    monkeypatch.setattr(instants, "now", lambda: HERE)
    monkeypatch.setattr(tools, "prune", pruned)
    store: Any = SimpleNamespace(leases=SimpleNamespace(now=there) if shared else None)
    assert await commands._pruned(store, []) == []
    assert await commands._due(store, []) == []
    assert asked == [THERE if shared else HERE]
