"""The house keeps its order: who may import whom, how large things get, where SQL lives, what is explained."""

from __future__ import annotations

import ast
import re
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "perdure"

# From top to bottom. A room imports itself and the rooms below it.
LAYERS = (
    "cli",
    "server",
    "testing",
    "engine",
    "chat",
    "hosts",
    "computers",
    "client",
    "deploy",
    "authoring",
    "api",
    "store",
    "rules",
    "telemetry",
    "records",
    "crashpoints",
    "errors",
)
# What the layers alone would allow, and the reason why it is not.
FORBIDDEN = {
    "client": {"store": "a client speaks HTTP and nothing else", "rules": "what is decided is the server's to say"},
    "api": {"store": "the wire knows no database", "rules": "the wire decides nothing"},
    "deploy": {"client": "a build needs no server"},
    "computers": {"client": "a sandbox asks nobody", "store": "a sandbox remembers nothing"},
    "hosts": {"store": "a host asks its driver", "client": "a host asks its driver"},
    "chat": {"store": "a harness asks its context", "client": "a harness asks its context"},
    "rules": {"telemetry": "what is decided is counted by those who commit it"},
    "authoring": {"store": "a definition is plain data", "api": "a session's process loads no pydantic"},
}
MODULE_LINES = 500
FUNCTION_LINES = 80
FUNCTION_LINES_P90 = 30
# What the process of a session loads must not load these: they cost each session memory and time.
HEAVY = (
    *("pydantic", "starlette", "httpx2", "uvicorn", "cyclopts", "rich", "apsw", "psycopg", "watchfiles", "pathspec"),
    *("prometheus_client", "opentelemetry"),
)


class Module(NamedTuple):
    """One file of ours."""

    name: str
    path: Path
    tree: ast.Module
    text: str

    @property
    def room(self) -> str:
        return self.name.split(".")[1] if "." in self.name else ""

    def at(self, node: ast.AST | int) -> str:
        line = node if isinstance(node, int) else getattr(node, "lineno", 1)
        return f"{self.path.relative_to(ROOT)}:{line}"


class Import(NamedTuple):
    """One import of one of our modules by another; `at_run` is false for those that only type checkers do."""

    target: str
    line: int
    at_run: bool


@cache
def modules() -> dict[str, Module]:
    found: dict[str, Module] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        if "templates" in path.parts:
            continue
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text("utf-8")
        found[name] = Module(name, path, ast.parse(text), text)
    return found


def _imports(module: Module) -> Iterator[Import]:
    pending: list[tuple[ast.AST, bool]] = [(module.tree, True)]
    while pending:
        node, at_run = pending.pop()
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, at_run) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module.at(node)}: a relative import"
            yield from (_from(node, alias.name, at_run) for alias in node.names)
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            pending += [(child, False) for child in node.body] + [(child, at_run) for child in node.orelse]
        else:
            pending += [(child, at_run) for child in ast.iter_child_nodes(node)]


def _from(node: ast.ImportFrom, name: str, at_run: bool) -> Import:
    module = str(node.module)
    inner = f"{module}.{name}"
    return Import(inner if inner in modules() else module, node.lineno, at_run)


def ours(module: Module) -> list[Import]:
    return [found for found in _imports(module) if found.target == "perdure" or found.target.startswith("perdure.")]


def _is_allowed(room: str, other: str) -> bool:
    return LAYERS.index(room) <= LAYERS.index(other) and other not in FORBIDDEN.get(room, {})


# --- who may import whom


def test_every_room_has_its_layer() -> None:
    assert {module.room for module in modules().values()} - {""} == set(LAYERS)


def test_imports_go_downward() -> None:
    wrong = [
        f"{module.at(found.line)}: {module.room} imports {found.target}"
        for module in modules().values()
        for found in ours(module)
        if module.room and found.target != "perdure" and not _is_allowed(module.room, found.target.split(".")[1])
    ]
    assert not wrong, "\n".join(wrong)


def test_no_module_imports_itself_through_others() -> None:
    graph = {
        name: sorted({found.target for found in ours(module) if found.at_run} - {"perdure", name})
        for name, module in modules().items()
    }
    for start in graph:
        path = _way_back(graph, start)
        assert path is None, " → ".join(path)


def _way_back(graph: dict[str, list[str]], start: str) -> list[str] | None:
    pending, seen = [[start]], set()
    while pending:
        path = pending.pop()
        for following in graph.get(path[-1], []):
            if following == start:
                return [*path, start]
            if following not in seen:
                seen.add(following)
                pending.append([*path, following])
    return None


def test_records_and_errors_know_nothing_of_the_outside() -> None:
    outside = ("asyncio", "socket", "subprocess", "threading", "sqlite3", "apsw", "pydantic")
    wrong = [
        f"{module.at(found.line)}: {found.target}"
        for module in modules().values()
        if module.room in ("records", "rules", "errors")
        for found in _imports(module)
        if found.target.split(".")[0] in outside
    ]
    assert not wrong, "\n".join(wrong)


