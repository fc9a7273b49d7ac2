"""Checks of the numbers that users pass, with one wording for all methods."""

from __future__ import annotations

import math
from typing import Any

from bayesbinn.errors import InvalidInput


def require(
    group: dict[str, Any], key: str, *, above: float | None = None, least: float = -math.inf, below: float = math.inf
) -> None:
    """Reject ``group[key]`` outside the given range.

    >>> require({"lr": -1.0}, "lr", least=0)
    Traceback (most recent call last):
    bayesbinn.errors.InvalidInput: lr=-1.0: it must be a finite number, at least 0
    """
    value = group[key]
    wanted = "a finite number"
    if above is not None:
        wanted += f" above {above:g}"
    if least > -math.inf:
        wanted += f", at least {least:g}"
    if below < math.inf:
        wanted += f", below {below:g}"
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not (math.isfinite(number) and number >= least and number < below and (above is None or number > above)):
        raise InvalidInput(f"{key}={value!r}: it must be {wanted}")


def require_adam(group: dict[str, Any]) -> None:
    """Check the settings that all Adam-based methods share."""
    require(group, "lr", least=0)
    require(group, "eps", least=0)
    betas = group["betas"]
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        raise InvalidInput(f"betas={betas!r}: it must be two numbers, at least 0 and below 1")
