"""Which runs keep the authors' cosine, which end above 0, and that a run of one epoch trains."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from bayesbinn.errors import BayesbinnError
from bayesbinn.experiments import Experiment, load_experiment, preset_names
from bayesbinn.experiments.config import describe_presets, validated
from bayesbinn.runs import stream
from bayesbinn.runs.folder import refuse_another
from bayesbinn.runs.single import Run
from bayesbinn.train.schedules import Cosine
from tests.helpers.commands import call, done

STREAM = {"continual.tasks": 2, "continual.samples": 0, "training.seed": 3}


def end_of(experiment: Experiment) -> str:
    schedule = experiment.method.schedule
    assert isinstance(schedule, Cosine)
    return schedule.end


def rates(folder: Path) -> list[float]:
    return [json.loads(line)["lr"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def without_end(config: Path) -> None:
    """Rewrite the file as older versions did, which did not state how a cosine ends."""
    lines = config.read_text().splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith("end = ")]
    assert len(kept) == len(lines) - 1
    config.write_text("".join(kept))


# ---- which schedule --------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", preset_names())
def test_a_preset_at_its_original_length_keeps_the_authors_cosine_bit_for_bit(preset: str) -> None:
    for method in describe_presets()[preset]["methods"]:
        experiment = load_experiment(preset, method=method, overrides={"training.seed": 77, "lr": 0.5})
        schedule, total = experiment.method.schedule, experiment.training.epochs
        if isinstance(schedule, Cosine) and not schedule.every_batch:
            for epoch in range(1, total + 1):
                assert schedule.factor(epoch, total, 0.3) == 0.5 * (1 + math.cos(math.pi * (epoch / total)))


@pytest.mark.parametrize(
    "changes",
    [
        {"training.epochs": 1},
        {"training.epochs": 41},
        {"data.name": "my.csv"},
        {"method.schedule": {"kind": "cosine"}, "training.epochs": 7},
    ],
)
def test_a_different_length_or_other_data_ends_above_zero(changes: dict[str, Any]) -> None:
    experiment = load_experiment("digits", overrides=changes)
    total = experiment.training.epochs
    factors = [experiment.method.schedule.factor(epoch, total, 0.0) for epoch in range(1, total + 1)]
    assert end_of(experiment) == "above_zero"
    assert factors == sorted(factors, reverse=True) and 0 < factors[-1] <= 0.5 <= factors[0] < 1


def test_the_user_may_choose_either_end() -> None:
    assert end_of(load_experiment("digits", overrides={"method.schedule.end": "above_zero"})) == "above_zero"
    changes = {"training.epochs": 3, "method.schedule.end": "authors"}
    assert end_of(load_experiment("digits", overrides=changes)) == "authors"
    whole = {"training.epochs": 3, "method.schedule": {"kind": "cosine", "end": "authors"}}
    assert end_of(load_experiment("digits", overrides=whole)) == "authors"


def test_a_cosine_that_advances_with_every_batch_is_the_same_at_any_length() -> None:
    for changes in ({}, {"training.epochs": 3}):
        schedule = load_experiment("permuted-mnist-100-plain", overrides=changes).method.schedule
        assert [schedule.factor(1, 1, progress) for progress in (0.0, 0.5)] == [1.0, pytest.approx(0.5)]


def test_a_users_own_experiment_ends_above_zero(tmp_path: Path) -> None:
    text = load_experiment("digits", overrides={"training.epochs": 1}).to_toml()
    mine = tmp_path / "mine.toml"
    mine.write_text(text)
    without_end(mine)
    assert end_of(load_experiment(str(mine))) == "above_zero"


def test_an_experiment_survives_its_file_and_changed_ones_end_above_zero(tmp_path: Path) -> None:
    for changes, end in (({}, "authors"), ({"training.epochs": 5}, "above_zero")):
        experiment = load_experiment("digits", overrides=changes)
        for name in ("config.toml", "copy.toml"):
            (tmp_path / name).write_text(experiment.to_toml())
            assert end_of(load_experiment(str(tmp_path / name))) == end
            shorter = load_experiment(str(tmp_path / name), overrides={"training.epochs": 2})
            assert end_of(shorter) == "above_zero"
        assert validated(json.loads(experiment.model_dump_json()), "a sweep") == experiment


# ---- training --------------------------------------------------------------------------------------


def test_one_epoch_of_a_preset_learns(tmp_path: Path) -> None:
    answer = call("train", "digits", "--epochs", 1, "--out", tmp_path / "run", "--json")
    assert json.loads(answer.out)["last epoch"]["test"] > 60
    assert rates(tmp_path / "run") == [pytest.approx(0.5e-3)]
    assert "learning rate: cosine, ends above 0" in answer.err


def test_stop_after_keeps_the_presets_schedule(tmp_path: Path) -> None:
    small = ["--set", "model.width=0.02", "--out", tmp_path / "run"]
    answer = call("train", "digits", "--stop-after", 2, *small)
    assert answer.code == 0
    assert rates(tmp_path / "run") == [1e-3 * (0.5 * (1 + math.cos(math.pi * (epoch / 40)))) for epoch in (1, 2)]
    assert "learning rate" not in answer.err, "no choice was made on the user's behalf"


def test_a_stream_of_one_epoch_per_task_trains(tmp_path: Path) -> None:
    experiment = load_experiment("permuted-digits", overrides={**STREAM, "training.epochs": 1})
    assert end_of(experiment) == "above_zero"
    learner = stream.open_run(experiment, tmp_path / "run")
    start = learner.optimizer.posterior().natural
    learner.train()
    after = learner.optimizer.posterior().natural
    assert learner.optimizer.param_groups[0]["lr"] == pytest.approx(0.5 * 3e-2)
    assert any(not torch.equal(start[name], after[name]) for name in start)


# ---- older runs -------------------------------------------------------------------------------------


def test_a_run_begun_with_the_authors_cosine_resumes_with_it(tmp_path: Path) -> None:
    small = ["--set", "model.width=0.02"]
    arguments = ["train", "digits", "--epochs", 3, *small, "--out"]
    asked = [*arguments, tmp_path / "asked", "--set", "method.schedule.end=authors"]
    done(*asked)
    done(*asked[:-3], tmp_path / "old", *asked[-2:], "--stop-after", 1)
    without_end(tmp_path / "old" / "config.toml")
    done(*arguments, tmp_path / "old")
    assert rates(tmp_path / "old") == rates(tmp_path / "asked")
    assert rates(tmp_path / "old")[-1] == pytest.approx(0, abs=1e-12)
    old, whole = (Run.load(tmp_path / name).optimizer.posterior().natural for name in ("old", "asked"))
    assert all(torch.equal(old[name], whole[name]) for name in whole)


def test_a_run_begun_today_is_not_mistaken_for_an_older_one(tmp_path: Path) -> None:
    begun = load_experiment("digits", overrides={"training.epochs": 3, "method.schedule.end": "authors"})
    (tmp_path / "config.toml").write_text(begun.to_toml())
    wanted = load_experiment("digits", overrides={"training.epochs": 3})
    with pytest.raises(BayesbinnError, match=r"method\.schedule\.end is 'authors' there, 'above_zero' here"):
        refuse_another(wanted, tmp_path)
    assert refuse_another(begun, tmp_path) == begun
    assert refuse_another(wanted, tmp_path / "free") == wanted
