"""A scale and a shift per class for the logits, fitted to validation data: p = softmax(scale·(z + shift)).

All functions take logits z of shape [samples, inputs, classes] and average the probabilities of the
samples. Few validation rows say little about a scale and less about K shifts, so both have priors:

- The scale. Let two classes be Gaussian with the accuracy a = Φ(d/2). Their log odds are N(±d²/2, d²), with
  the mean square d² + d⁴/4, which a calibrated difference of two logits must also have. With the
  accuracy on the validation rows by Laplace's rule, (right + 1)/(rows + K), this gives a scale s₀ in the
  unit of the logits: for K = 2 and logits of unit variance, 0.8 at 70 %, 2.9 at 90 % and 8.3 at 99 %. The
  prior of log scale is N(log s₀, (log 2)²): the rule is rough, but rarely wrong by more than a factor of 4.
- The shifts. c = scale·shift is added to the log odds. Only classes with at least `ROWS_FOR_A_SHIFT` rows have one;
  these sum to 0, and every other class has 0: a class without validation rows stays as likely as before
  relative to the mean of the rest. The prior of c_k is N(m, w²·n_k/(n_k + 10)) with any m, so few rows n_k move a
  class only a little. The width w is 0.3, which did no harm on any table we tried, or 1 if that lowers the NLL in
  cross-validation by more than two standard errors. 200 rows of pure noise with classes of 95 % and 5 % are
  enough for an NLL within 0.01 of the base rate's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import torch
from torch import Tensor

from bayesbinn.prediction.predicting import shifted

LOG_SCALE_DEVIATION = math.log(2)
"""Standard deviation of the prior of log scale."""
WIDTHS = (0.3, 1.0)
"""Widths of the shifts' prior, in nats. 3 gained little on unequal classes and hurt on breast cancer and digits."""
ROWS_OF_A_CLASS = 10
"""With this many rows, a class has half of the prior variance."""
ROWS_FOR_A_SHIFT = 2
"""With fewer rows, a class gets no shift."""
SCALE_BOUNDS = (0.01, 30.0)
"""For logits of unit variance: from no information to an accuracy of 99.99 %."""
FEWEST_ROWS = 20
"""With fewer rows, no shift is fitted, and the scale is mostly the prior's."""
FOLDS = 5
# Cross-validation on more rows takes time and does not change the decision.
_ROWS_TO_CHOOSE_BY = 1000
_SAMPLES_TO_CHOOSE_BY = 4
# A step that would lower the sum of all −log p by less than this is not taken.
_LEAST_GAIN = 1e-8
_MAX_STEPS, _MAX_HALVINGS = 100, 30


@dataclass(frozen=True)
class LogitFit:
    """softmax(scale·(z + shift)); an empty shift is none."""

    scale: float
    shift: tuple[float, ...] = ()


def fit_logits(
    logits: Tensor, targets: Tensor, weights: Tensor | None = None, *, centre: float | None = None
) -> LogitFit:
    """The most probable scale and shifts for logits [samples, inputs, classes]. Deterministic.

    Inputs of different `weights` count as (Σw)²/Σw² inputs in all: as many of equal weight are worth the same.

    If all n rows are right in every sample, no shift could improve anything, and the scale is at most the one
    with a mean confidence of (n + 1)/(n + 2), Laplace's rule.

    `centre` is the median of the scale's prior where it is known: 1 for networks whose last layer learned a gain
    with the cross-entropy, whose logits have a unit already. Laplace's rule is then left out.

    >>> z = torch.tensor([[[-1.0, 1.0]]]).expand(1, 400, 2)
    >>> fit = fit_logits(z, (torch.arange(400) % 4 > 0).long())
    >>> [round(p, 2) for p in torch.softmax(fit.scale * (z[0, 0] + torch.tensor(fit.shift or 0.0)), 0).tolist()]
    [0.25, 0.75]
    """
    z, y = logits.detach().to("cpu", torch.float64), targets.to("cpu", torch.int64)
    problem = _Problem.of(z, y, weights)
    if centre is not None:
        problem = replace(problem, log_center=math.log(centre))
    if centre is None and bool((z.argmax(dim=-1) == y).all()):
        return LogitFit(_at_most_laplace(problem, problem.fit(0.0)))
    width = _chosen_width(problem) if len(y) >= FEWEST_ROWS and len(problem.shifted) > 1 else 0.0
    found = problem.fit(width)
    scale, c = math.exp(float(found[0])), found[1:]
    if width == 0.0:
        return LogitFit(scale)
    return LogitFit(scale, tuple((c / scale).tolist()))


