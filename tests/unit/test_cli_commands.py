from __future__ import annotations

import io
import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import client_fakes as fake
import httpx2
import pytest
from client_fakes import (
    ASK,
    DEPLOYMENT,
    HOLD,
    RUN,
    SESSION,
    TURN,
    Script,
    answer,
    durable,
    failure,
    snapshot,
    sse,
    stream,
)

from perdure.cli import output, runs, streams
from perdure.cli.main import run
from perdure.client import sync
from perdure.client.retry import Retry


class Cli:
    """Runs commands against a scripted server, in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        self._client = sync.Client
        self.script = Script()

    def __call__(self, *arguments: str, answers: Any = (), code: int = 0) -> str:
        """Return what a command printed; on an error, what it said of it."""
        self.script = Script(*(answers if isinstance(answers, list | tuple) else [answers]))
        transport = httpx2.MockTransport(self.script)
        client = partial(self._client, transport=transport, retry=Retry(first=0.0))
        self._monkeypatch.setattr(sync, "Client", client)
        got = run(arguments)
        printed = self._capsys.readouterr()
        assert got == code, printed
        assert self.script.done()
        if code:
            assert printed.out == ""
            assert printed.err.count("\n") == 1
            assert printed.err.startswith("error: ")
            return printed.err
        assert printed.err == ""
        return printed.out

    @property
    def request(self) -> httpx2.Request:
        return self.script.requests[-1]


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PERDURE_API_URL", "PERDURE_API_KEY", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PERDURE_CONFIG_DIR", str(tmp_path / "config"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(monkeypatch, capsys)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (output, runs, streams):
        monkeypatch.setattr(module, "is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)


# --- every command, in the API's shape ---

TURN_PAGE = {"turns": [fake.turn(), fake.completed_turn(sequence=2)]}
EVENT_PAGE = {"events": [fake.event(1), fake.event(2)], "next_after": 2, "has_more": False, "retained_after": 0}
SENT = {"kind": "messaged", "session_id": SESSION, "turn_id": TURN, "message_id": RUN}
MESSAGE = {"session_id": SESSION, "turn_id": TURN, "message_id": RUN, "status": "admitted"}
WAITED = {"status": "settled", "turn": fake.completed_turn()}
RUNS = {"runs": [{"id": RUN, "session_id": SESSION, "number": 1, "recovery": "initial", "deployment_id": DEPLOYMENT}]}
RUNS["runs"][0]["started_at"] = fake.AT

COMMANDS: list[tuple[str, str, str, Any]] = [
    ("session create assistant --text x", "POST", "/v1/agents/assistant/sessions", fake.receipt()),
    ("session get-or-create assistant --key k", "POST", "/v1/agents/assistant/sessions/get-or-create", fake.receipt()),
    (f"session get {SESSION}", "GET", f"/v1/sessions/{SESSION}", fake.session()),
    ("session list", "GET", "/v1/sessions", {"sessions": [fake.session()], "next_cursor": "abc"}),
    (f"session enqueue {SESSION} --text x", "POST", f"/v1/sessions/{SESSION}/enqueue", fake.receipt()),
    (f"session send {SESSION} --text x", "POST", f"/v1/sessions/{SESSION}/send", SENT),
    (f"session events {SESSION}", "GET", f"/v1/sessions/{SESSION}/events", EVENT_PAGE),
    (f"session interrupt {SESSION}", "POST", f"/v1/sessions/{SESSION}/interrupt", fake.control()),
    (f"session resume {SESSION} --hold {HOLD}", "POST", f"/v1/sessions/{SESSION}/resume", fake.control()),
    (f"session close {SESSION}", "POST", f"/v1/sessions/{SESSION}/close", fake.control()),
    (f"session cancel {SESSION}", "POST", f"/v1/sessions/{SESSION}/cancel", fake.control()),
    (f"session run list {SESSION}", "GET", f"/v1/sessions/{SESSION}/runs", RUNS),
    (f"session turn list {SESSION}", "GET", f"/v1/sessions/{SESSION}/turns", TURN_PAGE),
    (f"session turn get {TURN} --session {SESSION}", "GET", f"/v1/sessions/{SESSION}/turns/{TURN}", fake.turn()),
    (
        f"session turn wait {TURN} --session {SESSION} --timeout 10m",
        "GET",
        f"/v1/sessions/{SESSION}/turns/{TURN}/wait",
        WAITED,
    ),
    (
        f"session turn send {TURN} --session {SESSION} --text x",
        "POST",
        f"/v1/sessions/{SESSION}/turns/{TURN}/messages",
        MESSAGE,
    ),
    (f"session ask list {SESSION}", "GET", f"/v1/sessions/{SESSION}/asks", {"asks": [fake.ask()]}),
    (f"session ask get {ASK} --session {SESSION}", "GET", f"/v1/sessions/{SESSION}/asks/{ASK}", fake.ask()),
    (
        f"session ask answer {ASK} --session {SESSION} --answer-json 3",
        "POST",
        f"/v1/sessions/{SESSION}/asks/{ASK}/answer",
        fake.ask(status="responded", answer=3),
    ),
    ("events", "GET", "/v1/events", fake.feed_page("c2", fake.event(1), fake.event(2))),
    ("agent list", "GET", "/v1/agents", {"agents": [fake.agent()]}),
    ("agent get assistant", "GET", "/v1/agents/assistant", fake.agent()),
    ("deployment list", "GET", "/v1/deployments", {"deployments": [fake.deployment()]}),
    (f"deployment get {DEPLOYMENT}", "GET", f"/v1/deployments/{DEPLOYMENT}", fake.deployment()),
    (f"deployment promote {DEPLOYMENT}", "POST", f"/v1/deployments/{DEPLOYMENT}/promote", fake.deployment()),
]


@pytest.mark.parametrize(("command", "method", "path", "document"), COMMANDS, ids=[row[0] for row in COMMANDS])
def test_json_is_the_apis_document_on_one_line(
    cli: Cli, command: str, method: str, path: str, document: dict[str, Any]
) -> None:
    printed = cli(*command.split(), "--json", answers=answer(document))
    assert json.loads(printed) == document
    assert printed.count("\n") == 1
    assert (cli.request.method, cli.request.url.path) == (method, path)
    assert dict(cli.request.url.params).items() >= {"project": "demo", "environment": "development"}.items()


@pytest.mark.parametrize(("command", "method", "path", "document"), COMMANDS, ids=[row[0] for row in COMMANDS])
def test_without_json_people_read_lines_that_programs_can_cut(
    cli: Cli, command: str, method: str, path: str, document: dict[str, Any]
) -> None:
    printed = cli(*command.split(), answers=answer(document))
    lines = printed.splitlines()
    assert lines
    assert all("\t" in line or ": " in line for line in lines)
    assert "\x1b" not in printed
    assert not any(line.startswith("{") for line in lines)


@pytest.mark.parametrize(("command", "method", "path", "document"), COMMANDS, ids=[row[0] for row in COMMANDS])
def test_an_error_is_one_line_on_stderr(cli: Cli, command: str, method: str, path: str, document: Any) -> None:
    for json_flag in ([], ["--json"]):
        told = cli(*command.split(), *json_flag, answers=failure("session_not_open", 409), code=1)
        assert told == "error: What happened. (session_not_open)\n"


ROWS = [row for row in COMMANDS if " list" in row[0] or "events" in row[0]]


@pytest.mark.parametrize(("command", "method", "path", "document"), ROWS, ids=[row[0] for row in ROWS])
def test_jsonl_is_a_document_a_line(cli: Cli, command: str, method: str, path: str, document: dict[str, Any]) -> None:
    items = next(value for value in document.values() if isinstance(value, list))
    printed = cli(*command.split(), "--jsonl", answers=answer(document))
    assert [json.loads(line) for line in printed.splitlines()] == items
    assert "exclude each other" in cli(*command.split(), "--jsonl", "--json", code=1)


# --- human output, word for word ---


def test_a_receipt_is_key_value_lines(cli: Cli) -> None:
    printed = cli("session", "create", "assistant", "--text", "first", answers=answer(fake.receipt()))
    assert printed == f"session_id: {SESSION}\nturn_id: {TURN}\nsequence: 1\ncreated: true\n"


def test_what_is_null_is_left_out(cli: Cli) -> None:
    printed = cli("session", "create", "assistant", answers=answer(fake.receipt(turn_id=None, sequence=None)))
    assert printed == f"session_id: {SESSION}\ncreated: true\n"


def test_a_session_shows_its_computer_and_its_holds(cli: Cli) -> None:
    computer = {"id": RUN, "template": "assistant", "backend": "local", "residency": "hibernated"}
    hold = {"id": HOLD, "reason": "interrupt", "issuer": {"kind": "user", "id": "local"}, "created_at": fake.AT}
    document = fake.session(
        host="process",
        computer={**computer, "isolation": "none", "keeps": "disk"},
        holds=[{**hold, "message": "look\nhere"}, {**hold, "id": ASK}],
    )
    lines = cli("session", "get", SESSION, answers=answer(document)).splitlines()
    assert lines[0] == f"session_id: {SESSION}"
    assert "computer.residency: hibernated" in lines
    assert "status: open" in lines
    assert [line for line in lines if line.startswith("hold_id")] == [f"hold_id: {HOLD}", f"hold_id: {ASK}"]
    place = lines.index("hold_message:")
    assert lines[place + 1 : place + 3] == ["  look", "  here"]


def test_a_turn_that_was_waited_for_shows_its_response(cli: Cli) -> None:
    lines = cli("session", "turn", "wait", TURN, "--session", SESSION, answers=answer(WAITED)).splitlines()
    assert "status: completed" in lines
    assert "response: Turn 1 in this process. Log entries: 1." in lines
    assert 'result: {"turns": 1}' in lines


def test_a_wait_that_times_out_says_so_and_is_no_error(cli: Cli) -> None:
    document = {"status": "timeout", "turn": fake.turn(status="running")}

    def slow(_: httpx2.Request) -> httpx2.Response:
        until = time.monotonic() + 0.001
        while time.monotonic() < until:
            pass
        return answer(document)

    command = ["session", "turn", "wait", TURN, "--session", SESSION, "--timeout", "1ms"]
    lines = cli(*command, answers=[slow]).splitlines()
    assert lines[0] == "status: timeout"
    assert "turn_status: running" in lines
    assert json.loads(cli(*command, "--json", answers=[slow])) == document


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"status": "failed", "error": {"code": "handler_error", "message": "no\ttext"}},
            "error: handler_error: no\ttext",
        ),
        ({"status": "interrupted", "reason": "process_lost"}, "reason: process_lost"),
        ({"status": "completed", "result": None}, "result: null"),
    ],
)
def test_a_turn_says_what_became_of_it(cli: Cli, changes: dict[str, Any], line: str) -> None:
    printed = cli("session", "turn", "get", TURN, "--session", SESSION, answers=answer(fake.turn(**changes)))
    assert line in printed.splitlines()


def test_turn_rows(cli: Cli) -> None:
    printed = cli("session", "turn", "list", SESSION, answers=answer(TURN_PAGE))
    response = "Turn 1 in this process. Log entries: 1."
    assert printed == f"1\t{TURN}\tqueued\tfirst\t\n2\t{TURN}\tcompleted\tfirst\t{response}\n"


def test_event_rows(cli: Cli) -> None:
    printed = cli("session", "events", SESSION, answers=answer(EVENT_PAGE))
    data = '{"content": [{"type": "text", "text": "output 1"}]}'
    assert printed.splitlines()[0] == f"1\t{fake.AT}\tturn.output\t{TURN}\t{RUN}\t{data}"


def test_a_question_shows_its_options(cli: Cli) -> None:
    options = [{"id": "y", "label": "Yes", "value": True}, {"id": "n", "label": "No", "value": False}]
    document = fake.ask(answer_control={"type": "choice", "options": options})
    lines = cli("session", "ask", "get", ASK, "--session", SESSION, answers=answer(document)).splitlines()
    assert [line for line in lines if line.startswith("option")] == ["option: y: Yes", "option: n: No"]
    assert "prompt: Go on?" in lines


HOSTILE = "red \x1b[31m\x9b2J\a\r\u202e\ttab\nnext"


def test_what_sessions_say_does_not_command_the_terminal(cli: Cli, terminal: None) -> None:
    said = [{"type": "text", "text": HOSTILE}]
    turn = fake.completed_turn(input=said, response=said, result={"x": HOSTILE})
    event = fake.event(1, data={"content": said})
    page = {"events": [event], "next_after": 1, "has_more": False, "retained_after": 0}
    watched = [
        snapshot(0, turns=[turn], live={"a": said}),
        durable(1, data={"content": said}),
        sse("end", {"cursor": 1}),
    ]
    outputs = [
        cli("session", "turn", "get", TURN, "--session", SESSION, answers=answer(turn)),
        cli("session", "turn", "get", TURN, "--session", SESSION, "--json", answers=answer(turn)),
        cli("session", "turn", "list", SESSION, answers=answer({"turns": [turn]})),
        cli("session", "events", SESSION, answers=answer(page)),
        cli("session", "watch", SESSION, answers=stream(*watched)),
        cli("session", "logs", SESSION, "--run", RUN, answers=answer({"data": HOSTILE, "next_offset": 9, "eof": True})),
    ]
    for printed in outputs:
        plain = printed.replace("\x1b[1m", "").replace("\x1b[2m", "").replace("\x1b[0m", "").replace("\r\x1b[K", "")
        assert not set(plain) & {"\x1b", "\x9b", "\a", "\r", "\u202e"}, plain
        assert "red" in plain


def test_an_error_is_one_line_whatever_it_says(cli: Cli) -> None:
    error = {"error": {"code": "project_import_failed", "message": "line 1\nline 2 \x1b[31m"}}
    told = cli("session", "get", SESSION, answers=answer(error, 400), code=1)
    assert told == "error: line 1 line 2 \\x1b[31m (project_import_failed)\n"


def test_tables_on_a_terminal_have_headers(cli: Cli, terminal: None) -> None:
    printed = cli("session", "list", answers=answer({"sessions": [fake.session(queued=3)]}))
    header, row = printed.splitlines()
    assert header.split() == ["SESSION", "STATUS", "AGENT", "KEY", "STATE", "QUEUED", "HOLDS", "CREATED"]
    assert row.split() == [SESSION, "open", "assistant", "user:ada", "idle", "3", "0", fake.AT]


# --- inputs ---


def test_text_goes_as_it_is(cli: Cli) -> None:
    for text in ["", " padded ", "-5", "--json", "- list", "a\0b", "naïve ☃"]:
        cli("session", "enqueue", SESSION, "--text", text, answers=answer(fake.receipt()))
        assert cli.script.bodies[0]["input"] == [{"type": "text", "text": text}]


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ('{"task": 1}', [{"type": "json", "value": {"task": 1}}]),
        ("-5", [{"type": "json", "value": -5}]),
        ("[1]", [{"type": "json", "value": [1]}]),
        ("[]", [{"type": "json", "value": []}]),
        ("null", [{"type": "json", "value": None}]),
        ('{"type": "text", "text": "x"}', [{"type": "text", "text": "x"}]),
        (
            '[{"type": "text", "text": "x"}, {"type": "json", "value": 1}]',
            [{"type": "text", "text": "x"}, {"type": "json", "value": 1}],
        ),
        ('{"type": "text", "tekst": 1}', [{"type": "json", "value": {"type": "text", "tekst": 1}}]),
    ],
)
def test_json_input_is_content_or_a_value(cli: Cli, tmp_path: Path, given: str, parts: Any) -> None:
    cli("session", "enqueue", SESSION, "--input-json", given, answers=answer(fake.receipt()))
    assert cli.script.bodies[0]["input"] == parts
    file = tmp_path / "input.json"
    file.write_text(given)
    cli("session", "enqueue", SESSION, "--input-file", str(file), answers=answer(fake.receipt()))
    assert cli.script.bodies[0]["input"] == parts


def test_files_and_standard_input(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def typed(data: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))

    file = tmp_path / "prompt.txt"
    file.write_bytes("\ufeffline 1\nline 2\n".encode())
    cli("session", "send", SESSION, "--input-file", str(file), answers=answer(SENT))
    assert cli.script.bodies[0]["input"] == [{"type": "text", "text": "line 1\nline 2\n"}]
    typed(b"typed")
    cli("session", "send", SESSION, "--input-file", "-", answers=answer(SENT))
    assert cli.script.bodies[0]["input"] == [{"type": "text", "text": "typed"}]
    typed(b'{"a": 1}')
    cli("session", "send", SESSION, "--input-json", "-", answers=answer(SENT))
    assert cli.script.bodies[0]["input"] == [{"type": "json", "value": {"a": 1}}]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--input-json", "{"], "is not JSON"),
        (["--input-json", '{"a": NaN}'], "NaN"),
        (["--text", "a", "--input-json", "1"], "--text and --input-json exclude each other"),
        ([], "no input"),
        (["--input-file", "nowhere.txt"], "nowhere.txt: No such file or directory"),
        (["--input-file", "latin.txt"], "not UTF-8"),
        (["--text"], "--text requires an argument"),
        (["--texxt", "a"], "Unknown option"),
    ],
)
def test_bad_input_is_told_and_nothing_is_sent(cli: Cli, given: list[str], told: str) -> None:
    Path("latin.txt").write_bytes(b"caf\xe9")
    assert told in cli("session", "enqueue", SESSION, *given, code=1)


def test_options_become_the_answer_that_the_question_takes(cli: Cli) -> None:
    options = [{"id": "y", "label": "Yes", "value": {"go": True}}, {"id": "n", "label": "No", "value": None}]
    choice = fake.ask(answer_control={"type": "choice", "options": options, "multiple": True, "allow_text": True})
    command = ["session", "ask", "answer", ASK, "--session", SESSION]

    def sent(*given: str, ask: Any = choice) -> Any:
        cli(*command, *given, answers=[answer(ask), answer(fake.ask())])
        return json.loads(cli.request.content)["answer"]

    yes, no = {"id": "y", "value": {"go": True}}, {"id": "n", "value": None}
    assert sent("--option", "n", "--option", "y") == {"selected": [yes, no]}
    assert sent("--option", "y", "--text", "but") == {"selected": [yes], "text": "but"}
    assert sent("--text", "neither") == {"selected": [], "text": "neither"}
    assert sent("--text", "words", ask=fake.ask()) == "words"
    assert "no option maybe; it has: y, n" in cli(*command, "--option", "maybe", answers=answer(choice), code=1)
    assert "no answer" in cli(*command, code=1)
    assert "excludes" in cli(*command, "--answer-json", "1", "--text", "x", code=1)
    cli(*command, "--answer-json", "null", "--response-id", "mine", answers=answer(fake.ask()))
    assert cli.script.bodies[0] == {"answer": None, "response_id": "mine"}


def test_options_reach_the_server(cli: Cli) -> None:
    cli("session", "interrupt", SESSION, "--reason", "-why", "--idempotency-key", "k", answers=answer(fake.control()))
    assert cli.script.bodies[0] == {"reason": "-why", "idempotency_key": "k"}
    cli(
        "session",
        "list",
        "--status",
        "open,closing",
        "--status",
        "closed",
        "--limit",
        "5",
        answers=answer({"sessions": []}),
    )
    assert cli.request.url.params.get_list("status") == ["open", "closing", "closed"]
    cli("session", "get", SESSION, "-p", "shop", "-e", "staging", answers=answer(fake.session()))
    assert dict(cli.request.url.params) == {"project": "shop", "environment": "staging"}
    cli("session", "create", "assistant", "--key=-x", answers=answer(fake.receipt()))
    assert cli.script.bodies[0]["key"] == "-x"


# --- streams ---


def test_following_prints_events_until_the_end(cli: Cli) -> None:
    body = [
        durable(3),
        sse("live", {"turn_id": TURN, "slot": "a", "content": None}),
        durable(4),
        sse("end", {"cursor": 4}),
    ]
    follow = ["session", "events", SESSION, "--after", "2", "--follow"]
    printed = cli(*follow, "--jsonl", answers=stream(*body))
    assert [json.loads(line) for line in printed.splitlines()] == [fake.event(3), fake.event(4)]
    assert cli.request.url.params["after"] == "2"
    assert [line.split("\t")[0] for line in cli(*follow, answers=stream(*body)).splitlines()] == ["3", "4"]
    page = cli(*follow, "--json", answers=[answer(EVENT_PAGE), stream(*body)])
    assert json.loads(page) == {
        "events": [fake.event(3), fake.event(4)],
        "next_after": 4,
        "has_more": False,
        "retained_after": 0,
    }


def test_following_stops_at_its_limit(cli: Cli) -> None:
    body = stream(*(durable(seq) for seq in range(1, 10)))
    printed = cli("session", "events", SESSION, "--follow", "--limit", "2", answers=body)
    assert [line.split("\t")[0] for line in printed.splitlines()] == ["1", "2"]
    assert "at least 1" in cli("session", "events", SESSION, "--follow", "--limit", "-1", code=1)


WATCHED = [
    snapshot(2, live={"answer": [{"type": "text", "text": "so"}]}),
    sse("caught_up", {"cursor": 2}),
    sse("live", {"turn_id": TURN, "slot": "answer", "content": [{"type": "text", "text": "so far"}]}),
    durable(3),
    sse("end", {"cursor": 3}),
]


def test_a_watch_as_lines_is_the_stream_of_the_api(cli: Cli) -> None:
    lines = [
        json.loads(line) for line in cli("session", "watch", SESSION, "--jsonl", answers=stream(*WATCHED)).splitlines()
    ]
    assert [line["event"] for line in lines] == ["snapshot", "caught_up", "live", "turn.output", "end"]
    assert [line.get("id") for line in lines] == [None, None, None, 3, None]
    assert lines[3]["data"] == fake.event(3)
    assert lines[0]["data"]["session"] == fake.session()
    assert json.loads(cli("session", "watch", SESSION, "--json", answers=stream(*WATCHED))) == {"items": lines}


def test_a_watch_in_a_pipe_is_rows(cli: Cli) -> None:
    rows = [line.split("\t") for line in cli("session", "watch", SESSION, answers=stream(*WATCHED)).splitlines()]
    assert [row[2] for row in rows] == ["snapshot", "caught_up", "live", "turn.output", "end"]
    assert {len(row) for row in rows} == {6}


def test_a_watch_on_a_terminal_shows_turns_what_is_written_and_what_happened(cli: Cli, terminal: None) -> None:
    printed = cli("session", "watch", SESSION, answers=stream(*WATCHED))
    assert "first" in printed
    assert "so far" in printed
    assert printed.rindex("\r\x1b[K") < printed.index("output 3")


def test_a_terminal_without_colour_gets_none(cli: Cli, terminal: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[1m" in cli("session", "events", SESSION, answers=answer(EVENT_PAGE))
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in cli("session", "events", SESSION, answers=answer(EVENT_PAGE))


def test_logs_are_read_to_the_end(cli: Cli) -> None:
    pages = [{"data": "one\n", "next_offset": 4, "eof": False}, {"data": "two\n", "next_offset": 8, "eof": True}]
    logs = ["session", "logs", SESSION, "--run", RUN]
    assert cli(*logs, answers=[answer(page) for page in pages]) == "one\ntwo\n"
    assert cli.request.url.params["offset"] == "4"
    whole = json.loads(cli(*logs, "--json", answers=[answer(page) for page in pages]))
    assert whole == {"data": "one\ntwo\n", "next_offset": 8, "eof": True}


def test_logs_of_a_run_that_goes_on_stop_at_its_present_end_unless_followed(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "_POLL_SECONDS", 0)
    some = {"data": "one\n", "next_offset": 4, "eof": False}
    nothing = {"data": "", "next_offset": 4, "eof": False}
    last = {"data": "two\n", "next_offset": 8, "eof": True}
    logs = ["session", "logs", SESSION, "--run", RUN]
    assert cli(*logs, answers=[answer(some), answer(nothing)]) == "one\n"
    assert cli(*logs, "--follow", answers=[answer(page) for page in (some, nothing, nothing, last)]) == "one\ntwo\n"


def test_without_a_run_the_newest_ones_logs_are_meant(cli: Cli) -> None:
    log = answer({"data": "x", "next_offset": 1, "eof": True})
    cli("session", "logs", SESSION, answers=[answer(fake.session()), answer(RUNS), log])
    assert cli.request.url.path == f"/v1/sessions/{SESSION}/runs/{RUN}/logs"
    present = {"id": ASK, "number": 2, "recovery": "initial", "state": "ready"}
    log = answer({"data": "x", "next_offset": 1, "eof": True})
    cli("session", "logs", SESSION, answers=[answer(fake.session(run=present)), log])
    assert cli.request.url.path == f"/v1/sessions/{SESSION}/runs/{ASK}/logs"
    told = cli("session", "logs", SESSION, answers=[answer(fake.session()), answer({"runs": []})], code=1)
    assert "has not run yet" in told


# --- projects ---


def test_init_writes_a_project_and_overwrites_nothing(cli: Cli) -> None:
    printed = cli("init", "demo-project")
    assert "created: demo-project/agents/assistant.py" in printed.splitlines()
    assert Path("demo-project/agents/assistant.py").is_file()
    assert "project_exists" in cli("init", "demo-project", code=1)
    again = json.loads(cli("init", "demo-project", "--force", "--json"))
    assert "demo-project/agents/assistant.py" in again["files"]


def test_deploy_sends_the_project_and_prints_the_deployment(cli: Cli) -> None:
    cli("init", "shop")
    Path("shop/perdure.toml").write_text('project = "shop"\n')
    printed = cli("deploy", "shop", "--env", "staging", answers=answer(fake.deployment(), 201))
    assert printed.splitlines()[0] == f"deployment_id: {DEPLOYMENT}"
    assert cli.request.content.startswith(b"\x1f\x8b")
    assert dict(cli.request.url.params) == {"project": "shop", "environment": "staging"}
    cli("deploy", "shop", "--project", "other", "--no-promote", "--json", answers=answer(fake.deployment(), 201))
    assert dict(cli.request.url.params).items() >= {"project": "other", "promote": "false"}.items()
    assert "There is no project" in cli("deploy", "nowhere", code=1)


def test_dev_gets_what_was_said(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from perdure.server import dev

    calls: list[Any] = []
    monkeypatch.setattr(dev, "run_dev", lambda *args, **named: calls.append((args, named)))
    cli("dev")
    cli("dev", "shop", "--host", "::1", "--port", "0", "--data", "/tmp/data", "--no-reload", "--json")
    assert calls == [
        ((Path(),), {"host": "127.0.0.1", "port": 7373, "data": None, "reload": True, "json": False}),
        ((Path("shop"),), {"host": "::1", "port": 0, "data": Path("/tmp/data"), "reload": False, "json": True}),
    ]


def test_the_feed_is_followed_line_by_line(cli: Cli) -> None:
    pages = (fake.sse_page("c0"), fake.sse_page("c1", fake.event(4)), fake.sse_page("c2", fake.event(1), fake.event(2)))
    printed = cli("events", "--follow", "--after", "now", "--limit", "2", answers=stream(*pages))
    rows = [line.split("\t") for line in printed.splitlines()]
    assert [row[:2] for row in rows] == [[SESSION, "4"], [SESSION, "1"]]
    assert cli.request.url.params["after"] == "now"
    printed = cli("events", "--follow", "--limit", "3", "--jsonl", answers=stream(*pages))
    assert [json.loads(line)["seq"] for line in printed.splitlines()] == [4, 1, 2]
    assert "use --jsonl" in cli("events", "--follow", "--json", code=1)
    assert "at least 1" in cli("events", "--follow", "--limit", "0", code=1)


def test_api_keys_are_made_listed_and_revoked(cli: Cli) -> None:
    made = json.loads(cli("api-key", "create", "ci", "--json"))
    assert made["api_key"].startswith("prd_sk_")
    listed = cli("api-key", "list", "--jsonl")
    assert json.loads(listed)["name"] == "ci"
    assert made["api_key"] not in listed
    cli("api-key", "revoke", made["id"])
    assert cli("api-key", "list") == ""
    assert "no key" in cli("api-key", "revoke", made["id"], code=1)
