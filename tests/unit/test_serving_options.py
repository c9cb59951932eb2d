"""`perdure serve` and `perdure worker`: what their options mean, and what is refused before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perdure.cli.main import run
from perdure.server import serving
from perdure.server.place import Place
from perdure.server.serving import Serving, Working

URL = "postgresql://ada:secret@db/shop"


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PERDURE_STORE", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Return what would have been run."""
    calls: list[tuple[Any, ...]] = []
    for name in ("run_serve", "run_worker"):
        monkeypatch.setattr(serving, name, lambda *args, **named: calls.append((*args, named["json"])))
    return calls


def test_serve_gets_what_was_said(ran: list[tuple[Any, ...]], tmp_path: Path) -> None:
    assert run(["serve", "--store", URL]) == 0
    flags = ["--host", "::1", "--port", "0", "--no-worker", "--data", "here", "--lease", "2s", "--linger", "250ms"]
    assert run(["serve", "--store", URL, *flags, "--json"]) == 0
    assert run(["serve", "--store", str(tmp_path), "--linger", "0"]) == 0
    assert ran == [
        (Place(tmp_path / ".perdure", URL), Serving(), False),
        (Place(tmp_path / "here", URL), Serving(host="::1", port=0, works=False, lease=2.0, linger=0.25), True),
        (Place(tmp_path), Serving(linger=0.0), False),
    ]


def test_worker_gets_what_was_said(ran: list[tuple[Any, ...]], tmp_path: Path) -> None:
    assert run(["worker", "--store", URL]) == 0
    flags = ["--project", "shop", "--env", "shop/staging", "--health", "[::1]:9090", "--lease", "1h", "--json"]
    assert run(["worker", "--store", URL, *flags]) == 0
    working = Working(project=tmp_path / "shop", scope=("shop", "staging"), health=("::1", 9090), lease=3600.0)
    place = Place(tmp_path / ".perdure", URL)
    assert ran == [(place, Working(), False), (place, working, True)]


def test_the_environment_names_the_store(ran: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_STORE", URL)
    assert run(["worker"]) == 0
    assert run(["serve", "--store", "other"]) == 0
    assert [place.url for place, *_ in ran] == [URL, None]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serve"], "Which store?"),
        (["worker"], "Which store?"),
        (["serve", "--store", "mysql://db"], "no stores of the kind mysql"),
        (["serve", "--store", URL, "--lease", "10ms"], "from 1s to 1h"),
        (["worker", "--store", URL, "--lease", "2h"], "from 1s to 1h"),
        (["worker", "--store", URL, "--lease", "soon"], "soon"),
        (["serve", "--store", URL, "--linger", "soon"], "soon"),
        (["worker", "--store", URL, "--health", "9090"], "no HOST:PORT"),
        (["worker", "--store", URL, "--health", "127.0.0.1:99999"], "no HOST:PORT"),
        (["worker", "--store", URL, "--health", "127.0.0.1:x"], "no HOST:PORT"),
        (["worker", "--store", URL, "--env", "shop/staging"], "there is none"),
        (["worker", "--store", URL, "--project", ".", "--env", "shop"], "no PROJECT/ENVIRONMENT"),
        (["worker", "--store", URL, "--project", ".", "--env", "Shop/staging"], "no PROJECT/ENVIRONMENT"),
        (["api-key", "list", "--store", URL, "--data", "x"], "exclude each other"),
    ],
)
def test_what_cannot_be_is_refused(
    arguments: list[str], said: str, ran: list[tuple[Any, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 1
    assert said in capsys.readouterr().err
    assert ran == []


@pytest.mark.parametrize("arguments", [["serve", "--no-worker"], ["worker"]])
def test_an_embedded_store_has_one_process(
    arguments: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run([*arguments, "--store", str(tmp_path / "data")]) == 1
    told = capsys.readouterr().err
    assert "owned by one process" in told
    assert "perdure store copy" in told
    assert not (tmp_path / "data").exists()


def test_a_password_is_not_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["api-key", "list", "--store", "postgresql://ada:secret@127.0.0.1:1/shop?perdure_patience=1ms"]) == 1
    told = capsys.readouterr().err
    assert "(store_unavailable)" in told
    assert "secret" not in told
