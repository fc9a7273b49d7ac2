"""With a certainty, BatchNorm's statistics in training belong to other weights than those that predict."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bayesbinn.data import Part
from bayesbinn.data.normalise import Normaliser
from bayesbinn.errors import InvalidFile, InvalidInput
from bayesbinn.experiments.config import Experiment
from bayesbinn.posterior import LogitScale
from bayesbinn.prediction.batchnorm import layers_with_statistics, recalibrate
from bayesbinn.prediction.predicting import predict
from bayesbinn.report.run import gather, page
from bayesbinn.runs.evaluate import evaluate_run
from bayesbinn.runs.ship import pack_run
from bayesbinn.runs.single import Run
from bayesbinn.runs.trained import load_network
from bayesbinn.runtime import load
from bayesbinn.train import calibration, statistics
from bayesbinn.train.folder import RunFolder
from bayesbinn.train.progress import Progress, RunStopped
from tests.helpers.commands import Call
from tests.runs.test_data import wine_experiment, write_wine

pytestmark = pytest.mark.usefixtures("one_thread")

SPREAD_OUT = {"name": "bayesbinn", "settings": {"certainty": 100}}
FILES = ("statistics.safetensors", "best-statistics.safetensors")


def experiment(folder: Path, **training: Any) -> Experiment:
    settings = {"epochs": 3, "batch_size": 32, "mean_samples": 2, **training}
    return wine_experiment(write_wine(folder / "g.csv"), method=SPREAD_OUT, training=settings)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    Run.open(experiment(tmp_path), tmp_path / "run").train()
    return tmp_path / "run"


def training_rows(folder: Path) -> torch.Tensor:
    return load_network(folder).parts().train.whole()[0]


def test_the_mode_has_the_statistics_of_its_own_weights(run: Path) -> None:
    trained = load_network(run)
    assert trained.posterior is not None
    kept = {name: buffer.clone() for name, buffer in trained.model.named_buffers()}
    recalibrate(trained.model, trained.posterior, [training_rows(run)])
    compared = [name for name in kept if not name.endswith("tracked")]
    assert len(compared) == 2 * len(layers_with_statistics(trained.model)) > 0
    for name, buffer in trained.model.named_buffers():
        if name in compared:
            torch.testing.assert_close(kept[name], buffer, msg=name)


def test_the_mean_of_samples_uses_statistics_of_each_sample(run: Path) -> None:
    trained = load_network(run)
    part = trained.parts().test
    assert part is not None and trained.posterior is not None and trained.calibration is not None
    x, y = part.whole()
    for samples in (10, 3, 12):  # as many as are stored, fewer and more
        own = recalibrate(trained.model, trained.posterior, [training_rows(run)], samples=samples)
        found = predict(trained.model, trained.posterior, x, samples, statistics=own, calibration=trained.calibration)
        scores = evaluate_run(run, samples, True, None)[f"mean of {samples}"]
        assert scores["NLL"] == pytest.approx(-found.probabilities[torch.arange(len(y)), y].log().mean().item(), 1e-4)
    shared = predict(trained.model, trained.posterior, x, 12, calibration=trained.calibration)
    assert not torch.allclose(shared.probabilities, found.probabilities, atol=1e-3)


def test_the_scores_of_an_epoch_are_those_of_the_stored_network(run: Path) -> None:
    row = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    found = evaluate_run(run, 2, False, None)
    assert found["mode"]["accuracy"] == pytest.approx(row["test_accuracy"])
    assert found["mean of 2"]["accuracy"] == pytest.approx(row["test_accuracy_mean"])


def test_a_model_file_has_the_statistics_of_each_sample(run: Path, tmp_path: Path) -> None:
    trained = load_network(run)
    part = trained.parts().test
    assert part is not None
    pack_run(run, tmp_path / "mean.safetensors", samples=4)
    raw = part.whole()[0] * torch.tensor(trained.card.std) + torch.tensor(trained.card.mean)
    found = load(tmp_path / "mean.safetensors").predict_proba(raw.numpy().astype(np.float32))
    own = recalibrate(trained.model, trained.posterior, [training_rows(run)], samples=4)
    expected = predict(
        trained.model, trained.posterior, part.whole()[0], 4, statistics=own, calibration=trained.calibration
    )
    np.testing.assert_allclose(found, expected.probabilities.numpy(), atol=1e-4)


def test_the_stored_statistics_serve_predictions_without_the_training_data(run: Path, call: Call) -> None:
    table = run.parent / "g.csv"
    new = table.rename(run.parent / "new.csv")
    answer = call("predict", run, new, "--out", run.parent / "p.csv", "--samples", "10")
    assert answer.code == 0, answer.err
    answer = call("predict", run, new, "--out", run.parent / "p.csv", "--samples", "11")
    assert answer.code == 2
    assert (
        "has BatchNorm statistics for 10 samples of seed 0; 11 samples of seed 0 need the training data" in answer.err
    )


def test_a_changed_file_is_rejected_and_resuming_rewrites_it(run: Path, call: Call) -> None:
    path = run / FILES[0]
    before = path.read_bytes()
    path.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    damaged = r"statistics\.safetensors: not a complete file of BatchNorm statistics.*resuming the run rewrites it"
    with pytest.raises(InvalidFile, match=damaged):
        load_network(run)
    Run.open(experiment(run.parent), run).train()
    assert path.read_bytes() == before


def test_statistics_of_another_posterior_are_not_used(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    Run.open(experiment(tmp_path, seed=5), other).train()
    (run / FILES[0]).write_bytes((other / FILES[0]).read_bytes())
    assert load_network(run).statistics is None


def test_a_run_without_statistics_gets_them_and_a_new_calibration(run: Path) -> None:
    """Versions that did not store them calibrated the mean with the mode's statistics."""
    expected = load_network(run).calibration
    posterior = load_network(run).posterior
    assert posterior is not None and expected is not None
    for name in FILES:
        (run / name).unlink()
    older = load_network(run)
    assert older.statistics is None
    validation = older.parts().validation
    assert validation is not None
    fitted = calibration.fitted(older.model, posterior, validation)
    assert fitted.mean != expected.mean
    with RunFolder.locked(run) as folder:
        calibration.store(folder, "last", 3, older.model, posterior, fitted)
    older = load_network(run)
    assert older.calibration is None, "it was fitted to other predictions"
    found, notes = older.find_calibration()
    assert found == expected and "Resume the run to store it" in notes[0]
    table = run.parent / "g.csv"
    hidden = table.rename(run.parent / "hidden.csv")
    with pytest.raises(InvalidInput, match=r"needs? the training data \(resuming it stores 10 of seed 0\)"):
        older.sample_statistics(10)
    hidden.rename(table)
    Run.open(experiment(run.parent), run).train()
    assert load_network(run).calibration == expected


