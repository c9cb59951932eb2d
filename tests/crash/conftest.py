from __future__ import annotations

from collections.abc import Iterator

import pytest
from crash_world import Worlds


@pytest.fixture(scope="session")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worlds]:
    made = Worlds(tmp_path_factory.mktemp("crash"))
    yield made
    made.close()
