"""Reading definitions in another process, whatever user code does there."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from perdure.authoring.discover import discover
from perdure.errors import DefinitionError, DiscoveryFailed, NoAgentsFound, PerdureError, ProjectImportError

AGENT = """
import perdure
agent = perdure.Agent("assistant", close_after_idle="1d")

@agent.turn
async def turn(turn, ctx): ...
"""


def project(root: Path, before: str = "", after: str = "", **files: str) -> Path:
    (root / "agents").mkdir(exist_ok=True)
    (root / "agents/assistant.py").write_text(before + AGENT + after)
    for name, text in files.items():
        (root / f"{name}.py").write_text(text)
    return root


def found(path: Path, **options: Any) -> list[str]:
    return [definition.id for definition in asyncio.run(discover(path, **options)).definitions]


def failure(kind: type[PerdureError], path: Path, **options: Any) -> Any:
    with pytest.raises(kind) as caught:
        found(path, **options)
    return caught.value


def test_definitions_come_back_whole(tmp_path: Path) -> None:
    (tmp_path / "perdure.toml").write_text('project = "shop"')
    result = asyncio.run(discover(project(tmp_path)))
    assert result.project == "shop"
    definition = result.definitions[0]
    assert (definition.id, definition.file, definition.line) == ("assistant", "agents/assistant.py", 3)
    assert definition.close_after_idle == 86_400_000_000


def test_a_single_file_is_read(tmp_path: Path) -> None:
    assert found(project(tmp_path) / "agents/assistant.py") == ["assistant"]


def test_noise_does_not_matter(tmp_path: Path) -> None:
    noise = """
import os, sys, threading, atexit
print("x" * 3_000_000)
os.write(1, b"\\xff\\x00")
sys.stdout = sys.stderr = None
threading.Thread(target=threading.Event().wait).start()
atexit.register(lambda: os._exit(9))
os.chdir("/")
"""
    assert found(project(tmp_path, after=noise)) == ["assistant"]


def test_a_project_may_have_modules_with_names_of_the_standard_library(tmp_path: Path) -> None:
    assert found(project(tmp_path, json="1/0", tempfile="1/0", queue="1/0")) == ["assistant"]


def test_nothing_is_written_into_the_project(tmp_path: Path) -> None:
    found(project(tmp_path, before="import helper", helper=""))
    assert {path.name for path in tmp_path.rglob("*")} == {"agents", "assistant.py", "helper.py"}


def test_errors_come_back_as_themselves(tmp_path: Path) -> None:
    error = failure(ProjectImportError, project(tmp_path, before="import helper\n", helper="\n1/0"))
    assert error.details["file"] == "helper.py"
    assert error.details["line"] == 2
    assert "helper.py, line 2 (imported from agents/assistant.py): ZeroDivisionError" in error.message
    (tmp_path / "agents/assistant.py").write_text("")
    failure(NoAgentsFound, tmp_path)
    (tmp_path / "agents/assistant.py").write_text("import perdure\na = perdure.Agent('a')")
    failure(DefinitionError, tmp_path)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import sys; sys.exit(0)", "agents/assistant.py, line 1: SystemExit: sys.exit(0)"),
        ("raise KeyboardInterrupt", "agents/assistant.py, line 1: KeyboardInterrupt"),
    ],
)
def test_leaving_by_an_exception_is_an_import_error(tmp_path: Path, code: str, said: str) -> None:
    assert said in failure(ProjectImportError, project(tmp_path, before=code)).message


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import os; os._exit(0)", "ended by itself with exit code 0"),
        ("import faulthandler; faulthandler._sigsegv()", "was killed by SIGSEGV at agents/assistant.py, line 1"),
        ("import os; os.kill(os.getpid(), 9)", "was killed by SIGKILL"),
    ],
)
def test_a_dead_process_is_explained(tmp_path: Path, code: str, said: str) -> None:
    error = failure(DiscoveryFailed, project(tmp_path, before=f"print('last words'); {code}\n"))
    assert "Importing agents/assistant.py" in error.message
    assert said in error.message
    assert "last words" in error.details["output"]


def test_an_import_that_hangs_is_ended_and_located(tmp_path: Path) -> None:
    error = failure(DiscoveryFailed, project(tmp_path, before="while True: pass\n"), timeout=0.7)
    assert "took longer than 0.7 s at agents/assistant.py, line 1" in error.message


def test_an_import_that_hangs_deaf_is_ended_too(tmp_path: Path) -> None:
    deaf = "import signal, time; signal.signal(signal.SIGABRT, signal.SIG_IGN); time.sleep(600)\n"
    assert "took longer" in failure(DiscoveryFailed, project(tmp_path, before=deaf), timeout=0.7).message


def test_what_user_code_started_ends_with_it(tmp_path: Path) -> None:
    start = "import subprocess; print(subprocess.Popen(['sleep', '600']).pid, file=open('pid', 'w'))"
    assert found(project(tmp_path, after=start)) == ["assistant"]
    pid = int((tmp_path / "pid").read_text())
    psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=5)
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_grandchild_that_keeps_the_pipe_does_not_hold_us_up(tmp_path: Path) -> None:
    start = (
        "import subprocess; p = subprocess.Popen(['sleep', '600'], start_new_session=True); "
        "print(p.pid, file=open('pid', 'w'))"
    )
    began = time.monotonic()
    assert found(project(tmp_path, after=start)) == ["assistant"]
    assert time.monotonic() - began < 30
    os.kill(int((tmp_path / "pid").read_text()), 9)


def test_cancelling_ends_the_process(tmp_path: Path) -> None:
    hang = """
import os, time
with open("pid", "w") as file:
    print(os.getpid(), file=file)
os.rename("pid", "p")
time.sleep(60)
"""
    project(tmp_path, before=hang)

    async def cancel() -> None:
        task = asyncio.create_task(discover(tmp_path))
        while not (tmp_path / "p").exists():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert not psutil.pid_exists(int((tmp_path / "p").read_text()))


def test_secrets_of_the_server_are_not_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUR_SECRET", "hunter2")
    path = project(tmp_path, before="import os; os.environ['OUR_SECRET']\n")
    message = failure(ProjectImportError, path).message
    assert "KeyError: 'OUR_SECRET'. OUR_SECRET is set in this server's environment" in message
    assert "hunter2" not in message
    assert found(path, env={**os.environ}) == ["assistant"]


def test_an_exclusive_project_behaves_as_any_program(tmp_path: Path) -> None:
    """Modules are in `sys.modules` under their names, and imports by name find what was not imported yet."""
    check = """
import importlib, sys, pickle
assert sys.modules["agents.assistant"].__dict__ is globals()
assert importlib.import_module("helper").value == 1
assert __builtins__ is vars(importlib.import_module("builtins"))
class Box: pass
pickle.loads(pickle.dumps(Box()))
"""
    assert found(project(tmp_path, after=check, helper="value = 1")) == ["assistant"]
