"""scikit-learn estimators: a classifier and a regressor made of binary networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets

from bayesbinn.errors import InvalidInput
from bayesbinn.modelfile.container import ModelFile
from bayesbinn.modelfile.sections import MAX_WHOLE, Label
from bayesbinn.runtime.conformal import class_sets, intervals
from bayesbinn.sklearn.base import BinaryNetworkBase
from bayesbinn.sklearn.canonical import Floats, Rows, canonical
from bayesbinn.sklearn.sets import mean_and_std
from bayesbinn.sklearn.table import read_columns, read_labels, read_quantities


@dataclass(frozen=True)
class Uncertainty:
    """[rows] each, in nats: `entropy` is the sum of the other two."""

    entropy: Floats
    aleatoric: Floats
    """What would stay uncertain with any amount of data: the networks' mean entropy."""
    mutual_information: Floats
    """What more data could resolve: how much the networks disagree."""


class BinaryNetworkClassifier(ClassifierMixin, BinaryNetworkBase):  # type: ignore[misc]
    """Networks whose weights are -1 and +1, for tables of numbers, text, dates and missing cells.

    Parameters
    ----------
    method : str, default="bayesbinn"
        How the binary weights are trained: bayesbinn, ste, bop, pmf, lrnet, bimu; float and ewc train real weights.
    method_settings : dict, default=None
        Settings of the method, such as ``{"lr": 1e-3}``; None: those that suit the data's size.
    hidden : int or sequence of int, default=None
        Units of the hidden layers; None: by the data's size.
    networks : int, default=None
        How many networks are trained side by side. Predictions are their mean.
    epochs, batch_size : int, default=None
        None: by the data's size.
    class_weight : dict or "balanced", default=None
        Weights of classes, as in scikit-learn.
    early_stopping : bool, default=False
        Keep the networks of the epoch with the lowest loss on a `validation_fraction` of the rows, and stop after
        `patience` epochs without a lower one.
    calibration_fraction, conformal_fraction : float, default=0.1
        Shares of the rows used to calibrate the probabilities and to make prediction sets. No row is used for both.
    buffer : int, default=1000
        How many rows `partial_fit` keeps at most.
    warm_start : bool, default=False
        Let `fit` continue to train the networks of the last `fit`.
    random_state : int, RandomState or None, default=None
        The same rows, in any order, with the same seed give the same model.
    verbose : bool, default=False
        Show a progress bar.
    n_jobs : int, default=None
        Threads.

    Attributes
    ----------
    classes_ : ndarray
        The labels of the classes.
    n_features_in_, feature_names_in_
        As in scikit-learn.
    encoding_ : TableEncoding
        How a row becomes the networks' inputs.
    n_iter_, loss_curve_, hidden_, networks_
        Epochs, the loss of each, and the networks' size.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = BinaryNetworkClassifier(random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.9)
    True
    >>> model.predict_set(X[:1], coverage=0.8).shape
    (1, 3)
    """

    classes_: NDArray[Any]

    def __init__(
        self,
        *,
        method: str = "bayesbinn",
        method_settings: Mapping[str, Any] | None = None,
        hidden: int | Sequence[int] | None = None,
        networks: int | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        class_weight: Mapping[Any, float] | str | None = None,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        patience: int = 10,
        calibration_fraction: float = 0.1,
        conformal_fraction: float = 0.1,
        buffer: int = 1000,
        warm_start: bool = False,
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
        n_jobs: int | None = None,
    ) -> None:
        super().__init__(
            method=method,
            method_settings=method_settings,
            hidden=hidden,
            networks=networks,
            epochs=epochs,
            batch_size=batch_size,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            patience=patience,
            calibration_fraction=calibration_fraction,
            conformal_fraction=conformal_fraction,
            buffer=buffer,
            warm_start=warm_start,
            random_state=random_state,
            verbose=verbose,
            n_jobs=n_jobs,
        )
        self.class_weight = class_weight

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> BinaryNetworkClassifier:
        """Learn from a table and the class of each row."""
        columns = read_columns(self, X, reset=True)
        labels = read_labels(y, len(next(iter(columns.values()))))
        check_classification_targets(labels)
        weights = self._weights_of(X, sample_weight, len(labels))
        classes = np.unique(labels[weights > 0])
        if len(classes) < 2:
            raise InvalidInput(f"all rows have one class, {_plain_label(classes[0])!r}; a classifier needs 2 or more")
        codes = np.searchsorted(classes, np.where(weights > 0, labels, classes[0]))
        rows = canonical(columns, codes, weights)
        _refuse_one_row(rows)
        if self.warm_start and hasattr(self, "_packed") and not np.array_equal(classes, self.classes_):
            raise InvalidInput(
                f"warm_start continues with the classes of the last fit, {_some(self.classes_)}, but y has "
                f"{_some(classes)}; pass the same classes, or set warm_start=False"
            )
        self.classes_ = classes
        self._fit_rows(rows, len(classes), self._weight_of_class)
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> BinaryNetworkClassifier:
        """Learn from a batch of rows, and keep what earlier batches taught.

        The first call needs all `classes` that will occur. At most `buffer` raw rows are kept between calls.
        """
        first = not hasattr(self, "_packed")
        columns = read_columns(self, X, reset=first)
        labels = read_labels(y, len(next(iter(columns.values()))))
        check_classification_targets(labels)
        weights = self._weights_of(X, sample_weight, len(labels))
        if first:
            if classes is None:
                raise InvalidInput("the first call to partial_fit needs classes=[...]: list all that will ever occur")
            self.classes_ = np.unique(classes)
            if len(self.classes_) < 2:
                raise InvalidInput(f"one class, {_plain_label(self.classes_[0])!r}; a classifier needs 2 or more")
        elif classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise InvalidInput(f"classes={list(classes)} differ from those of the first call, {self.classes_.tolist()}")
        unknown = np.setdiff1d(labels, self.classes_)
        if len(unknown):
            raise InvalidInput(
                f"class {_plain_label(unknown[0])!r} is not among the classes of the first call, "
                f"{self.classes_.tolist()}"
            )
        rows = canonical(columns, np.searchsorted(self.classes_, labels), weights)
        self._partial_fit_rows(rows, len(self.classes_), self._weight_of_class)
        return self

    def _weight_of_class(self, rows: Rows) -> Floats | None:
        if self.class_weight is None:
            return None
        if isinstance(self.class_weight, str) and self.class_weight == "balanced":
            counts = np.bincount(rows.targets, rows.weights, len(self.classes_))
            there = counts > 0  # a class without a training row may have one for calibration
            found: Floats = np.ones(len(counts))
            found[there] = rows.weights.sum() / (there.sum() * counts[there])
            return found
        found = compute_class_weight(self.class_weight, classes=self.classes_, y=self.classes_[rows.targets])
        if not (np.isfinite(found).all() and (found >= 0).all() and found.any()):
            raise InvalidInput(f"class_weight={self.class_weight!r}: finite numbers from 0, not all 0, are needed")
        return found

    def _described(self, file: ModelFile) -> ModelFile:
        names = tuple(str(label) for label in self.classes_)
        labels = tuple(_plain_label(label) for label in self.classes_)
        alike = len({type(label) for label in labels}) == 1
        graph = replace(file.graph, classes=names)
        return replace(file, graph=graph, labels=labels if alike else names)

    def predict_proba(self, X: Any) -> Floats:
        """[rows, classes]: calibrated probabilities, in the order of `classes_`."""
        codes = self._codes(X)
        probabilities: Floats = self._runtime.predict_proba(codes).astype(np.float64)
        probabilities /= probabilities.sum(axis=1, keepdims=True)
        return probabilities

    def predict(self, X: Any) -> NDArray[Any]:
        """[rows]: the likeliest class."""
        likeliest = self.predict_proba(X).argmax(axis=1)
        labels: NDArray[Any] = self.classes_[likeliest]
        return labels

    def predict_log_proba(self, X: Any) -> Floats:
        """[rows, classes]: the logarithms of `predict_proba`."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Entropy of the prediction, and its two parts."""
        codes = self._codes(X)
        found = self._runtime.prediction(codes)
        parts = (found.entropy, found.aleatoric, found.mutual_information)
        return Uncertainty(*(part.astype(np.float64) for part in parts))

    def predict_set(self, X: Any, coverage: float = 0.9) -> NDArray[np.bool_]:
        """[rows, classes]: whether a class is in the row's prediction set, which is never empty.

        For rows from the same source as the training rows, the true class is in the set with a probability of at least
        `coverage`. That takes coverage/(1 − coverage) conformal rows, 9 for 0.9; with fewer, every set has all classes.
        """
        codes = self._codes(X)
        return class_sets(self._runtime.predict_proba(codes), self._limit(coverage))