def _counts_of(weights: Tensor | None, rows: int) -> Tensor:
    """Weights that sum to the number of inputs that they are worth."""
    if weights is None:
        return torch.ones(rows, dtype=torch.float64)
    w = weights.detach().to("cpu", torch.float64)
    return w * (w.sum() / w.square().sum())


def classes_with_a_shift(targets: Tensor) -> list[int]:
    """The classes with at least `ROWS_FOR_A_SHIFT` rows.

    >>> classes_with_a_shift(torch.tensor([0] * 30 + [1] + [3] * 30))
    [0, 3]
    """
    return (torch.bincount(targets) >= ROWS_FOR_A_SHIFT).nonzero().squeeze(1).tolist()


def mean_nll(logits: Tensor, targets: Tensor, scale: float, shift: Sequence[float] = ()) -> float:
    """−log of the mean over samples of softmax(scale·(z + shift)), averaged over inputs; z [samples, inputs, classes].

    >>> round(mean_nll(torch.zeros(1, 3, 2), torch.tensor([0, 1, 1]), scale=2.0), 4)
    0.6931
    """
    log_p = torch.log_softmax(shifted(logits, shift) * scale, dim=-1)
    picked = log_p.gather(-1, targets.expand(len(logits), -1).unsqueeze(-1)).squeeze(-1)
    return float((math.log(len(logits)) - picked.logsumexp(dim=0)).mean())


def mean_confidence(logits: Tensor, scale: float) -> float:
    """The likeliest class's mean probability, averaged over inputs; logits [samples, inputs, classes]."""
    return float(torch.softmax(logits * scale, dim=-1).mean(dim=0).amax(dim=-1).mean())


# ---- priors ---------------------------------------------------------------------------------------------


def logit_size(logits: Tensor) -> float:
    """σ of the logits: 1 if they are independent of unit variance. 2σ² is the mean square of two logits' difference.

    >>> round(logit_size(torch.tensor([[[1.0, -1.0], [-1.0, 1.0]]])) ** 2, 6)  # the difference is ±2
    2.0
    """
    centered = logits - logits.mean(dim=-1, keepdim=True)
    squares = centered.square().sum(dim=-1) / (logits.shape[-1] - 1)
    # An outlier may have logits of any size; it must not decide for the rest.
    return math.sqrt(float(squares.clamp(max=9 * float(squares.median())).mean()))


def expected_scale(accuracy: float, classes: int) -> float:
    """The scale s₀ of the module docstring, for logits with σ = 1.

    With K classes, the odds of the right answer against one other class are a : (1 − a)/(K − 1).

    >>> [round(expected_scale(a, 2), 1) for a in (0.7, 0.9, 0.99)], round(expected_scale(0.97, 10), 1)
    ([0.8, 2.9, 8.3], 11.0)
    """
    pair = accuracy / (accuracy + (1 - accuracy) / (classes - 1))
    d = 2 * NormalDist().inv_cdf(pair) if pair > 0.5 else 0.0
    scale = math.sqrt((d**2 + d**4 / 4) / 2)
    # A network at chance has no scale; 0.1 is close to 0 and still has a logarithm to start from.
    return min(max(scale, 0.1), SCALE_BOUNDS[1])


# ---- the fit --------------------------------------------------------------------------------------------

# Parameters are a vector: log scale, then c of every class.


