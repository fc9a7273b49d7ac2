"""What the classifier and the regressor share: parameters, fitting, the runtime behind every prediction, files."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral, Number, Real
from pathlib import Path
from typing import Any

import numpy as np
from joblib import effective_n_jobs
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

from bayesbinn.errors import BayesbinnWarning, InvalidInput, nearest
from bayesbinn.methods.registry import METHODS
from bayesbinn.modelfile.container import ModelFile, write
from bayesbinn.modelfile.encoder import InvalidCell
from bayesbinn.runtime import unfamiliarity
from bayesbinn.runtime.conformal import threshold
from bayesbinn.runtime.model import Model
from bayesbinn.sklearn.canonical import Floats, Rows
from bayesbinn.sklearn.fitting import Fitted, OnEpoch, Plan, Weigh, fit_rows, unweighted
from bayesbinn.sklearn.streaming import Stream, learn_batch
from bayesbinn.sklearn.table import read_columns
from bayesbinn.sklearn.training import torch_threads


class Packed:
    """A model file and the runtime that executes it. The runtime is built when first needed and never pickled."""

    def __init__(self, file: ModelFile, threads: int) -> None:
        self.file, self.threads = file, threads
        self._model: Model | None = None

    @property
    def model(self) -> Model:
        """The packed networks in exact mode: a row's prediction does not depend on the other rows."""
        if self._model is None:
            self._model = Model(self.file, "exact", self.threads)
        return self._model

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_model": None}


