"""A request is made of entries, whatever happened; see `chat_rules` for what providers accept."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit import chat_strategies as strategies
from tests.unit.chat_rules import broken_rules

from perdure.chat import entries as e
from perdure.chat import transcript as t


class Talk:
    """Writes entries with ids and times of their own."""

    def __init__(self) -> None:
        self.entries: list[e.Entry] = []

    def _next(self) -> str:
        return f"e{len(self.entries)}"

    def user(self, text: str) -> str:
        return self._add(e.UserMessage(id=self._next(), at=0, content=e.text_content(text)))

    def steer(self, text: str) -> str:
        return self._add(e.Steer(id=self._next(), at=0, content=e.text_content(text)))

    def answer(self, *parts: e.AnswerPart | str, stop: e.StopReason = "answer") -> str:
        whole = tuple(e.Text(part) if isinstance(part, str) else part for part in parts)
        return self._add(e.AssistantMessage(id=self._next(), at=0, parts=whole, stop=stop, model="m"))

    def calls(self, *ids: str, tool: str = "search", arguments: str = "{}") -> str:
        return self.answer(*(e.ToolCall(each, tool, arguments) for each in ids), stop="tools")

    def result(self, answers: str, slot: int, text: str = "found", outcome: e.Outcome = "done") -> str:
        return self._add(
            e.ToolResult(
                id=self._next(),
                at=0,
                answers=answers,
                slot=slot,
                call="?",
                tool="search",
                content=e.text_content(text),
                outcome=outcome,
            )
        )

    def sections(self, whole: bool = False, **sections: str | None) -> str:
        order = tuple(sections) if whole else ()
        return self._add(e.SectionsChange(id=self._next(), at=0, sections=sections, order=order, whole=whole))

    def summary(self, through: str, text: str = "so far") -> str:
        return self._add(e.Summary(id=self._next(), at=0, text=text, through=through))

    def reset(self, handoff: str | None = None) -> str:
        return self._add(e.Reset(id=self._next(), at=0, handoff=handoff))

    def _add(self, entry: e.Entry) -> str:
        self.entries.append(entry)
        return entry.id

    def shown(self) -> list[str]:
        """Return the request's messages as short lines."""
        request = t.build(self.entries)
        assert not broken_rules(request)
        return [_line(message) for message in request.messages]


def _line(message: t.Message) -> str:
    who = "user" if isinstance(message, t.Said) else "model"
    return f"{who}: " + " + ".join(_words(part) for part in message.parts)


def _words(part: t.Answer | e.AnswerPart | e.Json) -> str:
    match part:
        case t.Answer(call, _, content, is_error):
            return f"{call}{'!' if is_error else ''}={''.join(map(_words, content))}"
        case e.Text(text) | e.Thinking(text):
            return text
        case e.ToolCall(call_id, tool):
            return f"{tool}#{call_id}"
        case _:
            return type(part).__name__


@given(strategies.transcripts)
@settings(max_examples=500)
def test_whatever_happened_the_request_is_one_that_providers_accept(entries: list[e.Entry]) -> None:
    assert broken_rules(t.build(entries)) == []


@given(strategies.transcripts)
def test_entries_that_were_stored_make_the_same_request(entries: list[e.Entry]) -> None:
    stored = [e.decode(e.encode(entry)) for entry in entries]
    assert t.build([e.decode(e.encode(entry)) for entry in stored]) == t.build(stored)
    assert broken_rules(t.build(stored)) == []


@given(strategies.transcripts, st.data())
def test_a_longer_transcript_begins_as_the_shorter_did(entries: list[e.Entry], data: st.DataObject) -> None:
    fresh = [msg for msg in _with_ids(entries) if not isinstance(msg, e.ToolResult | e.Summary | e.Reset)]
    cut = data.draw(st.integers(0, len(fresh)))
    shorter, longer = t.build(fresh[:cut]), t.build(fresh)
    assert longer.messages[: len(shorter.messages) - 1] == shorter.messages[:-1]
    last = shorter.messages[-1].parts
    if last != (e.Text(t.FILLER),):
        assert longer.messages[len(shorter.messages) - 1].parts[: len(last)] == last


