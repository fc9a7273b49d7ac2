"""Every example runs as a user would run it, and learns."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.places import ROOT
from tests.helpers.processes import warm_python

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
CONTINUAL = "continual"


def percentages(path: Path) -> list[float]:
    """What an example prints. One of them shows that it imports all it needs; the others share their imports."""
    python = sys.executable if path.stem == "plain_loop" else warm_python()
    done = subprocess.run([python, str(path)], capture_output=True, text=True, check=False)
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


def test_three_lines_of_the_plain_loop_differ_from_one_with_adam() -> None:
    """Its marked lines, in their order, are the only ones up to the prediction that name this package's own calls."""
    loop = (ROOT / "examples" / "plain_loop.py").read_text()
    training, found, _ = loop.partition("prediction = ")
    assert found
    own = re.compile(r"\bbb\.|sampled_params")
    lines = [line for line in training.splitlines() if own.search(line)]
    assert [re.findall(r"# \((\d)\)$", line) for line in lines] == [["1"], ["2"], ["3"]]
