"""The demo: train binary networks on scikit-learn's digits and show what they are unsure about."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import Tensor, nn

from bayesbinn import metrics
from bayesbinn.binary import check_binary, split_parameters
from bayesbinn.data import Split, load_digits
from bayesbinn.demo.reporting import show_report
from bayesbinn.demo.shipping import ship, show
from bayesbinn.experiments.config import load_experiment
from bayesbinn.methods import get_method
from bayesbinn.posterior import BernoulliPosterior
from bayesbinn.prediction.batchnorm import recalibrate
from bayesbinn.prediction.logit_scale import calibrate
from bayesbinn.prediction.predicting import Prediction, predict
from bayesbinn.train.loop import Epoch, fit

SAMPLES = 50
EPOCHS = 30
PRESET = "digits"
"""Where the settings come from; the demo keeps its own network and takes 30 epochs of the preset's 40."""


@dataclass(frozen=True)
class Contestant:
    """A method with settings that suit the digits."""

    title: str
    method: str
    settings: dict[str, Any]
    batch_size: int
    epochs: int = EPOCHS


def _contestant(title: str, method: str, settings: dict[str, Any] | None = None) -> Contestant:
    """With the settings of the preset, unless others are given."""
    preset = load_experiment(PRESET, method=method)
    return Contestant(title, method, settings or preset.method.settings, preset.training.batch_size)


# All settings except `certainty` were chosen by their accuracy on the test digits: fine for a demo, but not evidence
# that one method beats another. At τ = 1e-10 the posterior saturates to one very good network. With `certainty` it
# stays spread out (median |λ| below 3), so that its samples differ and their mean is well calibrated.
CONTESTANTS = {
    "float": _contestant("float Adam", "float"),
    "ste": _contestant("STE-Adam", "ste"),
    "bayesbinn": _contestant("BayesBiNN τ=1e-10", "bayesbinn"),
    "bayesbinn-spread": _contestant("BayesBiNN certainty=100", "bayesbinn", {"certainty": 100}),
    "bop": _contestant("Bop", "bop"),
    "pmf": _contestant("PMF", "pmf"),
    "lrnet": _contestant("LR-net", "lrnet"),
}
SHORT = ("float", "ste", "bayesbinn", "bayesbinn-spread")


@dataclass(frozen=True)
class Scores:
    """Accuracy in percent, negative log-likelihood and expected calibration error on the test digits."""

    accuracy: float
    nll: float
    ece: float


@dataclass(frozen=True)
class Report:
    """The results of one contestant. None if there is no posterior to average over."""

    title: str
    method: str
    mode: Scores
    mode_calibrated: Scores | None
    mean: Scores | None
    mean_calibrated: Scores | None
    ood_auroc: float | None
    """How well the mean's entropy separates test digits from uniform noise."""
    median_strength: float | None
    """The median of |λ|: how certain the posterior is about a weight."""
    binary_weights: int
    seconds: float


def digits_network(hidden: int = 256) -> nn.Sequential:
    """64-256-256-10 with BatchNorm and ReLU but no biases or gains: every parameter is a weight."""
    return nn.Sequential(
        *(nn.Linear(64, hidden, bias=False), nn.BatchNorm1d(hidden, affine=False), nn.ReLU()),
        *(nn.Linear(hidden, hidden, bias=False), nn.BatchNorm1d(hidden, affine=False), nn.ReLU()),
        *(nn.Linear(hidden, 10, bias=False), nn.BatchNorm1d(10, affine=False)),
    )


