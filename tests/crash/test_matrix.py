"""Every crash point, with every action: what is promised holds after it."""

from __future__ import annotations

import pytest
from crash_case import Case, play
from crash_matrix import cases
from crash_world import Worlds

CASES = cases()


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_what_is_promised_holds(worlds: Worlds, case: Case) -> None:
    with worlds.use() as world:
        await play(world, case)
