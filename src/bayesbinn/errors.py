"""The errors a user can cause. Every message says what was received, what is allowed and what to do.

All of them derive from `BayesbinnError`; each also derives from the built-in error that a
PyTorch user would expect, so that existing ``except ValueError`` clauses keep working.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from bayesbinn.plain_text import printable


class BayesbinnError(Exception):
    """Base of every error this package raises on purpose."""

    def __str__(self) -> str:
        """One line, with the control characters of any name in it shown as escapes."""
        return printable(super().__str__())


class InvalidInput(BayesbinnError, ValueError):
    """An argument, a setting or a parameter that cannot be used."""


class InvalidUse(BayesbinnError, RuntimeError):
    """A call at the wrong moment, such as `step()` before any sample was drawn."""


class InvalidFile(BayesbinnError, ValueError):
    """A file that is damaged, truncated or of another kind."""


class TooMuchMemory(BayesbinnError, MemoryError):
    """More memory than the caller allows or the machine has; refused before it is taken where that can be known."""


class NonFiniteGradient(BayesbinnError, FloatingPointError):
    """A NaN or infinite gradient, or one so large that the state would overflow; no state was changed."""


class BayesbinnWarning(UserWarning):
    """Base of every warning: the result is valid but probably not what was wanted. One line, with the remedy."""


class SaturatedPosterior(BayesbinnWarning):
    """Samples were asked for, and every one of them is the mode."""


class CalibrationWarning(BayesbinnWarning):
    """A calibration that rests on too few rows."""


class StuckTraining(BayesbinnWarning):
    """Training that cannot get away from its start, or did not."""


class MissingDependency(BayesbinnError, ImportError):
    """An optional package that this call needs is not installed."""


def how_to_install(extra: str) -> str:
    """What to type for an optional part of the package; the constraints keep torch from fetching CUDA's libraries.

    >>> how_to_install("onnx")
    "pip install -c constraints.txt '.[onnx]' in a clone of the repository"
    """
    return f"pip install -c constraints.txt '.[{extra}]' in a clone of the repository"


def nearest(name: str, allowed: Iterable[str]) -> str:
    """A hint for a misspelt name: `` Did you mean 'lr'?`` or an empty string.

    >>> nearest("moment", ["momentum", "lr"])
    " Did you mean 'momentum'?"
    """
    close = get_close_matches(name, list(allowed), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def show_warnings_as_lines() -> None:
    """Print this package's warnings as one line each, without the place in the code: for the command line."""
    usual = warnings.formatwarning

    def formatted(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> str:
        if issubclass(category, BayesbinnWarning):
            return f"warning: {message}\n"
        return usual(message, category, *place, **more)

    warnings.formatwarning = formatted