def test_a_regression_measures_its_error_with_each_samples_statistics(tmp_path: Path) -> None:
    table = write_wine(tmp_path / "g.csv")
    text = [line.rsplit(",", 1)[0] for line in table.read_text().splitlines()]
    table.write_text("\n".join(text) + "\n")
    quantity = wine_experiment(
        table,
        data={"name": str(table), "label": "c12", "task": "regression"},
        method=SPREAD_OUT,
        training={"epochs": 2, "batch_size": 32, "mean_samples": 0, "loss": "mse"},
    )
    Run.open(quantity, tmp_path / "run").train()
    trained = load_network(tmp_path / "run")
    validation = trained.parts().validation
    assert validation is not None and trained.residuals is not None and trained.statistics is not None
    x, y = validation.whole()
    found = predict(trained.model, trained.posterior, x, 10, task="regression", statistics=trained.statistics)
    left = (found.mean.view_as(y) - y).double().square() - found.std.view_as(y).double().square()
    expected = trained.card.target_std * max(0.0, float(left.mean()) * len(y) / (len(y) - 2)) ** 0.5
    assert trained.residuals.mean == pytest.approx(expected)


def test_one_network_keeps_the_statistics_of_training_as_the_authors_do(tmp_path: Path) -> None:
    plain = wine_experiment(write_wine(tmp_path / "g.csv"))
    run = Run.open(plain, tmp_path / "run")
    run.train()
    assert not any((tmp_path / "run" / name).exists() for name in FILES)
    kept = [buffer.clone() for name, buffer in run.model.named_buffers() if name.endswith("running_mean")]
    recalibrate(run.model, None, [training_rows(tmp_path / "run")])
    own = [buffer for name, buffer in run.model.named_buffers() if name.endswith("running_mean")]
    assert not any(torch.equal(one, other) for one, other in zip(kept, own, strict=True))


def test_a_stopped_run_ends_with_the_same_bits(run: Path, tmp_path: Path) -> None:
    Run.open(experiment(tmp_path), tmp_path / "parts").train(stop_after=1)
    Run.open(experiment(tmp_path), tmp_path / "parts").train()
    for name in (*FILES, "posterior.safetensors", "best.safetensors"):
        assert (tmp_path / "parts" / name).read_bytes() == (run / name).read_bytes(), name


