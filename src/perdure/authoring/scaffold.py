"""Beginning a project: the files of `perdure init`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from perdure.errors import ProjectError, ProjectExists

_TEMPLATES: Final = Path(__file__).parent / "templates"


def init_project(folder: str | Path, *, force: bool = False) -> list[Path]:
    """Write a first project, the tutorial's agent, into a folder and return the files written.

    The folder is made if there is none; other files in it stay. Raises `ProjectExists`, having written nothing, when a
    file would be overwritten and `force` is not set, and `ProjectError` when the folder cannot be written.
    """
    folder = Path(folder)
    template = _TEMPLATES / "assistant"
    sources = sorted(path for path in template.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    targets = [folder / source.relative_to(template) for source in sources]
    taken = [target for target in targets if target.exists() or target.is_symlink()]
    if taken and not force:
        shown = ", ".join(target.relative_to(folder).as_posix() for target in taken)
        raise ProjectExists(
            f"{folder} has these files already: {shown}. Nothing was written; choose another folder, or overwrite them "
            "with --force.",
            {"files": [target.relative_to(folder).as_posix() for target in taken]},
        )
    for source, target in zip(sources, targets, strict=True):
        _copy(source, target)
    return targets


def _copy(source: Path, target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.read_bytes())
    except OSError as error:
        raise ProjectError(f"{target} cannot be written: {error.strerror}. Files before it were written.") from None
