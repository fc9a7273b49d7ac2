"""The command-line reference, made from every command's ``--help``.

``python -m bayesbinn.cli.reference docs/cli.md`` writes it; a test fails when the file is stale.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from bayesbinn.cli.app import app

WIDTH = 100
INTRODUCTION = """\
# The command line

Written by `python -m bayesbinn.cli.reference docs/cli.md` from the `--help` of every command. Do not edit.

A mistake in the arguments, a setting or a file prints one line on stderr and exits with code 2. After Ctrl-C
during `train` the exit code is 130, and the same command resumes the run.
"""


def reference() -> str:
    """The whole page as Markdown, at a fixed width on any terminal."""
    group: Any = typer.main.get_command(app)
    root = group.make_context("bayesbinn", [], resilient_parsing=True, terminal_width=WIDTH, max_content_width=WIDTH)
    sections = [INTRODUCTION, _block("bayesbinn --help", group.get_help(root))]
    return "\n".join([*sections, *_sections(group, root)])


def _sections(group: Any, parent: Any) -> Iterator[str]:
    """A heading and a block per command; the commands of a group follow it."""
    for name, command in group.commands.items():
        context = command.make_context(
            name, [], parent=parent, resilient_parsing=True, terminal_width=WIDTH, max_content_width=WIDTH
        )
        path = context.command_path
        yield f"## {path.removeprefix('bayesbinn ')}\n"
        yield _block(f"{path} --help", command.get_help(context))
        if hasattr(command, "commands"):
            yield from _sections(command, context)


def _block(command: str, text: str) -> str:
    lines = "\n".join(line.rstrip() for line in text.splitlines())
    return f"```console\n$ {command}\n{lines}\n```\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(reference(), encoding="utf-8")
