"""The bench harness's own arithmetic: a wrong percentile or ratio would make every figure a lie."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from bench import load
from bench.drivers import Driver, DriverFailed
from bench.report import Report, number, table
from bench.stage import in_rounds
from bench.stats import Goal, Sample, across, compare, contention, percentile, ratio_of_rounds


def sample(*latencies: float, wall: float = 1.0, cpu: float = 0.5) -> Sample:
    return Sample(wall, cpu, latencies)


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([7], 0.5, 7),
        ([7], 0.99, 7),
        ([3, 1, 2], 0.5, 2),
        ([4, 3, 2, 1], 0.5, 2),
        (list(range(1, 101)), 0.5, 50),
        (list(range(1, 101)), 0.99, 99),
        (list(range(1, 102)), 0.99, 100),
        ([1, 2], 0.0, 1),
        ([1, 2], 1.0, 2),
    ],
)
def test_percentile_is_the_nearest_rank(values: list[float], share: float, expected: float) -> None:
    assert percentile(values, share) == expected


def test_no_values_have_no_percentile() -> None:
    with pytest.raises(ValueError, match="no percentile"):
        percentile([], 0.5)


def test_a_ratio_is_taken_inside_each_round() -> None:
    # the second round ran while the machine was four times slower: the medians alone would say 10 / 20
    assert ratio_of_rounds([10, 40, 12], [5, 20, 6]) == 2


def test_a_ratio_needs_rounds_on_both_sides() -> None:
    with pytest.raises(ValueError, match="no rounds"):
        ratio_of_rounds([], [])
    with pytest.raises(ValueError, match="shorter"):
        ratio_of_rounds([1, 2], [1])


def test_a_sample_from_a_drivers_answer() -> None:
    taken = Sample.of({"wall": 2.0, "cpu": 1.0, "latencies_us": [1000, 3000, 2000, 4000]})
    assert taken.rate == 2
    assert taken.p50 == pytest.approx(0.002)
    assert taken.p99 == pytest.approx(0.004)
    assert taken.cpu_each == 0.25


def test_latencies_alone_are_a_sample_of_one_after_the_other() -> None:
    assert Sample.of({"latencies_us": [1000, 3000]}).wall == pytest.approx(0.004)


def test_figures_across_rounds_are_medians() -> None:
    rounds = [sample(1, wall=1), sample(1, wall=4), sample(1, wall=2)]
    assert across(rounds, lambda s: s.rate) == 0.5


def test_comparison_of_two_systems() -> None:
    ours = [sample(1, 1, wall=1), sample(1, 1, wall=2)]
    theirs = [sample(1, wall=1), sample(1, wall=2)]
    assert compare(ours, theirs, lambda s: s.rate) == 2


@pytest.mark.parametrize(
    ("goal", "verdict"),
    [
        (Goal("a", 3.99, 4), "met"),
        (Goal("a", 4.0, 4), "MISSED"),
        (Goal("a", 10.0, 10, at_least=True), "met"),
        (Goal("a", 9.99, 10, at_least=True), "MISSED"),
        (Goal("a", None, 10, at_least=True), "not measured"),
    ],
)
def test_verdicts(goal: Goal, verdict: str) -> None:
    assert goal.verdict == verdict


def test_every_system_runs_once_a_round_and_none_is_always_first() -> None:
    order: list[tuple[str, int]] = []

    def once(name: str, turn: int) -> Sample:
        order.append((name, turn))
        return sample(float(turn))

    samples = in_rounds(["a", "b"], 3, once)
    assert order == [("a", 0), ("b", 0), ("b", 1), ("a", 1), ("a", 2), ("b", 2)]
    assert [s.latencies for s in samples["b"]] == [(0.0,), (1.0,), (2.0,)]


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), ("ref", "ref"), (12, "12"), (0.0, "0"), (12345.6, "12,346"), (3.14159, "3.14"), (0.12345, "0.123")],
)
def test_numbers_are_short(value: object, text: str) -> None:
    assert number(value) == text


def test_a_table_aligns_its_columns_and_leaves_gaps_visible() -> None:
    lines = table([{"system": "ours", "x": 1}, {"system": "ref", "x": 1000, "y": 2.5}]).splitlines()
    assert lines == [
        "  system      x     y",
        "  ours        1     -",
        "  ref     1,000  2.50",
    ]


def test_no_rows_no_table() -> None:
    assert table([]) == ""


def test_a_report_says_the_same_in_both_forms() -> None:
    report = Report("turns", "how many", rows=[{"system": "ours", "turns/s": 5}], contention=[1.0, 1.5], seconds=2)
    report.goals = [Goal("ours / ref", 0.1, 0.125, at_least=True), Goal("MB", None, 20, unit="MB")]
    report.systems = {"ours": {"versions": {"perdure": "0.1"}, "durability": "FULL"}}
    text, data = report.as_text(), report.as_json()
    assert "MISSED: ours / ref: 0.100 x (wanted >= 0.125 x)" in text
    assert "not measured: MB: - (wanted < 20 MB)" in text
    assert "ours: perdure 0.1; FULL" in text
    assert "contention 1.00 to 1.50, median 1.25" in text
    assert "TOO BUSY" not in text
    assert data["rows"] == [{"system": "ours", "turns/s": 5}]
    assert [goal["verdict"] for goal in data["goals"]] == ["MISSED", "not measured"]


def test_a_report_of_a_busy_machine_warns_of_itself() -> None:
    assert "TOO BUSY" in Report("turns", "how many", contention=[1.0, 1.6, 3.0]).as_text()


def test_contention_of_this_machine_is_at_least_a_whole_core() -> None:
    assert contention() > 0.9


async def test_the_load_keeps_turns_in_order_and_replaces_ended_conversations() -> None:
    seen: dict[str, list[int]] = {}

    async def turn(conversation: str, index: int) -> None:
        seen.setdefault(conversation, []).append(index)
        await asyncio.sleep(0)

    taken = Sample.of(await load.converse(turn, conversations=2, turns=3, seconds=0.05, tag="c"))
    assert len(taken.latencies) == sum(map(len, seen.values()))
    assert len(seen) > 2
    assert list(seen.values())[:2] == [[0, 1, 2], [0, 1, 2]]
    assert all(indexes == list(range(len(indexes))) and len(indexes) <= 3 for indexes in seen.values())


async def test_opening_many_conversations_gives_each_one_turn() -> None:
    seen: list[tuple[str, int]] = []

    async def turn(conversation: str, index: int) -> None:
        seen.append((conversation, index))

    taken = Sample.of(await load.open_many(turn, count=5, at_once=2, tag="c"))
    assert sorted(seen) == [(f"c-{n}", 0) for n in range(5)]
    assert len(taken.latencies) == 5


def test_a_driver_is_measured_and_says_what_went_wrong(tmp_path: Path) -> None:
    with Driver("ref", tmp_path) as driver:
        assert driver.ask("hello")["system"] == "ref"
        taken = Sample.of(driver.ask("extend", conversation="c", start=0, count=3))
        assert len(taken.latencies) == 3
        with pytest.raises(DriverFailed, match="UNIQUE constraint failed"):
            driver.ask("extend", conversation="c", start=0, count=1)


def test_a_driver_without_the_operation_refuses_and_goes_on(tmp_path: Path) -> None:
    with Driver("ref", tmp_path) as driver:
        with pytest.raises(DriverFailed, match="no such operation"):
            driver.ask("fly")
        assert driver.ask("stored") > 0


def test_a_driver_that_dies_is_reported_with_its_last_words(tmp_path: Path) -> None:
    (tmp_path / "ref.db").mkdir()
    with Driver("ref", tmp_path) as driver, pytest.raises(DriverFailed, match="unable to open database"):
        driver.ask("hello")
