"""Where a store is, by what a command is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.errors import BadRequest
from perdure.server.place import parse_place


@pytest.mark.parametrize("url", ["postgresql://ada:secret@db.example:5432/shop?sslmode=require", "postgres:///shop"])
def test_a_shared_store_has_a_data_folder_beside_it(url: str, tmp_path: Path) -> None:
    place = parse_place(url)
    assert (place.embedded, place.address, place.data) == (False, url, Path(".perdure").absolute())
    assert parse_place(url, tmp_path).data == tmp_path


def test_passwords_are_not_shown() -> None:
    shown = parse_place("postgresql://ada:p%40ss@db.example:5432/shop?password=secret&sslmode=require").shown
    assert shown == "postgresql://db.example:5432/shop"


@pytest.mark.parametrize("text", ["{}", "sqlite://{}"])
def test_an_embedded_store_is_its_data_folder(text: str, tmp_path: Path) -> None:
    store = text.format(tmp_path)
    for place in (parse_place(store), parse_place(store, tmp_path)):
        assert (place.embedded, place.data, place.address, place.shown) == (
            True,
            tmp_path,
            str(tmp_path),
            str(tmp_path),
        )
    with pytest.raises(BadRequest, match="leave --data out"):
        parse_place(store, tmp_path / "other")


def test_a_relative_folder_is_one() -> None:
    assert parse_place(".perdure").data == Path(".perdure").absolute()


@pytest.mark.parametrize("store", ["mysql://db/shop", "sqlite://shop.db", "http://127.0.0.1:7373", ""])
def test_other_stores_are_refused(store: str) -> None:
    with pytest.raises(BadRequest, match="Nothing was done"):
        parse_place(store)
