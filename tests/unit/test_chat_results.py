"""Whatever a tool returns or puts out, the model gets something bounded that it can act on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from perdure.chat import entries as e
from perdure.chat.output import OutputBuffer
from perdure.chat.results import Bounds, Finished, ToolResult, bound_text, fail, finish, refuse, stopped
from perdure.errors import SessionNotOpen
from perdure.records.content import JsonPart, TextPart


class Flight(BaseModel):
    number: str
    day: date


@dataclass
class Seat:
    row: int


def _text(result: Finished) -> str:
    return "".join(part.text for part in result.content if isinstance(part, e.Text))


def _codes(result: Finished) -> list[str]:
    return [remark.code for remark in result.diagnostics]


# --- kinds of values


@pytest.mark.parametrize(
    ("value", "content"),
    [
        (None, ()),
        ("", e.text_content("")),
        ("Saved.", e.text_content("Saved.")),
        (7, (e.Json(7),)),
        (["a", "b"], (e.Json(["a", "b"]),)),
        ([], (e.Json([]),)),
        ({"b": 1, "a": (1, 2)}, (e.Json({"a": [1, 2], "b": 1}),)),
        (Flight(number="LH1", day=date(2026, 12, 1)), (e.Json({"number": "LH1", "day": "2026-12-01"}),)),
        ([Seat(1), Seat(2)], (e.Json([{"row": 1}, {"row": 2}]),)),
        (b"caf\xc3\xa9", e.text_content("café")),
        (TextPart("x"), e.text_content("x")),
        ([TextPart("x"), JsonPart(1)], (e.Text("x"), e.Json(1))),
        (e.File("image/png", b"png"), (e.File("image/png", b"png"),)),
        ("half a \ud83d emoji", e.text_content("half a \ufffd emoji")),
    ],
)
def test_values_become_content(value: Any, content: e.Content) -> None:
    assert finish(value) == Finished(content)


def test_a_tool_result_says_all_that_it_can() -> None:
    result = ToolResult(
        ["Booked ", "seat 3"], details=Seat(3), is_error=True, terminate=True, handoff="next", add_tools=("refund",)
    )
    assert finish(result) == Finished(
        (e.Text("Booked "), e.Text("seat 3")), "failed", {"row": 3}, (), True, "next", ("refund",)
    )
    assert finish(ToolResult()) == Finished(())


@pytest.mark.parametrize(
    "value",
    [math.nan, {"price": math.inf}, object(), {"x": object()}, 2**70, {1.5: {"deep": {2: b"\xff"}}}],
)
def test_what_is_not_json_is_an_error_that_the_model_sees(value: Any) -> None:
    result = finish(value)
    assert result.outcome == "failed"
    assert _codes(result) == ["result_not_json"]
    assert "Do not repeat the call for that" in _text(result)


def test_a_value_that_holds_itself_is_an_error_too() -> None:
    value: list[Any] = [1]
    value.append(value)
    assert _codes(finish(value)) == ["result_not_json"]


def test_binary_data_is_named_and_not_shown() -> None:
    result = finish(b"\x89PNG\x00\xff")
    assert _text(result) == "[binary data, 6 bytes]"
    assert _codes(result) == ["binary"]
    assert _text(finish(b"text with \x00")) == "[binary data, 11 bytes]"


def test_details_that_cannot_be_kept_are_left_out_and_the_content_stays() -> None:
    result = finish(ToolResult("done", details={"x": math.nan}))
    assert (result.outcome, result.details, _text(result), _codes(result)) == (
        "done",
        None,
        "done",
        ["details_not_json"],
    )
    assert _codes(finish(ToolResult("done", details="x" * 300_000))) == ["details_too_large"]


def test_a_file_that_is_too_large_is_named() -> None:
    big = e.File("video/mp4", bytes(4 * 1024 * 1024), "a.mp4")
    result = finish([big, e.File("image/png", b"1", "b.png")])
    assert result.content == (big, e.Text("[file b.png, image/png, 1 bytes]"))
    assert _codes(result) == ["file_too_large"]


# --- bounds


def test_twenty_mebibytes_become_fifty_kibibytes() -> None:
    result = finish("0123456789abcde\n" * (20 * 65536))
    assert len(_text(result)) <= 50 * 1024
    assert result.diagnostics == (
        e.Diagnostic(
            "truncated", "Only the first 2000 of 1310720 lines (32000 of 20971520 bytes) are shown.", "warning"
        ),
    )


def test_a_json_value_that_is_too_large_is_cut_as_text() -> None:
    result = finish({"x": "y" * 100_000})
    assert len(_text(result)) == 50 * 1024
    assert _codes(result) == ["truncated"]


def test_parts_share_one_bound_from_the_end_that_is_kept() -> None:
    parts = ["a" * 10 + "\n", "b" * 10 + "\n", "c" * 10 + "\n"]
    assert _text(finish(ToolResult(parts, bounds=Bounds(bytes=22)))) == parts[0] + parts[1]
    assert _text(finish(ToolResult(parts, bounds=Bounds(lines=1, keep="tail")))) == parts[2]


def test_too_many_parts_are_cut() -> None:
    result = finish(ToolResult(["x"] * 100))
    assert len(result.content) == 64
    assert _codes(result) == ["truncated"]


@given(st.text(alphabet="a\né€\U0001f600\ud800", max_size=60), st.integers(0, 30), st.integers(0, 5), st.booleans())
@settings(max_examples=400)
def test_bounded_text_is_within_its_bounds_and_a_part_of_the_whole(
    text: str, size: int, lines: int, head: bool
) -> None:
    kept = bound_text(text, Bounds(size, lines, "head" if head else "tail"))
    if kept is text:
        return
    clean = text.replace("\ud800", "\ufffd")
    assert len(kept.encode()) <= size
    assert len(kept.splitlines()) <= lines
    assert clean.startswith(kept) if head else clean.endswith(kept)
    if "\n" in kept and head and len(kept) < len(clean):
        assert kept.endswith("\n"), "lines are whole"


@given(st.text(alphabet="ab\n", max_size=30))
def test_text_within_its_bounds_is_left_alone(text: str) -> None:
    assert bound_text(text, Bounds(30, 31)) is text


# --- errors and ends


def test_an_exception_is_told_in_its_own_words() -> None:
    result = fail(ValueError("no seat \ud800 left"))
    assert (_text(result), result.outcome, _codes(result)) == (
        "ValueError: no seat \ufffd left",
        "failed",
        ["tool_error"],
    )
    assert _text(fail(KeyError())) == "KeyError"
    assert _text(fail(SessionNotOpen("s", "closed"))).startswith("SessionNotOpen: ")
    assert len(_text(fail(ValueError("x" * 10_000)))) < 4100


def test_output_until_the_end_is_kept() -> None:
    output = e.text_content("half done\n")
    assert fail(ValueError("x"), output).content[0] == output[0]
    cut = stopped("interrupted", output, {"at": 3})
    assert (cut.content, cut.outcome, cut.details, _codes(cut)) == (output, "interrupted", {"at": 3}, ["interrupted"])
    assert stopped("aborted").outcome == "aborted"
    assert refuse("blocked", "Not allowed.").outcome == "refused"


# --- running output


def test_output_is_freed_of_control_sequences_wherever_pieces_end() -> None:
    sent = b"\x1b[31mred\x1b[0m \xe2\x82\xac\x07\r\n\x1b]0;title\x07done\x1b[2K"
    for cut in range(len(sent) + 1):
        buffer = OutputBuffer()
        buffer.add(sent[:cut])
        buffer.add(sent[cut:])
        assert buffer.text() == "red €\ndone", cut


def test_bytes_that_are_not_utf_8_are_replaced() -> None:
    buffer = OutputBuffer()
    buffer.add(b"a\xff")
    buffer.add("b\ud800c")
    assert buffer.text() == "a\ufffdb\ufffdc"


def test_the_head_or_the_tail_of_output_is_kept_and_the_rest_counted() -> None:
    for keep, kept in (("head", "line 0\nline 1\n"), ("tail", "line 8\nline 9\n")):
        buffer = OutputBuffer(Bounds(lines=2, keep=keep))  # type: ignore[arg-type]
        for number in range(10):
            buffer.add(f"line {number}\n")
        assert buffer.text() == kept
        assert (buffer.dropped_lines, buffer.dropped_bytes) == (8, 56)
        assert [remark.code for remark in buffer.diagnostics()] == ["truncated"]
        assert buffer.content() == e.text_content(kept)


def test_output_without_an_end_does_not_grow() -> None:
    for keep in ("head", "tail"):
        buffer = OutputBuffer(Bounds(bytes=100, keep=keep))  # type: ignore[arg-type]
        for _ in range(50):
            buffer.add("é" * 1000)
        assert 98 <= len(buffer.text().encode()) <= 100
        assert buffer.dropped_bytes + len(buffer.text().encode()) == 100_000
    assert OutputBuffer().content() == ()
    assert OutputBuffer().diagnostics() == ()


@given(st.lists(st.text(alphabet="ab\n\r\x1b[m0é", max_size=8) | st.binary(max_size=6), max_size=12), st.booleans())
def test_output_is_within_its_bounds_always(pieces: list[str | bytes], head: bool) -> None:
    bounds = Bounds(20, 3, "head" if head else "tail")
    buffer = OutputBuffer(bounds)
    for piece in pieces:
        buffer.add(piece)
        text = buffer.text()
        text.encode()
        assert len(text.encode()) <= 2 * bounds.bytes
        assert text.count("\n") <= bounds.lines
        assert "\x1b" not in text