def test_the_best_network_is_calibrated_again_if_it_is_the_last(tmp_path: Path) -> None:
    run = tmp_path / "run"
    Run.open(experiment(tmp_path, epochs=1), run).train()
    expected = load_network(run).calibration
    wrong = LogitScale(mode=2.0, mean=3.0)
    for name in FILES:
        (run / name).unlink()
    for which in ("last", "best"):
        found = load_network(run, which)
        with RunFolder.locked(run) as folder:
            calibration.store(folder, which, 1, found.model, found.posterior, wrong)
    Run.open(experiment(tmp_path, epochs=1), run).train()
    assert load_network(run).calibration == load_network(run, "best").calibration == expected != wrong


def test_a_run_stopped_in_its_calibration_predicts_as_if_it_had_ended(run: Path, tmp_path: Path) -> None:
    stopped = tmp_path / "stopped"
    shares: list[float] = []

    def heard(progress: Progress) -> None:
        if progress.calibrated is not None:
            shares.append(progress.calibrated)

    with pytest.raises(RunStopped):
        Run.open(experiment(tmp_path), stopped).train(on_progress=heard, should_stop=lambda: bool(shares))
    assert load_network(stopped).statistics is None
    found, expected = (evaluate_run(each, 10, True, None)["mean of 10"] for each in (stopped, run))
    assert found == expected
    pack_run(stopped, tmp_path / "one.safetensors", samples=10)
    pack_run(run, tmp_path / "other.safetensors", samples=10)
    assert (tmp_path / "one.safetensors").read_bytes() == (tmp_path / "other.safetensors").read_bytes()


def test_a_run_stopped_within_an_epoch_predicts_with_statistics_of_its_mode(tmp_path: Path) -> None:
    stopped, batches = tmp_path / "stopped", []

    def heard(progress: Progress) -> None:
        batches.append(progress)

    with pytest.raises(RunStopped):
        Run.open(experiment(tmp_path), stopped).train(on_progress=heard, should_stop=lambda: len(batches) > 6)
    trained = load_network(stopped)
    assert "batches" in trained.epoch
    kept = {name: buffer.clone() for name, buffer in trained.model.named_buffers() if not name.endswith("tracked")}
    recalibrate(trained.model, trained.posterior, [training_rows(stopped)])
    for name, buffer in trained.model.named_buffers():
        if name in kept:
            torch.testing.assert_close(kept[name], buffer, msg=name)
    (tmp_path / "g.csv").unlink()
    why = r"its BatchNorm needs the training data \(resume it to the end of an epoch\): .*g\.csv"
    with pytest.raises(InvalidInput, match=why):
        load_network(stopped)
    facts = gather(stopped, None)
    assert facts.trained is None and facts.network is not None and "resume it" in facts.problem
    titles = [section.title for section in page(facts, measure_speed=False).sections]
    assert {"Weights", "Layers"} < set(titles)


def test_a_checkpoint_without_an_evaluation_predicts_with_statistics_of_its_mode(tmp_path: Path) -> None:
    """As after a crash: the last checkpoint may be that of any epoch."""

    class Crash(Exception):
        pass

    def crash(progress: Progress) -> None:
        if progress.row is not None and progress.row["epoch"] == 3:
            raise Crash

    found = []
    for every in (4, 1):
        folder = tmp_path / str(every)
        run = Run.open(experiment(tmp_path, epochs=8, evaluate_every=every), folder)
        with pytest.raises(Crash):
            run.train(on_progress=crash, checkpoint_seconds=0)
        trained = load_network(folder)
        assert trained.epoch == "last, 3 of 8"
        found.append(dict(trained.model.named_buffers()))
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(found[0][name], buffer) for name, buffer in found[1].items())


@pytest.mark.parametrize("period", [2, 4, 10])
def test_batches_of_periodic_data_have_all_classes(period: int) -> None:
    targets = torch.arange(20_000) % period
    part = Part(targets.float().unsqueeze(1), targets, Normaliser(torch.zeros(1), torch.ones(1)))
    classes = targets[statistics.rows_of(part)]
    assert len(classes) == statistics.ROWS == len(statistics.rows_of(part).unique())
    for batch in classes.split(statistics.BATCH):
        assert batch.bincount(minlength=period).min() > statistics.BATCH / period / 2


def test_statistics_can_be_sent_to_another_process(run: Path) -> None:
    """Data-parallel ranks get them from rank 0."""
    stored = load_network(run).statistics
    assert stored is not None
    received = pickle.loads(pickle.dumps(stored))
    assert repr(received) == repr(copy.deepcopy(stored)) == repr(stored)
    assert all(torch.equal(received.tensors[name], value) for name, value in stored.tensors.items())
