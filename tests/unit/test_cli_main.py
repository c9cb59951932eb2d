from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import client_fakes as fake
import pytest
from client_fakes import SESSION

from perdure.cli import login as login_module
from perdure.cli.commands import COMMANDS, make_app, overview
from perdure.cli.connect import connect, target
from perdure.cli.logins import FILE, Logins, config_folder, read_logins, write_logins
from perdure.cli.main import run
from perdure.cli.options import Server
from perdure.errors import BadRequest

KEY = "prd_sk_right"


class Handler(BaseHTTPRequestHandler):
    """A server of one session that needs a key, or not, and whose watch never ends."""

    protocol_version = "HTTP/1.1"
    key: str | None = None
    watching = threading.Event()

    def do_GET(self) -> None:
        if self.key and self.headers.get("Authorization") != f"Bearer {self.key}":
            self._say({"error": {"code": "authentication_required", "message": "A key, please."}}, 401)
        elif self.path.startswith("/v1/server"):
            self._say({"version": "9.9", "instance_id": fake.RUN, "mode": "dev"})
        elif "/watch" in self.path:
            self._watch()
        else:
            self._say(fake.session())

    def _say(self, document: Any, status: int = 200) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _watch(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(fake.durable(1))
        self.watching.set()
        try:
            while True:
                self.wfile.write(fake.durable(1))
        except OSError:
            self.close_connection = True

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def served() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()
    Handler.key = None
    Handler.watching.clear()


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address where nobody listens, and nobody else can."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}"


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in ("PERDURE_API_URL", "PERDURE_API_KEY", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PERDURE_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def perdure(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "perdure.cli.main", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


# --- help ---


def test_help_loads_nothing_and_is_there_at_once() -> None:
    code = (
        "import sys, time; a = time.perf_counter()\n"
        "from perdure.cli.main import run\n"
        "run(['--help']); t = time.perf_counter() - a\n"
        "print(t, {'cyclopts', 'httpx2', 'pydantic', 'rich', 'asyncio'} & set(sys.modules), file=sys.stderr)"
    )
    tries = [subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True) for _ in range(3)]
    assert {done.stderr.split(" ", 1)[1].strip() for done in tries} == {"set()"}
    assert min(float(done.stderr.split()[0]) for done in tries) < 0.3


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["help"]])
def test_help_is_the_page_of_all_commands(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 0
    assert capsys.readouterr().out == overview()
    assert all(command.name in overview() for command in COMMANDS)


def _commands(app: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name in app:
        if not name.startswith("-"):
            yield (*path, name)
            yield from _commands(app[name], (*path, name))


ALL = sorted(_commands(make_app()))


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_command_has_help_and_says_the_same_of_itself_everywhere(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*path, "--help"]) == 0
    page = capsys.readouterr().out
    assert page.startswith(f"Usage: perdure {' '.join(path)}")
    app = make_app()
    for name in path:
        app = app[name]
    assert app.help


def test_the_commands_of_the_issue_are_there() -> None:
    wanted = """init; dev; deploy; version; login; logout; agent list; agent get; deployment list; deployment get;
        deployment promote; session create; session get; session list; session enqueue; session send; session events;
        session watch; session interrupt; session resume; session close; session cancel; session logs;
        session turn get; session turn list; session turn wait; session turn send; session ask list;
        session ask answer"""
    assert {tuple(each.split()) for each in wanted.split(";")} <= set(ALL)


def test_every_command_takes_json() -> None:
    app = make_app()
    for path in ALL:
        leaf = app
        for name in path:
            leaf = leaf[name]
        if not [name for name in leaf if not name.startswith("-")]:
            assert "--json" in {each for argument in leaf.assemble_argument_collection() for each in argument.names}, (
                path
            )


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == run(["version"]) == run(["version", "--json"]) == 0
    plain, again, document = capsys.readouterr().out.splitlines()
    assert plain == again == json.loads(document)["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", plain)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["sesion"], 'Unknown command "sesion". Did you mean "session"?'),
        (["session", "get"], "SESSION_ID requires an argument"),
        (["session", "get", "a", "b"], "Unused"),
        (["session", "resume", SESSION], "--hold requires an argument"),
        (["session", "list", "--limit", "many"], "many"),
        (["session", "list", "--nope"], "Unknown option"),
    ],
)
def test_what_cannot_be_understood_is_told_in_a_line(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert told in printed.err
    assert printed.err.count("\n") == 1


# --- which server ---


def test_where_nobody_listens_the_address_and_the_way_out_are_told(
    nobody: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["session", "list", "--json", "-a", nobody]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert f"No Perdure server answers at {nobody}" in printed.err
    assert "perdure dev" in printed.err


def test_flags_come_before_the_environment_and_that_before_the_saved_login(monkeypatch: pytest.MonkeyPatch) -> None:
    assert target(Server()) == ("http://127.0.0.1:7373", None)
    write_logins(Logins("http://saved:1", {"http://saved:1": "saved-key"}))
    assert target(Server()) == ("http://saved:1", "saved-key")
    monkeypatch.setenv("PERDURE_API_URL", "http://variable:2")
    assert target(Server()) == ("http://variable:2", None)
    monkeypatch.setenv("PERDURE_API_KEY", "variable-key")
    assert target(Server()) == ("http://variable:2", "variable-key")
    assert target(Server(api_url="http://flag:3", api_key="flag-key")) == ("http://flag:3", "flag-key")
    assert target(Server(api_key="flag-key")) == ("http://variable:2", "flag-key")


def test_a_saved_key_goes_only_to_its_server() -> None:
    write_logins(Logins("http://saved:1", {"http://saved:1": "one", "https://other.example": "two"}))
    assert target(Server(api_url="http://evil:1")).api_key is None
    assert target(Server(api_url="HTTP://Saved:1/")).api_key == "one"
    assert target(Server(api_url="https://other.example:443")).api_key == "two"
    assert target(Server(api_url="http://other.example")).api_key is None


def test_the_project_is_the_flags_else_the_folders_else_demo(home: Path) -> None:
    def scope(**flags: str) -> tuple[str, str]:
        with connect(Server(**flags)) as client:
            settings = client._link.settings
            return settings.project, settings.environment

    assert scope() == ("demo", "development")
    (home / "perdure.toml").write_text('project = "shop"\n')
    assert scope(environment="staging") == ("shop", "staging")
    assert scope(project="other") == ("other", "development")


def test_login_saves_what_the_server_has_accepted(served: str, capsys: pytest.CaptureFixture[str]) -> None:
    Handler.key = KEY
    assert run(["login", served, "--api-key", "prd_sk_wrong"]) == 1
    assert "authentication_required" in capsys.readouterr().err
    assert not (config_folder() / FILE).exists()
    assert run(["login", f"{served}/", "--api-key", KEY]) == 0
    assert capsys.readouterr().out == f"api_url: {served}\nserver_version: 9.9\n"
    assert (config_folder() / FILE).stat().st_mode & 0o777 == 0o600
    assert [file.name for file in config_folder().iterdir()] == [FILE]
    assert run(["session", "get", SESSION, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == SESSION
    assert run(["logout"]) == 0
    assert read_logins() == Logins()
    capsys.readouterr()
    assert run(["logout"]) == run(["logout", "http://never:1"]) == 1
    assert "no saved login for http://never:1" in capsys.readouterr().err


def test_login_asks_for_a_key_only_when_the_server_needs_one(
    served: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(login_module.getpass, "getpass", lambda _: KEY)
    assert run(["login", served]) == 0
    assert read_logins().key_for(served) is None
    Handler.key = KEY
    assert run(["login", served]) == 0
    assert read_logins().key_for(served) == KEY
    assert KEY not in capsys.readouterr().out


def test_a_broken_file_of_logins_is_told(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "config").mkdir()
    for text in ("{", "[]", '{"servers": {"x": 1}}', "\xff"):
        (home / "config" / FILE).write_text(text, "latin-1")
        assert run(["session", "list"]) == 1
        assert "logins_unreadable" in capsys.readouterr().err


def test_an_address_that_is_none_is_told() -> None:
    with pytest.raises(BadRequest, match="not a server's address"):
        target(Server(api_url="http://x:port"))


# --- how it ends ---


def test_an_interrupted_watch_ends_cleanly(served: str) -> None:
    process = perdure("session", "watch", SESSION, "--after", "0", "--jsonl", "-a", served)
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["id"] == 1
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "", "")


def test_a_reader_that_leaves_is_no_error(served: str) -> None:
    read, write = os.pipe()
    os.close(read)
    process = subprocess.run(
        [sys.executable, "-m", "perdure.cli.main", "session", "get", SESSION, "-a", served],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(write)
    assert (process.returncode, process.stderr) == (141, "")


def test_output_is_utf8_wherever_it_goes(served: str, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PERDURE_API_URL": served}
    process = perdure("session", "get", "naïve ☃", env=environment)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert out == ""
    assert "naïve ☃" in err


def test_long_lines_of_help_are_wrapped_under_themselves(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert run(["session", "create", "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    options = lines[lines.index("Parameters:") + 1 : lines.index("Server:") - 1]
    assert all(line.startswith(("  --", "      ")) for line in options)
    assert [line for line in lines if len(line) > 60] == []
    assert any(line.startswith("      ") for line in options)
