"""The documents are true: their code runs, their commands print what they show, their links lead somewhere."""

from __future__ import annotations

import ast
import os
import re
import shutil
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from doc_runner import DocRunner, blocks, steps
from docs.make_reference import PAGES, page
from many_parts import PostgresServer, database_server

from perdure.api.events import EVENT_TYPES
from perdure.authoring.config import read_config
from perdure.records import content
from perdure.rules import answers, asks, holds, messages, turns

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "bench" / "README.md"])
TUTORIAL = ROOT / "docs" / "tutorials" / "durable-agent.md"
DURABILITY = ROOT / "docs" / "explanation" / "durability.md"
RUN = [path for path in DOCUMENTS if any(steps(block) for block in blocks(path) if block.info == "console")]
# What would take minutes, and what takes a moment instead.
SOONER = {'hibernate_after_idle="5m"': 'hibernate_after_idle="1s"'}


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


# --- what documents show is so


@pytest.fixture(scope="module")
def new_database() -> Iterator[Callable[[], str]]:
    """Makes databases on a PostgreSQL server that is started when the first one is wanted."""
    with ExitStack() as servers:
        started: list[PostgresServer] = []

        def make() -> str:
            if not started:
                started.append(servers.enter_context(database_server()))
            return started[0].url(started[0].new_database())

        yield make


@pytest.mark.parametrize("document", RUN, ids=shown)
def test_a_document_does_what_it_shows(
    document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_database: Callable[[], str]
) -> None:
    monkeypatch.setenv("PERDURE_API_URL", "")
    monkeypatch.setenv("PERDURE_STORE", "")
    del os.environ["PERDURE_STORE"]  # so that what the document sets is undone
    monkeypatch.setenv("PERDURE_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.delenv("PERDURE_API_KEY", raising=False)
    (tmp_path / "work").mkdir()
    runner = DocRunner(document, tmp_path / "work", SOONER, new_database)
    try:
        assert runner.run() > 0
    finally:
        runner.stop()


@pytest.mark.parametrize("document", DOCUMENTS, ids=shown)
def test_code_in_documents_is_python(document: Path) -> None:
    for block in blocks(document):
        if block.info.split(" ")[0] == "python":
            compile(block.body, f"{shown(document)}:{block.line}", "exec", flags=ast.PyCF_ONLY_AST)


def test_every_guide_is_run() -> None:
    guides = {*(ROOT / "docs" / "how-to").glob("*.md"), TUTORIAL, ROOT / "README.md"}
    assert guides <= set(RUN)


def test_the_demo_is_the_tutorial_with_short_timers() -> None:
    (code,) = [block.body for block in blocks(TUTORIAL) if block.info.startswith("python ")]
    for slow, soon in SOONER.items():
        code = code.replace(slow, soon)
    demo = (ROOT / "demo" / "project" / "agents" / "assistant.py").read_text("utf-8")
    docstring, _, rest = demo.partition("\n\n")
    assert docstring.startswith('"""')
    assert rest == code


@pytest.mark.parametrize("file", PAGES)
def test_the_reference_is_what_the_code_says(file: str) -> None:
    written = (ROOT / "docs" / "reference" / file).read_text("utf-8")
    assert written == page(file), "run: python -m docs.make_reference"


# --- what documents name is there


def _links(document: Path) -> list[str]:
    text = re.sub(r"```.*?```", "", document.read_text("utf-8"), flags=re.S)
    return re.findall(r"\]\(([^)\s]+)\)", text)


def _anchors(document: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", document.read_text("utf-8"), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=shown)
def test_links_lead_somewhere(document: Path) -> None:
    for link in _links(document):
        path, _, anchor = link.partition("#")
        if path.startswith(("https://", "http://")):
            continue
        target = (document.parent / path).resolve() if path else document
        assert target.exists(), f"{link} leads nowhere"
        assert not anchor or anchor in _anchors(target), f"{link} has no such heading"


def test_every_page_is_reached_from_the_index() -> None:
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / link).resolve() for link in _links(index)}
    assert set((ROOT / "docs").rglob("*.md")) - {index} <= linked


