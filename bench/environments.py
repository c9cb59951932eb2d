"""A Python environment for each peer, made on demand from its pinned requirements under bench/.venvs."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
PEERS = ("langgraph", "dbos")


class PeerUnavailable(Exception):
    """A peer cannot be measured here; the message says why. The rest of the run goes on without it."""


def python_for(system: str) -> Path:
    """The interpreter that runs `system`'s driver.

    Raises:
        PeerUnavailable: the peer's packages could not be installed.
    """
    return _ensure(system) if system in PEERS else Path(sys.executable)


def _ensure(peer: str) -> Path:
    folder = HERE / ".venvs" / peer
    requirements = HERE / "peers" / peer / "requirements.txt"
    wanted = hashlib.sha256(requirements.read_bytes()).hexdigest()
    stamp, python = folder / "requirements.sha256", folder / "bin" / "python"
    if not (stamp.exists() and stamp.read_text() == wanted):
        print(f"bench: installing {peer} into {folder.relative_to(ROOT)} (once)", file=sys.stderr)
        _install(folder, python, requirements)
        stamp.write_text(wanted)
    return python


def _install(folder: Path, python: Path, requirements: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    done = subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--requirement", requirements],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise PeerUnavailable(f"pip install failed: {done.stderr.strip().splitlines()[-1]}")
