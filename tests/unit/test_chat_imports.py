"""The chat room loads what is heavy only when it is needed."""

from __future__ import annotations

import subprocess
import sys

import pytest

PURE = ("entries", "transcript", "compaction", "calls", "results", "output", "tools", "retries", "script", "deltas")


def _loaded(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"{code}\nimport sys; print(*sys.modules)"],
        check=True,
        capture_output=True,
        text=True,
    )
    return {name.split(".")[0] for name in done.stdout.split()}


def test_pure_rooms_load_neither_pydantic_nor_a_model_library() -> None:
    loaded = _loaded("\n".join(f"import perdure.chat.{name}" for name in PURE))
    assert not loaded & {"pydantic", "pydantic_ai", "griffe", "yaml", "httpx2", "anthropic", "openai"}


@pytest.mark.parametrize("name", ["models", "messages", "failures", "documents", "sections", "extensions", "schemas"])
def test_a_model_library_is_loaded_when_a_model_is_asked(name: str) -> None:
    assert not _loaded(f"import perdure.chat.{name}") & {"pydantic_ai", "griffe", "yaml", "anthropic", "openai"}
