"""How many cases each storm has, and where their results go.

A storm is a test with many random cases. The suite runs the short form of each; `make storm` sets BAYESBINN_STORM=1,
which selects the long form. BAYESBINN_STORM_SEED chooses other cases, BAYESBINN_STORM_CASE repeats a single one.
"""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

import pytest

LONG = os.environ.get("BAYESBINN_STORM") == "1"
SEED = int(os.environ.get("BAYESBINN_STORM_SEED", "0"))
MAX_FAILURES = 5
"""A storm ends after this many failed cases: the rest would probably fail too, and some failures take a minute."""

NUMBERS: dict[str, tuple[int, int]] = {
    "kills": (6, 541),
    "signals": (6, 98),
    "start-up": (1, 20),
    "full disk": (8, 160),
    "locks": (25, 599),
    "graphs": (25, 5_432),
    "exports": (6, 1_152),
    "data files": (30, 1_100),
    "model files": (300, 20_000),
    "optimizers": (30, 360),
    "writers": (40, 1_000),
}
"""Cases in the short and in the long form. For data files, the number per kind, of which there are 19."""


def count(name: str) -> int:
    """How many cases a storm has in this form."""
    return NUMBERS[name][LONG]


@dataclass(frozen=True)
class Result:
    """What a storm did: the summary of `make storm` has one line per storm."""

    storm: str
    unit: str
    cases: int
    failures: int
    seconds: float


def record(storm: str, unit: str, cases: int, failures: int, seconds: float) -> None:
    """Store a result for the summary, if a summary was requested."""
    path = os.environ.get("BAYESBINN_STORM_RESULTS")
    if path:
        line = json.dumps(asdict(Result(storm, unit, cases, failures, round(seconds, 1))))
        with Path(path).open("a") as file:
            file.write(line + "\n")


def random_of(storm: str, case: int) -> Random:
    """The random numbers of one case, which can be repeated without the cases before it."""
    return Random(f"{storm} {SEED} {case}")


def run_cases(storm: str, unit: str, one: Callable[[int, Random], int], parts: int = 1, part: int = 0) -> None:
    """Call `one(case, random)`, which returns how much it did, for every case of this storm.

    A storm with several tests gives each a part. A failed case does not stop the others and is named.
    """
    only = os.environ.get("BAYESBINN_STORM_CASE")
    wanted = len(range(part, count(storm), parts))
    started, done, failures, case = time.monotonic(), 0, [], part if only is None else int(only)
    last = case + parts * 20 * wanted  # a case may come too late to do anything, but not all of them
    while done < wanted and len(failures) < MAX_FAILURES and case < last:
        try:
            done += one(case, random_of(storm, case))
        except Exception:
            done += 1
            again = f"BAYESBINN_STORM_SEED={SEED} BAYESBINN_STORM_CASE={case}"
            failures.append(f"storm {storm!r}, repeat with {again}:\n{traceback.format_exc()}")
        if only is not None:
            break
        case += parts
    record(storm, unit, done, len(failures), time.monotonic() - started)
    assert done or failures, f"storm {storm!r}: no case did anything"
    if failures:
        pytest.fail(f"{len(failures)} failures in {done} {unit}\n" + "\n".join(failures), pytrace=False)
