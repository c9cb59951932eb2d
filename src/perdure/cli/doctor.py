"""`perdure doctor`: what of a store would lose acknowledged work, and how to mend it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from perdure.cli.findings import Strict, report
from perdure.cli.options import PLAIN, Output
from perdure.cli.stores import StoreAt, place_of
from perdure.errors import StoreError

if TYPE_CHECKING:
    from perdure.server.place import Place
    from perdure.store.tools.findings import Finding


def doctor(
    *,
    store: StoreAt = None,
    data: Annotated[Path | None, Parameter(help="Examine this data folder too, beside a PostgreSQL store.")] = None,
    strict: Strict = False,
    output: Output = PLAIN,
) -> int:
    """Say what of a store would lose acknowledged work or stop it, and how to mend it. Changes nothing.

    Ends with 0 when all is well, and with 2 when something is wrong.
    """
    place = place_of(store, data)
    return report(place.shown, asyncio.run(_examined(place, data)), output, strict=strict)


async def _examined(place: Place, data: Path | None) -> list[Finding]:
    from perdure.store.tools.doctor import examine
    from perdure.store.tools.findings import Finding

    try:
        return await examine(place.address, data)
    except StoreError as error:
        return [Finding("error", error.message, "While it is so, nothing is accepted and nothing runs.")]
