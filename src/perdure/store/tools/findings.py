"""What is found out about a store."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

Severity: TypeAlias = Literal["note", "warning", "error"]


class Finding(msgspec.Struct, frozen=True):
    """One thing that was found: `lost` is what it costs or may cost, `mend` what to do about it."""

    severity: Severity
    what: str
    lost: str = ""
    mend: str = ""


def in_order(findings: list[Finding]) -> list[Finding]:
    """Return findings, the gravest first."""
    return sorted(findings, key=lambda found: ("error", "warning", "note").index(found.severity))
