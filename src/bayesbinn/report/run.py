"""The page of a run of one task."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayesbinn.data import Dataset
from bayesbinn.data.card import DataCard, read_card
from bayesbinn.errors import BayesbinnError
from bayesbinn.experiments.config import Experiment
from bayesbinn.report import classification, curves, examples, network, provenance, regression, speed
from bayesbinn.report.blocks import Block, Facts, Missing, Section, Text
from bayesbinn.report.page import Page
from bayesbinn.runs.folder import load_run
from bayesbinn.runs.trained import Trained, load_network
from bayesbinn.train.calibration import Which


@dataclass(frozen=True, eq=False)
class RunFacts:
    """Everything known about a run. What could not be read is None, and `problem` or `no_data` says why."""

    folder: Path
    experiment: Experiment
    rows: list[dict[str, Any]]
    card: DataCard | None
    trained: Trained | None
    network: network.Network | None
    problem: str
    dataset: Dataset | None
    no_data: str
    scored: classification.Scored | None
    regressed: regression.Regressed | None


def gather(folder: Path, data_dir: Path | None, epoch: Which = "last") -> RunFacts:
    """Read the folder, then the data. A run without its data, or without a finished epoch, is not an error."""
    experiment, rows = load_run(folder)
    trained, untested, problem = None, None, ""
    try:
        trained = load_network(folder, epoch, data_dir)
    except BayesbinnError as error:
        problem = str(error)
        with suppress(BayesbinnError):
            untested = load_network(folder, epoch, to_predict=False)
    card = trained.card if trained is not None else read_card(folder)
    dataset, no_data = None, problem
    scored: classification.Scored | None = None
    regressed: regression.Regressed | None = None
    if trained is not None:
        try:
            dataset = trained.load_data(data_dir)
            test = dataset.split(experiment.data.validation, experiment.split_seed).test
            if test is None:
                no_data = f"{dataset.name} has no test targets"
            elif dataset.task == "regression":
                regressed = regression.gather(trained, *test.whole(), data_dir)
            else:
                scored = classification.gather(trained, *test.whole(), data_dir)
        except BayesbinnError as error:
            no_data = str(error)
    shown = trained or untested
    found = None if shown is None else network.gather(shown)
    return RunFacts(folder, experiment, rows, card, trained, found, problem, dataset, no_data, scored, regressed)


def page(facts: RunFacts, *, measure_speed: bool) -> Page:
    """Every section of a run."""
    sections = [curves.section(curves.gather(facts.experiment, facts.rows), facts.experiment)]
    sections += _tested(facts)
    trained, found = facts.trained, facts.network
    if found is None:
        sections.append(Section("Network", [Missing(facts.problem)]))
    else:
        sections += [network.weights_section(found), network.layers_section(found.sizes)]
    if trained is not None:
        sections.append(speed.section(lambda: speed.of_run(trained), measure_speed))
    sections.append(provenance.section(facts.experiment, facts.card, facts.folder))
    return Page(facts.folder.resolve().name, facts.experiment.title, [Facts(headline(facts), large=True)], sections)


def _tested(facts: RunFacts) -> list[Section]:
    if facts.scored is not None and facts.dataset is not None:
        return [
            classification.scores_section(facts.scored),
            classification.confusion_section(facts.scored),
            classification.certainty_section(facts.scored),
            examples.section(facts.scored, facts.dataset),
        ]
    if facts.regressed is not None and facts.dataset is not None:
        return [*regression.sections(facts.regressed), examples.regression_section(facts.regressed, facts.dataset)]
    about: list[Block] = [Missing(facts.no_data)]
    if facts.trained is not None:
        about.append(Text("Scores, confusion, certainty and examples need the rows, which a run does not store."))
    return [Section("Test scores", about)]


def headline(facts: RunFacts) -> list[tuple[str, str]]:
    """The numbers at the top."""
    found = {"method": facts.experiment.method.name}
    if facts.rows:
        found["epochs"] = f"{facts.rows[-1]['epoch']} of {facts.experiment.training.epochs}"
        found["training time"] = duration(sum(float(row["seconds"]) for row in facts.rows))
    if facts.scored is not None:
        found["test accuracy"] = f"{score_of(facts.scored):.2f} %"
    elif facts.regressed is not None:
        found["test RMSE"] = f"{facts.regressed.scores['RMSE']:.4g}"
    elif facts.rows and facts.rows[-1].get("test_accuracy") is not None:
        found["test accuracy"] = f"{facts.rows[-1]['test_accuracy']:.2f} %"
    if facts.network is not None:
        found |= network.headline(facts.network.sizes)
    return list(found.items())


def score_of(scored: classification.Scored) -> float:
    """Test accuracy in percent."""
    return 100 * float((scored.calibrated.classes.numpy() == scored.targets).mean())


def duration(seconds: float) -> str:
    """Time for people.

    >>> duration(42.4), duration(200), duration(9000)
    ('42 s', '3.33 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.3g} min" if seconds < 6000 else f"{seconds / 3600:.3g} h"
