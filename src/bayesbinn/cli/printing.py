"""Facts as text for people."""

from __future__ import annotations

from typing import Any

import typer

from bayesbinn.errors import printable


def echo(text: str) -> None:
    """Print lines that may contain names from a user's files."""
    typer.echo(printable(text, keep_lines=True))


def facts_text(facts: dict[str, Any]) -> str:
    width = max(map(len, facts))
    return "\n".join(printable(f"{key:{width}}  {value_text(value)}") for key, value in facts.items())


def value_text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, dict):
        return "  ".join(f"{key} {value_text(each)}" for key, each in value.items())
    return str(value)