class BinaryNetworkBase(BaseEstimator):  # type: ignore[misc]
    """See `BinaryNetworkClassifier` for the parameters."""

    def __init__(
        self,
        *,
        method: str = "bayesbinn",
        method_settings: Mapping[str, Any] | None = None,
        hidden: int | Sequence[int] | None = None,
        networks: int | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
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
        self.method = method
        self.method_settings = method_settings
        self.hidden = hidden
        self.networks = networks
        self.epochs = epochs
        self.batch_size = batch_size
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.calibration_fraction = calibration_fraction
        self.conformal_fraction = conformal_fraction
        self.buffer = buffer
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose
        self.n_jobs = n_jobs

    # ---- fitting ---------------------------------------------------------------------------------------

    def _plan(self) -> Plan:
        """The parameters, checked."""
        if self.method not in METHODS:
            raise InvalidInput(
                f"there is no method {self.method!r}.{nearest(str(self.method), METHODS)} Known: {', '.join(METHODS)}"
            )
        hidden: Any = (self.hidden,) if isinstance(self.hidden, Number) else self.hidden
        for name, value, least in (
            ("networks", self.networks, 1),
            ("epochs", self.epochs, 1),
            ("batch_size", self.batch_size, 2),  # BatchNorm maps a single row to 0
            ("patience", self.patience, 1),
            ("buffer", self.buffer, 0),
            *(("hidden", size, 1) for size in hidden or ()),
        ):
            fine = (value is None and name != "buffer") or (_is_whole(value) and value >= least)
            _require(fine, name, value, f"a whole number from {least}")
        for name, value in (("early_stopping", self.early_stopping), ("warm_start", self.warm_start)):
            _require(isinstance(value, (bool, np.bool_)), name, value, "True or False")
        settings = self.method_settings
        _require(settings is None or isinstance(settings, Mapping), "method_settings", settings, "a dict or None")
        shares: dict[str, Any] = {
            "validation": self.validation_fraction if self.early_stopping else 0.0,
            "calibration": self.calibration_fraction,
            "conformal": self.conformal_fraction,
        }
        for name, share in shares.items():
            fine = isinstance(share, Real) and 0 <= float(share) < 1
            _require(fine, f"{name}_fraction", share, "a number from 0 to below 1")
        if sum(shares.values()) >= 0.95:
            total = sum(shares.values())
            raise InvalidInput(f"the fractions of held-out rows add up to {total:g}; leave 5 % or more to train on")
        return Plan(
            method=self.method,
            settings=None if settings is None else dict(settings),
            hidden=None if hidden is None else tuple(int(size) for size in hidden),
            networks=self.networks,
            epochs=self.epochs,
            batch_size=self.batch_size,
            patience=self.patience if self.early_stopping else None,
            shares=shares,
            threads=effective_n_jobs(self.n_jobs),
            seed=int(check_random_state(self.random_state).randint(1 << 31)),
            cross_fit=not self.warm_start,
        )

    def _fit_rows(self, rows: Rows, classes: int, weigh: Weigh = unweighted) -> None:
        plan = self._plan()
        self._stream: Stream | None = None
        before: Fitted | None = getattr(self, "_fitted", None) if self.warm_start else None
        if before is not None:
            _refuse_other_columns(before, rows)
        with _setting(plan, bool(self.verbose), type(self).__name__) as on_epoch:
            fitted = fit_rows(rows, plan, classes, weigh, before, on_epoch)
        self._adopt(fitted)

    def _partial_fit_rows(self, rows: Rows, classes: int, weigh: Weigh = unweighted) -> None:
        plan = self._plan()
        stream: Stream | None = getattr(self, "_stream", None)
        if stream is None:
            stream = Stream.new(self.buffer, plan.seed)
            if hasattr(self, "_fitted"):  # continue from `fit`, which kept no rows
                stream.fitted, stream.learned_at = self._fitted, float("inf")
        stream = stream.copy()  # a rejected batch leaves no trace
        with _setting(plan, bool(self.verbose), type(self).__name__) as on_epoch:
            fitted = learn_batch(stream, rows, plan, classes, weigh, on_epoch)
        self._stream = stream
        self._adopt(fitted)

    def _adopt(self, fitted: Fitted) -> None:
        self._fitted = fitted
        self._packed = Packed(self._described(fitted.file), effective_n_jobs(self.n_jobs))
        self.n_iter_ = fitted.epochs
        self.loss_curve_ = list(fitted.trainer.losses)
        self.hidden_ = fitted.choice.hidden
        self.networks_ = fitted.choice.networks
        self.encoding_ = fitted.encoding

    def _described(self, file: ModelFile) -> ModelFile:
        """The file with the names of the classes, if there are any."""
        return file

    def _weights_of(self, X: Any, sample_weight: Any, rows: int) -> Floats:
        if sample_weight is None:
            return np.ones(rows)
        weights: Floats = _check_sample_weight(
            sample_weight, np.empty((rows, 1)), dtype=np.float64, ensure_non_negative=True
        )
        if not weights.any():
            raise InvalidInput("every sample_weight is 0; at least one row must count")
        return weights

    # ---- predicting ------------------------------------------------------------------------------------

    @property
    def _runtime(self) -> Model:
        return self._packed.model

    def _codes(self, X: Any) -> NDArray[np.float32]:
        check_is_fitted(self)
        columns = read_columns(self, X, reset=False)
        return self.encoding_.encode(columns)

    def _limit(self, coverage: float) -> float:
        scores = self._packed.file.sections["conformal"].tensors
        counts = scores["counts"].astype(np.float64)
        limit = threshold(scores["scores"].astype(np.float64), counts, coverage)
        if math.isinf(limit):
            needed = math.ceil(coverage / (1 - coverage) - 1e-9)
            warnings.warn(
                f"every set contains everything: coverage={coverage:g} needs at least {needed} conformal rows, and "
                f"there are {counts.sum():.0f}; fit with more rows, a larger conformal_fraction or, in a stream, a "
                "larger buffer",
                BayesbinnWarning,
                stacklevel=3,
            )
        return limit

    def unfamiliarity(self, X: Any) -> Floats:
        """[rows]: how unlike the training rows each row is.

        95 % of usual rows are below 1; 2 is suspicious. The score depends only on X: a row may be familiar but
        hard, or unfamiliar but easy.
        """
        codes = self._codes(X)
        return unfamiliarity.score(self._packed.file.sections["unfamiliarity"], codes)

    # ---- files -----------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a model file, which includes the encoding; `bayesbinn.runtime.load` runs it without PyTorch."""
        check_is_fitted(self)
        try:
            write(Path(path), self._packed.file)
        except UnicodeEncodeError as error:
            raise InvalidInput(
                f"{error.object[error.start : error.end]!r} cannot be saved; rename the column, category or class"
            ) from None
        return Path(path)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_packed")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        return tags


def _refuse_other_columns(before: Fitted, rows: Rows) -> None:
    """A warm start keeps its encoding, so it would silently ignore a new column."""
    known = {*before.encoding.names, *before.encoding.ignored}
    differ = sorted(known ^ set(rows.columns))
    if differ:
        raise InvalidInput(
            f"warm_start continues with the columns of the last fit, but {differ[0]!r} is in only one of the tables; "
            "pass the same columns, or set warm_start=False"
        )


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _require(condition: bool, name: str, value: Any, allowed: str) -> None:
    if not condition:
        raise InvalidInput(f"{name}={value!r}: it must be {allowed}")


@contextmanager
def _setting(plan: Plan, verbose: bool, title: str) -> Iterator[OnEpoch]:
    """Set up threads, a progress bar, and error messages in terms of the user's table."""
    try:
        with torch_threads(plan.threads), _progress(verbose, title) as on_epoch:
            yield on_epoch
    except InvalidCell as error:  # rows in canonical form are numbered differently
        raise InvalidInput(error.anywhere()) from None


@contextmanager
def _progress(shown: bool, title: str) -> Iterator[OnEpoch]:
    if not shown:
        yield lambda epoch, epochs, loss: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as progress:
        task = progress.add_task(title)

        def on_epoch(epoch: int, epochs: int, loss: float) -> None:
            progress.update(task, total=epochs, completed=epoch, description=f"{title}: loss {loss:.4f}")

        yield on_epoch
