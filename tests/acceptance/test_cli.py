"""The command line against a `perdure dev` of its own, as a user meets them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_parts import Cli, Dev, clean_environment, field, running, write_project

from perdure.records.ids import new_id

NOBODY = "01890a5d-ac96-774b-bcce-b302099a8057"


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    with running(write_project(tmp_path_factory.mktemp("project"))) as dev:
        yield dev


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clean_environment(monkeypatch, tmp_path)


@pytest.fixture
def cli(dev: Dev, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(dev.url, capsys)


def test_the_tutorial(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project = tmp_path / "demo-project"
    Cli("", capsys).text("init", str(project))
    with running(project) as dev:
        cli = Cli(dev.url, capsys)
        scope = ["--project", "demo", "--env", "staging"]
        assert "(environment_not_found)" in cli.fails("session", "create", "assistant", *scope)
        assert field(cli.text("deploy", str(project), *scope), "agents") == "assistant"
        key = ["--key", "user:ada", "--idempotency-key", "tutorial:assistant:1"]
        first = cli.text("session", "create", "assistant", *scope, "--text", "first", *key)
        session, turn = field(first, "session_id"), field(first, "turn_id")
        assert [line.partition(":")[0] for line in first.splitlines()] == [
            "session_id",
            "turn_id",
            "sequence",
            "created",
        ]
        waited = cli.text("session", "turn", "wait", turn, "--session", session, "--timeout", "10m", *scope)
        assert field(waited, "response") == "Turn 1 in this process. Log entries: 1."
        second = cli.text("session", "enqueue", session, *scope, "--text", "second")
        waited = cli.text("session", "turn", "wait", field(second, "turn_id"), "--session", session, *scope)
        assert field(waited, "response") == "Turn 2 in this process. Log entries: 2."
        assert field(cli.text("session", "get", session, *scope), "computer.residency") == "running"
        types = [event["type"] for event in cli.lines("session", "events", session, *scope)]
        assert types.count("turn.completed") == 2
        hold = field(cli.text("session", "interrupt", session, *scope), "hold_id")
        assert field(cli.text("session", "get", session, *scope), "hold_id") == hold
        third = cli.text("session", "enqueue", session, *scope, "--text", "third")
        command = ["session", "turn", "wait", field(third, "turn_id"), "--session", session, *scope]
        assert field(cli.text(*command, "--timeout", "100ms"), "status") == "timeout"
        assert field(cli.text("session", "resume", session, "--hold", hold, *scope), "hold_id") == hold
        assert field(cli.text(*command), "response") == "Turn 3 in this process. Log entries: 3."
        assert field(cli.text("session", "close", session, *scope), "status") == "accepted"
        assert cli.lines("session", "watch", session, *scope)[-1]["event"] == "end"
        assert field(cli.text("session", "get", session, *scope), "status") == "closed"
        assert first == cli.text("session", "create", "assistant", *scope, "--text", "first", *key)


def test_without_a_scope_the_local_dev_server_is_meant(cli: Cli) -> None:
    assert [agent["id"] for agent in cli.json("agent", "list")["agents"]] == ["echo"]
    assert cli.json("agent", "get", "echo")["file"] == "agents/echo.py"
    deployments = cli.json("deployment", "list")["deployments"]
    assert deployments[0]["environment"] == "development"
    assert cli.json("deployment", "get", deployments[0]["id"]) == deployments[0]


def test_what_is_not_there_is_told_with_its_code(cli: Cli) -> None:
    session, _ = cli.create("echo")
    assert "(agent_not_found)" in cli.fails("session", "create", "nobody")
    assert "(session_not_found)" in cli.fails("session", "get", NOBODY)
    assert "(session_not_found)" in cli.fails("session", "events", NOBODY, "--follow")
    assert "(session_not_found)" in cli.fails("session", "watch", NOBODY)
    assert "(turn_not_found)" in cli.fails("session", "turn", "get", NOBODY, "--session", session)
    assert "(turn_not_found)" in cli.fails("session", "turn", "wait", NOBODY, "--session", session)
    assert "(hold_not_found)" in cli.fails("session", "resume", session, "--hold", NOBODY)
    assert "(ask_not_found)" in cli.fails(
        "session", "ask", "answer", NOBODY, "--session", session, "--answer-json", "1"
    )
    assert "(run_not_found)" in cli.fails("session", "logs", session, "--run", NOBODY)
    assert "(deployment_not_found)" in cli.fails("deployment", "get", NOBODY)
    assert "(environment_not_found)" in cli.fails("agent", "list", "--env", "nowhere")
    assert "(invalid_id)" in cli.fails("session", "get", "not-an-id")


def test_keys_and_inputs_that_are_refused(cli: Cli) -> None:
    key = f"key:{new_id()}"
    session, _ = cli.create("echo", "--key", key, "--text", "count 1")
    taken = cli.fails("session", "create", "echo", "--key", key)
    assert "(session_key_conflict)" in taken
    assert session in taken
    for bad in (" padded", "", "x" * 513):
        assert "(invalid_key)" in cli.fails("session", "create", "echo", f"--key={bad}")
        assert "(invalid_key)" in cli.fails("session", "create", "echo", f"--idempotency-key={bad}")
    large = cli.fails("session", "enqueue", session, "--text", "x" * (256 * 1024))
    assert "(content_too_large)" in large
    assert "262144 bytes" in large
    assert "(content_too_large)" in cli.fails("session", "enqueue", session, "--text", "x" * (3 * 1024 * 1024))
    assert "(invalid_json)" in cli.fails("session", "enqueue", session, "--input-json", '{"x": NaN}')
    assert "(bad_request)" in cli.fails("session", "list", "--limit", "1000")
    assert "(bad_request)" in cli.fails("session", "list", "--status", "sleeping")
    assert "(invalid_cursor)" in cli.fails("session", "list", "--cursor", "made-up")
    assert "(invalid_cursor)" in cli.fails("session", "events", session, "--after", "100000")
    assert "(invalid_cursor)" in cli.fails("session", "watch", session, "--after", "100000")
    assert "(invalid_duration)" in cli.fails(
        "session", "turn", "wait", NOBODY, "--session", session, "--timeout", "soon"
    )


def test_the_same_key_gives_the_same_receipt_whatever_has_happened_since(cli: Cli) -> None:
    key = ["--idempotency-key", new_id()]
    session, _ = cli.create("echo")
    receipt = cli.text("session", "enqueue", session, "--text", "one", *key, "--json")
    assert "(idempotency_conflict)" in cli.fails("session", "enqueue", session, "--text", "two", *key)
    cli.text("session", "cancel", session)
    assert cli.text("session", "enqueue", session, "--text", "one", *key, "--json") == receipt
    assert "(session_not_open)" in cli.fails("session", "enqueue", session, "--text", "one")


def test_get_or_create_finds_what_it_made(cli: Cli) -> None:
    key = f"key:{new_id()}"
    made = cli.json("session", "get-or-create", "echo", "--key", key, "--text", "count 1")
    found = cli.json("session", "get-or-create", "echo", "--key", key, "--text", "count 1")
    assert (made["created"], found["created"]) == (True, False)
    assert (found["session_id"], found["sequence"]) == (made["session_id"], 2)
    assert [each["id"] for each in cli.lines("session", "list", "--agent", "echo", "--key", key)] == [
        made["session_id"]
    ]


def test_text_comes_back_as_it_went(cli: Cli) -> None:
    text = 'naïve ☃ \0 "quoted"\ttab\nline \ud83d end'
    session, turn = cli.create("echo", "--text", text)
    said = cli.settled(session, turn)
    assert said["input"] == [{"type": "text", "text": text.replace("\ud83d", "\ufffd")}]
    shown = cli.text("session", "turn", "get", turn, "--session", session).splitlines()
    place = shown.index("input:")
    assert shown[place + 1 : place + 3] == ['  naïve ☃ \\x00 "quoted"\ttab', "  line \ufffd end"]


def test_a_turn_that_fails_says_why(cli: Cli) -> None:
    session, turn = cli.create("echo", "--text", "fail on purpose")
    assert cli.settled(session, turn)["error"]["message"] == "on purpose"
    assert "on purpose" in field(cli.text("session", "turn", "get", turn, "--session", session), "error")
    rows = cli.text("session", "turn", "list", session)
    assert rows.split("\t")[2] == "failed"


def test_a_question_is_listed_and_answered(cli: Cli) -> None:
    session, turn = cli.create("echo", "--text", "ask Go on?")
    for event in cli.lines("session", "events", session, "--follow", "--limit", "5"):
        if event["type"] == "ask.created":
            break
    ask = cli.json("session", "ask", "list", session, "--status", "pending")["asks"][0]
    command = ["session", "ask", "answer", ask["id"], "--session", session]
    assert "no option maybe" in cli.fails(*command, "--option", "maybe")
    wrong = json.dumps({"selected": [{"id": "y", "value": 1}]})
    assert "(answer_invalid)" in cli.fails(*command, "--answer-json", wrong)
    answered = cli.json(*command, "--option", "y", "--response-id", "mine")
    assert answered["status"] == "responded"
    assert cli.json(*command, "--option", "y", "--response-id", "mine") == answered
    assert "(ask_already_responded)" in cli.fails(*command, "--option", "n")
    assert cli.settled(session, turn)["result"] == {"selected": [{"id": "y", "value": {"go": True}}]}


def test_events_come_in_pages_and_followed_to_the_end(cli: Cli) -> None:
    session, turn = cli.create("echo", "--text", "count 30")
    cli.settled(session, turn)
    cli.text("session", "close", session)
    followed = cli.lines("session", "events", session, "--follow")
    assert [event["seq"] for event in followed] == list(range(1, len(followed) + 1))
    assert sum(event["type"] == "turn.output" for event in followed) == 30
    page = cli.json("session", "events", session, "--after", "3", "--limit", "5")
    assert page["events"] == followed[3:8]
    assert (page["next_after"], page["has_more"]) == (8, True)
    assert len(cli.lines("session", "events", session, "--follow", "--after", "3", "--limit", "5")) == 5
    rows = cli.text("session", "events", session, "--limit", "1000").splitlines()
    assert [int(row.split("\t")[0]) for row in rows] == [event["seq"] for event in followed]
    watched = cli.lines("session", "watch", session, "--after", "0")
    assert [item["data"] for item in watched if "id" in item] == followed
    assert watched[-1] == {"event": "end", "data": {"cursor": len(followed)}}


def test_logs_are_what_handlers_print(cli: Cli) -> None:
    session, turn = cli.create("echo", "--text", "count 1")
    cli.settled(session, turn)
    cli.text("session", "close", session)
    cli.lines("session", "watch", session)
    assert cli.text("session", "logs", session, "--follow") == "printed count\n"
    run = cli.json("session", "run", "list", session)["runs"][0]
    assert cli.json("session", "logs", session, "--run", run["id"]) == {
        "data": "printed count\n",
        "next_offset": 14,
        "eof": True,
    }


def test_a_project_that_does_not_import_is_told_and_changes_nothing(cli: Cli, tmp_path: Path) -> None:
    before = cli.json("deployment", "list")
    broken = write_project(tmp_path / "broken", "import perdure\n\nimport nothing_of_that_name\n")
    told = cli.fails("deploy", str(broken))
    assert "agents/echo.py" in told
    assert "No module named 'nothing_of_that_name'" in told
    assert cli.json("deployment", "list") == before


def test_a_deployment_is_promoted_back(cli: Cli, tmp_path: Path) -> None:
    scope = ["--env", "promotion"]
    source = "import perdure\na = perdure.Agent({!r})\n@a.turn\nasync def turn(turn, ctx): ...\n"
    old = cli.json("deploy", str(write_project(tmp_path / "old", source.format("old"))), *scope)
    cli.json("deploy", str(write_project(tmp_path / "new", source.format("new"))), *scope)
    assert [agent["id"] for agent in cli.lines("agent", "list", *scope)] == ["new"]
    cli.json("deployment", "promote", old["id"], *scope)
    assert [agent["id"] for agent in cli.lines("agent", "list", *scope)] == ["old"]


def test_an_address_or_a_data_folder_in_use_is_told(cli: Cli, dev: Dev, tmp_path: Path) -> None:
    other = write_project(tmp_path / "other")
    port = cli.fails("dev", str(other), "--port", str(dev.port), "--no-reload")
    assert "another program listens there" in port
    data = cli.fails("dev", str(dev.project), "--port", "0")
    assert "(store_in_use)" in data


def test_with_api_keys_only_they_let_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project = write_project(tmp_path / "guarded")
    key = json.loads(Cli("", capsys).text("api-key", "create", "ci", "--data", str(project / ".perdure"), "--json"))
    with running(project) as dev:
        cli = Cli(dev.url, capsys)
        assert "(authentication_required)" in cli.fails("agent", "list")
        assert "(authentication_required)" in cli.fails("session", "watch", NOBODY)
        assert "(authentication_required)" in cli.fails("login", dev.url, "--api-key", "prd_sk_wrong")
        assert cli.json("agent", "list", "--api-key", key["api_key"])["agents"][0]["id"] == "echo"
        cli.text("login", dev.url, "--api-key", key["api_key"])
        session, _ = cli.create("echo", "--text", "count 1")
        interrupted = cli.json("session", "interrupt", session)
        hold = cli.json("session", "get", session)["holds"][0]
        assert (hold["id"], hold["issuer"]) == (interrupted["hold_id"], {"kind": "api_key", "id": key["id"]})
        cli.text("logout")
        assert "(authentication_required)" in cli.fails("agent", "list")


def test_in_a_projects_folder_its_own_name_is_meant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    project = write_project(tmp_path / "shop")
    (project / "perdure.toml").write_text('project = "shop"\n')
    with running(project) as dev:
        cli = Cli(dev.url, capsys)
        assert "(environment_not_found)" in cli.fails("agent", "list")
        assert cli.lines("agent", "list", "-p", "shop")[0]["id"] == "echo"
        monkeypatch.chdir(project)
        assert cli.lines("agent", "list")[0]["id"] == "echo"
        assert cli.json("deploy")["project"] == "shop"


def test_dev_ends_cleanly_when_it_is_interrupted(tmp_path: Path) -> None:
    dev = Dev(write_project(tmp_path / "project"))
    assert dev.stop() == 0


def test_a_command_is_a_program(dev: Dev) -> None:
    def perdure(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "perdure.cli.main", *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, check=False, env={**os.environ, "PERDURE_API_URL": dev.url}
        )

    created = perdure("session", "create", "echo", "--text", "count 2", "--json")
    assert (created.returncode, created.stderr) == (0, "")
    session = json.loads(created.stdout)["session_id"]
    assert perdure("session", "get", session).stdout.startswith(f"session_id: {session}\n")
    missing = perdure("session", "get", NOBODY)
    assert (missing.returncode, missing.stdout, missing.stderr.count("\n")) == (1, "", 1)
