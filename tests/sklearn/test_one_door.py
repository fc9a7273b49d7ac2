"""The estimator and the command line choose alike, and the estimator's calibration sees rows as new ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import torch

from bayesbinn.experiments.choose import choose_for_file
from bayesbinn.runs.data import load_data
from bayesbinn.sklearn import BinaryNetworkClassifier
from bayesbinn.sklearn.training import Budget, Sample, Trainer, train


def test_the_command_line_chooses_what_the_estimator_chooses(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = 400
    table = pd.DataFrame({"a": rng.normal(size=rows), "b": np.exp(2 * rng.normal(size=rows)), "c": ["x", "y"] * 200})
    table["label"] = np.where(table["a"] + (table["c"] == "x") > 0, "yes", "no")
    table.to_csv(tmp_path / "t.csv", index=False)
    experiment, notes = choose_for_file(str(tmp_path / "t.csv"), "label", "bayesbinn", {})
    dataset = load_data(experiment, None)
    assert dataset.encoding is not None
    kept = len(dataset.train_inputs) - int(0.1 * len(dataset.train_inputs))
    # The estimator's own split leaves it as many rows to learn from as the run has.
    model = BinaryNetworkClassifier(random_state=0, conformal_fraction=0.0, calibration_fraction=0.0)
    model.fit(table.drop(columns="label")[:kept], table["label"][:kept])
    assert [column.codes for column in model.encoding_.columns[:2]] == [("line",), ("line", "rank")]
    ours = [(column.kind, column.width) for column in model.encoding_.columns]
    assert ours == [(column.kind, column.width) for column in dataset.encoding.columns]
    network = experiment.model
    assert (network.hidden,) * network.layers == model.hidden_ and network.networks == model.networks_
    assert network.copies == model._fitted.trainer.network.copies
    assert experiment.training.epochs == model.n_iter_
    assert experiment.method.settings == {"certainty": 1000.0}
    assert any("also coded by rank" in note and note.endswith(": b") for note in notes)


def test_a_network_of_a_fold_does_not_learn_from_its_fold() -> None:
    x = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
    folds = np.arange(40) % 4
    first, second = (np.where(folds == 2, flipped, (x[:, 0] > 0).astype(np.int64)) for flipped in (0, 1))
    outputs = []
    for y in (first, second):
        sample = Sample.of(x, y, np.ones(40), folds)
        trainer = Trainer.new((2, 8, 2), 1, 1, "ste", {"lr": 1e-2}, 40, seed=0, folds=4)
        train(trainer, sample, sample.rows(torch.arange(0)), Budget(3, 8))
        trainer.settle(sample)
        outputs.append(trainer.outputs_for_new_rows(sample)[0].numpy())
    assert np.array_equal(outputs[0][folds == 2], outputs[1][folds == 2]), "the labels of fold 2 reached its network"
    assert not np.array_equal(outputs[0][folds == 1], outputs[1][folds == 1])


def test_few_rows_are_calibrated_by_all_of_them_and_many_by_a_part() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2400, 3))
    y = x[:, 0] + rng.normal(size=2400) > 0
    sizes = []
    for rows in (200, 2400):
        model = BinaryNetworkClassifier(random_state=0, epochs=1).fit(x[:rows], y[:rows])
        sizes.append(model._packed.file.sections["calibration"].numbers["rows"])
    assert sizes == [180, 240]