def _with_ids(entries: list[e.Entry]) -> list[e.Entry]:
    return [_renamed(entry, f"entry {number}") for number, entry in enumerate(entries)]


def _renamed(entry: e.Entry, entry_id: str) -> e.Entry:
    return type(entry)(**{**{name: getattr(entry, name) for name in entry.__struct_fields__}, "id": entry_id})


@given(strategies.transcripts)
@settings(max_examples=400)
def test_a_conversation_that_grows_makes_the_same_requests(entries: list[e.Entry]) -> None:
    growing = t.Transcript()
    for count, entry in enumerate(entries, 1):
        growing.add(entry)
        if count % 3:
            assert growing.request() == t.build(entries[:count])
    assert growing.request() == t.build(entries)
    assert list(growing.entries) == entries


def test_what_was_built_is_not_built_again() -> None:
    talk = Talk()
    for _ in range(50):
        talk.user("go")
        asked = talk.calls("c1", "c2")
        talk.result(asked, 1)
        talk.result(asked, 0)
    growing = t.Transcript(talk.entries)
    before = growing.request().messages
    growing.add(e.UserMessage(id="new", at=0, content=e.text_content("more")))
    growing.add(e.AssistantMessage(id="last", at=0, parts=(e.Text("hi"),), stop="answer", model="m"))
    after = growing.request().messages
    assert all(one is other for one, other in zip(before[:-1], after, strict=False))
    assert len(after) == len(before) + 2


@given(strategies.transcripts)
def test_nothing_that_a_person_said_after_the_cut_is_lost(entries: list[e.Entry]) -> None:
    cut = t.find_cut(entries)
    said = [
        part
        for entry in entries[cut.start :]
        if isinstance(entry, e.UserMessage | e.Steer)
        for part in entry.content
        if not isinstance(part, e.Text) or part.text.strip()
    ]
    shown = [part for message in t.build(entries).messages if isinstance(message, t.Said) for part in message.parts]
    for part in said:
        assert part in shown


# --- calls and results


def test_results_follow_their_answer_in_the_order_of_its_calls() -> None:
    talk = Talk()
    talk.user("go")
    asked = talk.calls("c1", "c2", "c3")
    talk.result(asked, 2, "third")
    talk.result(asked, 0, "first")
    talk.steer("hurry")
    talk.result(asked, 1, "second")
    talk.answer("done")
    assert talk.shown() == [
        "user: go",
        "model: search#c1 + search#c2 + search#c3",
        "user: c1=first + c2=second + c3=third + hurry",
        "model: done",
        "user: Continue.",
    ]


def test_a_missing_result_is_stood_in_for() -> None:
    talk = Talk()
    talk.user("go")
    asked = talk.calls("c1", "c2")
    talk.result(asked, 1)
    talk.user("and now?")
    assert talk.shown()[-1] == f"user: c1!={t.INTERRUPTED} + c2=found + and now?"


def test_a_call_that_was_cut_off_by_the_limit_is_told_so() -> None:
    talk = Talk()
    talk.answer(e.ToolCall("c1", "write", '{"text": "lo'), stop="length")
    assert talk.shown()[-1] == f"user: c1!={t.CUT_OFF}"


def test_the_first_result_counts_and_one_without_a_call_is_left_out() -> None:
    talk = Talk()
    talk.user("go")
    talk.result("nobody", 0, "orphan")
    asked = talk.calls("c1")
    talk.result(asked, 0, "first")
    talk.result(asked, 0, "second")
    talk.result(asked, 1, "no such call")
    assert talk.shown()[1:] == ["model: search#c1", "user: c1=first"]


