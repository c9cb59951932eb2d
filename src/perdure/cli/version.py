"""`perdure version`."""

from __future__ import annotations

import perdure
from perdure.cli.options import PLAIN, Output
from perdure.cli.output import show


def version(*, output: Output = PLAIN) -> None:
    """Print the version."""
    if output.json:
        show({"version": perdure.__version__}, output)
    else:
        print(perdure.__version__)