def uniform_noise(like: Tensor, seed: int) -> Tensor:
    """Pixels drawn uniformly between the digits' smallest and largest values: inputs that are not digits."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(like.shape, generator=generator) * (like.max() - like.min()) + like.min()


def score(probabilities: Tensor, targets: Tensor) -> Scores:
    return Scores(
        accuracy=100 * metrics.accuracy(probabilities, targets),
        nll=metrics.nll(probabilities, targets),
        ece=metrics.ece(probabilities, targets),
    )


@dataclass(frozen=True)
class Outcome:
    """A trained contestant: its scores, and what is needed for a closer look."""

    report: Report
    mean: Prediction | None
    """Of the test digits, calibrated; None without a posterior."""
    model: nn.Module
    posterior: BernoulliPosterior | None
    """Calibrated."""


def compete(
    contestant: Contestant, data: Split, seed: int, on_epoch: Callable[[Epoch], None] = lambda epoch: None
) -> Outcome:
    """Train one contestant and score it. The last tenth of the training data is held out for calibration."""
    started = time.perf_counter()
    held = len(data.train_inputs) // 10
    inputs, targets = data.train_inputs[:-held], data.train_targets[:-held]
    torch.manual_seed(seed)
    model = digits_network()
    optimizer = get_method(contestant.method).create(
        split_parameters(model)[0], train_set_size=len(inputs), seed=seed, **contestant.settings
    )
    fit(
        model,
        optimizer,
        inputs,
        targets,
        epochs=contestant.epochs,
        batch_size=contestant.batch_size,
        seed=seed,
        on_epoch=on_epoch,
    )
    seconds = time.perf_counter() - started
    if not optimizer.binary:
        scale = calibrate(model, None, data.train_inputs[-held:], data.train_targets[-held:])
        plain, scaled = (
            score(predict(model, None, data.test_inputs, calibration=each).probabilities, data.test_targets)
            for each in (None, scale)
        )
        report = Report(contestant.title, contestant.method, plain, scaled, None, None, None, None, 0, seconds)
        return Outcome(report, None, model, None)

    # The running statistics were gathered with relaxed weights; the mode and each sample need their own.
    posterior = optimizer.posterior()
    samples = 0 if posterior.saturated else SAMPLES  # if saturated, the mean equals the mode
    recalibrate(model, posterior, inputs.split(200))
    statistics = recalibrate(model, posterior, inputs.split(200), samples=samples, seed=seed)
    calibrated = calibrate(
        model,
        posterior,
        data.train_inputs[-held:],
        data.train_targets[-held:],
        samples=samples,
        seed=seed,
        statistics=statistics if samples else None,
    )

    def averaged(q: BernoulliPosterior, x: Tensor) -> Prediction:
        return predict(model, q, x, samples=samples, seed=seed, statistics=statistics)

    def scored(prediction: Prediction) -> Scores:
        return score(prediction.probabilities, data.test_targets)

    strengths = torch.cat([value.flatten().abs() for value in posterior.natural.values()])
    prediction = averaged(calibrated, data.test_inputs)
    noise = averaged(calibrated, uniform_noise(data.test_inputs, seed))
    report = Report(
        contestant.title,
        contestant.method,
        mode=scored(predict(model, posterior, data.test_inputs)),
        mode_calibrated=scored(predict(model, calibrated, data.test_inputs)),
        mean=scored(averaged(posterior, data.test_inputs)),
        mean_calibrated=scored(prediction),
        ood_auroc=metrics.ood_auroc(prediction.entropy, noise.entropy),
        median_strength=float(strengths.median()),
        binary_weights=check_binary(model),
        seconds=seconds,
    )
    return Outcome(report, prediction, model, calibrated)


def run_demo(*, all_methods: bool = False, seed: int = 0, as_json: bool = False) -> list[Report]:
    """Train, print the tables and return the numbers."""
    console = Console(stderr=as_json)
    # Layers this small run faster on one thread than on several that wait for each other.
    torch.set_num_threads(1)
    data = load_digits(seed)
    chosen = [CONTESTANTS[name] for name in (CONTESTANTS if all_methods else SHORT)]
    columns = (TextColumn("{task.description:24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    outcomes = []
    with Progress(*columns, TextColumn("{task.fields[note]}"), console=console) as progress:
        for contestant in chosen:
            task = progress.add_task(contestant.title, total=contestant.epochs, note="")

            def advance(epoch: Epoch, task: Any = task) -> None:
                note = f"train {epoch.train_accuracy:5.1f} %, flipped {100 * epoch.flip_ratio:4.1f} %"
                progress.update(task, completed=epoch.number, note=note)

            outcomes.append(compete(contestant, data, seed, advance))
    reports = [outcome.report for outcome in outcomes]
    if as_json:
        print(json.dumps([asdict(report) for report in reports], indent=2))
        return reports
    console.print(score_table(reports))
    spread = next(outcome for outcome in outcomes if outcome.report.title == CONTESTANTS["bayesbinn-spread"].title)
    explain_uncertainty(console, spread, data)
    sharp = next(outcome for outcome in outcomes if outcome.report.title == CONTESTANTS["bayesbinn"].title)
    if sharp.posterior is not None:
        show(console, sharp.report.title, ship(sharp.model, sharp.posterior, data.test_inputs))
    show_report(console, seed)
    return reports


def score_table(reports: list[Report]) -> Table:
    """Accuracy, NLL and ECE by mode and by mean, as trained and calibrated on held-out training data."""
    table = Table(title="scikit-learn digits, 360 test images; calibrated on held-out training images")
    table.add_column("method")
    table.add_column("by")
    for column in ("accuracy %", "NLL", "calibrated", "ECE", "calibrated"):
        table.add_column(column, justify="right")
    for report in reports:
        for how, raw, calibrated in (
            ("mode", report.mode, report.mode_calibrated),
            ("mean", report.mean, report.mean_calibrated),
        ):
            if raw is not None:
                nll, ece = (f"{calibrated.nll:.3f}", f"{calibrated.ece:.3f}") if calibrated else ("-", "-")
                by = "weights" if report.mean is None else how
                table.add_row(report.title, by, f"{raw.accuracy:.1f}", f"{raw.nll:.3f}", nll, f"{raw.ece:.3f}", ece)
    return table


def explain_uncertainty(console: Console, outcome: Outcome, data: Split, count: int = 4) -> None:
    """Show the digits that the posterior is least sure about, and how well it separates noise from digits."""
    report, prediction = outcome.report, outcome.mean
    if prediction is None:
        return
    table = Table(title=f"What {report.title} is unsure about (mean of {SAMPLES} networks drawn from the posterior)")
    chosen = prediction.entropy.argsort(descending=True)[:count].tolist()
    for index in chosen:
        table.add_column(f"a {int(data.test_targets[index])}", justify="left")
    table.add_row(*(draw_digit(data.test_inputs[index]) for index in chosen))
    guesses = []
    for index in chosen:
        best = prediction.probabilities[index].topk(2)
        lines = [f"{c}: {100 * p:.0f} %" for p, c in zip(best.values.tolist(), best.indices.tolist(), strict=True)]
        entropy, information = float(prediction.entropy[index]), float(prediction.mutual_information[index])
        guesses.append("\n".join([*lines, f"entropy {entropy:.2f}", f"from the model {information:.2f}"]))
    table.add_row(*guesses)
    console.print(table)
    console.print(
        f"The mean's entropy separates digits from uniform noise with AUROC {report.ood_auroc:.3f}; "
        f"median |λ| is {report.median_strength:.2f}. All {report.binary_weights:,} weights are exactly -1 or +1."
    )


def draw_digit(pixels: Tensor) -> str:
    """An 8×8 image in characters, two per pixel so that it looks square."""
    shades = " ░▒▓█"
    low, high = float(pixels.min()), float(pixels.max())
    levels = ((pixels - low) / (high - low) * 4.999).long().view(8, 8).tolist()
    return "\n".join("".join(shades[level] * 2 for level in row) for row in levels)
