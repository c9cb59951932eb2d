"""Documents of the API as people read them: which fields, in which order, with which words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from perdure.cli.output import Fields, as_json, flat, shown
from perdure.cli.text import short

Document = dict[str, Any]

_SHORT: Final = 72


def content_text(content: Sequence[Document] | None) -> str | None:
    """Return content as text: text parts joined, each JSON part on a line of its own; None for no content."""
    if content is None:
        return None
    text = ""
    for part in content:
        if part["type"] == "text":
            text += part["text"]
        else:
            text += ("\n" if text and not text.endswith("\n") else "") + as_json(part["value"]) + "\n"
    return text


# --- sessions ------------------------------------------------------------------------------------------------------

SESSION_COLUMNS: Final = ("SESSION", "STATUS", "AGENT", "KEY", "STATE", "QUEUED", "HOLDS", "CREATED")


def session_row(session: Document) -> tuple[Any, ...]:
    """Return a session's row in a list."""
    names = (session["id"], session["status"], session["agent"], session.get("key"))
    return (*names, _state(session), session["queued"], len(session["holds"]), session["created_at"])


def _state(session: Document) -> str:
    """Say in a word what a session does now; nothing for one that has ended."""
    if session["status"] in ("closed", "cancelled"):
        return ""
    if session["holds"]:
        return "held"
    if session["active_turn_id"]:
        return "working"
    computer = session["computer"]
    return str(computer["residency"]) if computer else "idle"


def session_fields(session: Document) -> Fields:
    """Yield a session's fields; each hold is told by lines of its own."""
    yield "session_id", session["id"]
    rest = {name: value for name, value in session.items() if name not in ("id", "holds")}
    yield from flat(rest)
    for hold in session["holds"]:
        yield "hold_id", hold["id"]
        yield "hold_reason", hold["reason"]
        yield "hold_message", hold.get("message")
        yield "hold_issuer", f"{hold['issuer']['kind']} {hold['issuer']['id']}"
        yield "hold_created_at", hold["created_at"]


# --- turns ---------------------------------------------------------------------------------------------------------

TURN_COLUMNS: Final = ("#", "TURN", "STATUS", "INPUT", "OUTCOME")


def turn_row(turn: Document) -> tuple[Any, ...]:
    """Return a turn's row in a list."""
    said = short(content_text(turn["input"]) or "", _SHORT)
    return (turn["sequence"], turn["id"], turn["status"], said, short(outcome(turn), _SHORT))


def outcome(turn: Document) -> str:
    """Return in a line what became of a turn: its response, its result, its error, or why it was interrupted."""
    if "error" in turn:
        return f"{turn['error']['code']}: {turn['error']['message']}"
    if "response" in turn:
        return content_text(turn["response"]) or ""
    if turn["status"] == "completed":
        return as_json(turn.get("result"))
    return str(turn.get("reason", ""))


def turn_fields(turn: Document) -> Fields:
    """Yield a turn's fields, its input and response as text."""
    yield "turn_id", turn["id"]
    for name, value in turn.items():
        if name in ("input", "response"):
            yield name, content_text(value)
        elif name == "error":
            yield name, f"{value['code']}: {value['message']}"
        elif name == "result":
            yield name, as_json(value)
        elif name != "id":
            yield name, value


def wait_fields(result: Document) -> Fields:
    """Yield what a wait found: the turn, whose status is `timeout` when the time was up before it ended."""
    fields = dict(turn_fields(result["turn"]))
    if result["status"] == "timeout":
        fields = {"status": "timeout", **{f"turn_{k}" if k == "status" else k: v for k, v in fields.items()}}
    return fields.items()


# --- questions, runs, agents, deployments ---------------------------------------------------------------------------

ASK_COLUMNS: Final = ("ASK", "STATUS", "TURN", "KIND", "PROMPT")
RUN_COLUMNS: Final = ("#", "RUN", "RECOVERY", "STARTED", "ENDED", "WHY")
AGENT_COLUMNS: Final = ("AGENT", "HOST", "TEMPLATE", "DEFINED")
DEPLOYMENT_COLUMNS: Final = ("DEPLOYMENT", "CREATED", "LIVE", "AGENTS")


def ask_row(ask: Document) -> tuple[Any, ...]:
    """Return a question's row in a list."""
    control = ask["answer_control"]
    return (ask["id"], ask["status"], ask["turn_id"], control["type"], short(content_text(ask["prompt"]) or "", _SHORT))


def ask_fields(ask: Document) -> Fields:
    """Yield a question's fields; each option is told by a line of its own."""
    yield "ask_id", ask["id"]
    yield from ((name, ask[name]) for name in ("session_id", "turn_id", "status"))
    yield "prompt", content_text(ask["prompt"])
    yield "answer_control", ask["answer_control"]["type"]
    for option in ask["answer_control"].get("options", ()):
        yield "option", f"{option['id']}: {option['label']}"
    if "answer" in ask:
        yield "answer", shown(ask["answer"])
    if responder := ask.get("responded_by"):
        yield "responded_by", f"{responder['kind']} {responder['id']}"
    yield from ((name, ask.get(name)) for name in ("created_at", "ended_at"))


def run_row(run: Document) -> tuple[Any, ...]:
    """Return a run's row in a list."""
    times = (run["started_at"], run.get("ended_at"))
    return (run["number"], run["id"], run["recovery"], *times, run.get("end_reason"))


def agent_row(agent: Document) -> tuple[Any, ...]:
    """Return an agent's row in a list."""
    template = agent["template"]["id"] if agent["template"] else None
    return (agent["id"], agent["host"], template, f"{agent['file']}:{agent['line']}")


def deployment_row(deployment: Document) -> tuple[Any, ...]:
    """Return a deployment's row in a list."""
    agents = " ".join(deployment["agents"])
    return (deployment["id"], deployment["created_at"], deployment["live"], agents)


def deployment_fields(deployment: Document) -> Fields:
    """Yield a deployment's fields."""
    yield "deployment_id", deployment["id"]
    for name, value in deployment.items():
        if name != "id":
            yield name, " ".join(value) if name == "agents" else value


# --- events --------------------------------------------------------------------------------------------------------


def event_row(event: Document) -> tuple[Any, ...]:
    """Return an event's row: everything that it says, so that a pipe loses nothing."""
    ids = (event["turn_id"] or "-", event["run_id"] or "-")
    return (event["seq"], event["at"], event["type"], *ids, as_json(event["data"]))


def gist(event: Document) -> str:
    """Return in a few words what an event says to a person."""
    data = event["data"]
    for name in ("content", "input", "response", "prompt"):
        if content := data.get(name):
            return content_text(content) or ""
    if error := data.get("error"):
        return f"{error.get('code')}: {error.get('message')}"
    return " ".join(f"{name}={shown(value)}" for name, value in data.items() if value is not None)
