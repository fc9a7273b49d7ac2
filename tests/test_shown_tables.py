"""The figures in the tables of README.md and docs/ stand in results/, in the same row and the same column."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from typing import Any

import pytest

from tests.helpers.places import ROOT
from tests.helpers.tables import Table, same_figures, tables_of, under_names_of, wrong_figures

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHOWN = [(page, table) for page in PAGES for table in tables_of(page.read_text(encoding="utf-8"))]
SPECS: list[dict[str, Any]] = tomllib.loads((ROOT / "tests/shown_tables.toml").read_text(encoding="utf-8"))["table"]
KNOWN = [(page, spec, found) for page, table in SHOWN for spec in SPECS if (found := under_names_of(spec, table))]
each_known = pytest.mark.parametrize(
    ("spec", "table"),
    [known[1:] for known in KNOWN],
    ids=[f"{page.name}: {table.head[-1]}" for page, _, table in KNOWN],
)


@each_known
def test_figures_stand_in_the_results(spec: dict[str, Any], table: Table) -> None:
    assert {*spec.get("keys", {}), *spec["figures"]} >= {*table.head[1:]}, "a column without a source"
    assert not list(wrong_figures(table, spec))


def test_each_source_has_its_table() -> None:
    assert [spec["head"] for spec in SPECS if not any(known[1] is spec for known in KNOWN)] == []


def test_each_table_of_figures_in_the_readme_has_a_source() -> None:
    """Add it to tests/shown_tables.toml."""
    shown = [table for page, table in SHOWN if page.name == "README.md" and table.has_figures]
    assert [table.head for table in shown if not any(under_names_of(spec, table) for spec in SPECS)] == []


# ---- the check itself ----------------------------------------------------------------------------------


@each_known
def test_swapped_columns_and_other_digits_are_found(spec: dict[str, Any], table: Table) -> None:
    names = list(spec["figures"])
    swapped = [name for name in names if name != "splits"][-2:]
    for row in range(len(table.rows)):
        lines = [dict(line) for line in table.rows]
        lines[row][swapped[0]], lines[row][swapped[1]] = lines[row][swapped[1]], lines[row][swapped[0]]
        changed = replace(table, rows=tuple(lines))
        assert changed == table or list(wrong_figures(changed, spec)), row
    for name in names:
        lines = [dict(line) for line in table.rows]
        lines[0][name] = lines[0][name].replace(lines[0][name][0], "7" if lines[0][name][0] != "7" else "8", 1)
        assert list(wrong_figures(replace(table, rows=tuple(lines)), spec)), name


def test_numbers_are_compared_to_the_digits_that_are_shown() -> None:
    assert same_figures("1733 ms", "1733.04") and same_figures("1.05", "1.053") and same_figures("−0.4", "-0.42")
    assert not same_figures("1.06", "1.053") and not same_figures("1.05 ± 0.10", "1.05") and not same_figures("", "")
