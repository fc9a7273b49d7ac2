"""What the commands print for people. JSON for programs already escapes control characters."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from bayesbinn.errors import printable


class PlainConsole(Console):
    """A console that shows names literally: markup in them is ignored, and control characters are escaped."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(highlight=False, markup=False, **settings)

    def render_str(self, text: str, **settings: Any) -> Text:
        """All text goes through here, including the cells of a table."""
        return super().render_str(printable(text, keep_lines=True), **settings)
