"""What users import is typed to the last symbol, as pyright sees an installed package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import perdure

# Modules whose names users hold, beside those that `perdure` itself gives.
OFFERED = ("perdure.errors", "perdure.api", "perdure.client", "perdure.records.content")


@pytest.fixture(scope="module")
def symbols() -> list[dict[str, Any]]:
    tools = Path(sys.executable).parent
    found = subprocess.run(
        [tools / "pyright", "--verifytypes", "perdure", "--ignoreexternal", "--outputjson"],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        env={**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},
    )
    assert found.stdout, found.stderr
    listed: list[dict[str, Any]] = json.loads(found.stdout)["typeCompleteness"]["symbols"]
    assert listed, found.stdout
    return listed


def _is_offered(name: str) -> bool:
    homes = {*OFFERED, *(f"{home}.{shown}" for shown, home in perdure._HOMES.items())}
    return any(name == home or name.startswith(f"{home}.") for home in homes)


def test_the_type_of_every_public_symbol_is_known(symbols: list[dict[str, Any]]) -> None:
    checked = [symbol for symbol in symbols if _is_offered(symbol["name"])]
    assert len(checked) > 500
    unclear = [
        f"{symbol['name']}: {[each['message'] for each in symbol['diagnostics']]}"
        for symbol in checked
        if symbol["isTypeAmbiguous"] or not symbol["isTypeKnown"]
    ]
    assert not unclear, "\n".join(unclear)