class BinaryNetworkRegressor(RegressorMixin, BinaryNetworkBase):  # type: ignore[misc]
    """Networks whose weights are -1 and +1, for a quantity. The parameters are those of `BinaryNetworkClassifier`.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = BinaryNetworkRegressor(random_state=0).fit(X, y)
    >>> mean, std = model.predict(X[:2], return_std=True)
    >>> mean.shape, std.shape, model.predict_set(X[:2]).shape
    ((2,), (2,), (2, 2))
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> BinaryNetworkRegressor:
        """Learn from a table and the quantity of each row."""
        columns = read_columns(self, X, reset=True)
        targets = read_quantities(y, len(next(iter(columns.values()))))
        weights = self._weights_of(X, sample_weight, len(targets))
        rows = canonical(columns, targets, weights)
        _refuse_one_row(rows)
        self._fit_rows(rows, 0)
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> BinaryNetworkRegressor:
        """Learn from a batch of rows, and keep what earlier batches taught; see `BinaryNetworkClassifier`."""
        columns = read_columns(self, X, reset=not hasattr(self, "_packed"))
        targets = read_quantities(y, len(next(iter(columns.values()))))
        weights = self._weights_of(X, sample_weight, len(targets))
        self._partial_fit_rows(canonical(columns, targets, weights), 0)
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """[rows]: the mean; with `return_std`, also the standard deviation of the prediction."""
        codes = self._codes(X)
        mean, std = mean_and_std(self._runtime, codes)
        return (mean, std) if return_std else mean

    def predict_set(self, X: Any, coverage: float = 0.9) -> Floats:
        """[rows, 2]: an interval that contains the quantity with the probability `coverage`.

        With fewer than coverage/(1 − coverage) conformal rows, it is infinite.
        """
        codes = self._codes(X)
        return intervals(*mean_and_std(self._runtime, codes), self._limit(coverage))


def _refuse_one_row(rows: Rows) -> None:
    if len(rows) < 2:
        raise InvalidInput("the table has 1 sample (n_samples=1) that counts; at least 2 different rows are needed")


def _plain_label(label: Any) -> Label:
    """A label as model files store it."""
    value = label.item() if isinstance(label, np.generic) else label
    if isinstance(value, int) and abs(value) >= MAX_WHOLE:
        return str(value)
    return value if isinstance(value, (str, int, float, bool)) else str(value)


def _some(classes: NDArray[Any], most: int = 5) -> str:
    more = ", …" if len(classes) > most else ""
    return ", ".join(f"{_plain_label(label)!r}" for label in classes[:most]) + more
