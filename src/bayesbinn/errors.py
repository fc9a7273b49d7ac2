"""The errors a user can cause. Every message says what was received, what is allowed and what to do.

All of them derive from `BayesbinnError`; each also derives from the built-in error that a
PyTorch user would expect, so that existing ``except ValueError`` clauses keep working.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class BayesbinnError(Exception):
    """Base of every error this package raises on purpose."""


class InvalidInput(BayesbinnError, ValueError):
    """An argument, a setting or a parameter that cannot be used."""


class InvalidUse(BayesbinnError, RuntimeError):
    """A call at the wrong moment, such as `step()` before any sample was drawn."""


class InvalidFile(BayesbinnError, ValueError):
    """A file that is damaged, truncated or of another kind."""


class TooMuchMemory(BayesbinnError, MemoryError):
    """More memory than the caller allows or the machine has; refused before it is taken where that can be known."""


class NonFiniteGradient(BayesbinnError, FloatingPointError):
    """A NaN or infinite gradient, found before any state was changed."""


class MissingDependency(BayesbinnError, ImportError):
    """An optional package that this call needs is not installed."""


def nearest(name: str, allowed: Iterable[str]) -> str:
    """A hint for a misspelt name: `` Did you mean 'lr'?`` or an empty string.

    >>> nearest("moment", ["momentum", "lr"])
    " Did you mean 'momentum'?"
    """
    close = get_close_matches(name, list(allowed), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
