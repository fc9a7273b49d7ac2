"""Continual-learning metrics, computed from a matrix of accuracies: how much a network keeps of earlier tasks.

R[i, j] is the accuracy, in percent, on task j after training on task i, both counted from 0. NaN means "not measured"
and is allowed in entries that a metric does not use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from bayesbinn.errors import InvalidInput, nearest

Matrix = npt.NDArray[np.float64]
Since = Literal["learned", "best"]


class _Missing(InvalidInput):
    """The matrix is valid but lacks an entry that this metric needs."""


def average_accuracy(R: npt.ArrayLike) -> float:
    """The mean final accuracy over all tasks: ACC of Lopez-Paz and Ranzato (2017).

    >>> average_accuracy([[90, 10], [70, 80]])  # (70 + 80) / 2
    75.0
    """
    matrix = _matrix(R)
    return float(_last_row(matrix, "average_accuracy", np.arange(len(matrix))).mean())


def last_accuracy(R: npt.ArrayLike, tasks: int = 5) -> float:
    """The mean final accuracy over the last `tasks` tasks only, or over all tasks if there are fewer.

    >>> last_accuracy([[90, 10, 10], [80, 80, 10], [10, 60, 90]], tasks=2)  # (60 + 90) / 2
    75.0
    """
    matrix = _matrix(R)
    if tasks < 1:
        raise InvalidInput(f"tasks={tasks}: must be 1 or more")
    count = len(matrix)
    return float(_last_row(matrix, "last_accuracy", np.arange(max(count - tasks, 0), count)).mean())


def learning_accuracy(R: npt.ArrayLike) -> float:
    """The mean over all tasks of the accuracy right after learning each one.

    >>> learning_accuracy([[90, 10], [70, 80]])  # (90 + 80) / 2
    85.0
    """
    matrix = _matrix(R)
    return float(_learned(matrix, "learning_accuracy", np.arange(len(matrix))).mean())


def forgetting(R: npt.ArrayLike, since: Since = "learned") -> float:
    """The accuracy lost by the end, averaged over all tasks but the last.

    Lost since the task was ``"learned"``: R[j, j] − R[T−1, j]. Lost since its ``"best"``, as Chaudhry et
    al. (2018) define it: max over all rows i < T−1 of R[i, j], minus R[T−1, j]. Rows that were not measured are
    ignored, but the diagonal must be present.

    >>> R = [[80, 10, 10], [90, 70, 10], [60, 40, 95]]
    >>> forgetting(R)  # ((80 − 60) + (70 − 40)) / 2
    25.0
    >>> forgetting(R, since="best")  # ((90 − 60) + (70 − 40)) / 2
    30.0
    """
    matrix = _matrix(R)
    allowed = get_args(Since)
    if since not in allowed:
        raise InvalidInput(f"since={since!r}: 'learned' and 'best' are allowed.{nearest(str(since), allowed)}")
    earlier = _all_but_the_last(matrix, "forgetting")
    before, final = _learned(matrix, "forgetting", earlier), _last_row(matrix, "forgetting", earlier)
    if since == "best":
        before = np.nanmax(matrix[:-1, :-1], axis=0)
    return float((before - final).mean())


def backward_transfer(R: npt.ArrayLike) -> float:
    """BWT of Lopez-Paz and Ranzato (2017): how much later tasks improved earlier ones; usually negative.

    The mean over j < T−1 of R[T−1, j] − R[j, j].

    >>> backward_transfer([[80, 10, 10], [90, 70, 10], [60, 40, 95]])  # ((60 − 80) + (40 − 70)) / 2
    -25.0
    """
    matrix = _matrix(R)
    earlier = _all_but_the_last(matrix, "backward_transfer")
    final, learned = (f(matrix, "backward_transfer", earlier) for f in (_last_row, _learned))
    return float((final - learned).mean())


def forward_transfer(R: npt.ArrayLike, baseline: npt.ArrayLike) -> float:
    """FWT of Lopez-Paz and Ranzato (2017): how much earlier tasks helped those not yet trained on.

    The mean over j ≥ 1 of R[j−1, j] − b[j]; `baseline` holds b, the untrained network's accuracy on each
    task, in percent.

    >>> forward_transfer([[80, 15, 10], [90, 70, 25], [60, 40, 95]], [50, 10, 10])  # ((15 − 10) + (25 − 10)) / 2
    10.0
    """
    matrix = _matrix(R)
    start = _numbers("baseline", baseline)
    if start.shape != matrix.shape[:1]:
        raise InvalidInput(f"baseline has shape {start.shape} for {len(matrix)} tasks; one accuracy per task is needed")
    _check_range("baseline", start)
    later = _all_but_the_last(matrix, "forward_transfer") + 1
    before = _needed(matrix, "forward_transfer", later - 1, later)
    for task in later[np.isnan(start[later])]:
        raise _Missing(f"baseline[{task}] is NaN but forward_transfer needs it; measure the untrained network on it")
    return float((before - start[later]).mean())


def summary(R: npt.ArrayLike, baseline: npt.ArrayLike | None = None) -> dict[str, float | None]:
    """Every metric by name; None if R lacks a needed entry or a second task, or if no baseline is given.

    >>> summary([[90, np.nan], [70, 80]])["forgetting_since_learned"]  # 90 − 70
    20.0
    >>> print(summary([[90, np.nan], [70, 80]])["forward_transfer"])
    None
    """
    matrix = _matrix(R)
    metrics: dict[str, Callable[[], float]] = {
        "average_accuracy": lambda: average_accuracy(matrix),
        "last_accuracy": lambda: last_accuracy(matrix),
        "learning_accuracy": lambda: learning_accuracy(matrix),
        "forgetting_since_learned": lambda: forgetting(matrix),
        "forgetting_since_best": lambda: forgetting(matrix, since="best"),
        "backward_transfer": lambda: backward_transfer(matrix),
    }
    found = {name: _or_none(metric) for name, metric in metrics.items()}
    found["forward_transfer"] = None if baseline is None else _or_none(lambda: forward_transfer(matrix, baseline))
    return found


def _or_none(metric: Callable[[], float]) -> float | None:
    try:
        return metric()
    except _Missing:
        return None


def _matrix(R: npt.ArrayLike) -> Matrix:
    matrix = _numbers("R", R)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.size == 0:
        raise InvalidInput(
            f"R has shape {matrix.shape}; expected [tasks, tasks] with one row per task trained on, NaN if not measured"
        )
    _check_range("R", matrix)
    return matrix


def _numbers(name: str, values: npt.ArrayLike) -> Matrix:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:100]
        raise InvalidInput(f"{name} is not an array of numbers ({reason}); pass accuracies in percent") from error


def _check_range(name: str, values: Matrix) -> None:
    for place in np.argwhere((values < 0) | (values > 100)):
        where = ", ".join(map(str, place))
        raise InvalidInput(f"{name}[{where}] is {values[tuple(place)]:g}; accuracies are percentages from 0 to 100")


def _all_but_the_last(matrix: Matrix, metric: str) -> npt.NDArray[np.int64]:
    if len(matrix) < 2:
        raise _Missing(f"R has 1 task; {metric} compares tasks and needs 2 or more")
    return np.arange(len(matrix) - 1)


def _last_row(matrix: Matrix, metric: str, tasks: npt.NDArray[np.int64]) -> Matrix:
    return _needed(matrix, metric, np.full_like(tasks, len(matrix) - 1), tasks)


def _learned(matrix: Matrix, metric: str, tasks: npt.NDArray[np.int64]) -> Matrix:
    return _needed(matrix, metric, tasks, tasks)


def _needed(matrix: Matrix, metric: str, rows: npt.NDArray[Any], columns: npt.NDArray[Any]) -> Matrix:
    values: Matrix = matrix[rows, columns]
    for k in np.flatnonzero(np.isnan(values)):
        raise _Missing(
            f"R[{rows[k]}, {columns[k]}] is NaN but {metric} needs it; "
            f"measure task {columns[k]} after training on task {rows[k]}"
        )
    return values
