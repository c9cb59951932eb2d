"""What the API can be asked, one function an operation. Ids are checked here, so that no path can be anything else.

Every write gets an idempotency key when its caller gave none: the client may then send it again by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeVar

from pydantic import BaseModel

from perdure.api.asks import Ask, AskPage
from perdure.api.deployments import Agent, AgentList, Deployment, DeploymentPage, ServerInfo
from perdure.api.events import EventPage, FeedPage
from perdure.api.runs import LogPage, RunPage
from perdure.api.sessions import ControlReceipt, MessageReceipt, Receipt, SendReceipt, Session, SessionPage
from perdure.api.turns import Turn, TurnPage, WaitResult
from perdure.client.call import ANSWER_SECONDS, Call
from perdure.errors import AgentNotFound
from perdure.records import canonical
from perdure.records.durations import format_duration
from perdure.records.ids import check_id, is_name, new_id

M = TypeVar("M", bound=BaseModel)
Parts = list[dict[str, Any]]

UPLOAD_SECONDS: Final = 300.0
EVENTS_A_PAGE: Final = 1000


def _get(path: str, kind: type[M], **query: str | int | list[str] | None) -> Call[M]:
    given = {
        name: str(value) if isinstance(value, int) else value for name, value in query.items() if value is not None
    }
    return Call("GET", path, kind.model_validate_json, query=given)


def _post(path: str, kind: type[M], idempotency_key: str | None, **body: Any) -> Call[M]:
    key = new_id() if idempotency_key is None else idempotency_key
    given = {name: value for name, value in body.items() if value is not None}
    return _send(path, kind, {**given, "idempotency_key": key}, key)


def _send(path: str, kind: type[M], body: dict[str, Any], key: str) -> Call[M]:
    data = canonical.encode(body, "request")
    return Call(
        "POST", path, kind.model_validate_json, body=data, headers={"Content-Type": "application/json"}, key=key
    )


def _agent(name: str) -> str:
    if not is_name(name):
        raise AgentNotFound(name)
    return f"/v1/agents/{name}"


def _session(session_id: str) -> str:
    return f"/v1/sessions/{check_id(session_id, 'session id')}"


def _turn(session_id: str, turn_id: str) -> str:
    return f"{_session(session_id)}/turns/{check_id(turn_id, 'turn id')}"


def _ask(session_id: str, ask_id: str) -> str:
    return f"{_session(session_id)}/asks/{check_id(ask_id, 'ask id')}"


# --- the server, agents, deployments -------------------------------------------------------------------------------


def server() -> Call[ServerInfo]:
    return Call("GET", "/v1/server", ServerInfo.model_validate_json, scoped=False)


def agents() -> Call[AgentList]:
    return _get("/v1/agents", AgentList)


def agent(name: str) -> Call[Agent]:
    return _get(_agent(name), Agent)


def deploy(archive: bytes, promote: bool, idempotency_key: str | None) -> Call[Deployment]:
    key = new_id() if idempotency_key is None else idempotency_key
    return Call(
        "POST",
        "/v1/deployments",
        Deployment.model_validate_json,
        query={} if promote else {"promote": "false"},
        body=archive,
        headers={"Content-Type": "application/gzip", "Idempotency-Key": key},
        seconds=UPLOAD_SECONDS,
        key=key,
    )


def deployments(cursor: str | None, limit: int | None) -> Call[DeploymentPage]:
    return _get("/v1/deployments", DeploymentPage, cursor=cursor, limit=limit)


def deployment(deployment_id: str) -> Call[Deployment]:
    return _get(f"/v1/deployments/{check_id(deployment_id, 'deployment id')}", Deployment)


def promote(deployment_id: str) -> Call[Deployment]:
    path = f"/v1/deployments/{check_id(deployment_id, 'deployment id')}/promote"
    return Call("POST", path, Deployment.model_validate_json, key=new_id())


# --- admission -----------------------------------------------------------------------------------------------------


def create_session(agent: str, parts: Parts | None, key: str | None, idempotency_key: str | None) -> Call[Receipt]:
    return _post(f"{_agent(agent)}/sessions", Receipt, idempotency_key, input=parts, key=key)


def get_or_create(agent: str, key: str, parts: Parts | None, idempotency_key: str | None) -> Call[Receipt]:
    return _post(f"{_agent(agent)}/sessions/get-or-create", Receipt, idempotency_key, input=parts, key=key)


def enqueue(session_id: str, parts: Parts, idempotency_key: str | None) -> Call[Receipt]:
    return _post(f"{_session(session_id)}/enqueue", Receipt, idempotency_key, input=parts)


def send(session_id: str, parts: Parts, idempotency_key: str | None) -> Call[SendReceipt]:
    return _post(f"{_session(session_id)}/send", SendReceipt, idempotency_key, input=parts)


def send_to_turn(session_id: str, turn_id: str, parts: Parts, idempotency_key: str | None) -> Call[MessageReceipt]:
    return _post(f"{_turn(session_id, turn_id)}/messages", MessageReceipt, idempotency_key, input=parts)


# --- controls ------------------------------------------------------------------------------------------------------


def interrupt(session_id: str, reason: str | None, idempotency_key: str | None) -> Call[ControlReceipt]:
    return _post(f"{_session(session_id)}/interrupt", ControlReceipt, idempotency_key, reason=reason)


def resume(session_id: str, hold_id: str, idempotency_key: str | None) -> Call[ControlReceipt]:
    return _post(f"{_session(session_id)}/resume", ControlReceipt, idempotency_key, hold_id=hold_id)


def close(session_id: str, idempotency_key: str | None) -> Call[ControlReceipt]:
    return _post(f"{_session(session_id)}/close", ControlReceipt, idempotency_key)


def cancel(session_id: str, idempotency_key: str | None) -> Call[ControlReceipt]:
    return _post(f"{_session(session_id)}/cancel", ControlReceipt, idempotency_key)


def answer_ask(session_id: str, ask_id: str, answer: Any, response_id: str | None) -> Call[Ask]:
    response = new_id() if response_id is None else response_id
    body = {"answer": answer, "response_id": response}
    return _send(f"{_ask(session_id, ask_id)}/answer", Ask, body, response)


# --- reading -------------------------------------------------------------------------------------------------------


def sessions(
    agent: str | None, key: str | None, status: str | Sequence[str] | None, cursor: str | None, limit: int | None
) -> Call[SessionPage]:
    statuses = status if status is None or isinstance(status, str) else list(status)
    return _get("/v1/sessions", SessionPage, agent=agent, key=key, status=statuses, cursor=cursor, limit=limit)


def session(session_id: str) -> Call[Session]:
    return _get(_session(session_id), Session)


def turns(session_id: str, after: int | None, limit: int | None) -> Call[TurnPage]:
    return _get(f"{_session(session_id)}/turns", TurnPage, after=after, limit=limit)


def turn(session_id: str, turn_id: str) -> Call[Turn]:
    return _get(_turn(session_id, turn_id), Turn)


def wait_turn(session_id: str, turn_id: str, microseconds: int) -> Call[WaitResult]:
    query = {"timeout": format_duration(microseconds)}
    seconds = microseconds / 1e6 + ANSWER_SECONDS
    path = f"{_turn(session_id, turn_id)}/wait"
    return Call("GET", path, WaitResult.model_validate_json, query=query, seconds=seconds)


def asks(session_id: str, status: str | None, cursor: str | None, limit: int | None) -> Call[AskPage]:
    return _get(f"{_session(session_id)}/asks", AskPage, status=status, cursor=cursor, limit=limit)


def ask(session_id: str, ask_id: str) -> Call[Ask]:
    return _get(_ask(session_id, ask_id), Ask)


def feed(after: str | None, limit: int | None) -> Call[FeedPage]:
    return _get("/v1/events", FeedPage, after=after, limit=limit)


def events(session_id: str, after: int | None, limit: int | None) -> Call[EventPage]:
    return _get(f"{_session(session_id)}/events", EventPage, after=after, limit=limit)


def runs(session_id: str, after: int | None, limit: int | None) -> Call[RunPage]:
    return _get(f"{_session(session_id)}/runs", RunPage, after=after, limit=limit)


def logs(session_id: str, run_id: str, offset: int | None, limit: int | None) -> Call[LogPage]:
    path = f"{_session(session_id)}/runs/{check_id(run_id, 'run id')}/logs"
    return _get(path, LogPage, offset=offset, limit=limit)
