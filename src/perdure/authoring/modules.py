"""Importing a project's modules apart from those of every other project and version in the process.

Two deployments may both have `agents.assistant`, and a turn on old code may still import a helper of its own while new
code is loaded. So every version has a `ModuleSpace`: its own table of modules, swapped into `sys.modules` while it
imports, with an `__import__` of its own in the builtins of its modules, so that imports inside functions find the
version that they belong to. `sys.modules` keeps the newest version of each name, for pickle and the like.
"""

from __future__ import annotations

import builtins
import importlib
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    PathFinder,
    SourceFileLoader,
)
from importlib.util import resolve_name
from itertools import count
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final
from weakref import ref

ALIAS: Final = "perdure_project"
"""The package under which a folder is imported whose own name an installed package has."""

_serial: Final = count(1)
_spaces: tuple[ref[ModuleSpace], ...] = ()


class ModuleSpace:
    """The modules of one version of a project.

    An `exclusive` space is the only one of its process, for good: ordinary imports see it, and nothing is swapped.
    """

    def __init__(self, root: Path, *, exclusive: bool = False) -> None:
        self.root: Final = root
        self.exclusive = exclusive
        self.serial: Final[int] = next(_serial)
        self.modules: dict[str, ModuleType] = {}
        self.builtins: dict[str, Any] = {**vars(builtins), "__import__": self._import}
        self.local: Final[frozenset[str]] = _local_names(root)
        _register(self)
        if exclusive:
            _stage.enter(self)
            sys.path.append(str(root))

    def name_of(self, file: Path) -> str:
        """Return the name under which a file below the root is imported."""
        parts = [*file.relative_to(self.root).parent.parts, file.stem]
        if parts[-1] == "__init__":
            parts.pop()
        return ".".join(parts if parts[0] in self.local else [ALIAS, *parts])

    def load(self, name: str) -> ModuleType:
        """Import a module of the project, with whatever it imports."""
        with self._active():
            return importlib.import_module(name)

    def find(self, name: str, path: Sequence[str] | None) -> ModuleSpec | None:
        """Find a module of the project, or None where the ordinary finders should look."""
        if not self._claims(name):
            return None
        if name == ALIAS:
            return _folder_spec(name, [str(self.root)])
        return self._find_in(name, [str(self.root)] if path is None else list(path))

    def _find_in(self, name: str, folders: list[str]) -> ModuleSpec | None:
        loaders = ((ExtensionFileLoader, EXTENSION_SUFFIXES), (partial(_Loader, self), SOURCE_SUFFIXES))
        for folder in folders:
            spec = FileFinder(folder, *loaders).find_spec(name)  # type: ignore[arg-type]
            if spec is not None and spec.loader is None:
                return _folder_spec(name, list(spec.submodule_search_locations or ()))
            if spec is not None:
                return spec
        return None

    def _import(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """Stand in for `__import__` in this project's modules."""
        full = resolve_name("." * level + name, (globals or {}).get("__package__") or "") if level else name
        if not self._concerns(full.partition(".")[0]):
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        if known := self._known(full, fromlist or ()):
            return known
        with self._active():
            return builtins.__import__(name, globals, locals, fromlist or (), level)

    def _concerns(self, top: str) -> bool:
        """Tell whether what `sys.modules` holds under a top-level name can be another than ours."""
        return top == ALIAS or any(top in space.local for space in _living())

    def _known(self, full: str, fromlist: Sequence[str]) -> ModuleType | None:
        module = self.modules.get(full)
        if module is None or not fromlist:
            return module and self.modules.get(full.partition(".")[0])
        return module if all(name in vars(module) for name in fromlist) else None

    @contextmanager
    def _active(self) -> Iterator[None]:
        if self.exclusive:
            yield
            return
        _stage.enter(self)
        try:
            yield
        finally:
            _stage.leave(self)

    def swap_in(self) -> dict[str, ModuleType]:
        """Put this space's modules into `sys.modules`; returns what had to make way."""
        aside = {name: module for name, module in list(sys.modules.items()) if self._claims(name)}
        for space in _living():
            aside.update({name: module for name, module in space.modules.items() if sys.modules.get(name) is module})
        for name in aside:
            del sys.modules[name]
        sys.modules.update(self.modules)
        return aside

    def swap_out(self, aside: Mapping[str, ModuleType]) -> None:
        """Take note of what was imported, and put back what made way unless this space is the newer one."""
        self.modules.update({name: module for name, module in list(sys.modules.items()) if self._owns(name, module)})
        self.builtins.update({name: value for name, value in list(vars(builtins).items()) if name != "__import__"})
        owners = {id(module): space.serial for space in _living() for module in space.modules.values()}
        for name, module in aside.items():
            owner = owners.get(id(module))
            if name not in self.modules or owner is None or owner > self.serial:
                sys.modules[name] = module

    def _owns(self, name: str, module: ModuleType) -> bool:
        if not self._claims(name):
            return False
        place = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)
        return isinstance(place, str) and Path(place).is_relative_to(self.root)

    def _claims(self, name: str) -> bool:
        top = name.partition(".")[0]
        return top in self.local or top == ALIAS


