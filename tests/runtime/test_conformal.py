"""Thresholds, sets and intervals of conformal prediction, and scores of unfamiliar rows."""

from __future__ import annotations

import numpy as np
import pytest

from bayesbinn.errors import InvalidInput
from bayesbinn.runtime import unfamiliarity
from bayesbinn.runtime.conformal import class_sets, intervals, threshold


@pytest.mark.parametrize(
    ("rows", "coverage", "place"),
    [(9, 0.9, 9), (8, 0.9, None), (99, 0.9, 90), (100, 0.9, 91), (1, 0.5, 1), (0, 0.5, None), (19, 0.95, 19)],
)
def test_the_threshold_is_the_score_of_that_place(rows: int, coverage: float, place: int | None) -> None:
    found = threshold(np.arange(1.0, rows + 1), np.ones(rows), coverage)
    assert found == (np.inf if place is None else place)


def test_a_score_that_counts_twice_is_as_good_as_two() -> None:
    twice = threshold(np.array([1.0, 2.0, 3.0]), np.array([4.0, 4.0, 1.0]), 0.8)
    assert twice == threshold(np.array([1.0] * 4 + [2.0] * 4 + [3.0]), np.ones(9), 0.8) == 2.0


@pytest.mark.parametrize("coverage", [0.0, 1.0, 90, -0.1])
def test_a_coverage_that_is_no_chance_is_refused(coverage: float) -> None:
    with pytest.raises(InvalidInput, match=r"coverage=.* between 0 and 1, such as 0.9"):
        threshold(np.ones(3), np.ones(3), coverage)


def test_sets_are_never_empty_and_hold_everything_without_a_threshold() -> None:
    probabilities = np.array([[0.5, 0.3, 0.2], [0.98, 0.01, 0.01]])
    assert class_sets(probabilities, 0.01).tolist() == [[True, False, False]] * 2
    assert class_sets(probabilities, 0.75).tolist() == [[True, True, False], [True, False, False]]
    assert class_sets(probabilities, np.inf).all()


def test_intervals_are_as_wide_as_the_deviation_says() -> None:
    mean, std = np.array([0.0, 10.0]), np.array([1.0, 2.0])
    assert intervals(mean, std, 1.5).tolist() == [[-1.5, 1.5], [7.0, 13.0]]
    assert np.isinf(intervals(mean, std, np.inf)).all()


def test_the_chance_is_kept() -> None:
    """Scores of one source: the mean coverage of many draws is at least the stated one, and little more."""
    rng = np.random.default_rng(0)
    hits = []
    for _ in range(2000):
        scores = np.sort(rng.exponential(size=50))
        hits.append(rng.exponential(size=20) <= threshold(scores, np.ones(50), 0.9))
    assert 0.895 <= np.mean(hits) <= 0.9 + 1 / 51 + 0.005


def test_rows_off_the_main_directions_and_far_along_them_are_unfamiliar() -> None:
    rng = np.random.default_rng(0)
    along = rng.normal(size=(500, 1)) @ np.array([[1.0, 1.0, 0.0, 0.0]])
    codes = (along + 0.05 * rng.normal(size=(500, 4))).astype(np.float32)
    section = unfamiliarity.learn(codes[:400], np.ones(400))
    usual = unfamiliarity.score(section, codes[400:])
    assert 0.9 <= np.mean(usual <= 1.0) <= 1.0
    odd = np.array([[1.0, -1.0, 0.0, 0.0], [8.0, 8.0, 0.0, 0.0], [0.0, 0.0, 3.0, 0.0]], np.float32)
    assert (unfamiliarity.score(section, odd) > 2).all()


def test_a_score_does_not_depend_on_the_rows_beside_it() -> None:
    codes = np.random.default_rng(1).normal(size=(200, 37)).astype(np.float32)
    section = unfamiliarity.learn(codes, np.ones(200))
    together = unfamiliarity.score(section, codes)
    assert [unfamiliarity.score(section, codes[i : i + 1])[0] for i in range(200)] == together.tolist()
