from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.client.sse import EventTooLarge, ServerSentEvent, SseParser

LINES = st.sampled_from(
    [
        b"data: one",
        b"data:two",
        b"data:  padded",
        b"data",
        b"data: \xc3\xa9\xf0\x9f\x98\x80",
        b"data: \xff\xc3",
        b"id: 1",
        b"id: 22",
        b"id",
        b"id: a\x00b",
        b"event: turn.output",
        b"event",
        b"retry: 1500",
        b"retry: soon",
        b"retry: 1e3",
        b": heartbeat",
        b":",
        b"other: field",
        b" data: not a field",
        b"\xef\xbb\xbfdata: a mark that is no longer at the start",
        b"",
        b"",
    ]
)
ENDS = st.sampled_from([b"\n", b"\r", b"\r\n"])
STREAMS = st.builds(
    lambda bom, lines: bom + b"".join(line + end for line, end in lines),
    st.sampled_from([b"", b"\xef\xbb\xbf"]),
    st.lists(st.tuples(LINES, ENDS), max_size=30),
)


def parse(*chunks: bytes, limit: int = 10_000) -> list[ServerSentEvent]:
    parser = SseParser(limit)
    return [event for chunk in chunks for event in parser.feed(chunk)]


def cut(stream: bytes, places: set[int]) -> list[bytes]:
    marks = [0, *sorted(place for place in places if place <= len(stream)), len(stream)]
    return [stream[a:b] for a, b in pairwise(marks)]


def reference(stream: bytes) -> list[ServerSentEvent]:
    """The standard's algorithm over a whole stream, as plainly as it can be said."""
    text = stream.decode("utf-8", "replace").removeprefix("\ufeff")
    lines = re.split("\r\n|\n|\r", text)[:-1]
    events, data, kind, last = [], "", "", ""
    for line in lines:
        if not line:
            if data:
                events.append(ServerSentEvent(kind or "message", data[:-1], last))
            data = kind = ""
        elif not line.startswith(":"):
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "data":
                data += value + "\n"
            elif name == "event":
                kind = value
            elif name == "id" and "\0" not in value:
                last = value
    return events


@given(STREAMS, st.sets(st.integers(0, 400)))
def test_any_chunking_gives_the_events_of_the_standard(stream: bytes, places: set[int]) -> None:
    assert parse(*cut(stream, places)) == reference(stream)


@given(st.binary(max_size=300), st.sets(st.integers(0, 300)))
def test_any_bytes_are_taken_and_chunking_does_not_matter(stream: bytes, places: set[int]) -> None:
    assert parse(*cut(stream, places)) == parse(stream) == reference(stream)


def test_a_byte_at_a_time() -> None:
    stream = b"\xef\xbb\xbfid: 7\r\nevent: a\r\ndata: x\r\ndata: y\r\n\r\n: beat\r\n\r\ndata: z\r\n\r\n"
    assert parse(*(bytes([byte]) for byte in stream)) == [
        ServerSentEvent("a", "x\ny", "7"),
        ServerSentEvent("message", "z", "7"),
    ]


def test_an_event_is_given_as_soon_as_its_carriage_return_is_there() -> None:
    parser = SseParser()
    assert list(parser.feed(b"data: x\r\r")) == [ServerSentEvent("message", "x", "")]
    assert list(parser.feed(b"\ndata: y\n\n")) == [ServerSentEvent("message", "y", "")]


def test_a_cut_event_is_not_given_and_its_id_is_not_taken() -> None:
    parser = SseParser()
    assert len(list(parser.feed(b"id: 1\ndata: x\n\nid: 2\ndata: y\n"))) == 1
    assert parser.last_id == "1"


def test_an_id_without_data_counts_once_its_event_is_complete() -> None:
    parser = SseParser()
    assert list(parser.feed(b"id: 9\n\n")) == []
    assert parser.last_id == "9"


def test_an_empty_id_forgets_the_id_and_one_with_nul_does_not_count() -> None:
    assert [event.id for event in parse(b"id: 3\ndata: a\n\nid: 4\x005\ndata: b\n\nid\ndata: c\n\n")] == ["3", "3", ""]


@pytest.mark.parametrize(("text", "wanted"), [("1500", 1500), ("0", 0), ("-1", None), ("1.5", None), ("٣", None)])
def test_retry_takes_only_ascii_digits(text: str, wanted: int | None) -> None:
    parser = SseParser()
    list(parser.feed(f"retry: {text}\n".encode()))
    assert parser.retry == wanted


@pytest.mark.parametrize("stream", [b"data: " + b"x" * 200, b"data: xxxxxxxxxxxx\n" * 20, b"data\n" * 20])
@pytest.mark.parametrize("step", [1, 7, 1000])
def test_lines_and_events_beyond_the_bound_are_refused(stream: bytes, step: int) -> None:
    chunks = [stream[place : place + step] for place in range(0, len(stream), step)]
    with pytest.raises(EventTooLarge, match="exceeds 100 bytes"):
        parse(*chunks, limit=100)


def test_a_long_stream_of_small_events_is_within_the_bound() -> None:
    assert len(parse(b"id: 1\ndata: 0123456789\n\n: beat\n" * 1000, limit=100)) == 1000
