"""What was found out about a store, as people and programs read it; and the exit code that it makes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

from cyclopts import Parameter

from perdure.cli.options import Flag, Output
from perdure.cli.output import BOLD, print_document, styled
from perdure.cli.text import one_line

if TYPE_CHECKING:
    from perdure.store.tools.findings import Finding

Strict: TypeAlias = Annotated[Flag, Parameter(help="End with 1 when there are warnings.")]

_GRAVITY: Final = {"note": 0, "warning": 1, "error": 2}
_STATUS: Final = ("good", "warnings", "errors")


def report(store: str, findings: Sequence[Finding], output: Output, *, strict: bool) -> int:
    """Print what was found in a store, and return the exit code: 2 for errors, with `strict` 1 for warnings, else 0."""
    worst = max((_GRAVITY[finding.severity] for finding in findings), default=0)
    if output.json:
        found = [_document(finding) for finding in findings]
        print_document({"store": store, "status": _STATUS[worst], "findings": found})
    else:
        print(f"store: {one_line(store)}")
        for finding in findings:
            print("\n".join(_lines(finding)))
        print(f"status: {_STATUS[worst]}")
    return 2 if worst == 2 else int(worst == 1 and strict)


def _document(finding: Finding) -> dict[str, Any]:
    told = {"lost": finding.lost, "mend": finding.mend}
    return {"severity": finding.severity, "what": finding.what, **{name: text for name, text in told.items() if text}}


def _lines(finding: Finding) -> Iterator[str]:
    yield f"{styled(BOLD, finding.severity)}: {one_line(finding.what)}"
    if finding.lost:
        yield f"  what it costs: {one_line(finding.lost)}"
    if finding.mend:
        yield f"  what to do:    {one_line(finding.mend)}"
