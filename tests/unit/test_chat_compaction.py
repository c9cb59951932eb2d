"""Compaction: when, where, and what is asked; no call is parted from its result, and nothing recent is lost."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit import chat_strategies as strategies
from tests.unit.chat_rules import broken_rules
from tests.unit.test_chat_transcript import Talk

from perdure.chat import compaction as c
from perdure.chat import entries as e
from perdure.chat import transcript as t

WORDS = "word " * 80  # 100 tokens


def _long_talk(rounds: int) -> Talk:
    talk = Talk()
    talk.sections(whole=True, plan="1. Fly")
    for number in range(rounds):
        talk.user(f"{number}: {WORDS}")
        asked = talk.calls("c", "c")
        talk.result(asked, 1, WORDS)
        talk.result(asked, 0, WORDS)
        talk.answer(WORDS)
    return talk


def _place(talk: Talk, entry_id: str) -> int:
    return next(place for place, entry in enumerate(talk.entries) if entry.id == entry_id)


# --- when


@pytest.mark.parametrize(
    ("tokens", "need"),
    [(0, "none"), (150_848, "none"), (150_849, "background"), (183_616, "background"), (183_617, "blocking")],
)
def test_thresholds_of_a_large_window(tokens: int, need: c.Need) -> None:
    assert c.needed(c.CompactionPolicy(), 200_000, tokens) == need


def test_a_small_window_keeps_room_to_work() -> None:
    policy = c.CompactionPolicy()
    assert c.needed(policy, 8_000, 3_999) == "none"
    assert c.needed(policy, 8_000, 5_000) == "background"
    assert c.needed(policy, 8_000, 6_001) == "blocking"
    assert policy.fitted(8_000).keep_recent == 2_000
    assert policy.summary_output(8_000) == 1_600
    assert policy.summary_output(200_000) == 13_107
    assert policy.summary_output(200_000, 4_000) == 4_000


def test_it_can_be_turned_off_and_needs_a_window() -> None:
    assert c.needed(c.CompactionPolicy(enabled=False), 1000, 10**9) == "none"
    assert c.needed(c.CompactionPolicy(background=0), 200_000, 170_000) == "none"
    assert c.needed(c.CompactionPolicy(), None, 10**9) == "none"


# --- how long


def test_the_provider_s_count_is_what_newer_entries_are_added_to() -> None:
    talk = _long_talk(1)
    usage = e.Usage(input=5_000, output=300)
    answer = e.AssistantMessage(id="counted", at=0, parts=(e.Text("x"),), stop="answer", model="m", usage=usage)
    talk.entries.append(answer)
    talk.user(WORDS)
    assert c.context_tokens(talk.entries) == 5_400


def test_a_count_from_before_the_cut_counts_no_more() -> None:
    talk = Talk()
    reached = talk.user(WORDS)
    usage = e.Usage(input=5_000, output=300)
    talk.entries.append(
        e.AssistantMessage(id="counted", at=0, parts=(e.Text(WORDS),), stop="answer", model="m", usage=usage)
    )
    talk.summary(reached, WORDS)
    assert 200 <= c.context_tokens(talk.entries) < 220


@given(strategies.transcripts)
def test_an_estimate_can_always_be_made(entries: list[e.Entry]) -> None:
    assert c.context_tokens(entries) >= 0


# --- where


def test_about_as_much_as_asked_stays() -> None:
    talk = _long_talk(20)
    through = c.choose_through(talk.entries, 1_000)
    assert through is not None
    kept = talk.entries[_place(talk, through) + 1 :]
    assert 1_000 <= sum(map(c.entry_tokens, kept)) < 1_500
    talk.summary(through)
    assert t.build(talk.entries).system == "1. Fly", "the plan stands in the prompt after it"
    assert talk.shown()[0].startswith("user: <summary>\nso far\n</summary>")
    assert c.choose_through(talk.entries, 1_000) is None or len(kept) > 10


def test_little_is_left_alone() -> None:
    assert c.choose_through(_long_talk(2).entries, 20_000) is None
    assert c.choose_through([], 0) is None
    assert c.choose_through([], 0, must=True) is None


def test_when_it_must_be_less_is_kept() -> None:
    talk = _long_talk(2)
    through = c.choose_through(talk.entries, 20_000, must=True)
    assert through == talk.entries[-1].id


def test_a_call_is_never_parted_from_its_results_and_never_cut_while_it_runs() -> None:
    talk = _long_talk(1)
    asked = talk.calls("c1", "c2")
    talk.result(asked, 1, WORDS * 10)
    talk.steer("hurry")
    for keep in (0, 1, 500, 1_000):
        through = c.choose_through(talk.entries, keep, must=True)
        assert through is not None
        assert _place(talk, through) < _place(talk, asked)


@given(strategies.transcripts, st.integers(0, 200), st.booleans())
@settings(max_examples=400)
def test_a_summary_loses_nothing_recent_and_parts_nothing(entries: list[e.Entry], keep: int, must: bool) -> None:
    fresh = [_renamed(entry, number) for number, entry in enumerate(entries)]
    through = c.choose_through(fresh, keep, must=must)
    if through is None:
        return
    place = next(place for place, entry in enumerate(fresh) if entry.id == through)
    before = t.find_cut(fresh)
    assert place >= before.start
    after = [*fresh, e.Summary(id="summary", at=0, text="so far", through=through)]
    cut = t.find_cut(after)
    assert cut.start == place + 1, "exactly what was chosen is summed up"
    kept_answers = {entry.id for entry in fresh[place + 1 :] if isinstance(entry, e.AssistantMessage)}
    gone_answers = {entry.id for entry in fresh[: place + 1] if isinstance(entry, e.AssistantMessage)}
    for entry in fresh[place + 1 :]:
        if isinstance(entry, e.ToolResult):
            assert entry.answers in kept_answers or entry.answers not in gone_answers, "a result is where its call is"
    assert broken_rules(t.build(after)) == []
    request = c.summary_request(fresh, through)
    assert broken_rules(request) == []


def _renamed(entry: e.Entry, number: int) -> e.Entry:
    return type(entry)(**{**{name: getattr(entry, name) for name in entry.__struct_fields__}, "id": f"entry-{number}"})


# --- what is asked


def test_what_is_asked_is_one_text_with_long_results_cut() -> None:
    talk = Talk()
    first = talk.user("old")
    talk.summary(first, "the beginning")
    asked = talk.answer("Looking.", e.ToolCall("c", "search", '{"q": 1}'), e.Thinking("hm", "s"), stop="tools")
    talk.result(asked, 0, "x" * 3_000)
    talk.answer("half", stop="aborted")
    through = talk.user("thanks")
    talk.user("not this")
    request = c.summary_request(talk.entries, through, extra="Keep the prices.")
    (message,) = request.messages
    (part,) = message.parts
    assert isinstance(part, e.Text)
    assert part.text == (
        "<conversation>\n<summary>\nthe beginning\n</summary>\n\n[assistant] Looking.\n\n"
        f'[assistant calls search] {{"q": 1}}\n\n[result of search] {"x" * 2_000}… [1000 more characters]\n\n'
        "[user] thanks\n</conversation>\n\nWrite the memory now. Also heed this: Keep the prices."
    )


def test_what_is_asked_fits_the_window() -> None:
    talk = _long_talk(50)
    request = c.summary_request(talk.entries, talk.entries[-1].id, limit=2_000)
    (part,) = request.messages[0].parts
    assert isinstance(part, e.Text)
    assert c.text_tokens(request.system) + c.text_tokens(part.text) < 2_100
    assert "left out here" in part.text
    assert "49: word" in part.text
    assert "0: word" not in part.text.replace("10: word", "")


def test_only_a_whole_answer_is_a_summary() -> None:
    assert c.summary_text((e.Thinking("hm"), e.Text(" so far ")), "answer") == "so far"
    assert c.summary_text((e.Text("so f"),), "length") is None
    assert c.summary_text((e.Text("I"),), "refused") is None
    assert c.summary_text((e.Text("  "),), "answer") is None
