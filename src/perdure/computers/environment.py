"""The variables that a Computer's processes see: what a program needs to run at all, and what the template names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from perdure.computers.tree import MARK

WORKSPACE: Final = "PERDURE_WORKSPACE"
_KEPT: Final = ("PATH", "LANG")


def clean_environment(named: Mapping[str, str]) -> dict[str, str]:
    """Return the worker's PATH, LANG and PYTHON* variables, nothing else of its, and the template's `named` ones."""
    kept = {key: value for key, value in os.environ.items() if key in _KEPT or key.startswith("PYTHON")}
    return kept | dict(named)


def place_variables(computer_id: str, workspace: Path, named: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that say where a process is; HOME is the workspace, so that what tools keep there stays."""
    return {"HOME": str(workspace)} | dict(named) | {WORKSPACE: str(workspace), MARK: computer_id}
