"""Every example runs as a user would run it, and learns."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_reaches_95_percent(path: Path) -> None:
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    last = float(re.findall(r"([\d.]+) %", done.stdout)[-1])
    assert last >= 95.0, done.stdout


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 5


def test_the_plain_loop_is_short() -> None:
    loop = Path(EXAMPLES[0]).with_name("plain_loop.py").read_text()
    code = [line for line in loop.split('"""')[2].splitlines() if line.strip()]
    assert len(code) <= 26