@dataclass(frozen=True)
class _Problem:
    logits: Tensor
    """[classes, samples, inputs]: a softmax along the first axis is several times as fast."""
    targets: Tensor
    counts: Tensor
    """What each input counts for; 1 without weights."""
    log_center: float
    bounds: tuple[float, float]
    shifted: list[int]
    """The classes that may have a shift, judged by all rows: the same in every fold."""

    @staticmethod
    def of(z: Tensor, y: Tensor, weights: Tensor | None = None) -> _Problem:
        counts = _counts_of(weights, len(y))
        total = float(counts.sum())
        right = float(((z.argmax(dim=-1) == y).double().mean(dim=0) * counts).sum())
        classes = z.shape[-1]
        # Logits that are all 0 fit any scale.
        unit = 1 / (logit_size(z) or 1.0)
        center = unit * expected_scale((right + 1) / (total + classes), classes)
        low, high = SCALE_BOUNDS
        first = z.permute(2, 0, 1).contiguous()
        bounds = math.log(unit * low), math.log(unit * high)
        return _Problem(first, y, counts, math.log(center), bounds, classes_with_a_shift(y))

    def rows(self, chosen: Tensor) -> _Problem:
        """The same problem on some rows, with the same prior of the scale."""
        return replace(self, logits=self.logits[:, :, chosen], targets=self.targets[chosen], counts=self.counts[chosen])

    def fit(self, width: float, start: Tensor | None = None) -> Tensor:
        """Where NLL − log prior is least, for shifts of this prior width: Fisher scoring with halved steps."""
        precision = self._precision(width)
        directions = self._directions() if width else self._directions()[:, :1]
        center = torch.zeros(len(precision), dtype=torch.float64)
        center[0] = self.log_center
        at = self._best_of_a_scan() if start is None else start
        value, slope, curvature = self._penalized(at, center, precision)
        for _ in range(_MAX_STEPS):
            t, outward = float(at[0]), float(slope[0])
            held = (t <= self.bounds[0] and outward > 0) or (t >= self.bounds[1] and outward < 0)
            along = directions[:, 1:] if held else directions
            step = -along @ torch.linalg.solve(along.T @ curvature @ along, along.T @ slope)
            # Beyond a factor of e², the quadratic model of the scale is useless.
            step = step / max(1.0, abs(float(step[0])) / 2)
            gain = -float(slope @ step)
            if gain < _LEAST_GAIN:
                break
            for _ in range(_MAX_HALVINGS):
                there = at + step
                there[0] = there[0].clamp(*self.bounds)
                found = self._penalized(there, center, precision)
                if found[0] < value:
                    break
                step = step / 2
            else:
                break
            at, (value, slope, curvature) = there, found
        return at

    def _directions(self) -> Tensor:
        """Orthonormal columns: the scale, then every change of the shifts that leaves their sum at 0."""
        count = len(self.shifted)
        result = torch.zeros(len(self.logits) + 1, max(count, 1), dtype=torch.float64)
        result[0, 0] = 1
        if count > 1:
            centering = torch.eye(count, dtype=torch.float64) - 1 / count
            index = torch.tensor(self.shifted) + 1
            result[index, 1:] = torch.linalg.eigh(centering).eigenvectors[:, 1:]  # the first is the constant one
        return result

    def _precision(self, width: float) -> Tensor:
        """Precision of the prior. The common part of all shifts is free: adding it to every class changes nothing."""
        result = torch.zeros(len(self.logits) + 1, len(self.logits) + 1, dtype=torch.float64)
        result[0, 0] = LOG_SCALE_DEVIATION**-2
        if width:
            # A fold may lack a class that has a shift.
            counts = torch.bincount(self.targets, self.counts, len(self.logits)).clamp(min=1)[self.shifted]
            each = (counts + ROWS_OF_A_CLASS) / (width**2 * counts)
            index = torch.tensor(self.shifted) + 1
            result[index.unsqueeze(1), index] = each.diag() - torch.outer(each, each) / each.sum()
        return result

    def nll_of_rows(self, parameters: Tensor) -> Tensor:
        """−log p of every row, by the mean over the samples."""
        return -_log_mean(_picked(self._log_p(parameters), self.targets))

    def _log_p(self, parameters: Tensor) -> Tensor:
        u = self.logits * math.exp(float(parameters[0]))
        return torch.log_softmax(u.add_(parameters[1:].view(-1, 1, 1)), dim=0)

    def _penalized(self, at: Tensor, center: Tensor, precision: Tensor) -> tuple[float, Tensor, Tensor]:
        value, slope, curvature = self._nll(at)
        away = at - center
        pull = precision @ away
        return value + 0.5 * float(pull @ away), slope + pull, curvature + precision

    def _nll(self, parameters: Tensor) -> tuple[float, Tensor, Tensor]:
        """Σ over rows of −log p, its gradient, and the Fisher information as its curvature.

        With u = e^t·z + c, ∂(−log mean p_y)/∂u = r·(p − 1[y]), r the share of a sample in the mean p_y; the
        information of u is r·(diag p − p·pᵀ), and ∂u/∂t = e^t·z.
        """
        log_p = self._log_p(parameters)
        picked = _picked(log_p, self.targets)
        mean = _log_mean(picked)
        share = (picked - mean).exp() * (self.counts / len(picked))
        p = log_p.exp_().flatten(1)
        by_t = self.logits.flatten(1) * math.exp(float(parameters[0]))
        weighted = p * share.flatten()
        expected = torch.einsum("km,km->m", p, by_t)
        counts, share_of_row = weighted.sum(dim=1), share.flatten()
        mixed = torch.einsum("km,km->k", weighted, by_t) - weighted @ expected

        size = len(p) + 1
        curvature = torch.empty(size, size, dtype=torch.float64)
        curvature[0, 0] = torch.einsum("km,km,km->", weighted, by_t, by_t) - (share_of_row * expected.square()).sum()
        curvature[0, 1:] = curvature[1:, 0] = mixed
        curvature[1:, 1:] = counts.diag() - weighted @ p.T

        true = by_t.view_as(self.logits).gather(0, self.targets.expand(1, *share.shape)).squeeze(0)
        slope = torch.empty(size, dtype=torch.float64)
        slope[0] = share_of_row @ expected - (share * true).sum()
        slope[1:] = counts - torch.bincount(self.targets, weights=share.sum(dim=0), minlength=len(p))
        return -float((mean * self.counts).sum()), slope, curvature

    def _best_of_a_scan(self, points: int = 9) -> Tensor:
        """A starting point without shifts: the NLL of a mean over samples may have several minima along the scale."""
        sub = self.rows(_some_rows(self.targets))
        none = torch.zeros(len(self.logits), dtype=torch.float64)
        grid = [*torch.linspace(*self.bounds, points).tolist(), self.log_center]
        starts = [torch.cat([none.new_tensor([t]), none]) for t in grid]
        return min(starts, key=lambda start: float(sub.nll_of_rows(start) @ sub.counts))