def test_call_ids_that_come_twice_are_told_apart() -> None:
    talk = Talk()
    for round_number in range(2):
        asked = talk.calls("call_0", "call_0")
        talk.result(asked, 0, f"a{round_number}")
        talk.result(asked, 1, f"b{round_number}")
    assert talk.shown()[1:] == [
        "model: search#call_0 + search#call_0-2",
        "user: call_0=a0 + call_0-2=b0",
        "model: search#call_0-3 + search#call_0-4",
        "user: call_0-3=a1 + call_0-4=b1",
    ]


def test_a_renamed_id_never_meets_one_that_a_model_chose() -> None:
    talk = Talk()
    talk.calls("x-2", "x", "x")
    assert talk.shown()[1] == "model: search#x-2 + search#x + search#x-3"


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        ("{}", "{}"),
        ('{"a": 1}', '{"a": 1}'),
        ("", "{}"),
        ("  ", "{}"),
        ('{"a": 1', '{"invalid_arguments":"{\\"a\\": 1"}'),
        ("[1]", '{"invalid_arguments":[1]}'),
        ("null", '{"invalid_arguments":null}'),
        ('{"a": NaN}', '{"invalid_arguments":"{\\"a\\": NaN}"}'),
        ('{"a": 1e999}', '{"invalid_arguments":"{\\"a\\": 1e999}"}'),
        ('{"a": "\\ud800"}', '{"a":"\ufffd"}'),
        ('{"a":' * 300 + "1" + "}" * 300, None),
    ],
)
def test_arguments_are_sent_as_a_json_object(sent: str, shown: str | None) -> None:
    found = t.sendable_arguments(sent)
    if shown is None:
        assert list(json.loads(found)) == [t.INVALID_ARGUMENTS]
    else:
        assert found == shown


def test_names_of_tools_that_there_never_were_are_sent_safely() -> None:
    assert [t.sendable_tool_name(name) for name in ("", "a b/c", "ok-1", "x" * 70)] == [
        "tool",
        "a_b_c",
        "ok-1",
        "x" * 64,
    ]


def test_the_harness_s_remarks_are_shown_with_a_result() -> None:
    result = e.ToolResult(
        id="r",
        at=0,
        answers="a",
        slot=0,
        call="c",
        tool="t",
        content=e.text_content("  "),
        diagnostics=(e.Diagnostic("truncated", "cut to 50 KiB"),),
    )
    assert t.result_content(result) == e.text_content("<harness>\nwarning: cut to 50 KiB\n</harness>")


def test_an_empty_result_says_so() -> None:
    talk = Talk()
    talk.result(talk.calls("c1"), 0, "")
    assert talk.shown()[-1] == "user: c1=(no output)"


# --- answers that are not shown


@pytest.mark.parametrize("stop", ["aborted", "error", "lost", "refused"])
def test_an_answer_that_came_to_nothing_is_not_shown(stop: e.StopReason) -> None:
    talk = Talk()
    talk.user("first")
    talk.answer("half an ans", e.ToolCall("c1", "search", "{"), stop=stop)
    talk.user("second")
    assert talk.shown() == ["user: first + second"]


def test_an_empty_answer_is_not_shown() -> None:
    talk = Talk()
    talk.user("first")
    talk.answer(" \n", e.Thinking("hm", "signed"))
    talk.user("second")
    assert talk.shown() == ["user: first + second"]


def test_reasoning_without_a_proof_or_an_end_is_not_shown() -> None:
    talk = Talk()
    talk.answer(e.Thinking("a", "signed"), e.Thinking("b"), "text", e.Thinking("c", "signed"))
    assert talk.shown()[1] == "model: a + text"


