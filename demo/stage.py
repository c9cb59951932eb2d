"""What the demo prints: scenes, commands as a person would type them, answers, and promises with a tick each."""

from __future__ import annotations

import re
import time
from typing import Final

from rich.console import Console
from rich.markup import escape

_ID: Final = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-([0-9a-f]{6})([0-9a-f]{6})\b")


def brief(text: str) -> str:
    """Return text with ids cut to their last six digits, by which they can be told apart."""
    return _ID.sub(r"…\2", text)


class Stage:
    """Prints in colour on a terminal and plainly elsewhere. It keeps the score of promises."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._begun = time.monotonic()
        self._scenes = 0
        self.held = 0
        self.broken: list[str] = []

    def title(self, text: str, under: str) -> None:
        """Print what the whole is about."""
        self._print(f"\n[bold]{escape(text)}[/]\n[dim]{escape(under)}[/]")

    def scene(self, title: str, about: str) -> None:
        """Begin a scene."""
        self._scenes += 1
        self._print(f"\n[bold cyan]{self._scenes}  {escape(title)}[/]\n   [dim]{escape(about)}[/]")

    def command(self, words: str) -> None:
        """Show a command that is run now."""
        self._print(f"   [bold]$[/] {escape(brief(words))}")

    def answer(self, text: str) -> None:
        """Show what came back."""
        for line in brief(text).splitlines():
            self._print(f"     [green]{escape(line)}[/]")

    def happens(self, text: str) -> None:
        """Show something that happens by itself or to the machine."""
        self._print(f"   [yellow]*[/] {escape(brief(text))}")

    def promise(self, text: str, held: bool, instead: str = "") -> None:
        """Give a promise its tick, or its cross and what was seen instead."""
        if held:
            self.held += 1
            self._print(f"   [bold green]✓[/] {escape(text)}")
        else:
            self.broken.append(text)
            self._print(f"   [bold red]✗ {escape(text)}[/]\n     [red]{escape(instead)}[/]")

    def broke(self, why: str) -> None:
        """Say that the story could not be told to its end."""
        self.promise("The story goes on to its end", False, why)

    def table(self, columns: list[str], rows: list[list[str]]) -> None:
        """Print rows below each other."""
        lines = [columns, *rows]
        widths = [max(len(line[place]) for line in lines) for place in range(len(columns))]
        for number, line in enumerate(lines):
            text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            self._print(f"     [{'dim' if number == 0 else 'green'}]{escape(text)}[/]")

    def end(self) -> int:
        """Print the score and return the exit code."""
        seconds = time.monotonic() - self._begun
        if self.broken:
            self._print(f"\n[bold red]{len(self.broken)} promises broken, {self.held} held[/] in {seconds:.0f} s:")
            for text in self.broken:
                self._print(f"   [red]✗[/] {escape(text)}")
            return 1
        self._print(f"\n[bold green]All {self.held} promises held[/] in {seconds:.0f} s.")
        self._print("[dim]Do it yourself: docs/tutorials/durable-agent.md[/]\n")
        return 0

    def _print(self, markup: str) -> None:
        self._console.print(markup)
