"""Names from somebody else's files: none of them steers a terminal or becomes a formula in a spreadsheet."""

from __future__ import annotations

import csv
import json
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from rich.table import Table

from bayesbinn.cli.answers import as_csv
from bayesbinn.cli.console import PlainConsole
from bayesbinn.runs.evaluate import _write_columns, predict_file
from tests.helpers.processes import warm_python

TITLE = "\x1b]0;owned\x07"
KINDS = ("=HYPERLINK(1)", f"{TITLE}rose")


def flowers(path: Path) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["=length", f"{TITLE}time", "kind"])
        writer.writerows([i % 2 * 10 + i % 5, 1 + i % 3 if i else "", KINDS[i % 2]] for i in range(40))
    return path


def bayesbinn(*arguments: str | Path, code: int = 0) -> str:
    """Everything that the installed program prints."""
    command = [warm_python(), "-m", "bayesbinn", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run on such a table; the file names hold an escape, too."""
    folder = tmp_path_factory.mktemp("place")
    table = flowers(folder / "flo\x1b[31mwers.csv")
    run = folder / "ru\x1b[31mn"
    said = bayesbinn("train", table, "--label", "kind", "--epochs", "5", "--out", run)
    assert "\x1b" not in said and "\x07" not in said
    assert r"\x1b]0;owned\x07rose" in said and r"marks missing cells: \x1b]0;owned\x07time" in said
    assert r"ru\x1b[31mn" in said
    return folder


def test_errors_show_escapes(place: Path) -> None:
    said = bayesbinn("train", place / "flo\x1b[31mwers.csv", "--label", "y\x1b[2J", code=2)
    assert "\x1b" not in said and said.count("\n") == 1 and r"flo\x1b[31mwers.csv: no column 'y\x1b[2J'" in said


@pytest.mark.parametrize("suffix", [".csv", ".json", ".parquet"])
def test_only_csv_has_formulas_to_avoid(place: Path, tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"out{suffix}"
    predict_file(place / "ru\x1b[31mn", place / "flo\x1b[31mwers.csv", out, 0, None)
    if suffix == ".csv":
        with out.open(newline="") as file:
            rows = list(csv.DictReader(file))
    else:
        rows = json.loads(out.read_text()) if suffix == ".json" else pq.read_table(out).to_pylist()
    name = "'=HYPERLINK(1)" if suffix == ".csv" else "=HYPERLINK(1)"
    assert {row["class"] for row in rows} == {name, KINDS[1]}
    assert list(rows[0])[:2] == ["input", "class"]
    assert all(0 <= float(row["p(=HYPERLINK(1))"]) <= 1 for row in rows)


def test_numbers_stay_numbers(tmp_path: Path) -> None:
    """Classes -1 and +1 are text in the file, and nothing is put before them; nor before a negative mean.

    What `bayesbinn run` prints without torch is the same.
    """
    columns = {"input": ["-a.png"], "class": ["-1"], "mean": [-2.5], "@sum": ["+1"]}
    expected = [["input", "class", "mean", "'@sum"], ["'-a.png", "-1", "-2.5", "+1"]]
    _write_columns(tmp_path / "out.csv", columns)
    with (tmp_path / "out.csv").open(newline="") as file:
        assert list(csv.reader(file)) == expected
    assert list(csv.reader("".join(as_csv([columns])).splitlines())) == expected


def test_a_console_prints_names_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """Markup is for rich, not for a column that is called so; cells of a table are text like any other."""
    table = Table("run")
    table.add_row(f"[red]{TITLE}[/green]")
    for thing in (f"[red]{TITLE}[/green]", table):
        PlainConsole(width=200).print(thing)
        printed = capsys.readouterr().out
        assert r"[red]\x1b]0;owned\x07[/green]" in printed and "\x1b" not in printed
