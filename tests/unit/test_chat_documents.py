"""Documents: defined once, stored as JSON, brought along lazily, and never read from the future."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from tests.unit import chat_strategies as strategies

from perdure.chat import changes as c
from perdure.chat.documents import Document, documents_by_kind
from perdure.chat.errors import DocumentMigrationFailed, DocumentRefused, DocumentTooNew
from perdure.errors import DefinitionError
from perdure.records import canonical


class Step(BaseModel):
    text: str
    done: bool = False


class Plan(Document, kind="travel.plan", version=3, fork="as_of", history="rewindable"):
    steps: list[Step] = []  # noqa: RUF012 - pydantic copies it
    price: float = 0


@Plan.migration(1)
def _steps_of_text(value: dict[str, Any]) -> dict[str, Any]:
    value["steps"] = [{"text": text} for text in value.pop("list")]
    return value


@Plan.migration(2)
def _price_in_euros(value: dict[str, Any]) -> dict[str, Any]:
    return {**value, "price": value["cents"] / 100 if "cents" in value else 0} if "broken" not in value else value


class Notes(Document, kind="notes"):
    text: str = ""


# --- definitions


def test_a_definition_is_kept_with_its_class() -> None:
    assert (Plan.document_kind, Plan.document_version) == ("travel.plan", 3)
    assert (Plan.document_history, Plan.document_fork) == ("rewindable", "as_of")
    assert (Notes.document_version, Notes.document_history, Notes.document_fork) == (1, "latest", "current")
    assert Notes.document_migrations == {}


def _define(**options: Any) -> Any:
    return type(Document)("Made", (Document,), {"__module__": __name__}, **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "name its kind"),
        ({"kind": "Travel Plan"}, "lowercase words"),
        ({"kind": "x" * 200}, "lowercase words"),
        ({"kind": "perdure.inbox"}, "are ours"),
        ({"kind": "x", "version": 0}, "count from 1"),
        ({"kind": "x", "version": True}, "count from 1"),
        ({"kind": "x", "history": "some"}, "history='some'"),
        ({"kind": "x", "fork": "as_of"}, "fork='as_of'"),
        ({"kind": "x", "history": "rewindable", "fork": "never"}, "fork='never'"),
    ],
)
def test_definitions_that_make_no_sense_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(DefinitionError, match=words):
        _define(**options)


def test_every_field_has_a_default() -> None:
    with pytest.raises(DefinitionError, match="text must have a default"):

        class Empty(Document, kind="empty"):
            text: str


def test_migrations_are_registered_once_and_below_the_version() -> None:
    with pytest.raises(DefinitionError, match="already"):
        Plan.migration(1)
    for version in (0, 3, 4):
        with pytest.raises(DefinitionError, match=f"no version {version} below 3"):
            Plan.migration(version)


def test_two_definitions_of_one_kind_are_refused() -> None:
    other = _define(kind="notes")
    assert documents_by_kind([Plan, Notes, Notes]) == {"travel.plan": Plan, "notes": Notes}
    with pytest.raises(DefinitionError, match="Two documents have the kind 'notes'"):
        documents_by_kind([Notes, other])


# --- values


def test_a_value_goes_in_and_out() -> None:
    plan = Plan()
    plan.steps = [Step(text="fly")]
    plan.steps.append(Step(text="land", done=True))
    stored = plan.stored()
    assert stored == {"steps": [{"text": "fly", "done": False}, {"text": "land", "done": True}], "price": 0.0}
    assert Plan.load(3, stored) == plan


def test_what_does_not_fit_is_refused_when_it_is_stored() -> None:
    plan = Plan()
    plan.steps.append({"text": 3})  # type: ignore[arg-type]
    with pytest.raises(DocumentRefused, match=r"steps\.0\.text"):
        plan.stored()
    plan = Plan()
    plan.price = math.nan
    with pytest.raises(DocumentRefused):
        plan.stored()
    notes = Notes(text="x" * (1024 * 1024))
    with pytest.raises(DocumentRefused, match="the limit is 1048576"):
        notes.stored()


def test_lone_surrogates_do_no_harm() -> None:
    stored = Notes(text="a\ud800").stored()
    assert stored == {"text": "a\ufffd"}


def test_old_values_are_brought_along_step_by_step() -> None:
    stored = {"list": ["fly"], "cents": 250}
    kept = dict(stored)
    with pytest.raises(DocumentMigrationFailed, match="cents: Extra inputs"):
        Plan.load(1, stored)
    assert stored == kept, "reading changes nothing that is stored"
    assert Plan.load(1, {"list": ["fly"]}) == Plan(steps=[Step(text="fly")])
    assert Plan.load(2, {"steps": []}) == Plan()


def test_a_migration_that_fails_keeps_the_value() -> None:
    with pytest.raises(DocumentMigrationFailed, match="migration from version 1 failed: KeyError: 'list'"):
        Plan.load(1, {})


def test_a_missing_migration_is_named() -> None:
    made = _define(kind="gap", version=2)
    with pytest.raises(DocumentMigrationFailed, match="no migration is registered from version 1"):
        made.load(1, {})


def test_the_future_is_refused() -> None:
    with pytest.raises(DocumentTooNew, match="stored in version 4; this deployment defines version 3"):
        Plan.load(4, {"steps": []})


# --- changes


@given(strategies.json_values, strategies.json_values)
@settings(max_examples=400)
def test_changes_make_the_new_value_of_the_old(old: Any, new: Any) -> None:
    old, new = canonical.decode(canonical.encode(old)), canonical.decode(canonical.encode(new))
    before = canonical.encode(old)
    changes = canonical.decode(canonical.encode(c.diff(old, new)))
    assert canonical.encode(c.apply(old, changes)) == canonical.encode(new)
    assert canonical.encode(old) == before
    assert c.diff(new, new) == []


@given(st.lists(st.integers(0, 5), max_size=12), st.lists(st.integers(0, 5), max_size=12))
def test_changes_of_lists_make_the_new_list(old: list[int], new: list[int]) -> None:
    assert c.apply(old, c.diff(old, new)) == new


def test_a_small_change_is_small() -> None:
    old = {"steps": [{"text": f"step {number}", "done": False} for number in range(100)], "at": 1}
    new = {"steps": [*old["steps"][:50], {"text": "step 50", "done": True}, *old["steps"][51:]]}  # type: ignore[index]
    assert c.diff(old, new) == [{"path": ["at"], "unset": True}, {"path": ["steps", 50, "done"], "set": True}]
    assert c.diff([1, 2], [1, 2, 3]) == [{"path": [], "splice": [2, 0, [3]]}]
    assert c.diff({"a": 1}, {"a": True}) == [{"path": ["a"], "set": True}]


@pytest.mark.parametrize(
    "changes",
    [
        [{"path": ["x", "y"], "set": 1}],
        [{"path": ["a", 5], "set": 1}],
        [{"path": ["x"], "unset": True}],
        [{"path": ["a"], "splice": [3, 4, []]}],
        [{"path": ["a"]}],
    ],
)
def test_changes_of_another_value_are_refused(changes: list[dict[str, Any]]) -> None:
    with pytest.raises(DocumentRefused, match="do not fit its base"):
        c.apply({"a": [1, 2, 3]}, changes)


def test_a_base_is_stored_when_changes_are_not_smaller_or_have_become_many() -> None:
    old = {"steps": list(range(100))}
    new = {"steps": [*range(100), 100]}
    assert c.record(old, new, 0) == (None, [{"path": ["steps"], "splice": [100, 0, [100]]}])
    assert c.record(old, new, 50) == (new, None)
    assert c.record(old, {"steps": []}, 0) == ({"steps": []}, None)
    assert c.record(old, old, 99) == (None, [])