def test_the_tests_behind_durability_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", DURABILITY.read_text("utf-8"))
    assert len(named) > 15
    missing = [f"{file}::{test}" for file, test in named if test not in _functions(ROOT / file)]
    assert not missing, missing


def _functions(file: Path) -> set[str]:
    tree = ast.parse(file.read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_row_of_durability_has_its_test() -> None:
    text = DURABILITY.read_text("utf-8")
    rows = re.findall(r"^\| \*\*([^*]+)\*\*", text, flags=re.M)
    proofs = text.partition("## The tests behind it")[2]
    assert len(rows) > 10
    missing = [row for row in rows if f"- {row}" not in proofs]
    assert not missing, missing


def test_the_map_names_every_room() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    source = ROOT / "src" / "perdure"
    named = set(re.findall(r"^\| `([\w./]+)` \|", text, flags=re.M))
    there = {f"{path.name}/" for path in source.iterdir() if path.is_dir() and path.name != "__pycache__"}
    there |= {path.name for path in source.glob("*.py")}
    assert named == there


def test_the_files_that_the_map_names_exist() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    source = ROOT / "src" / "perdure"
    missing = [
        name
        for name in re.findall(r"\b((?:\w+/)*\w+\.py)\b", text)
        if not (source / name).exists() and not (ROOT / name).exists() and not list(source.rglob(name))
    ]
    assert not missing, missing


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    named = [*project["dependencies"], *(each for extra in project["optional-dependencies"].values() for each in extra)]
    needed = {re.split(r"[<>=;\[ ]", each)[0] for each in named} - {"perdure"}
    text = (ROOT / "docs" / "dependencies.md").read_text("utf-8")
    assert set(re.findall(r"^\| `([\w-]+)` \|", text, flags=re.M)) == needed


def test_every_event_type_is_described() -> None:
    text = (ROOT / "docs" / "reference" / "events.md").read_text("utf-8")
    assert re.findall(r"^\| `([a-z_.]+)` \|", text, flags=re.M) == list(EVENT_TYPES)


def test_the_configuration_that_is_shown_is_one(tmp_path: Path) -> None:
    (block,) = [b for b in blocks(ROOT / "docs" / "reference" / "configuration.md") if b.info.startswith("toml")]
    (tmp_path / "perdure.toml").write_text(block.body, "utf-8")
    assert read_config(tmp_path).project == "demo"


def test_limits_are_those_of_the_code() -> None:
    text = (ROOT / "docs" / "reference" / "configuration.md").read_text("utf-8")
    limits = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", text.partition("## Limits")[2], flags=re.M))
    assert limits["queued turns of a session"] == f"{turns.QUEUE_LIMIT:,}"
    assert limits["holds of a session"] == str(holds.HOLD_LIMIT)
    assert limits["open questions of a turn"] == str(asks.PENDING_LIMIT)
    assert limits["messages on their way to a turn"] == str(messages.PENDING_LIMIT)
    assert limits["options of a question; an answer"] == f"{answers.OPTIONS}; {answers.ANSWER_BYTES // 1024} KiB"
    size = f"{content.CONTENT_BYTES // 1024} KiB, {content.CONTENT_PARTS} parts"
    assert limits["content (input, output, response, message, question)"] == size
    assert limits["output and questions of one turn together"] == f"{content.TURN_OUTPUT_BYTES // 1024**2} MiB"


def test_the_tree_has_the_commands_that_documents_promise() -> None:
    made = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), flags=re.M))
    named = {
        match
        for path in DOCUMENTS
        for match in re.findall(r"\bmake ([a-z]+)\b(?= |`|$)", path.read_text("utf-8"), re.M)
    }
    assert {"setup", "demo", "test", "bench", "check", "clean"} <= made
    assert named & {"demo", "test", "bench", "check"} <= made
    assert shutil.which("bash") is None or (ROOT / ".ci" / "run").stat().st_mode & 0o100
