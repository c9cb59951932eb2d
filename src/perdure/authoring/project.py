"""A project: the folder in which users define agents, and how its agents get into this process."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Final

from perdure.authoring.agent import Agent
from perdure.authoring.config import CONFIG_FILE, agent_files, read_config
from perdure.authoring.modules import ModuleSpace
from perdure.errors import DuplicateDefinition, NoAgentsFound, PerdureError, ProjectError, ProjectImportError
from perdure.records.definitions import AgentDefinition, CopyStep, TemplateDefinition

TRACEBACK_CHARACTERS: Final = 8000


@dataclass(frozen=True)
class Project:
    """A loaded project: its agents, with their handlers, by id; and their definitions, sorted by id.

    The handlers keep the modules that they were loaded with, whatever is loaded later from the same folder.
    """

    root: Path
    name: str | None
    agents: dict[str, Agent]
    definitions: tuple[AgentDefinition, ...]
    space: ModuleSpace = field(repr=False, compare=False)


def load_project(
    path: str | Path, *, exclusive: bool = False, on_import: Callable[[str], None] = lambda _: None
) -> Project:
    """Import the agents of a project's folder, or of one Python file, and return them.

    Every call imports the project's modules anew and apart from what earlier calls imported; other packages are shared.
    `exclusive` is for a process that loads this one project only, such as a session's: modules then behave exactly as
    in any Python program. `on_import` is told each file before it is imported.

    Raises `ProjectImportError` when a module does not import, `NoAgentsFound`, `DuplicateDefinition`,
    `DefinitionError` for an agent without a turn handler, and `ProjectError` when the folder or its `perdure.toml` is
    wrong. Blocks while user code is imported; call it in a thread from an event loop.
    """
    path = Path(path).resolve()
    root, files, name = _sources(path)
    space = ModuleSpace(root, exclusive=exclusive)
    modules = [_import(space, file, on_import) for file in files]
    agents = _collect(modules, root)
    definitions = tuple(agents[id].definition(root) for id in sorted(agents))
    _check_templates(definitions, root)
    return Project(root, name, agents, definitions, space)


def _sources(path: Path) -> tuple[Path, list[Path], str | None]:
    if path.is_dir():
        config = read_config(path)
        files = agent_files(path, config)
        if not files:
            raise NoAgentsFound(f"{path} has no Python files in {', '.join(config.dirs)}; write agents/NAME.py.")
        return path, files, config.project
    if path.is_file() and path.suffix == ".py":
        return path.parent, [path], None
    if path.exists():
        raise ProjectError(f"{path} is neither a project's folder nor a Python file.")
    raise ProjectError(f"There is no project at {path}. Begin one with `perdure init {path.name}`.")


def _import(space: ModuleSpace, file: Path, on_import: Callable[[str], None]) -> ModuleType:
    shown = file.relative_to(space.root).as_posix()
    if "." in file.stem:
        raise ProjectError(f"{shown} cannot be imported: a module's name has no dot. Rename the file.", {"file": shown})
    on_import(shown)
    try:
        return space.load(space.name_of(file))
    except (Exception, SystemExit) as error:
        raise import_error(error, space.root, shown) from error


def import_error(error: BaseException, root: Path, imported: str) -> ProjectImportError:
    """Return the error that tells a user where, in the project's own files, an import failed and with what."""
    file, line = _blamed(error, root) or (imported, None)
    last_line = _last_line(error)
    where = f"{file}, line {line}" if line else file
    through = "" if file == imported else f" (imported from {imported})"
    text = "".join(traceback.format_exception(error)).replace(f"{root}/", "")
    details = {"file": file, "line": line, "error": last_line, "traceback": text[-TRACEBACK_CHARACTERS:]}
    return ProjectImportError(f"The project does not import: {where}{through}: {last_line}", details)


def _last_line(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"SystemExit: sys.exit({error.code!r}) was called while the module was imported"
    if isinstance(error, PerdureError):
        return f"{type(error).__name__}: {error.message}"
    lines = "".join(traceback.format_exception_only(error)).strip().splitlines()
    return lines[-1] if lines else type(error).__name__


def _blamed(error: BaseException, root: Path) -> tuple[str, int | None] | None:
    """Return the innermost place in the project's own files."""
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).is_relative_to(root):
        return Path(error.filename).relative_to(root).as_posix(), error.lineno
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if Path(frame.filename).is_relative_to(root) and "site-packages" not in Path(frame.filename).parts:
            return Path(frame.filename).relative_to(root).as_posix(), frame.lineno
    return None


def _collect(modules: Iterable[ModuleType], root: Path) -> dict[str, Agent]:
    agents: dict[str, Agent] = {}
    for agent in (value for module in modules for value in vars(module).values() if isinstance(value, Agent)):
        other = agents.setdefault(agent.id, agent)
        if other is not agent:
            raise DuplicateDefinition(
                f"Two agents have the id {agent.id!r}: {other.shown_place(root)}, and {agent.shown_place(root)}. "
                "Rename one of them.",
                {"id": agent.id, "places": [other.shown_place(root), agent.shown_place(root)]},
            )
    if not agents:
        raise NoAgentsFound(
            f"The Python files of {root} define no agent. Assign one to a name of a module, `assistant = "
            f"perdure.Agent('assistant')`; which folders are read is set by dirs in {CONFIG_FILE}."
        )
    return agents


def _check_templates(definitions: Iterable[AgentDefinition], root: Path) -> None:
    templates = [definition.template for definition in definitions if definition.template]
    _check_unique("templates", [(template.id, template) for template in templates])
    _check_unique("images", [(template.image.id, template.image) for template in templates])
    for template in templates:
        _check_copies(template, root)


def _check_unique(nouns: str, things: Iterable[tuple[str, object]]) -> None:
    seen: dict[str, object] = {}
    for id, thing in things:
        if seen.setdefault(id, thing) != thing:
            raise DuplicateDefinition(f"Two different {nouns} have the id {id!r}. Rename one of them.", {"id": id})


def _check_copies(template: TemplateDefinition, root: Path) -> None:
    for step in template.image.steps:
        if isinstance(step, CopyStep) and not (root / step.source).exists():
            raise ProjectError(
                f"Image {template.image.id!r} copies {step.source!r}, which the project does not have. Check the path, "
                "which is relative to the project's root, and .perdureignore."
            )
