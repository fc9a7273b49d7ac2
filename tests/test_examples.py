"""Every example runs as a user would run it, and learns."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.places import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
CONTINUAL = "continual"


def percentages(path: Path) -> list[float]:
    """What an example prints."""
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [float(number) for number in re.findall(r"([\d.]+) %", done.stdout)]


@pytest.mark.parametrize("path", [path for path in EXAMPLES if path.stem != CONTINUAL], ids=lambda path: path.stem)
def test_example_reaches_95_percent(path: Path) -> None:
    assert percentages(path)[-1] >= 95.0


def test_with_the_prior_the_first_task_is_remembered() -> None:
    (path,) = [path for path in EXAMPLES if path.stem == CONTINUAL]
    kept, second, lost, _ = percentages(path)
    assert min(kept, second) >= 65 and lost < 30


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 5


def test_the_plain_loop_is_short() -> None:
    loop = Path(EXAMPLES[0]).with_name("plain_loop.py").read_text()
    code = [line for line in loop.split('"""')[2].splitlines() if line.strip()]
    assert len(code) <= 26
