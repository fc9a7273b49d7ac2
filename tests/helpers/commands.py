"""`bayesbinn` commands in this process: what they print, and their exit code."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable
from dataclasses import dataclass
from unittest import mock

import torch

from bayesbinn.__main__ import main


@dataclass
class Answer:
    """A command's exit code, and what it wrote to standard output and standard error."""

    code: int
    out: str
    err: str


Call = Callable[..., Answer]


def call(*arguments: object) -> Answer:
    """Run a command in this process, as the installed script would."""
    torch.set_num_threads(1)
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["bayesbinn", *map(str, arguments)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            code = main()
        except SystemExit as stop:
            code = int(stop.code or 0)
    return Answer(code, out.getvalue(), err.getvalue())


def done(*arguments: object) -> str:
    """What a command that must succeed prints."""
    answer = call(*arguments)
    assert answer.code == 0, answer.err
    return answer.out
