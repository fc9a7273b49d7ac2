"""A run is self-contained: it rejects other data, needs its own only when it must, and keeps its best network."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_wine

import bayesbinn as bb
from bayesbinn import data, models
from bayesbinn.continual import Learner, Plan
from bayesbinn.data.card import DataCard
from bayesbinn.errors import InvalidFile, InvalidInput
from bayesbinn.experiments import Experiment, load_experiment
from bayesbinn.experiments.config import validated
from bayesbinn.runs.folder import load_run
from bayesbinn.runs.ship import pack_run
from bayesbinn.runs.single import Run
from bayesbinn.runs.stream import open_run
from bayesbinn.runs.trained import load_network, load_trained
from tests.helpers.commands import Call
from tests.helpers.processes import warm_python

NAMES = ("Barolo", "Grignolino", "Barbera")
TOLD = "these data differ from the run's data: "


pytestmark = pytest.mark.usefixtures("one_thread")


def write_wine(path: Path) -> Path:
    wine = load_wine()
    rows = [[*map(str, x), NAMES[label]] for x, label in zip(wine.data, wine.target, strict=True)]
    lines = [[*(f"c{k}" for k in range(13)), "cultivar"], *rows]
    path.write_text("\n".join(",".join(line) for line in lines) + "\n")
    return path


def wine_experiment(path: Path, **changes: Any) -> Experiment:
    raw: dict[str, Any] = {
        "title": "wine",
        "data": {"name": str(path), "label": "cultivar"},
        "model": {"name": "mnist_mlp", "width": 0.02},
        "training": {"epochs": 4, "batch_size": 32},
        "method": {"name": "bayesbinn", "settings": {"lr": 1e-3, "temperature": 1e-10}},
    }
    return validated({**raw, **changes}, "test")


def stream_experiment(path: Path) -> Experiment:
    return wine_experiment(path, model={"name": "continual_mlp", "width": 0.1}, continual={"tasks": 2, "samples": 2})


# ---- other data are rejected -----------------------------------------------------------------------


def _relabel(path: Path) -> None:
    path.write_text(path.read_text().replace("Barolo", "Zarolo"))


def _cut(path: Path) -> None:
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], *lines[1::2]]) + "\n")


def _reorder(path: Path) -> None:
    rows = [line.split(",") for line in path.read_text().splitlines()]
    path.write_text("\n".join(",".join([row[1], row[0], *row[2:]]) for row in rows) + "\n")


def _rename(path: Path) -> None:
    path.write_text(path.read_text().replace("c3", "ash", 1))


def _edit(path: Path) -> None:
    path.write_text(path.read_text().replace("14.23", "14.24", 1))


def _swap_labels(path: Path) -> None:
    lines = path.read_text().splitlines()
    lines[1] = lines[1].replace("Barolo", "Barbera")
    lines[-1] = lines[-1].replace("Barbera", "Barolo")
    path.write_text("\n".join(lines) + "\n")


CHANGES: list[tuple[Callable[[Path], None], str]] = [
    (_relabel, "classes: 'Barolo' only there, 'Zarolo' only here"),
    (_cut, "rows: 142 for training and 36 for testing there, 71 and 18 here"),
    (_reorder, "columns: the same names in another order"),
    (_rename, "columns: 'c3' only there, 'ash' only here"),
    (_edit, "values: the training inputs differ"),
    (_swap_labels, "values: the training"),
]


@pytest.mark.parametrize(("change", "message"), CHANGES, ids=[change.__name__ for change, _ in CHANGES])
def test_a_changed_table_is_neither_resumed_nor_evaluated(
    change: Callable[[Path], None],
    message: str,
    call: Call,
    tmp_path: Path,
) -> None:
    table, run = write_wine(tmp_path / "g.csv"), tmp_path / "run"
    train = ["train", table, "--label", "cultivar", "--epochs", "4", "--set", "model.width=0.02", "--out", run]
    assert call(*train, "--stop-after", "2").code == 0
    before = {path.name: path.read_bytes() for path in run.glob("*.*")}
    change(table)
    wanted = f"error: {run}: {TOLD}{message}"
    for answer in (call(*train), call("evaluate", run)):
        last = answer.err.splitlines()[-1]
        assert answer.code == 2 and last.startswith(wanted), last
        assert last.endswith("; restore the run's data, or train on these with another --out") and not answer.out
    with pytest.raises(InvalidInput, match=TOLD):
        Run.open(load_run(run)[0], run)
    with pytest.raises(InvalidInput, match=TOLD):
        load_trained(run)
    assert before == {path.name: path.read_bytes() for path in run.glob("*.*")}
    write_wine(table)
    assert call(*train).code == 0 and len(load_run(run)[1]) == 4


def test_settings_chosen_for_the_data_do_not_hide_that_the_data_changed(call: Call, tmp_path: Path) -> None:
    table, run = write_wine(tmp_path / "g.csv"), tmp_path / "run"
    train = ["train", table, "--label", "cultivar", "--set", "model.width=0.02", "--out", run, "--stop-after", "1"]
    assert call(*train).code == 0
    lines = table.read_text().splitlines()
    table.write_text("\n".join(lines + 3 * lines[1:]) + "\n")  # the number of epochs would now be different
    answer = call(*train)
    assert answer.code == 2 and f"{TOLD}rows: 142 " in answer.err


def test_a_run_in_a_sweep_process_rejects_other_data(tmp_path: Path) -> None:
    table, run = write_wine(tmp_path / "g.csv"), tmp_path / "run"
    experiment = wine_experiment(table)
    Run.open(experiment, run).train(stop_after=1)
    _relabel(table)
    request = {"folder": str(run), "threads": 1, "config": experiment.model_dump_json(exclude_none=True)}
    request |= {"name": "run", "data_dir": None, "stop_after": None}
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [warm_python(), "-m", "bayesbinn.runs.process"],
            stdin=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()  # it stays open because closing it would stop the run
        assert process.wait(120) == 1
        process.stdin.close()
    assert f"error: {run}: {TOLD}classes" in (tmp_path / "log").read_text()
    assert len(load_run(run)[1]) == 1


@pytest.mark.parametrize("change", [_relabel, _reorder, _edit])
def test_a_stream_rejects_other_data(change: Callable[[Path], None], tmp_path: Path) -> None:
    table, run = write_wine(tmp_path / "g.csv"), tmp_path / "run"
    open_run(stream_experiment(table), run).train(stop_after=1)
    change(table)
    with pytest.raises(InvalidInput, match=TOLD):
        open_run(stream_experiment(table), run)
    with pytest.raises(InvalidInput, match=TOLD):
        load_trained(run)
    write_wine(table)
    assert open_run(stream_experiment(table), run).task == 1


def test_a_learner_of_a_users_own_stream_rejects_another_stream(tmp_path: Path) -> None:
    def learner(shift: float) -> Learner:
        random = np.random.RandomState(0)
        y = random.randint(0, 2, 150)
        x = random.randn(150, 8).astype(np.float32)
        x[120] += shift  # not visible in the first rows
        torch.manual_seed(0)
        model = models.continual_mlp(2, inputs=8, width=0.1)
        binary, _ = bb.split_parameters(model)
        optimizer = bb.BayesBiNN(binary, lr=1e-2, train_set_size=150, temperature=0.3, seed=0)
        stream = data.stream_of([((x, y), (x[:140], y[:140]))])
        return Learner(model, optimizer, stream, Plan(epochs=1, batch_size=50, samples=2), folder=tmp_path / "own")

    learner(0.0).train()
    assert learner(0.0).finished
    with pytest.raises(InvalidInput, match=f"{TOLD}values: the training inputs, test inputs differ"):
        learner(1.0)


def test_published_data_have_a_card(tmp_path: Path) -> None:
    experiment = load_experiment("digits", overrides={"training.epochs": 1, "model.width": 0.02})
    Run.open(experiment, tmp_path).train()
    card = json.loads((tmp_path / "data.json").read_text())
    assert (card["train_rows"], card["validation_rows"], card["test_rows"]) == (1437, 143, 360)
    assert card["classes"] == list("0123456789") and len(card["fingerprint"]) == 64


# ---- without the data ------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["bayesbinn", "float"])
def test_predicting_packing_and_summaries_do_not_need_the_data(method: str, call: Call, tmp_path: Path) -> None:
    table, run, new = write_wine(tmp_path / "g.csv"), tmp_path / "run", write_wine(tmp_path / "new.csv")
    settings = ["--epochs", "3", "--set", "model.width=0.02", "--out", run, "--method", method]
    assert call("train", table, "--label", "cultivar", *settings).code == 0
    found = []
    for place in ("there", "gone"):
        answers = [
            call("predict", run, new, "--out", tmp_path / f"{place}.json").out.replace(place, ""),
            call("predict", run, new, "--out", tmp_path / f"{place}-best.json", "--epoch", "best").out.splitlines()[1],
            call("pack", run, "--out", tmp_path / f"{place}.safetensors").out.replace(place, ""),
            call("summary", run).out,
        ]
        files = [tmp_path / f"{place}{end}" for end in (".json", "-best.json", ".safetensors")]
        found.append((answers, [path.read_bytes() for path in files]))
        table.unlink(missing_ok=True)
    assert found[0] == found[1] and all(found[0][0])
    assert json.loads((tmp_path / "gone.json").read_text())[0]["class"] in NAMES
    answer = call("evaluate", run)
    assert answer.code == 2 and "no such file" in answer.err, "the scores need the test part"


def test_a_stream_predicts_without_its_data(call: Call, tmp_path: Path) -> None:
    table, run, new = write_wine(tmp_path / "g.csv"), tmp_path / "run", write_wine(tmp_path / "new.csv")
    open_run(stream_experiment(table), run).train(stop_after=1)
    assert call("predict", run, new, "--out", tmp_path / "a.json").code == 0
    table.unlink()
    answer = call("predict", run, new, "--out", tmp_path / "b.json")
    assert answer.code == 0, answer.err
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert call("pack", run).code == 0 and call("summary", run).code == 0
    answer = call("predict", run, new, "--epoch", "best")
    assert answer.code == 2 and "use --epoch last" in answer.err


def test_the_stored_calibration_comes_from_the_validation_part(tmp_path: Path) -> None:
    table = write_wine(tmp_path / "g.csv")
    Run.open(wine_experiment(table), tmp_path / "run").train()
    trained = load_network(tmp_path / "run")
    part = trained.parts().validation
    assert part is not None and trained.posterior is not None
    with pytest.warns(bb.errors.CalibrationWarning, match="14 validation rows"):
        fitted = bb.calibrate(trained.model, trained.posterior, *part.whole(), samples=10, batch_size=1000)
    assert trained.calibration == fitted.logit_scale != bb.LogitScale() == trained.posterior.logit_scale
    in_file = bb.BernoulliPosterior.load(tmp_path / "run" / "posterior.safetensors")
    assert in_file.logit_scale == fitted.logit_scale


def test_full_precision_is_calibrated(call: Call, tmp_path: Path) -> None:
    experiment = load_experiment("digits", method="float", overrides={"training.epochs": 3, "model.width": 0.02})
    Run.open(experiment, tmp_path).train()
    raw, fitted = (
        json.loads(call("evaluate", tmp_path, "--json", *extra).out)["weights"] for extra in (["--no-calibrate"], [])
    )
    assert fitted["NLL"] < raw["NLL"] - 0.1, "unit-variance logits are underconfident"
    stored = json.loads((tmp_path / "calibration.json").read_text())
    assert stored["last"]["epoch"] == 3 and stored["last"]["logit_scale"]["mode"] > 1
    assert stored.keys() == {"last", "best", "sha256"}
    assert call("pack", tmp_path, "--json").code == 0
    assert json.loads(call("inspect", tmp_path / "model.safetensors", "--json").out)["logit_scale"] == pytest.approx(
        stored["last"]["logit_scale"]["mode"], rel=1e-6
    )
    (tmp_path / "calibration.json").write_text('{"last": 3}')
    answer = call("evaluate", tmp_path)
    assert answer.code == 2 and "calibration.json: damaged" in answer.err
    Run.open(experiment, tmp_path).train()
    assert json.loads((tmp_path / "calibration.json").read_text()) == stored


def test_a_run_stopped_within_an_epoch_is_calibrated_on_its_data(call: Call, tmp_path: Path) -> None:
    table, run = write_wine(tmp_path / "g.csv"), tmp_path / "run"
    Run.open(wine_experiment(table), run).train(stop_after=1)
    state = torch.load(run / "checkpoint.pt", weights_only=True)
    (run / "posterior.safetensors").unlink()
    assert state["epoch"] == 2
    answer = call("predict", run, table, "--out", tmp_path / "p.json")
    assert answer.code == 0 and "fitted it on the data. Resume the run to store it" in answer.err
    table.unlink()
    assert call("predict", run, write_wine(tmp_path / "new.csv"), "--out", tmp_path / "p.json").code == 2
    plain = call("predict", run, tmp_path / "new.csv", "--out", tmp_path / "p.json", "--no-calibrate")
    assert plain.code == 0, plain.err


# ---- folders from older versions, and damaged cards --------------------------------------------------


def _as_written_before(run: Path) -> None:
    """The folder as older versions wrote it, without a card and a best network."""
    for name in ("data.json", "best.safetensors", "scores.json"):
        (run / name).unlink(missing_ok=True)
    state = torch.load(run / "checkpoint.pt", weights_only=True)
    state.pop("best", None)
    state.pop("card", None)
    state.pop("data", None)
    torch.save(state, run / "checkpoint.pt")


def test_a_folder_from_an_older_version_still_opens_and_gets_a_card(call: Call, tmp_path: Path) -> None:
    table, run = write_wine(tmp_path / "g.csv"), tmp_path / "run"
    train = ["train", table, "--label", "cultivar", "--epochs", "4", "--set", "model.width=0.02", "--out", run]
    assert call(*train, "--stop-after", "2").code == 0
    _as_written_before(run)
    for command in (("evaluate", run), ("predict", run, table, "--out", tmp_path / "p.csv"), ("pack", run)):
        assert call(*command).code == 0
    assert "were not stored" in call("evaluate", run, "--epoch", "best").err
    assert not (run / "data.json").exists()
    answer = call(*train)
    assert answer.code == 0 and f"{run} has no data.json" in answer.err and (run / "data.json").exists()
    _relabel(table)
    assert call(*train).code == 2


def test_a_stream_from_an_older_version_still_opens(tmp_path: Path) -> None:
    table, run = write_wine(tmp_path / "g.csv"), tmp_path / "run"
    open_run(stream_experiment(table), run).train(stop_after=1)
    _as_written_before(run)
    assert load_network(run).card.classes == tuple(sorted(NAMES))
    learner = open_run(stream_experiment(table), run)
    assert len(learner.notes) == 1 and (run / "data.json").exists()
    learner.train()
    assert learner.finished


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[:-20],
        lambda text: "[]",
        lambda text: text.replace("Barolo", "Zarolo"),
        lambda text: text.replace('"train_rows": 142', '"train_rows": 141'),
        lambda text: "[" * 100_000,
        lambda text: "\udcff",
    ],
)
def test_a_damaged_card_gets_one_line(damage: Callable[[str], str], tmp_path: Path) -> None:
    table, run = write_wine(tmp_path / "g.csv"), tmp_path / "run"
    Run.open(wine_experiment(table), run).train(stop_after=1)
    text = (run / "data.json").read_text()
    (run / "data.json").write_bytes(damage(text).encode(errors="surrogateescape"))
    for use in (lambda: load_network(run), lambda: Run.open(wine_experiment(table), run), lambda: pack_run(run)):
        with pytest.raises(InvalidFile, match=r"data.json: damaged or edited by hand") as caught:
            use()
        assert "\n" not in str(caught.value) and str(caught.value).endswith("restores it from the checkpoint")
    (run / "data.json").unlink()
    load_network(run)
    assert (run / "data.json").read_text() == text


def test_a_run_whose_card_was_deleted_still_knows_its_data(call: Call, tmp_path: Path) -> None:
    table, run, new = write_wine(tmp_path / "g.csv"), tmp_path / "run", write_wine(tmp_path / "new.csv")
    train = ["train", table, "--label", "cultivar", "--epochs", "4", "--set", "model.width=0.02", "--out", run]
    assert call(*train, "--stop-after", "2").code == 0
    card = (run / "data.json").read_bytes()
    _relabel(table)
    for command in (("evaluate", run), train):
        (run / "data.json").unlink(missing_ok=True)
        answer = call(*command)
        assert answer.code == 2 and f"{TOLD}classes: 'Barolo' only there, 'Zarolo' only here" in answer.err
    for command in (("predict", run, new, "--out", tmp_path / "p.json"), ("pack", run)):
        (run / "data.json").unlink(missing_ok=True)
        assert call(*command).code == 0 and (run / "data.json").read_bytes() == card
    assert {row["class"] for row in json.loads((tmp_path / "p.json").read_text())} <= set(NAMES)
    write_wine(table)
    (run / "data.json").unlink()
    answer = call(*train)
    assert answer.code == 0 and "has no data.json" not in answer.err and (run / "data.json").read_bytes() == card


def test_another_runs_card_is_rejected(call: Call, tmp_path: Path) -> None:
    tables = [write_wine(tmp_path / name) for name in ("a.csv", "b.csv")]
    _relabel(tables[1])
    runs = [tmp_path / "a", tmp_path / "b"]
    for table, run in zip(tables, runs, strict=True):
        Run.open(wine_experiment(table), run).train(stop_after=1)
    shutil.copy(runs[1] / "data.json", runs[0] / "data.json")
    told = (
        f"error: {runs[0] / 'data.json'}: does not belong to the checkpoint next to it (classes: 'Barolo' only in the"
    )
    for command in (("evaluate", runs[0]), ("predict", runs[0], tables[0]), ("pack", runs[0])):
        answer = call(*command)
        assert answer.code == 2 and answer.err.splitlines()[-1].startswith(told), answer.err
    with pytest.raises(InvalidFile, match="restores it from the checkpoint"):
        Run.open(wine_experiment(tables[0]), runs[0])
    (runs[0] / "data.json").unlink()
    assert load_network(runs[0]).card.classes == tuple(sorted(NAMES))


def test_a_stream_whose_card_was_deleted_or_replaced_still_knows_its_data(tmp_path: Path) -> None:
    table, run = write_wine(tmp_path / "g.csv"), tmp_path / "run"
    open_run(stream_experiment(table), run).train(stop_after=1)
    card = (run / "data.json").read_bytes()
    _relabel(table)
    open_run(stream_experiment(table), tmp_path / "other")
    (run / "data.json").unlink()
    with pytest.raises(InvalidInput, match=TOLD):
        open_run(stream_experiment(table), run)
    shutil.copy(tmp_path / "other" / "data.json", run / "data.json")
    with pytest.raises(InvalidFile, match="does not belong to the checkpoint next to it"):
        open_run(stream_experiment(table), run)
    (run / "data.json").unlink()
    write_wine(table)
    open_run(stream_experiment(table), run)
    assert (run / "data.json").read_bytes() == card


def test_a_card_that_contradicts_itself_is_rejected() -> None:
    card = DataCard.of(data.load("moons"))
    for wrong in ({"classes": ["a"]}, {"std": [0.0, 1.0]}, {"mean": [1.0] * 3}, {"version": 2}, {"input_shape": [0]}):
        content = json.loads(card.to_json()) | wrong
        content.pop("checksum")
        import hashlib

        content["checksum"] = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        with pytest.raises(InvalidFile, match="damaged or edited by hand"):
            DataCard.from_json(json.dumps(content), "data.json")


# ---- the best epoch --------------------------------------------------------------------------------

# The rate is so high that the accuracy goes up and down, and the last epoch is not the best.
NOISY = {"model.width": 0.02, "training.batch_size": 64, "training.epochs": 6, "lr": 0.3, "temperature": 0.5}
NOISY |= {"initial_strength": 1.0, "method.schedule.kind": "constant"}


@pytest.mark.parametrize("method", ["bayesbinn", "float", "ste"])
def test_the_best_networks_weights_are_kept(method: str, call: Call, tmp_path: Path) -> None:
    own = {**NOISY} if method == "bayesbinn" else {k: v for k, v in NOISY.items() if "." in k} | {"lr": 0.3}
    Run.open(load_experiment("digits", method=method, overrides=own), tmp_path).train()
    rows = load_run(tmp_path)[1]
    best = max(rows, key=lambda row: row["validation_accuracy"])
    assert best["epoch"] != rows[-1]["epoch"] and best["test_accuracy"] != rows[-1]["test_accuracy"]
    name = "weights" if method == "float" else "mode"
    for which, row in (("best", best), ("last", rows[-1])):
        arguments = ["evaluate", tmp_path, "--epoch", which, "--json", "--no-calibrate", "--samples", "0"]
        scores = json.loads(call(*arguments).out)
        assert scores[name]["accuracy"] == pytest.approx(row["test_accuracy"], abs=1e-4), which
        assert scores["epoch"] == f"{which}, {row['epoch']} of 6"
        assert scores[f"best validation (epoch {best['epoch']})"]["test"] == best["test_accuracy"]
        packed = call("pack", tmp_path, "--epoch", which, "--out", tmp_path / f"{which}.model")
        assert packed.code == 0 and f"(epoch: {which}, " in packed.out, packed.err
    assert (tmp_path / "best.model").read_bytes() != (tmp_path / "last.model").read_bytes()
    assert (tmp_path / "best.safetensors").exists() == (method != "float")


def test_the_best_network_is_the_same_after_stops_within_and_between_epochs(tmp_path: Path) -> None:
    experiment = load_experiment("digits", overrides=NOISY)
    Run.open(experiment, tmp_path / "whole").train()
    for last in (1, 3, 4):
        Run.open(experiment, tmp_path / "parts").train(stop_after=last)
    batches = iter(range(100))
    with pytest.raises(bb.errors.BayesbinnError, match="stopped in epoch 5"):
        Run.open(experiment, tmp_path / "parts").train(should_stop=lambda: next(batches) == 7)
    Run.open(experiment, tmp_path / "parts").train()
    whole, parts = (
        torch.load(tmp_path / name / "checkpoint.pt", weights_only=True)["best"] for name in ("whole", "parts")
    )
    assert whole["epoch"] == parts["epoch"] < 6
    for key in ("model", "natural"):
        assert whole[key].keys() == parts[key].keys()
        assert all(torch.equal(whole[key][name], parts[key][name]) for name in whole[key])
    files = [(tmp_path / name / "best.safetensors") for name in ("whole", "parts")]
    p, q = map(bb.BernoulliPosterior.load, files)
    assert p.logit_scale == q.logit_scale and all(torch.equal(p.natural[n], q.natural[n]) for n in p.natural)


def test_epochs_too_short_to_be_saved_are_still_candidates(tmp_path: Path) -> None:
    changes = {"training.epochs": 30, "training.evaluate_every": 1, "data.validation": 0.2}
    run = Run.open(load_experiment("moons", method="ste", overrides=changes), tmp_path)
    run.train()
    best = max(run.rows, key=lambda row: row["validation_accuracy"])
    trained = load_network(tmp_path, "best")
    part = trained.parts().validation
    assert part is not None
    x, y = part.whole()
    found = 100 * float((bb.predict(trained.model, trained.posterior, x).classes == y).float().mean())
    assert found == pytest.approx(best["validation_accuracy"], abs=1e-4)
    assert trained.epoch == f"best, {best['epoch']} of 30"


def test_without_validation_data_there_is_no_best_epoch(call: Call, tmp_path: Path) -> None:
    table = write_wine(tmp_path / "g.csv")
    experiment = wine_experiment(table, data={"name": str(table), "label": "cultivar", "validation": 0.0})
    Run.open(experiment, tmp_path / "run").train(stop_after=1)
    answer = call("evaluate", tmp_path / "run", "--epoch", "best")
    assert answer.code == 2 and "no epoch was evaluated on validation data" in answer.err
    assert call("evaluate", tmp_path / "run").code == 0


def test_a_copied_run_is_complete(tmp_path: Path) -> None:
    table = write_wine(tmp_path / "g.csv")
    Run.open(wine_experiment(table), tmp_path / "run").train()
    shutil.copytree(tmp_path / "run", tmp_path / "elsewhere")
    table.unlink()
    assert pack_run(tmp_path / "elsewhere").graph.classes == tuple(sorted(NAMES))
