"""An environment for each peer, made on demand from its pinned requirements under bench/.venvs.

Python packages come from `requirements.txt`, programs that are published on npm from `package.json`, if there is one.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
PEERS = ("langgraph", "dbos", "restate")


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
    sources = [path for name in ("requirements.txt", "package.json") if (path := HERE / "peers" / peer / name).exists()]
    wanted = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    stamp, python = folder / "requirements.sha256", folder / "bin" / "python"
    if not (stamp.exists() and stamp.read_text() == wanted):
        print(f"bench: installing {peer} into {folder.relative_to(ROOT)} (once)", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        for source in sources:
            _install(source, folder, python)
        stamp.write_text(wanted)
    return python


def _install(source: Path, folder: Path, python: Path) -> None:
    if source.suffix == ".txt":
        _run("pip install", [str(python), "-m", "pip", "install", "--quiet", "--requirement", str(source)], folder)
        return
    shutil.copy(source, folder)
    npm = shutil.which("npm")
    if npm is None:
        raise PeerUnavailable("npm is not installed, and the peer's server is published there")
    _run("npm install", [npm, "install", "--silent", "--no-audit", "--no-fund", "--no-package-lock"], folder)


def _run(what: str, command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or [f"exit status {done.returncode}"]
        raise PeerUnavailable(f"{what} failed: {said[-1]}")
