"""Errors that a user can cause, and text that is safe to print.

Every message says what was received, what is allowed and what to do.

All errors derive from `BayesbinnError`; each also derives from the built-in error that a
PyTorch user would expect, so that existing ``except ValueError`` clauses keep working.

The names of columns, classes and files come from data that someone else may have written. In a terminal, an escape
sequence can move the cursor, retitle the window or hide a line; in a spreadsheet, a cell that starts with ``=`` is a
formula. `printable` and `csv_safe` make such text harmless.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

# Control characters, line separators, text-direction overrides, and the surrogates that represent non-UTF-8 bytes in a
# file name. The first three affect the terminal; the last cannot be printed at all.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_FORMULA = re.compile("[=+\\-@\t\r\n]")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def printable(text: str, *, keep_lines: bool = False) -> str:
    r"""The text with every control character written as an escape; `keep_lines` keeps line breaks.

    >>> print(printable("a\x1b[31mred\n"))
    a\x1b[31mred\n
    >>> printable("größe, 高さ")
    'größe, 高さ'
    """
    return _UNPRINTABLE.sub(lambda found: _escaped(found[0], keep_lines), text)


def _escaped(character: str, keep_lines: bool) -> str:
    if keep_lines and character == "\n":
        return character
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def csv_safe(text: str) -> str:
    """A cell that no spreadsheet treats as a formula: such text gets a leading single quote; numbers are unchanged.

    >>> csv_safe("=1+1"), csv_safe("-1.5"), csv_safe("rose")
    ("'=1+1", '-1.5', 'rose')
    """
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


class BayesbinnError(Exception):
    """Base class of every error this package raises on purpose."""

    def __str__(self) -> str:
        """One line, with control characters shown as escapes."""
        return printable(super().__str__())


class InvalidInput(BayesbinnError, ValueError):
    """An argument, a setting or a parameter that cannot be used."""


class InvalidUse(BayesbinnError, RuntimeError):
    """A call at the wrong time, such as `step()` before a sample was drawn."""


class InvalidFile(BayesbinnError, ValueError):
    """A file that is damaged, truncated or of the wrong kind."""


class TooMuchMemory(BayesbinnError, MemoryError):
    """More memory than the caller allows or the machine has; raised before allocating where that can be known."""


class NonFiniteGradient(BayesbinnError, FloatingPointError):
    """A NaN or infinite gradient, or one so large that the state would overflow; no state was changed."""


class BayesbinnWarning(UserWarning):
    """Base class of every warning: the result is valid but probably not what you wanted. One line, with the remedy."""


class SaturatedPosterior(BayesbinnWarning):
    """Several samples were requested, but all of them equal the mode."""


class CalibrationWarning(BayesbinnWarning):
    """A calibration based on too few rows."""


class StuckTraining(BayesbinnWarning):
    """Training that cannot move away from its initial state, or did not."""


class MissingDependency(BayesbinnError, ImportError):
    """An optional package that this call needs is not installed."""


def how_to_install(extra: str) -> str:
    """The command that installs an optional part; the constraints file keeps torch from pulling in the CUDA libraries.

    >>> how_to_install("onnx")
    "pip install -c constraints.txt '.[onnx]' in a clone of the repository"
    """
    return f"pip install -c constraints.txt '.[{extra}]' in a clone of the repository"


def nearest(name: str, allowed: Iterable[str]) -> str:
    """A hint for a misspelled name: `` Did you mean 'lr'?`` or an empty string.

    >>> nearest("moment", ["momentum", "lr"])
    " Did you mean 'momentum'?"
    """
    close = get_close_matches(name, list(allowed), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def show_warnings_as_lines() -> None:
    """Print each of this package's warnings as one line, once, without the source location, for the command line."""
    usual, said = warnings.formatwarning, set[str]()

    def formatted(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> str:
        if issubclass(category, BayesbinnWarning):
            line = f"warning: {message}\n"
            if line in said:
                return ""
            said.add(line)
            return line
        return usual(message, category, *place, **more)

    warnings.formatwarning = formatted
