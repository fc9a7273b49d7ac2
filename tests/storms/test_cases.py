"""The machinery of the storms: a failed case is found, named and counted, and can be repeated by itself."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from tests.storms import cases, run


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "results.jsonl"
    monkeypatch.setenv("BAYESBINN_STORM_RESULTS", str(path))
    monkeypatch.setitem(cases.NUMBERS, "tried", (10, 10))
    monkeypatch.delenv("BAYESBINN_STORM_CASE", raising=False)
    return path


def test_every_storm_has_a_short_and_a_long_form() -> None:
    assert all(0 < short <= long for short, long in cases.NUMBERS.values())
    assert all((run.ROOT / path).exists() for path, _ in run.STORMS.values())


def test_a_failed_case_is_named_and_does_not_stop_the_others(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[int, float] = {}

    def one(case: int, random: Random) -> int:
        seen[case] = random.random()
        assert case != 3, "three"
        return 1

    with pytest.raises(pytest.fail.Exception, match=r"(?s)1 failures in 10 tries.*BAYESBINN_STORM_CASE=3.*three"):
        cases.run_cases("tried", "tries", one)
    assert list(seen) == list(range(10)) and len(set(seen.values())) == 10
    assert json.loads(results.read_text())["failures"] == 1

    whole = dict(seen)
    seen.clear()
    monkeypatch.setenv("BAYESBINN_STORM_CASE", "7")
    cases.run_cases("tried", "tries", one)
    assert seen == {7: whole[7]}, "a repeated case has the same random numbers"


def test_parts_of_a_storm_share_its_cases(results: Path) -> None:
    seen: list[int] = []

    def one(case: int, _: Random) -> int:
        seen.append(case)
        return 1

    for part in range(3):
        cases.run_cases("tried", "tries", one, 3, part)
    assert sorted(seen) == list(range(10))
    assert [json.loads(line)["cases"] for line in results.read_text().splitlines()] == [4, 3, 3]


def test_a_storm_without_effect_fails(results: Path) -> None:
    with pytest.raises(AssertionError, match="no case did anything"):
        cases.run_cases("tried", "tries", lambda case, random: 0)


def test_the_table_adds_up_the_parts() -> None:
    part = {"storm": "kills", "unit": "kills", "cases": 700, "failures": 0, "seconds": 1.2}
    line = run.row("kills", [part, {**part, "failures": 2}])
    assert line.startswith("| kills | ") and line.endswith(" | 1,400 kills | 2 | 2 |")