def test_rules_have_no_clock_and_no_chance() -> None:
    wrong = [
        f"{module.at(found.line)}: {found.target}"
        for module in modules().values()
        if module.room == "rules"
        for found in _imports(module)
        if found.target.split(".")[0] in ("time", "datetime", "random", "secrets", "uuid", "uuid_utils", "os")
        or found.target in ("perdure.records.ids", "perdure.records.instants")
    ]
    assert not wrong, "\n".join(wrong)


def test_a_session_s_process_loads_nothing_heavy() -> None:
    code = "import perdure.hosts.process.forkserver, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True)
    assert not set(done.stdout.split()) & set(HEAVY)


# --- how large things get


def test_modules_stay_small() -> None:
    large = [
        f"{module.path.relative_to(ROOT)}: {lines} lines"
        for module in modules().values()
        if (lines := module.text.count("\n")) > MODULE_LINES
    ]
    assert not large, "\n".join(large)


def _functions(module: Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def test_functions_stay_small() -> None:
    lengths = [
        (_length(node), f"{module.at(node)} {node.name}")
        for module in modules().values()
        for node in _functions(module)
    ]
    large = [f"{place}: {length} lines" for length, place in lengths if length > FUNCTION_LINES]
    assert not large, "\n".join(large)
    ninth = statistics.quantiles([length for length, _ in lengths], n=10)[-1]
    assert ninth < FUNCTION_LINES_P90, f"a tenth of all functions has {ninth:.0f} lines or more"


# --- where SQL lives

_SQL = re.compile(
    r"\b(SELECT\s.+\sFROM|INSERT\s+(OR\s+\w+\s+)?INTO|UPDATE\s+\w+\s+SET|DELETE\s+FROM|CREATE\s+(TABLE|INDEX))\b",
    re.I | re.S,
)


def test_sql_is_in_sql_files() -> None:
    wrong = [
        f"{module.at(node)}: {node.value[:60]!r}"
        for module in modules().values()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _SQL.search(node.value)
    ]
    assert not wrong, "\n".join(wrong)


def test_only_engines_of_the_store_know_a_database() -> None:
    wrong = [
        module.at(found.line)
        for module in modules().values()
        for found in _imports(module)
        if found.target.split(".")[0] in ("apsw", "sqlite3", "psycopg") and not module.name.startswith("perdure.store.")
    ]
    assert not wrong, "\n".join(wrong)


# --- what is explained, and what is left undone


def test_nothing_is_left_for_later() -> None:
    places = [
        *SOURCE.rglob("*.py"),
        *SOURCE.rglob("*.sql"),
        *(ROOT / "tests").rglob("*.py"),
        *(ROOT / "demo").rglob("*.py"),
    ]
    words = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")
    left = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in places
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if words.search(line)
    ]
    assert not left, "\n".join(left)


def test_no_two_test_files_have_one_name() -> None:
    """Pytest imports them by their names alone, and would find only the first."""
    several = ("conftest.py", "__main__.py")
    names = Counter(path.name for path in (ROOT / "tests").rglob("*.py") if path.name not in several)
    assert not [name for name, count in names.items() if count > 1]


def test_every_module_says_what_it_is() -> None:
    silent = [name for name, module in modules().items() if module.text.strip() and not _says(module)]
    assert not silent, "\n".join(silent)


def _says(module: Module) -> bool:
    return ast.get_docstring(module.tree) is not None or module.path.name == "__init__.py"


def _public_definitions(module: Module) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in module.tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from _public_methods(node)


def _public_methods(owner: ast.ClassDef) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in owner.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            yield node


# Rooms whose names users hold: what they import, the client, the wire, the errors, the ports.
EXPLAINED = (
    "perdure.errors",
    "perdure.crashpoints",
    "perdure.api",
    "perdure.authoring",
    "perdure.chat",
    "perdure.client.aio",
    "perdure.client.sync",
    "perdure.client.retry",
    "perdure.client.watching",
    "perdure.hosts.context",
    "perdure.store.port",
    "perdure.computers.base",
    "perdure.testing",
)


def test_what_users_meet_is_explained() -> None:
    silent = [
        f"{module.at(node)} {node.name}"
        for module in modules().values()
        if module.name.startswith(EXPLAINED)
        for node in _public_definitions(module)
        if ast.get_docstring(node) is None
    ]
    assert not silent, "\n".join(silent)


def test_every_file_defers_its_annotations() -> None:
    missing = [
        module.at(1)
        for module in modules().values()
        if module.path.name != "__init__.py" and "from __future__ import annotations" not in module.text
    ]
    assert not missing, "\n".join(missing)


def test_nothing_is_swallowed() -> None:
    """An `except` without a type, or one of everything whose body does nothing, hides what happened."""
    wrong = [
        module.at(node)
        for module in modules().values()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ExceptHandler) and (node.type is None or _hides(node))
    ]
    assert not wrong, "\n".join(wrong)


def _hides(node: ast.ExceptHandler) -> bool:
    is_broad = isinstance(node.type, ast.Name) and node.type.id in ("Exception", "BaseException")
    return is_broad and all(isinstance(each, ast.Pass | ast.Continue) for each in node.body)
