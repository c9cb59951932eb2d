"""Records as the documents that `perdure.api` describes. Stored JSON is passed through as it is, never parsed again."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from perdure.engine.service import ComputerView, LogChunk, SessionView, SnapshotItem
from perdure.records.definitions import AgentDefinition, TemplateDefinition
from perdure.records.durations import format_duration
from perdure.records.instants import format_instant
from perdure.records.sessions import Ask, Hold, Issuer, LoggedEvent, Run, RunState, Turn
from perdure.store.port import Deployment, EventPage, FeedPage

_ENCODER: Final = msgspec.json.Encoder()
_UTF8: Final = codecs.getincrementaldecoder("utf-8")


class _Event(msgspec.Struct, frozen=True):
    session_id: str
    seq: int
    type: str
    data: msgspec.Raw
    turn_id: str | None
    run_id: str | None
    at: str


class _EventPage(msgspec.Struct, frozen=True):
    events: list[_Event]
    next_after: int
    has_more: bool
    retained_after: int


class _FeedPage(msgspec.Struct, frozen=True):
    events: list[_Event]
    cursor: str
    has_more: bool


def _event(event: LoggedEvent) -> _Event:
    return _Event(
        event.session_id, event.seq, event.type, event.data, event.turn_id, event.run_id, format_instant(event.at)
    )


def event_bytes(event: LoggedEvent) -> bytes:
    """Return one event as JSON without line breaks."""
    return _ENCODER.encode(_event(event))


def event_page_bytes(page: EventPage) -> bytes:
    """Return a page of events as JSON."""
    events = [_event(event) for event in page.events]
    return _ENCODER.encode(_EventPage(events, page.next_after, page.has_more, page.retained_after))


def feed_page_bytes(page: FeedPage) -> bytes:
    """Return a page of a feed as JSON without line breaks."""
    return _ENCODER.encode(_FeedPage([_event(event) for event in page.events], page.cursor, page.has_more))


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _raw(data: bytes | None) -> msgspec.Raw | None:
    return None if data is None else msgspec.Raw(data)


def _instant(moment: int | None) -> str | None:
    return None if moment is None else format_instant(moment)


def session(view: SessionView) -> dict[str, Any]:
    """Return a session."""
    head = view.head
    return {
        "id": head.id,
        "agent": head.agent,
        **_given(key=head.key),
        "status": head.status,
        "deployment_id": head.deployment,
        "host": head.host,
        "computer": _computer(view.computer),
        "active_turn_id": head.active.id if head.active else None,
        "queued": head.queued,
        "holds": [_hold(hold) for hold in head.holds],
        "run": _session_run(head.run),
        "losses": head.losses,
        "last_event_seq": head.last_seq,
        "created_at": format_instant(head.created_at),
        **_given(idle_since=_instant(head.idle_since), closed_at=_instant(head.ended_at)),
    }


def _computer(view: ComputerView | None) -> dict[str, Any] | None:
    return None if view is None else msgspec.structs.asdict(view)


def _hold(hold: Hold) -> dict[str, Any]:
    return {
        "id": hold.id,
        "reason": hold.reason,
        **_given(message=hold.message),
        "issuer": _issuer(hold.issuer),
        "created_at": format_instant(hold.created_at),
    }


def _issuer(issuer: Issuer) -> dict[str, str]:
    return {"kind": issuer.kind, "id": issuer.id}


def _session_run(run: RunState | None) -> dict[str, Any] | None:
    if run is None:
        return None
    return {"id": run.id, "number": run.number, "recovery": run.recovery, "state": run.phase}


def turn(row: Turn) -> dict[str, Any]:
    """Return a turn."""
    return {
        "id": row.id,
        "session_id": row.session_id,
        "sequence": row.number,
        "status": row.status,
        "input": msgspec.Raw(row.input_json),
        **_given(
            result=_raw(row.result_json),
            response=_raw(row.response_json),
            error=_raw(row.error_json),
            reason=row.reason,
            run_id=row.run_id,
        ),
        "created_at": format_instant(row.created_at),
        **_given(started_at=_instant(row.started_at), ended_at=_instant(row.ended_at)),
    }


def ask(row: Ask, session_id: str) -> dict[str, Any]:
    """Return a question."""
    return {
        "id": row.id,
        "session_id": session_id,
        "turn_id": row.turn_id,
        "status": row.status,
        "prompt": msgspec.Raw(row.prompt_json),
        "answer_control": msgspec.Raw(row.control_json),
        **_given(answer=_raw(row.answer_json), responded_by=_issuer(row.responder) if row.responder else None),
        "created_at": format_instant(row.created_at),
        **_given(ended_at=_instant(row.ended_at)),
    }


def run(row: Run) -> dict[str, Any]:
    """Return a run."""
    return {
        "id": row.id,
        "session_id": row.session_id,
        "number": row.number,
        "recovery": row.recovery,
        "deployment_id": row.deployment,
        "started_at": format_instant(row.started_at),
        **_given(ended_at=_instant(row.ended_at), end_reason=row.end_reason),
    }


def log(chunk: LogChunk) -> dict[str, Any]:
    """Return a piece of a log as text; a character that is not all there yet is left for the next piece."""
    decoder = _UTF8("replace")
    text = decoder.decode(chunk.data, final=chunk.eof)
    held, _ = decoder.getstate()
    return {"data": text, "next_offset": chunk.next_offset - len(held), "eof": chunk.eof}


def agent(definition: AgentDefinition) -> dict[str, Any]:
    """Return an agent."""
    limits = definition.limits
    return {
        "id": definition.id,
        "host": definition.host,
        "module": definition.module,
        "file": definition.file,
        "line": definition.line,
        "has_init": definition.has_init,
        "template": _template(definition.template),
        **_given(
            close_after_idle=_duration(limits.close_after_idle),
            hibernate_after_idle=_duration(limits.hibernate_after_idle),
            max_turn_duration=_duration(limits.max_turn_duration),
        ),
    }


def _duration(microseconds: int | None) -> str | None:
    return None if microseconds is None else format_duration(microseconds)


def _template(template: TemplateDefinition | None) -> dict[str, Any] | None:
    if template is None:
        return None
    return {
        "id": template.id,
        "image": template.image.id,
        "base": template.image.base,
        "cpu": template.cpu,
        "memory": template.memory,
        **_given(disk=template.disk),
    }


def deployment(row: Deployment) -> dict[str, Any]:
    """Return a deployment."""
    project, _, environment = row.environment.partition("/")
    return {
        "id": row.id,
        "project": project,
        "environment": environment,
        "digest": row.digest,
        "live": row.live,
        "agents": [definition.id for definition in row.agents],
        "created_at": format_instant(row.created_at),
    }


def snapshot_bytes(item: SnapshotItem) -> bytes:
    """Return the data of a watch's snapshot as JSON."""
    picture = item.snapshot
    return _ENCODER.encode(
        {
            "cursor": picture.head.last_seq,
            "session": session(item.view),
            "turns": turns(picture.turns),
            "live": {slot: msgspec.Raw(live.content_json) for slot, live in picture.live.items()},
            "has_earlier": picture.has_earlier,
        }
    )


def turns(rows: Iterable[Turn]) -> list[dict[str, Any]]:
    """Return turns."""
    return [turn(row) for row in rows]
