"""Continual-learning metrics against hand-computed values, and the identities between them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayesbinn import forgetting as f
from bayesbinn.errors import InvalidInput

NAN = float("nan")

# Task 0 reaches 90 and later improves to 94; task 1 reaches 80; all get worse by the end.
HAND = np.array([[90.0, 20.0, 14.0], [94.0, 80.0, 30.0], [60.0, 72.0, 96.0]])
BASELINE = np.array([8.0, 10.0, 12.0])
EXPECTED = {
    "average_accuracy": (60 + 72 + 96) / 3,
    "last_accuracy": (60 + 72 + 96) / 3,  # with fewer than five tasks, all count
    "learning_accuracy": (90 + 80 + 96) / 3,
    "forgetting_since_learned": ((90 - 60) + (80 - 72)) / 2,
    "forgetting_since_best": ((94 - 60) + (80 - 72)) / 2,
    "backward_transfer": ((60 - 90) + (72 - 80)) / 2,
    "forward_transfer": ((20 - 10) + (30 - 12)) / 2,
}


@st.composite
def matrices(draw: st.DrawFn, least: int = 2) -> np.ndarray[Any, np.dtype[np.float64]]:
    count = draw(st.integers(least, 7))
    values = draw(st.lists(st.floats(0, 100), min_size=count**2, max_size=count**2))
    return np.array(values).reshape(count, count)


def without(*places: tuple[int, int]) -> np.ndarray[Any, np.dtype[np.float64]]:
    R = HAND.copy()
    for place in places:
        R[place] = NAN
    return R


def test_hand_computed_values() -> None:
    assert f.summary(HAND, BASELINE) == pytest.approx(EXPECTED)
    assert f.last_accuracy(HAND, tasks=2) == pytest.approx((72 + 96) / 2)
    assert f.last_accuracy(HAND, tasks=1) == 96
    assert type(f.average_accuracy(HAND.tolist())) is float


def test_the_best_is_over_every_row_before_the_last() -> None:
    """Chaudhry et al. count rows from before the task was learned; the last row never counts."""
    R = [[50, 85, 0], [40, 80, 0], [99, 70, 90]]
    assert f.forgetting(R, since="best") == ((50 - 99) + (85 - 70)) / 2


def test_entries_that_a_metric_does_not_need_may_be_missing() -> None:
    R = without((0, 1), (0, 2), (1, 2), (1, 0))
    expected = EXPECTED | {"forgetting_since_best": ((90 - 60) + (80 - 72)) / 2, "forward_transfer": None}
    assert f.summary(R, BASELINE) == pytest.approx(expected)
    assert f.last_accuracy(without((2, 0)), tasks=2) == pytest.approx((72 + 96) / 2)
    assert f.forward_transfer(HAND, [NAN, 10, 12]) == EXPECTED["forward_transfer"]


def test_the_summary_is_none_if_something_is_missing() -> None:
    assert {k for k, v in f.summary(without((2, 0)), BASELINE).items() if v is None} == {
        "average_accuracy",
        "last_accuracy",
        "forgetting_since_learned",
        "forgetting_since_best",
        "backward_transfer",
    }
    assert f.summary(HAND)["forward_transfer"] is None
    assert f.summary(HAND, [8, NAN, 12])["forward_transfer"] is None
    one = f.summary([[90]], [10])
    assert {k: v for k, v in one.items() if v is not None} == {
        "average_accuracy": 90,
        "last_accuracy": 90,
        "learning_accuracy": 90,
    }


@given(matrices())
def test_forgetting_is_backward_transfer_with_the_opposite_sign(R: Any) -> None:
    assert f.forgetting(R) == pytest.approx(-f.backward_transfer(R), abs=1e-9)


@given(matrices())
def test_the_best_is_at_least_what_was_learned(R: Any) -> None:
    assert f.forgetting(R, since="best") >= f.forgetting(R) - 1e-9


@given(st.integers(2, 9), st.floats(0, 100))
def test_a_constant_matrix_forgets_nothing(count: int, value: float) -> None:
    found = f.summary(np.full((count, count), value), np.full(count, value))
    accuracies = dict.fromkeys(("average_accuracy", "last_accuracy", "learning_accuracy"), value)
    assert found == pytest.approx(dict.fromkeys(EXPECTED, 0.0) | accuracies)


@given(matrices(least=1))
def test_the_mean_over_all_tasks_is_the_average(R: Any) -> None:
    assert f.last_accuracy(R, tasks=len(R)) == f.average_accuracy(R)


@given(matrices())
def test_average_is_what_was_learned_minus_what_was_forgotten(R: Any) -> None:
    """The last task cannot be forgotten: ACC = LA − (T − 1) / T · F."""
    count = len(R)
    expected = f.learning_accuracy(R) - (count - 1) / count * f.forgetting(R)
    assert f.average_accuracy(R) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("R", "message"),
    [
        (HAND[:2], r"R has shape \(2, 3\); expected \[tasks, tasks\]"),
        (HAND[0], r"R has shape \(3,\)"),
        (np.zeros((0, 0)), r"R has shape \(0, 0\)"),
        ([], r"R has shape \(0,\)"),
        (HAND + 10, r"R\[1, 0\] is 104; accuracies are percentages from 0 to 100"),
        (-HAND, r"R\[0, 0\] is -90; accuracies"),
        (HAND * np.inf, r"R\[0, 0\] is inf; accuracies"),
        ([[1.0], [1.0, 2.0]], "R is not an array of numbers"),
        ([["many"]], "R is not an array of numbers .*; pass accuracies in percent"),
    ],
)
@pytest.mark.parametrize(
    "metric",
    [
        f.average_accuracy,
        f.last_accuracy,
        f.learning_accuracy,
        f.forgetting,
        f.backward_transfer,
        lambda R: f.forward_transfer(R, BASELINE),
        f.summary,
    ],
)
def test_bad_matrices_get_one_line(metric: Callable[[Any], Any], R: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        metric(R)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: f.average_accuracy(without((2, 1))),
            r"R\[2, 1\] is NaN but average_accuracy needs it; measure task 1 after training on task 2",
        ),
        (lambda: f.last_accuracy(without((2, 1)), tasks=2), r"R\[2, 1\] is NaN but last_accuracy"),
        (lambda: f.last_accuracy(HAND, tasks=0), "tasks=0: must be 1 or more"),
        (lambda: f.learning_accuracy(without((1, 1))), r"R\[1, 1\] is NaN but learning_accuracy"),
        (lambda: f.forgetting(without((1, 1))), r"R\[1, 1\] is NaN but forgetting"),
        (lambda: f.forgetting(without((1, 1)), since="best"), r"R\[1, 1\] is NaN but forgetting"),
        (lambda: f.forgetting(without((2, 0))), r"R\[2, 0\] is NaN but forgetting"),
        (lambda: f.forgetting([[90]]), "R has 1 task; forgetting compares tasks and needs 2 or more"),
        (
            lambda: f.forgetting(HAND, since="learnt"),  # type: ignore[arg-type]
            "since='learnt': 'learned' and 'best' are allowed. Did you mean 'learned'?",
        ),
        (lambda: f.backward_transfer(without((0, 0))), r"R\[0, 0\] is NaN but backward_transfer"),
        (lambda: f.backward_transfer([[90]]), "R has 1 task; backward_transfer"),
        (lambda: f.forward_transfer(without((1, 2)), BASELINE), r"R\[1, 2\] is NaN but forward_transfer"),
        (lambda: f.forward_transfer([[90]], [10]), "R has 1 task; forward_transfer"),
        (lambda: f.forward_transfer(HAND, [8, 10, NAN]), r"baseline\[2\] is NaN"),
        (lambda: f.forward_transfer(HAND, [8, 10]), r"baseline has shape \(2,\) for 3 tasks; one accuracy per task"),
        (lambda: f.forward_transfer(HAND, [8, 10, 101]), r"baseline\[2\] is 101; accuracies are percentages"),
        (lambda: f.summary(HAND, [8, 10]), r"baseline has shape \(2,\)"),
    ],
)
def test_other_bad_input_gets_one_line(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_torch_is_not_needed() -> None:
    code = "import sys; sys.modules['torch'] = None; from bayesbinn.forgetting import summary; print(summary([[90]]))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "'average_accuracy': 90.0" in out
