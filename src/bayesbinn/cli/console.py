"""What the commands print to people. JSON for programs escapes control characters by itself."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from bayesbinn.errors import printable


class PlainConsole(Console):
    """A console that shows names as they are: no markup in them counts, and control characters become escapes."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(highlight=False, markup=False, **settings)

    def render_str(self, text: str, **settings: Any) -> Text:
        """Every text comes through here, also the cells of a table."""
        return super().render_str(printable(text, keep_lines=True), **settings)
