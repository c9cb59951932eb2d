"""Migrations, statements and the numbers that are in people's files."""

from __future__ import annotations

import re
from pathlib import Path

import apsw
import pytest

import perdure.rules
from perdure.store.sqlite import schema
from perdure.store.sqlite.codec import EVENT_TYPES, TURN_STATUSES, pack_id, unpack_id, unpack_type
from perdure.store.sqlite.database import open_writer
from perdure.store.sqlite.statements import FOLDER, statements

GOLDEN = Path(__file__).with_name("store_schema.sql")


def dump(database: apsw.Connection) -> str:
    rows = database.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY type DESC, name").fetchall()
    return "".join(f"{statement};\n\n" for (statement,) in rows)


def test_the_migrations_lead_to_the_schema_that_was_reviewed(tmp_path: Path) -> None:
    """A released migration is never edited: when this fails, add a migration, then update the file."""
    database = open_writer(tmp_path / "new.db")
    schema.migrate(database)
    assert schema.version_of(database) == schema.newest()
    found = dump(database)
    database.close()
    assert found == GOLDEN.read_text()


def test_each_step_from_each_version_leads_to_the_same_schema(tmp_path: Path) -> None:
    fresh = open_writer(tmp_path / "fresh.db")
    schema.migrate(fresh)
    for stop in range(1, schema.newest() + 1):
        old = open_writer(tmp_path / f"old{stop}.db")
        schema.migrate(old, schema.migrations()[:stop])
        assert schema.version_of(old) == stop
        schema.migrate(old)
        schema.migrate(old)  # and again, for nothing
        assert dump(old) == dump(fresh)
        old.close()
    fresh.close()


def test_a_migration_that_fails_leaves_the_version_before_it(tmp_path: Path) -> None:
    database = open_writer(tmp_path / "x.db")
    schema.migrate(database)
    before = dump(database)
    steps = [*schema.migrations(), (schema.newest() + 1, "CREATE TABLE fine (x); CREATE TABLE broken (;")]
    with pytest.raises(apsw.SQLError):
        schema.migrate(database, steps)
    assert (dump(database), schema.version_of(database)) == (before, schema.newest())
    assert not database.in_transaction
    database.close()


def test_every_event_that_rules_write_has_a_number() -> None:
    rules = Path(perdure.rules.__file__).parent
    written = set()
    for file in rules.glob("*.py"):
        written |= set(re.findall(r'"((?:session|turn|message|ask)\.\w+)"', file.read_text()))
    written |= {f"turn.{status}" for status in TURN_STATUSES}
    assert written - {"ask.py"} <= set(EVENT_TYPES)
    assert len(set(EVENT_TYPES)) == len(EVENT_TYPES)


def test_numbers_in_files_never_change() -> None:
    assert (EVENT_TYPES[0], EVENT_TYPES[13], EVENT_TYPES[26]) == ("session.created", "turn.queued", "ask.cancelled")
    assert TURN_STATUSES == ("queued", "running", "completed", "failed", "interrupted", "cancelled")
    assert unpack_type("of.a.newer.version") == "of.a.newer.version"


@pytest.mark.parametrize(
    "text", ["01a22f0e-2de4-774b-9e87-2940025af626", "01A22F0E-2DE4-774B-9E87-2940025AF626", "", "x", "0" * 32]
)
def test_every_id_comes_out_as_it_went_in(text: str) -> None:
    assert unpack_id(pack_id(text)) == text


def test_canonical_ids_take_16_bytes() -> None:
    assert pack_id("01a22f0e-2de4-774b-9e87-2940025af626") == bytes.fromhex("01a22f0e2de4774b9e872940025af626")


def test_every_statement_says_what_it_is_for() -> None:
    for file in FOLDER.glob("*.sql"):
        pieces = re.split(r"^-- name: (\w+)\n", file.read_text(), flags=re.MULTILINE)
        assert pieces[0] == ""
        for name, text in zip(pieces[1::2], pieces[2::2], strict=True):
            assert re.match(r"-- [A-Z].*\.\n", text), name


def test_every_statement_is_used() -> None:
    files = [*FOLDER.parent.glob("*.py"), *FOLDER.parent.parent.glob("*.py")]
    source = "".join(file.read_text() for file in files)
    assert [name for name in statements() if f'"{name}"' not in source] == []