def _picked(log_p: Tensor, targets: Tensor) -> Tensor:
    """[samples, inputs]: for the true classes."""
    return log_p.gather(0, targets.expand(1, *log_p.shape[1:])).squeeze(0)


def _log_mean(log_p: Tensor) -> Tensor:
    return log_p.logsumexp(dim=0) - math.log(len(log_p))


def _at_most_laplace(problem: _Problem, found: Tensor) -> float:
    """The fitted scale, or the smaller one with the mean confidence (n + 1)/(n + 2)."""
    n = float(problem.counts.sum())
    goal = (n + 1) / (n + 2)
    low, high = problem.bounds[0], float(found[0])
    logits = problem.logits.permute(1, 2, 0)
    if mean_confidence(logits, math.exp(high)) <= goal:
        return math.exp(high)
    while high - low > 1e-6:  # every row is right: its confidence rises with the scale
        middle = (low + high) / 2
        above = mean_confidence(logits, math.exp(middle)) > goal
        low, high = (low, middle) if above else (middle, high)
    return math.exp(low)


# ---- cross-validation -------------------------------------------------------------------------------------


def _chosen_width(problem: _Problem) -> float:
    """The prior width of the shifts: a wider one must lower the held-out NLL by two standard errors."""
    problem = replace(problem, logits=problem.logits[:, :_SAMPLES_TO_CHOOSE_BY]).rows(_some_rows(problem.targets))
    fold = _rank_in_class(problem.targets) % FOLDS
    chosen, scores = WIDTHS[0], _held_out(problem, fold, WIDTHS[0])
    for width in WIDTHS[1:]:
        wider = _held_out(problem, fold, width)
        better = (scores - wider) * problem.counts
        if float(better.mean()) > 2 * float(better.std()) / math.sqrt(len(better)):
            chosen, scores = width, wider
    return chosen


def _held_out(problem: _Problem, fold: Tensor, width: float) -> Tensor:
    """−log p of every row by a fit to the other folds."""
    result = torch.empty(len(problem.targets), dtype=torch.float64)
    start = problem.fit(width)  # close to what each fit will find
    for held in range(FOLDS):
        parameters = problem.rows(fold != held).fit(width, start)
        result[fold == held] = problem.rows(fold == held).nll_of_rows(parameters)
    return result


def _some_rows(targets: Tensor) -> Tensor:
    """All rows, or about `_ROWS_TO_CHOOSE_BY` of them: the same share of every class, at least one row of each."""
    every = -(-len(targets) // _ROWS_TO_CHOOSE_BY)
    return _rank_in_class(targets) % every == 0


def _rank_in_class(targets: Tensor) -> Tensor:
    """The position of each row within its class, from 0.

    >>> _rank_in_class(torch.tensor([5, 2, 5, 5, 2])).tolist()
    [0, 0, 1, 2, 1]
    """
    order = targets.argsort(stable=True)
    ranks = torch.empty_like(targets)
    sorted_targets = targets[order]
    first = torch.searchsorted(sorted_targets, sorted_targets)
    ranks[order] = torch.arange(len(targets)) - first
    return ranks
