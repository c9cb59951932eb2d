"""Which files of a project are its source, and what must not be among them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from pathspec import GitIgnoreSpec

from perdure.errors import ProjectError, SourceRefused, SourceTooLarge

IGNORE_FILE: Final = ".perdureignore"
SOURCE_FILES: Final = 10_000
SHOWN: Final = 20
ALWAYS_IGNORED: Final = (
    ".git/",
    ".hg/",
    ".svn/",
    ".venv/",
    ".perdure/",
    "__pycache__/",
    "*.py[cod]",
    "node_modules/",
    ".mypy_cache/",
    ".pytest_cache/",
    ".ruff_cache/",
    ".idea/",
    ".vscode/",
    ".DS_Store",
    "*.swp",
    "*~",
)
_SECRETS: Final = (
    ".env",
    ".env.*",
    "*.pem",
    "*.key",
    "*.p12",
    "*.pfx",
    "*.keystore",
    "id_rsa",
    "id_dsa",
    "id_ecdsa",
    "id_ed25519",
    ".netrc",
    ".pypirc",
    ".npmrc",
    ".git-credentials",
    "credentials.json",
)
_EXAMPLES: Final = ("*.example", "*.sample", "*.template")


class SourceFile(NamedTuple):
    """A file of the source, or a symbolic link that stays inside it.

    `name` is relative to the root, with slashes; `size` is in bytes.
    """

    name: str
    path: Path
    size: int = 0
    is_link: bool = False
    is_executable: bool = False


def find_source(root: Path) -> list[SourceFile]:
    """Return the files of a project's folder that belong to a deployment, sorted by name.

    Left out is what `.perdureignore` names, in the manner of `.gitignore`, and what nobody deploys: version control,
    caches, `.venv`, `node_modules`, data folders of `perdure dev`. Raises `SourceRefused`, listing all, when something
    else is in the way: secrets, virtual environments, links that leave the project, things that are no files. A secret
    that a `!` line of `.perdureignore` names is taken.
    """
    walk = _Walk(root, _rules(root))
    found = sorted(walk.files_of(root))
    if walk.refused:
        raise _refusal(walk.refused)
    if len(found) > SOURCE_FILES:
        raise SourceTooLarge(
            f"The project has {len(found)} files; the limit is {SOURCE_FILES}. Nothing was deployed; leave out what "
            f"the agents do not need with {IGNORE_FILE}.",
            {"size": f"{len(found)} files", "limit": f"{SOURCE_FILES} files"},
        )
    return found


def find_folders(root: Path) -> set[Path]:
    """Return the folders of a project whose files are part of its source: the root and those below."""
    walk = _Walk(root, _rules(root))
    return {root, *walk.folders_of(root)}


class _Walk:
    def __init__(self, root: Path, rules: GitIgnoreSpec) -> None:
        self.root = root
        self.rules = rules
        self.refused: list[tuple[str, str]] = []

    def files_of(self, folder: Path) -> Iterator[SourceFile]:
        for entry, name in self._entries(folder):
            if entry.is_symlink():
                yield from self._link(entry, name)
            elif entry.is_dir():
                yield from self._folder(entry, name)
            elif not entry.is_file():
                self.refused.append((name, "is no file"))
            elif self._is_secret(name):
                self.refused.append((name, "looks like a secret"))
            else:
                status = entry.stat()
                is_executable = bool(status.st_mode & stat.S_IXUSR)
                yield SourceFile(name, Path(entry.path), status.st_size, is_executable=is_executable)

    def folders_of(self, folder: Path) -> Iterator[Path]:
        for entry, _ in self._entries(folder):
            if entry.is_dir(follow_symlinks=False) and not _is_environment(entry.path):
                yield Path(entry.path)
                yield from self.folders_of(Path(entry.path))

    def _entries(self, folder: Path) -> Iterator[tuple[os.DirEntry[str], str]]:
        try:
            with os.scandir(folder) as scan:
                entries = list(scan)
        except OSError as error:
            raise unreadable(folder.relative_to(self.root).as_posix(), error) from None
        for entry in entries:
            name = Path(entry.path).relative_to(self.root).as_posix()
            is_folder = entry.is_dir(follow_symlinks=False)
            if self.rules.match_file(f"{name}/" if is_folder else name) or (is_folder and _is_data_folder(entry.path)):
                continue
            yield entry, name

    def _folder(self, entry: os.DirEntry[str], name: str) -> Iterator[SourceFile]:
        if _is_environment(entry.path):
            self.refused.append((f"{name}/", "is a virtual environment"))
        else:
            yield from self.files_of(Path(entry.path))

    def _link(self, entry: os.DirEntry[str], name: str) -> Iterator[SourceFile]:
        end = Path(os.path.realpath(entry.path))
        if link_leaves(name, os.readlink(entry.path)) or not end.is_relative_to(self.root):
            self.refused.append((name, "is a link that is absolute or leaves the project"))
        elif self._is_secret(name):
            self.refused.append((name, "looks like a secret"))
        else:
            yield SourceFile(name, Path(entry.path), is_link=True)

    def _is_secret(self, name: str) -> bool:
        base = name.rpartition("/")[2]
        if not _is_any(base, _SECRETS) or _is_any(base, _EXAMPLES):
            return False
        return self.rules.check_file(name).include is not False


def link_leaves(name: str, target: str) -> bool:
    """Tell whether a link of that name and target may lead out of the folder that `name` is relative to.

    Judged without looking at the disk, so `..` counts only at the target's beginning: further on, it would depend on
    where other links lead.
    """
    parts = PurePosixPath(target).parts
    ups = next((count for count, part in enumerate(parts) if part != ".."), len(parts))
    return target.startswith("/") or ups > name.count("/") or ".." in parts[ups:]


def _is_any(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def _rules(root: Path) -> GitIgnoreSpec:
    try:
        lines = (root / IGNORE_FILE).read_text("utf-8").splitlines()
    except FileNotFoundError:
        lines = []
    except (OSError, ValueError) as error:
        raise unreadable(IGNORE_FILE, error) from None
    try:
        return GitIgnoreSpec.from_lines([*ALWAYS_IGNORED, *lines])
    except ValueError as error:
        raise ProjectError(f"{IGNORE_FILE} has a pattern that makes no sense: {error}. Nothing was deployed.") from None


def _is_environment(folder: str) -> bool:
    return any(os.path.exists(os.path.join(folder, mark)) for mark in ("pyvenv.cfg", "conda-meta"))


def _is_data_folder(folder: str) -> bool:
    """Tell whether a folder is some server's data, which would otherwise change with every deployment of it."""
    return os.path.exists(os.path.join(folder, "perdure.db"))


def unreadable(name: str, error: Exception) -> ProjectError:
    """Return the error for a file that could not be read."""
    why = error.strerror if isinstance(error, OSError) else str(error)
    return ProjectError(
        f"{name} cannot be read: {why}. Nothing was deployed; make it readable or leave it out with {IGNORE_FILE}.",
        {"file": name},
    )


def _refusal(refused: list[tuple[str, str]]) -> SourceRefused:
    refused.sort()
    listed = "; ".join(f"{name} {why}" for name, why in refused[:SHOWN])
    more = f"; and {len(refused) - SHOWN} more" if len(refused) > SHOWN else ""
    return SourceRefused(
        f"The project holds what is not deployed: {listed}{more}. Nothing was deployed. Move it away, or leave it out "
        f"by a line in {IGNORE_FILE}, such as {refused[0][0]!r}. A file that is no secret is let in by a line that "
        "begins with '!'.",
        {"refused": [{"name": name, "reason": why} for name, why in refused[:1000]]},
    )
