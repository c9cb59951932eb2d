"""Help pages: plain text whose long lines are wrapped under themselves, so that options stand out."""

from __future__ import annotations

import re
import shutil
import textwrap
from typing import TYPE_CHECKING, Final

from cyclopts.help.formatters import PlainFormatter

if TYPE_CHECKING:
    from rich.console import Console

_DEEPER: Final = "    "


class HelpFormatter(PlainFormatter):
    """Prints what `PlainFormatter` does, wrapped with a hanging indent."""

    def _print_plain(self, console: Console, text: str) -> None:
        indent = text[: len(text) - len(text.lstrip())]
        paragraphs = re.split(r"\n\s*\n", text.strip())
        # Not the console's width, which is that of the moment in which the process's first console was made.
        width = shutil.get_terminal_size().columns
        filled = (_filled(paragraph, width, indent) for paragraph in paragraphs)
        console.print("\n\n".join(filled), highlight=False, markup=False, soft_wrap=True)


def _filled(paragraph: str, width: int, indent: str) -> str:
    return textwrap.fill(
        " ".join(paragraph.split()),
        width,
        initial_indent=indent,
        subsequent_indent=indent + _DEEPER if indent else "",
        break_on_hyphens=False,
        break_long_words=False,
    )