class _Loader(SourceFileLoader):
    """Loads a source file of a project, in an isolated space always from its source.

    Cached bytecode is told stale only by whole seconds and size, which an edit in the same second defeats.
    """

    def __init__(self, space: ModuleSpace, name: str, path: str) -> None:
        super().__init__(name, path)
        self.space = space

    def get_code(self, fullname: str) -> CodeType | None:
        if self.space.exclusive:
            return super().get_code(fullname)
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)

    def exec_module(self, module: ModuleType) -> None:
        if not self.space.exclusive:
            vars(module)["__builtins__"] = self.space.builtins
        super().exec_module(module)


class _Finder(MetaPathFinder):
    """Finds modules of the project whose import is under way in the present thread."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        space = _stage.space_of_this_thread()
        return space.find(fullname, path) if space else None


class _Stage:
    """Whose modules are in `sys.modules` now. Threads of one space share it, another space waits for its turn.

    It is shared because code that is being imported may start threads that import, and wait for them.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._space: ModuleSpace | None = None
        self._users = 0
        self._aside: dict[str, ModuleType] = {}
        self._thread = threading.local()

    def space_of_this_thread(self) -> ModuleSpace | None:
        if self._space is not None and self._space.exclusive:
            return self._space
        return self._space if getattr(self._thread, "depth", 0) else None

    def enter(self, space: ModuleSpace) -> None:
        depth = getattr(self._thread, "depth", 0)
        if self._space is not space and (depth or (self._space and self._space.exclusive)):
            raise RuntimeError("a project cannot load another project while it is being imported")
        with self._changed:
            self._changed.wait_for(lambda: self._space in (None, space))
            if self._users == 0 and not space.exclusive:
                self._aside = space.swap_in()
            self._space = space
            self._users += 1
        self._thread.depth = depth + 1

    def leave(self, space: ModuleSpace) -> None:
        self._thread.depth -= 1
        with self._changed:
            self._users -= 1
            if self._users == 0:
                space.swap_out(self._aside)
                self._space, self._aside = None, {}
                self._changed.notify_all()


_stage: Final = _Stage()
_finder: Final = _Finder()


_registering: Final = threading.Lock()


def _register(space: ModuleSpace) -> None:
    global _spaces
    with _registering:
        _spaces = (*(known for known in _spaces if known() is not None), ref(space))
        if _finder not in sys.meta_path:
            sys.meta_path.insert(0, _finder)


def _living() -> list[ModuleSpace]:
    return [space for known in _spaces if (space := known()) is not None]


def _folder_spec(name: str, locations: Iterable[str]) -> ModuleSpec:
    """Return the spec of a folder without `__init__.py`, whose place does not follow later changes of `sys.path`."""
    spec = ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = list(locations)
    return spec


def _local_names(root: Path) -> frozenset[str]:
    """Return the top-level names that mean the project's own modules to its code.

    As in Python itself, an installed package goes before a folder without `__init__.py`; the standard library and
    Perdure go before everything, so that no file name of a project can break the server.
    """
    names = {entry.name.partition(".")[0] for entry in root.iterdir() if _is_module(entry)}
    folders = {entry.name for entry in root.iterdir() if entry.is_dir() and entry.name.isidentifier()} - names
    names |= {name for name in folders if not _is_installed(name, root)}
    return frozenset(names - sys.stdlib_module_names - {"perdure", ALIAS})


def _is_module(entry: Path) -> bool:
    if entry.is_dir():
        return (entry / "__init__.py").is_file()
    return entry.name.endswith((*SOURCE_SUFFIXES, *EXTENSION_SUFFIXES))


def _is_installed(name: str, root: Path) -> bool:
    elsewhere = [entry for entry in sys.path if Path(entry or ".").resolve() != root]
    spec = PathFinder.find_spec(name, elsewhere)
    return spec is not None and spec.loader is not None
