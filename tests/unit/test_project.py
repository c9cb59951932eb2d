"""Loading projects: what is found, what is refused, and that versions live side by side."""

from __future__ import annotations

import asyncio
import builtins
import gc
import pickle
import sys
import textwrap
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.authoring.modules import ALIAS
from perdure.authoring.project import Project, load_project
from perdure.errors import DefinitionError, DuplicateDefinition, NoAgentsFound, ProjectError, ProjectImportError

AGENT = """
import perdure
{imports}
agent = perdure.Agent({id!r})

@agent.turn
async def turn(turn, ctx):
    {body}
"""


def agent(id: str = "assistant", body: str = "return 1", imports: str = "") -> str:
    return AGENT.format(id=id, body=body, imports=imports)


def write(root: Path, **files: str) -> Path:
    """Write files named `agents__assistant` for agents/assistant.py and so on."""
    for name, text in files.items():
        path = root / (name.replace("__", "/").replace("INIT", "__init__") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return root


def run(project: Project, id: str = "assistant") -> Any:
    handler = project.agents[id].turn_handler
    assert handler is not None
    return asyncio.run(handler(None, None))  # type: ignore[arg-type]


def fails(kind: type[ProjectError], make: Callable[[], object]) -> Any:
    with pytest.raises(kind) as caught:
        make()
    return caught.value


@pytest.fixture(autouse=True)
def _no_traces() -> Iterator[None]:
    """Leave no module of a project to the next test, and check that loading left `sys.path` alone."""
    before, path = dict(sys.modules), list(sys.path)
    yield
    for name in set(sys.modules) - set(before):
        del sys.modules[name]
    sys.modules.update(before)
    assert sys.path == path


class TestFinding:
    def test_agents_of_all_files_are_found_by_id(self, tmp_path: Path) -> None:
        write(tmp_path, agents__one=agent("one"), agents__deep__er__two=agent("two"), agents__empty="")
        project = load_project(tmp_path)
        assert sorted(project.agents) == ["one", "two"]
        assert [(d.id, d.module, d.file, d.line) for d in project.definitions] == [
            ("one", "agents.one", "agents/one.py", 4),
            ("two", "agents.deep.er.two", "agents/deep/er/two.py", 4),
        ]

    def test_tests_hidden_files_and_ignored_ones_are_not_imported(self, tmp_path: Path) -> None:
        write(tmp_path, agents__a=agent(), agents__test_a="1/0", agents__a_test="1/0", agents__conftest="1/0")
        write(tmp_path, agents__old__b="1/0", agents__draft="1/0")
        (tmp_path / "agents/.hidden.py").write_text("1/0")
        (tmp_path / "perdure.toml").write_text('ignore = ["agents/old/", "draft.py"]')
        assert list(load_project(tmp_path).agents) == ["assistant"]

    def test_perdure_toml_names_project_and_folders(self, tmp_path: Path) -> None:
        write(tmp_path, bots__a=agent("a"), more__b__c=agent("c"), agents__x="1/0")
        (tmp_path / "perdure.toml").write_text('project = "shop"\ndirs = ["bots", "more/b"]')
        project = load_project(tmp_path)
        assert (project.name, sorted(project.agents)) == ("shop", ["a", "c"])

    @pytest.mark.parametrize(
        ("toml", "said"),
        [
            ("project = 7", "project"),
            ("dir = []", "dir"),
            ("dirs = [", "perdure.toml"),
            ('project = "A B"', "A B"),
            ('dirs = ["../x"]', "../x"),
            ('dirs = ["/x"]', "/x"),
            ('dirs = ["."]', "'.'"),
        ],
    )
    def test_a_wrong_perdure_toml_is_refused(self, tmp_path: Path, toml: str, said: str) -> None:
        (tmp_path / "perdure.toml").write_text(toml)
        assert said in fails(ProjectError, lambda: load_project(tmp_path)).message

    def test_a_single_file_is_a_project_with_its_neighbours_to_import(self, tmp_path: Path) -> None:
        write(tmp_path, solo=agent("solo", "return value", "from near import value"), near="value = 7")
        project = load_project(tmp_path / "solo.py")
        assert run(project, "solo") == 7
        assert project.definitions[0].file == "solo.py"

    def test_an_agent_seen_in_two_modules_is_one_agent(self, tmp_path: Path) -> None:
        write(tmp_path, agents__a=agent(), agents__b="from agents.a import agent as other")
        assert list(load_project(tmp_path).agents) == ["assistant"]

    def test_a_relative_path_is_taken_from_the_current_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write(tmp_path, agents__a=agent())
        monkeypatch.chdir(tmp_path)
        assert load_project(".").root == tmp_path


class TestRefusing:
    def test_nothing_there(self, tmp_path: Path) -> None:
        assert "no project at" in fails(ProjectError, lambda: load_project(tmp_path / "x")).message
        assert "no folder agents/" in fails(NoAgentsFound, lambda: load_project(tmp_path)).message
        (tmp_path / "agents").mkdir()
        assert "no Python files" in fails(NoAgentsFound, lambda: load_project(tmp_path)).message
        write(tmp_path, agents__a="x = 1")
        assert "define no agent" in fails(NoAgentsFound, lambda: load_project(tmp_path)).message

    def test_another_file_is_not_a_project(self, tmp_path: Path) -> None:
        (tmp_path / "x.txt").touch()
        assert "neither" in fails(ProjectError, lambda: load_project(tmp_path / "x.txt")).message

    def test_two_agents_of_one_id_name_both_places(self, tmp_path: Path) -> None:
        write(tmp_path, agents__a=agent(), agents__b="\n\n" + agent())
        error = fails(DuplicateDefinition, lambda: load_project(tmp_path))
        assert error.details["places"] == ["agents/a.py, line 4", "agents/b.py, line 6"]

    def test_two_templates_of_one_id_must_be_equal(self, tmp_path: Path) -> None:
        template = "t = perdure.Template('t', image=perdure.Image({!r}).from_({!r}), cpu={})"
        use = "agent = perdure.Agent({!r}, template=t)\n@agent.turn\nasync def turn(turn, ctx): ..."

        def project(first: tuple[Any, ...], second: tuple[Any, ...]) -> Path:
            for name, values in (("a", first), ("b", second)):
                code = ["import perdure", template.format(*values), use.format(name)]
                write(tmp_path, **{f"agents__{name}": "\n".join(code)})
            return tmp_path

        load_project(project(("i", "debian", 1), ("i", "debian", 1)))
        message = fails(
            DuplicateDefinition, lambda: load_project(project(("i", "debian", 1), ("i", "debian", 2)))
        ).message
        assert "templates have the id 't'" in message

    def test_a_missing_turn_handler_names_the_place(self, tmp_path: Path) -> None:
        write(tmp_path, agents__a="import perdure\n\nx = perdure.Agent('a')")
        with pytest.raises(DefinitionError, match=r"agents/a\.py, line 3"):
            load_project(tmp_path)

    def test_a_copied_file_must_exist(self, tmp_path: Path) -> None:
        image = "perdure.Image('i').from_('debian').copy('/app', 'tools')"
        write(tmp_path, agents__a=agent().replace("'assistant'", f"'a', template=perdure.Template('t', image={image})"))
        assert "'tools'" in fails(ProjectError, lambda: load_project(tmp_path)).message
        (tmp_path / "tools").mkdir()
        assert load_project(tmp_path).definitions[0].host == "process"

    def test_a_file_name_with_a_dot_is_refused(self, tmp_path: Path) -> None:
        write(tmp_path, agents__a=agent())
        (tmp_path / "agents/b.c.py").write_text("")
        assert "Rename" in fails(ProjectError, lambda: load_project(tmp_path)).message

    def test_a_file_name_with_a_dash_is_not(self, tmp_path: Path) -> None:
        write(tmp_path, **{"agents__my-agent": agent()})
        assert load_project(tmp_path).definitions[0].file == "agents/my-agent.py"

    @pytest.mark.parametrize(
        ("code", "line", "last"),
        [
            ("x = 1\nimport nonsense_x\n", 2, "ModuleNotFoundError: No module named 'nonsense_x'"),
            ("def f(:\n", 1, "SyntaxError: invalid syntax"),
            ("\n\nraise ValueError('two\\nlines')", 3, "lines"),
            ("import sys\nsys.exit(3)", 2, "SystemExit: sys.exit(3) was called while the module was imported"),
            ("import perdure\nperdure.Agent('a b')", 2, "DefinitionError: Agent id 'a b' is refused"),
            ("import json\njson.loads('{')", 2, "json.decoder.JSONDecodeError: Expecting"),
        ],
    )
    def test_a_failing_import_names_file_line_and_last_line(
        self, tmp_path: Path, code: str, line: int, last: str
    ) -> None:
        write(tmp_path, agents__a=code)
        error = fails(ProjectImportError, lambda: load_project(tmp_path))
        assert (error.details["file"], error.details["line"]) == ("agents/a.py", line)
        assert error.details["error"].startswith(last)
        assert f"agents/a.py, line {line}: " in error.message
        assert str(tmp_path) not in error.message

    def test_a_failure_in_a_helper_names_the_helper_and_who_imports_it(self, tmp_path: Path) -> None:
        write(tmp_path, agents__a="from helpers.deep import x", helpers__deep="\n\n1 / 0")
        error = fails(ProjectImportError, lambda: load_project(tmp_path))
        assert "helpers/deep.py, line 3 (imported from agents/a.py): ZeroDivisionError" in error.message
        assert "Traceback" in error.details["traceback"]

    def test_a_failed_load_leaves_no_module_behind(self, tmp_path: Path) -> None:
        write(tmp_path, agents__a="import gone_helper\n1/0", gone_helper="")
        fails(ProjectImportError, lambda: load_project(tmp_path))
        write(tmp_path, agents__a=agent())
        assert run(load_project(tmp_path)) == 1


class TestVersions:
    def test_new_code_is_fresh_and_old_handlers_keep_theirs(self, tmp_path: Path) -> None:
        """Both edits keep size and second, which defeats Python's own check of cached bytecode."""
        write(tmp_path, agents__a=agent("assistant", "return value", "from helper import value"), helper="value = 1")
        old = load_project(tmp_path)
        write(tmp_path, helper="value = 2")
        new = load_project(tmp_path)
        assert (run(old), run(new), run(old)) == (1, 2, 1)

    def test_imports_inside_functions_find_their_own_version(self, tmp_path: Path) -> None:
        folders = {}
        for version in ("one", "two"):
            root = tmp_path / version
            lazy = "import late.er as m; from late import er; from agents import b; return m.value, er.value, b.value"
            write(root, agents__a=agent(body=lazy), agents__b=f"value = {version!r}", late__er=f"value = {version!r}")
            folders[version] = load_project(root)
        assert run(folders["one"]) == ("one",) * 3
        assert run(folders["two"]) == ("two",) * 3
        assert run(folders["one"]) == ("one",) * 3

    def test_relative_imports_inside_functions_find_their_own_version(self, tmp_path: Path) -> None:
        projects = []
        for version in ("one", "two"):
            write(
                tmp_path / version, agents__a=agent(body="from .b import value; from . import b; return value, b.value")
            )
            write(tmp_path / version, agents__b=f"value = {version!r}")
            projects.append(load_project(tmp_path / version))
        assert [run(project) for project in projects] == [("one", "one"), ("two", "two")]

    def test_a_module_is_imported_once_in_a_version(self, tmp_path: Path) -> None:
        body = "import agents.b as b; from helper import box; box.append(b); return len(box), box[0] is b"
        write(tmp_path, agents__a=agent(body=body), agents__b="import helper\nhelper.box.clear()", helper="box = []")
        project = load_project(tmp_path)
        assert run(project) == (1, True)
        assert run(project) == (2, True)

    def test_one_projects_helper_is_not_anothers(self, tmp_path: Path) -> None:
        write(tmp_path / "one", agents__a=agent(), private_helper="")
        write(tmp_path / "two", agents__a=agent(body="import private_helper"))
        write(tmp_path / "one", agents__b="import private_helper")
        load_project(tmp_path / "one")
        with pytest.raises(ModuleNotFoundError):
            run(load_project(tmp_path / "two"))

    def test_pickle_and_types_find_the_newest_version(self, tmp_path: Path) -> None:
        code = "from dataclasses import dataclass\n@dataclass\nclass Box:\n    x: 'int'\n"
        write(tmp_path, agents__a=agent() + code)
        load_project(tmp_path)
        newest = load_project(tmp_path)
        box = newest.space.modules["agents.a"].Box(1)
        assert pickle.loads(pickle.dumps(box)) == box

    def test_an_old_version_goes_when_its_handlers_go(self, tmp_path: Path) -> None:
        write(tmp_path, agents__a=agent())
        old = load_project(tmp_path)
        handler, space = old.agents["assistant"].turn_handler, weakref.ref(old.space)
        load_project(tmp_path)
        del old
        gc.collect()
        assert space() is not None
        assert handler is not None
        del handler
        gc.collect()
        assert space() is None

    def test_installed_packages_are_shared(self, tmp_path: Path) -> None:
        write(tmp_path, agents__a=agent(body="import msgspec; return msgspec"))
        import msgspec

        assert run(load_project(tmp_path)) is msgspec

    def test_a_thread_of_the_import_may_import(self, tmp_path: Path) -> None:
        """Module code that waits for a thread of its own would hang if that thread waited for the import's end."""
        threaded = """
            import threading
            found = []
            def work():
                from helper import value
                found.append(value)
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        """
        write(tmp_path, agents__a=agent(body="from agents.b import found; return found"), agents__b=threaded)
        write(tmp_path, helper="value = 5")
        assert run(load_project(tmp_path)) == [5]

    def test_projects_that_load_at_the_same_time_do_not_mix(self, tmp_path: Path) -> None:
        names = [f"p{n}" for n in range(4)]
        for name in names:
            write(tmp_path / name, agents__a=agent(body="return value", imports="import time\ntime.sleep(0.01)"))
            text = (tmp_path / name / "agents/a.py").read_text()
            (tmp_path / name / "agents/a.py").write_text(f"from helper import value\n{text}")
            write(tmp_path / name, helper=f"value = {name!r}")
        found: dict[str, Any] = {}
        threads = [
            threading.Thread(target=lambda name=name: found.update({name: load_project(tmp_path / name)}))  # type: ignore[misc]
            for name in names
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [run(found[name]) for name in names] == names

    def test_a_project_cannot_load_another_while_it_is_imported(self, tmp_path: Path) -> None:
        write(tmp_path / "inner", agents__a=agent())
        code = f"from perdure.authoring.project import load_project\nload_project({str(tmp_path / 'inner')!r})"
        write(tmp_path / "outer", agents__a=code)
        assert (
            "while it is being imported" in fails(ProjectImportError, lambda: load_project(tmp_path / "outer")).message
        )


class TestNames:
    """Names that a project has in common with what is installed."""

    @pytest.fixture
    def installed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        site = tmp_path / "site"
        site.mkdir()
        monkeypatch.syspath_prepend(str(site))
        return site

    def test_an_installed_package_called_agents_stays_importable(self, tmp_path: Path, installed: Path) -> None:
        write(installed, agents__INIT="Runner = 'installed'")
        root = tmp_path / "project"
        imports = "from agents import Runner\nfrom .tools import value"
        write(root, agents__a=agent(body="return Runner, value", imports=imports), agents__tools="value = 'ours'")
        project = load_project(root)
        assert run(project) == ("installed", "ours")
        assert project.definitions[0].module == f"{ALIAS}.agents.a"

    def test_a_projects_own_module_goes_before_an_installed_one(self, tmp_path: Path, installed: Path) -> None:
        write(installed, common_name="value = 'installed'")
        import common_name  # type: ignore[import-not-found]

        root = write(
            tmp_path / "project", agents__a=agent(body="return value", imports="from common_name import value")
        )
        write(root, common_name="value = 'ours'")
        assert run(load_project(root)) == "ours"
        assert sys.modules["common_name"] is common_name

    def test_an_environment_inside_the_project_is_not_part_of_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its packages are shared by all versions, so they must be imported in the ordinary way."""
        site = write(tmp_path / "environment/site-packages", vendored__INIT="", vendored__inner="")
        monkeypatch.syspath_prepend(str(site))
        write(tmp_path, agents__a=agent(body="return inner.__builtins__", imports="from vendored import inner"))
        assert run(load_project(tmp_path)) is vars(builtins)

    def test_the_standard_library_goes_before_a_projects_module(self, tmp_path: Path) -> None:
        write(tmp_path, agents__a=agent(body="import json; return json.dumps(1)"), json="1/0", perdure="1/0")
        assert run(load_project(tmp_path)) == "1"
