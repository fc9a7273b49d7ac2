"""Text from names and files is made safe before it reaches a terminal or a spreadsheet."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from bayesbinn.errors import BayesbinnError, InvalidFile, InvalidInput, MissingDependency, csv_safe, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;owned\x07", r"\x1b]0;owned\x07"),
        ("a\r\nb\tc", r"a\r\nb\tc"),
        ("\x9b31m", r"\x9b31m"),
        ("x\u202egnp.exe", r"x\u202egnp.exe"),
        ("caf\udce9", r"caf\udce9"),
        ("größe 高さ 👩‍🔬 \\n", "größe 高さ 👩‍🔬 \\n"),
    ],
)
def test_control_characters_are_shown_and_other_text_is_kept(text: str, shown: str) -> None:
    assert printable(text) == shown
    shown.encode()  # it must be encodable


def test_lines_of_a_table_stay_lines() -> None:
    assert printable("a\x1b\nb", keep_lines=True) == "a\\x1b\nb"


@pytest.mark.parametrize("text", ["=1+1", "+A1", "-A1", "@SUM(1)", "\t=1", "\r=1", "-1+1", "+", "=-1"])
def test_a_formula_becomes_text(text: str) -> None:
    assert csv_safe(text) == "'" + text


@pytest.mark.parametrize("text", ["", "-1", "+1", "-1.5e-3", "-.5", "rose", "a=b", "'=1", " x"])
def test_numbers_and_other_text_are_kept(text: str) -> None:
    assert csv_safe(text) == text


@pytest.mark.parametrize("kind", [BayesbinnError, InvalidFile, InvalidInput, MissingDependency])
def test_the_text_of_an_error_is_one_line_without_control_characters(kind: type[BayesbinnError]) -> None:
    error = kind("a\x1b[2Jb.csv: no such\nfile")
    assert str(error) == r"a\x1b[2Jb.csv: no such\nfile"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_torch_is_not_needed() -> None:
    code = "import sys, bayesbinn.errors; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
