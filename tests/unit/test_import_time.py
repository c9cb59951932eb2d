"""What `import perdure` costs, and what the guest process never loads."""

from __future__ import annotations

import subprocess
import sys

import perdure

HEAVY = ("pydantic", "starlette", "httpx2", "uvicorn", "watchfiles", "cyclopts", "rich", "asyncio")


def _python(code: str) -> str:
    return subprocess.run([sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def _loaded_by(code: str) -> set[str]:
    return set(_python(f"{code}\nimport sys\nprint(*sys.modules)").split())


def test_import_takes_less_than_100_ms() -> None:
    clock = "import time; a = time.perf_counter(); import perdure; print(time.perf_counter() - a)"
    assert min(float(_python(clock)) for _ in range(3)) < 0.1


def test_import_loads_nothing_but_itself() -> None:
    ours = {name for name in _loaded_by("import perdure") if name.startswith("perdure")}
    assert ours == {"perdure"}


def test_authoring_names_load_no_server_code() -> None:
    loaded = _loaded_by("import perdure\nperdure.Agent, perdure.Template, perdure.Image, perdure.TextPart")
    assert not loaded & set(HEAVY)


def test_every_public_name_is_there() -> None:
    for name in perdure.__all__:
        assert getattr(perdure, name) is not None
    assert set(perdure.__all__) <= set(dir(perdure))


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(perdure, "Nonsense")
