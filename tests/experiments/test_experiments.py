"""Presets have the paper's settings, experiments survive a round trip, mistakes get one line, schedules are right."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest

from bayesbinn.errors import BayesbinnError
from bayesbinn.experiments import Experiment, load_experiment, preset_names
from bayesbinn.experiments.config import describe_presets, to_toml, tomllib
from bayesbinn.train.schedules import Cosine, Exponential, Step

PAIRS = [(preset, method) for preset, row in describe_presets().items() for method in row["methods"]]

# The paper's tables 5 to 9 as ALGORITHMS.md corrects them: preset, method, place, value.
PUBLISHED: list[tuple[str, str, str, Any]] = [
    ("mnist", "*", "training.epochs", 500),
    ("mnist", "*", "training.batch_size", 100),
    ("mnist", "*", "training.seed", 1),
    ("mnist", "*", "data.validation", 0.1),
    ("mnist", "*", "data.augment", False),
    ("mnist", "bayesbinn", "lr", 1e-4),
    ("mnist", "bayesbinn", "temperature", 1e-10),
    ("mnist", "bayesbinn", "method.train_set_scale", 1.0),
    ("mnist", "bayesbinn", "method.schedule.kind", "cosine"),
    ("mnist", "ste", "lr", 1e-2),
    ("mnist", "bop", "lr", 1e-5),
    ("mnist", "bop", "threshold", 1e-8),
    ("mnist", "pmf", "lr", 1e-3),
    ("mnist", "pmf", "beta_growth", 1.2),
    ("mnist", "float", "lr", 3e-4),
    ("cifar10", "*", "training.batch_size", 50),
    ("cifar10", "*", "training.seed", 10),
    ("cifar10", "*", "data.augment", True),
    ("cifar10", "bayesbinn", "lr", 3e-4),
    ("cifar10", "bayesbinn", "temperature", 1e-10),
    ("cifar10", "bayesbinn", "method.train_set_scale", 10.0),
    ("cifar10", "ste", "lr", 1e-2),
    ("cifar10", "bop", "lr", 1e-4),
    ("cifar10", "bop", "threshold", 1e-8),
    ("cifar10", "pmf", "lr", 1e-2),
    ("cifar10", "pmf", "weight_decay", 1e-4),
    ("cifar10", "pmf", "beta_growth", 1.05),
    ("cifar10", "float", "lr", 1e-2),
    ("cifar100", "bayesbinn", "lr", 3e-4),
    ("cifar100", "bayesbinn", "temperature", 1e-8),
    ("cifar100", "bop", "threshold", 1e-9),
    ("cifar100", "pmf", "weight_decay", 1e-4),
    ("cifar100", "float", "lr", 3e-3),
    ("lrnet-mnist", "*", "training.epochs", 190),
    ("lrnet-mnist", "*", "data.validation", 0.0),
    ("lrnet-mnist", "lrnet", "lr", 1e-2),
    ("lrnet-mnist", "bayesbinn", "lr", 1e-4),
    ("lrnet-cifar10", "*", "training.epochs", 290),
    ("lrnet-cifar10", "*", "data.validation", 0.0),
    ("lrnet-cifar10", "bayesbinn", "method.train_set_scale", 10.0),
    ("moons", "*", "training.epochs", 3000),
    ("moons", "*", "training.batch_size", 200),
    ("moons", "bayesbinn", "lr", 1e-3),
    ("moons", "bayesbinn", "temperature", 1.0),
    ("moons", "bayesbinn", "momentum", 0.99),
    ("moons", "bayesbinn", "mc_samples", 5),
    ("moons", "bayesbinn", "initial_strength", 15.0),
    ("moons", "bayesbinn", "method.binary_biases", True),
    ("moons", "ste", "lr", 0.1),
    ("moons", "ste", "method.binary_biases", False),
    ("snelson", "*", "training.epochs", 5000),
    ("snelson", "*", "model.output_batchnorm", True),
    ("snelson", "bayesbinn", "lr", 1e-4),
    ("snelson", "bayesbinn", "momentum", 0.99),
    ("snelson", "bayesbinn", "initial_strength", 10.0),
    ("snelson", "ste", "lr", 0.1),
    ("snelson", "ste", "method.schedule.kind", "constant"),
    ("mnist-learning-rates", "bayesbinn", "temperature", 1e-10),
    ("mnist-temperatures", "bayesbinn", "lr", 1e-4),
]


def place(experiment: Experiment, key: str) -> Any:
    """A setting by its dotted name; without a dot, one of the method."""
    if "." not in key:
        return experiment.method.settings[key]
    value: Any = experiment
    for step in key.split("."):
        value = getattr(value, step)
    return value


def test_there_is_a_preset_for_every_experiment_of_the_paper() -> None:
    paper = {"moons", "snelson", "mnist", "cifar10", "cifar100", "lrnet-mnist", "lrnet-cifar10"}
    assert set(preset_names()) >= paper | {"digits", "mnist-learning-rates", "mnist-temperatures"}
    for name in ("digits", "mnist", "cifar10", "cifar100"):
        assert {m for p, m in PAIRS if p == name} == {"bayesbinn", "ste", "bop", "pmf", "lrnet", "float"}


@pytest.mark.parametrize(("preset", "method"), PAIRS)
def test_every_preset_is_valid_and_survives_a_file(preset: str, method: str, tmp_path: Path) -> None:
    experiment = load_experiment(preset, method=method)
    assert experiment.method.name == method
    (tmp_path / "config.toml").write_text(experiment.to_toml(), encoding="utf-8")
    assert load_experiment(str(tmp_path / "config.toml")) == experiment


@pytest.mark.parametrize(("preset", "method", "key", "value"), PUBLISHED)
def test_the_presets_have_the_papers_settings(preset: str, method: str, key: str, value: Any) -> None:
    methods = [m for p, m in PAIRS if p == preset and method in ("*", m)]
    assert methods
    for name in methods:
        assert place(load_experiment(preset, method=name), key) == value


def test_without_a_method_the_first_one_is_used() -> None:
    assert load_experiment("mnist").method.name == "bayesbinn"


def test_changes_reach_every_section(tmp_path: Path) -> None:
    changes = {"lr": 0.5, "training.epochs": 3, "model.width": 0.5, "method.schedule.kind": "constant", "real_lr": 0.2}
    experiment = load_experiment("digits", method="ste", overrides={**changes, "betas": (0.8, 0.9)})
    assert experiment.method.settings == {"lr": 0.5, "betas": (0.8, 0.9)}
    assert (experiment.training.epochs, experiment.model.width, experiment.method.real_lr) == (3, 0.5, 0.2)
    assert experiment.method.schedule.kind == "constant"
    assert load_experiment("digits", method="ste").training.epochs == 40  # this does not change presets


BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"momemtum": 0.9}, "no setting 'momemtum'. Did you mean 'momentum'?"),
    ({"threshold": 0.9}, "method 'bayesbinn' has no setting 'threshold'."),
    ({"batch_size": 3}, "Did you mean 'training.batch_size'?"),
    ({"shedule": "cosine"}, "Did you mean 'schedule'?"),
    ({"training.epoch": 3}, "there is no setting 'training.epoch'. Did you mean 'epochs'?"),
    ({"trianing.epochs": 3}, "there is no section 'trianing'. Did you mean 'training'?"),
    ({"title.x": 3}, "there is no section 'title'"),
    ({"data.name.x": 3}, "'name' is a value, not a section"),
    ({"method.schedule.finale": 3}, "'method.schedule.cosine.finale'"),
    ({"method.schedule": {"kind": "exponential", "finla": 3}}, "Did you mean 'final'?"),
    ({"method.schedule.kind": "cosin"}, "'constant', 'cosine', 'exponential', 'step'"),
    ({"method.settings": 3}, "method.settings: input should be a valid dictionary (received 3)"),
    ({"training.epochs": 0}, "training.epochs: input should be greater than 0 (received 0)"),
    ({"training.epochs": "many"}, "training.epochs: input should be a valid integer"),
    ({"training.batch_size": 0}, "greater than 0 (received 0)"),
    ({"training.seed": -1}, "greater than or equal to 0 (received -1)"),
    ({"training.loss": "mae"}, "input should be 'cross_entropy', 'binary_cross_entropy' or 'mse'"),
    ({"data.validation": 1}, "input should be less than 1"),
    ({"model.width": 0}, "input should be greater than 0"),
    ({"model.width": math.inf}, "finite number"),
    ({"model.order": "mine"}, "'authors' or 'paper'"),
    ({"lr": -1}, "lr=-1: it must be a finite number, at least 0"),
    ({"lr": "fast"}, "lr='fast': it must be a finite number"),
    ({"temperature": 0}, "temperature=0: it must be a finite number above 0"),
    ({"init": "zero"}, "it must be 'random', 'sign'"),
    ({"mc_samples": 0}, "mc_samples"),
    ({"method.name": "sgd"}, "there is no method 'sgd'"),
]


@pytest.mark.parametrize(("changes", "message"), BROKEN, ids=[message[:40] for _, message in BROKEN])
def test_a_wrong_setting_gets_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BayesbinnError) as caught:
        load_experiment("digits", overrides=changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


FILES = [
    ("[data", "not TOML"),
    ('title = "x"\nmethod = 3\n[data]\nname = "digits"', "field required"),
    ('title = "x"\n[data]\nname = "digits"', "add a table [method], or [methods.NAME]"),
    ('title = "x"\nmethods = 3', "methods must be a table, received 3"),
    ('title = "x"\n[methods]\nste = 3', "ste must be a table, received 3"),
    ('title = "x"\ntraining = 3\n[methods.ste]\nlr = 0.1', "training must be a table"),
    (
        'title = "x"\n[methods.ste]\nlr = 0.1\n[modle]\nname = "vgg"',
        "there is no setting 'modle'. Did you mean 'model'",
    ),
    ('title = "x"\n[methods.ste]\nlr = 0.1', "data: field required"),
]


@pytest.mark.parametrize(("text", "message"), FILES, ids=[message for _, message in FILES])
def test_a_broken_file_gets_one_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(BayesbinnError) as caught:
        load_experiment(str(path))
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_that_is_not_text_gets_one_line(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BayesbinnError, match="cannot read the file"):
        load_experiment(str(tmp_path / "mine.toml"))


def test_a_missing_setting_and_an_absent_method_are_named(tmp_path: Path) -> None:
    base = (
        'title = "x"\n[data]\nname = "digits"\n[model]\nname = "mnist_mlp"\n[training]\nepochs = 1\nbatch_size = 32\n'
    )
    path = tmp_path / "mine.toml"
    path.write_text(base + "[methods.bayesbinn]\nlr = 0.1\n")
    with pytest.raises(
        BayesbinnError, match=r"needs 'temperature': pass .* for one network, or only certainty=100 for a posterior"
    ):
        load_experiment(str(path))
    assert load_experiment(str(path), overrides={"temperature": 1.0}).method.settings["temperature"] == 1.0
    with pytest.raises(BayesbinnError, match=r"has no method 'bayesbin'. Did you mean 'bayesbinn'\? It has: bayesbinn"):
        load_experiment(str(path), method="bayesbin")
    path.write_text(base + '[method]\nname = "float"\nsettings = { lr = 0.1 }\n')
    assert load_experiment(str(path), method="float").method.settings == {"lr": 0.1}
    with pytest.raises(BayesbinnError, match="is a complete experiment for 'float', not 'ste'"):
        load_experiment(str(path), method="ste")


def test_toml_keeps_every_kind_of_value() -> None:
    tree = {"a": 'quote " and \\ and \n', "b": {"c": {"x": 1e16, "y": 1e-300, "z": True}, "d": [1, 2.5]}, "n": -3}
    assert tomllib.loads(to_toml(tree)) == tree
    with pytest.raises(BayesbinnError, match=r"cannot write .* as TOML"):
        to_toml({"a": object()})


# ---- schedules -------------------------------------------------------------------------------------


def rates(preset: str, method: str, iterations: int | None = None, epochs: int | None = None) -> list[float]:
    """The learning rate of every epoch, or of every iteration if an epoch has several."""
    changes = {} if epochs is None else {"training.epochs": epochs}
    experiment = load_experiment(preset, method=method, overrides=changes)
    total, per = experiment.training.epochs, (iterations or 1)
    schedule, lr = experiment.method.schedule, experiment.method.settings["lr"]
    return [
        lr * schedule.factor(epoch, total, (epoch - 1 + i / per) / total)
        for epoch in range(1, total + 1)
        for i in range(per)
    ]


def test_the_cosine_is_the_authors_stepped_at_the_start_of_an_epoch() -> None:
    lr = rates("mnist", "bayesbinn")
    assert lr[0] == pytest.approx(1e-4 * (1 + math.cos(math.pi / 500)) / 2, rel=1e-12)
    assert lr[249] == pytest.approx(0.5e-4, rel=1e-9)
    assert lr[-1] == pytest.approx(0, abs=1e-20)
    assert Cosine().factor(3, 4, 0.0) == Cosine().factor(3, 4, 0.9)  # one rate for the whole epoch


def test_bop_decays_by_ten_to_the_minus_3_over_500_each_epoch() -> None:
    lr = rates("mnist", "bop")
    assert lr[0] == 1e-5
    for before, after in itertools.pairwise(lr):
        assert after / before == pytest.approx(10 ** (-3 / 500), rel=1e-9)
    assert Exponential(final=0.1).factor(1, 10, 0) == 1


def test_bop_on_cifar_drops_every_100_epochs() -> None:
    lr = rates("cifar10", "bop")
    assert [lr[e - 1] for e in (1, 100, 101, 200, 201, 500)] == pytest.approx([1e-4, 1e-4, 1e-5, 1e-5, 1e-6, 1e-8])


@pytest.mark.parametrize(("method", "start"), [("bayesbinn", 1e-3), ("ste", 0.1)])
def test_moons_drops_after_epochs_1500_and_2500(method: str, start: float) -> None:
    factors = [rate / start for rate in rates("moons", method)]
    assert factors[:1500] == pytest.approx([1.0] * 1500)
    assert factors[1500:2500] == pytest.approx([0.1] * 1000)
    assert factors[2500:] == pytest.approx([0.01] * 500)


@pytest.mark.parametrize(
    ("preset", "per_epoch", "interval", "start"), [("mnist", 540, 7_000, 1e-3), ("cifar10", 900, 30_000, 1e-2)]
)
def test_pmf_drops_within_an_epoch_at_exactly_the_published_iterations(
    preset: str, per_epoch: int, interval: int, start: float
) -> None:
    lr = rates(preset, "pmf", per_epoch)
    drops = [i for i in range(1, len(lr)) if lr[i] < lr[i - 1]]
    assert drops == list(range(interval, len(lr), interval))
    assert lr[0] == start and lr[interval] == pytest.approx(0.2 * start)


@pytest.mark.parametrize(("preset", "per_epoch", "epoch"), [("lrnet-mnist", 600, 100), ("lrnet-cifar10", 1000, 170)])
def test_lrnet_drops_between_two_epochs(preset: str, per_epoch: int, epoch: int) -> None:
    lr = rates(preset, "lrnet", per_epoch)
    assert [i for i in range(1, len(lr)) if lr[i] < lr[i - 1]] == [epoch * per_epoch]


def test_fewer_epochs_compress_every_schedule() -> None:
    assert rates("mnist", "bayesbinn", epochs=5) == pytest.approx(
        [1e-4 * (1 + math.cos(math.pi * (e - 0.5) / 5)) / 2 for e in range(1, 6)]
    )
    assert rates("mnist", "bop", epochs=5) == pytest.approx([1e-5 * 10 ** (-3 * e / 5) for e in range(5)])
    assert rates("cifar10", "bop", epochs=10)[::2] == pytest.approx([1e-4, 1e-5, 1e-6, 1e-7, 1e-8])
    assert rates("moons", "ste", epochs=6) == pytest.approx([0.1, 0.1, 0.1, 0.01, 0.01, 0.001])


def test_a_step_schedule_adds_up_fixed_and_regular_drops() -> None:
    step = Step(by=0.5, at=(0.5,), every=0.25)
    assert [step.factor(1, 1, progress) for progress in (0.0, 0.25, 0.5, 0.75)] == [1, 0.5, 0.125, 0.0625]
