"""`perdure.toml`: what a project says about itself, and which of its files define agents."""

from __future__ import annotations

import tomllib
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec

from perdure.errors import NoAgentsFound, ProjectError
from perdure.records.ids import is_slug

CONFIG_FILE: Final = "perdure.toml"
_NEVER: Final = ("test_*.py", "*_test.py", "conftest.py")


class ProjectConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of `perdure.toml`.

    `project` is the project's name for commands that are given none. `dirs` are the folders whose Python files define
    agents; `ignore` are patterns, as in `.gitignore`, of files there that are not imported for their agents.
    """

    project: str | None = None
    dirs: tuple[str, ...] = ("agents",)
    ignore: tuple[str, ...] = ()


def read_config(root: Path) -> ProjectConfig:
    """Return the project's configuration, the default one when it has none. Raises `ProjectError` for a wrong one."""
    path = root / CONFIG_FILE
    try:
        config = msgspec.convert(tomllib.loads(path.read_text("utf-8")), ProjectConfig)
    except FileNotFoundError:
        return ProjectConfig()
    except (OSError, ValueError) as error:
        raise ProjectError(f"{path} cannot be read: {error}. Nothing was changed.", {"file": CONFIG_FILE}) from None
    _check(path, config)
    return config


def _check(path: Path, config: ProjectConfig) -> None:
    if config.project is not None and not is_slug(config.project):
        raise ProjectError(f"{path}: project={config.project!r} must be lowercase letters, digits and '-', up to 63.")
    for folder in config.dirs:
        pure = PurePosixPath(folder)
        if pure.is_absolute() or not pure.parts or ".." in pure.parts:
            raise ProjectError(f"{path}: {folder!r} in dirs must be a folder inside the project, such as 'agents'.")


def agent_files(root: Path, config: ProjectConfig) -> list[Path]:
    """Return the Python files that define agents, sorted. Raises `NoAgentsFound` when a folder for them is missing.

    Hidden files and tests (`test_*.py`, `*_test.py`, `conftest.py`) are left out.
    """
    found: set[Path] = set()
    for folder in config.dirs:
        if not (root / folder).is_dir():
            raise NoAgentsFound(
                f"There is no folder {folder}/ in {root}. Put agents into {folder}/NAME.py, name their folders as dirs "
                f"in {CONFIG_FILE}, or begin with `perdure init`."
            )
        found.update((root / folder).rglob("*.py"))
    relative = sorted(file.relative_to(root).as_posix() for file in found)
    return [root / file for file in _without(config.ignore, relative) if not _never(PurePosixPath(file))]


def _never(file: PurePosixPath) -> bool:
    return any(part.startswith(".") for part in file.parts) or any(fnmatch(file.name, pattern) for pattern in _NEVER)


def _without(patterns: tuple[str, ...], files: list[str]) -> list[str]:
    if not patterns:
        return files
    # Loaded only when needed, since it takes longer than all the rest that a session's process loads.
    from pathspec import GitIgnoreSpec

    ignored = GitIgnoreSpec.from_lines(patterns)
    return [file for file in files if not ignored.match_file(file)]