def test_what_a_provider_attached_goes_back_as_it_was() -> None:
    payload = e.Payload(provider="openai", id="rs_1", details={"encrypted_content": "blob"})
    parts = (e.Thinking("", None, payload), e.ToolCall("call_1", "search", '{"q": 1}', payload))
    talk = Talk()
    talk.answer(*parts, stop="tools")
    message = t.build(talk.entries).messages[1]
    assert isinstance(message, t.Answered)
    assert message.parts == parts


def test_two_answers_in_a_row_are_told_apart() -> None:
    talk = Talk()
    talk.answer("one")
    talk.answer("two")
    assert talk.shown() == ["user: Continue.", "model: one", "user: Continue.", "model: two", "user: Continue."]


# --- cuts


def test_a_summary_stands_for_what_it_reaches() -> None:
    talk = Talk()
    talk.user("old")
    reached = talk.answer("older")
    talk.user("kept")
    talk.answer("kept too")
    talk.summary(reached)
    talk.user("new")
    assert talk.shown() == [
        "user: <summary>\nso far\n</summary> + kept",
        "model: kept too",
        "user: new",
    ]


def test_a_summary_that_reaches_less_far_is_stale() -> None:
    talk = Talk()
    first = talk.user("one")
    second = talk.user("two")
    talk.summary(second, "far")
    talk.summary(first, "near")
    assert talk.shown() == ["user: <summary>\nfar\n</summary>"]


def test_a_summary_after_a_reset_does_not_bring_back_what_was_before() -> None:
    talk = Talk()
    old = talk.user("old")
    talk.reset()
    talk.summary(old)
    talk.user("new")
    assert talk.shown() == ["user: new"]


def test_a_reset_hands_over_its_text() -> None:
    talk = Talk()
    talk.user("old")
    talk.calls("c1")
    talk.reset("Take it from here.")
    assert talk.shown() == ["user: Take it from here."]


def test_a_summary_of_what_is_not_here_loses_nothing() -> None:
    talk = Talk()
    talk.user("kept")
    talk.summary("long gone")
    assert talk.shown() == ["user: <summary>\nso far\n</summary> + kept"]


def test_results_whose_call_was_cut_away_go_with_it() -> None:
    talk = Talk()
    asked = talk.calls("c1")
    talk.summary(asked)
    talk.result(asked, 0)
    talk.user("new")
    assert talk.shown() == ["user: <summary>\nso far\n</summary> + new"]


# --- the system prompt


def test_sections_known_at_the_beginning_stand_in_front() -> None:
    talk = Talk()
    talk.sections(whole=True, role="Be kind.")
    talk.user("hello")
    talk.sections(plan="1. Fly")
    assert t.build(talk.entries).system == "Be kind.\n\n1. Fly"
    assert talk.shown() == ["user: hello"]


def test_later_changes_are_told_where_they_happened() -> None:
    talk = Talk()
    talk.sections(whole=True, role="Be kind.")
    talk.user("hello")
    talk.answer("hi")
    talk.user("plan!")
    talk.sections(plan="1. Fly", role=None)
    assert t.build(talk.entries).system == "Be kind."
    assert talk.shown()[-1] == (
        "user: plan! + <system-update>\n1. Fly\n\nThe section 'role' no longer applies.\n</system-update>"
    )


def test_a_cut_gathers_all_sections_in_front_again() -> None:
    talk = Talk()
    talk.sections(whole=True, role="Be kind.")
    reached = talk.user("hello")
    talk.answer("hi")
    talk.sections(plan="1. Fly")
    talk.answer("planned")
    talk.summary(reached)
    talk.user("go on")
    assert t.build(talk.entries).system == "Be kind.\n\n1. Fly"
    assert "system-update" not in "".join(talk.shown())


def test_a_whole_change_begins_anew_in_its_order() -> None:
    talk = Talk()
    talk.sections(whole=True, role="Be kind.", plan="1. Fly")
    talk.sections(whole=True, plan="2. Land", role="Be brief.")
    assert t.build(talk.entries).system == "2. Land\n\nBe brief."
