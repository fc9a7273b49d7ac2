"""Whether a label holds classes or quantities: the rule, what is said about it, and the user's word."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bayesbinn import data
from bayesbinn.__main__ import main
from bayesbinn.errors import InvalidInput
from bayesbinn.experiments import load_experiment
from bayesbinn.runs.open import prepare
from bayesbinn.runs.single import Run
from bayesbinn.runs.stream import stream_for


def table(path: Path, labels: Any) -> Path:
    path.write_text("x,y\n" + "".join(f"{i},{label}\n" for i, label in enumerate(labels)))
    return path


@pytest.mark.parametrize(
    ("labels", "task", "note"),
    [
        (np.arange(600) % 50, "classification", "classification: 50 classes, 0, 1, 2, 3, 4, …; for regression, --set"),
        (np.arange(600) % 51, "regression", "regression: the label has 51 different numbers, more than 50; for"),
        (np.arange(600) % 3 / 2, "regression", "regression: the label has numbers with fractions; for"),
        (np.arange(600) % 3 * 1.0, "classification", "classification: 3 classes, 0, 1, 2; for regression"),
        (np.arange(60) // 2 * 2 + np.arange(60) % 3 % 2, "regression", "different numbers in 60 examples; for"),
    ],
)
def test_the_rule_is_said_with_its_reason(tmp_path: Path, labels: Any, task: str, note: str) -> None:
    other = "classification" if task == "regression" else "regression"
    np.savez(tmp_path / "my.npz", x=np.arange(len(labels))[:, None] * 1.0, y=labels)
    for dataset in (data.load(table(tmp_path / "my.csv", labels), label="y"), data.load(tmp_path / "my.npz")):
        assert dataset.task == task
        (line,) = (each for each in dataset.notes if each.startswith(task))
        assert note in line and f'--set data.task={other} (in Python, task="{other}")' in line


def test_the_users_word_is_kept_and_said(tmp_path: Path) -> None:
    many = table(tmp_path / "many.csv", np.arange(600) % 150)
    dataset = data.load(many, label="y", task="classification")
    assert dataset.num_classes == 150 and dataset.classes[:2] == ("0", "1")
    assert any("classification: 150 classes" in note and "as data.task says" in note for note in dataset.notes)
    few = data.load(table(tmp_path / "few.csv", np.arange(600) % 3), label="y", task="regression")
    assert few.task == "regression"
    assert any("regression: the label has 3 different numbers, as data.task says" in note for note in few.notes)


def test_large_whole_numbers_stay_different_classes(tmp_path: Path) -> None:
    """As floating point, 2^53 and 2^53 + 1 are the same number."""
    path = table(tmp_path / "my.csv", [2**53 + i % 2 for i in range(20)])
    assert data.load(path, label="y").classes == ("9007199254740992", "9007199254740993")


DIFFERENT = [
    ["18446744073709551615", "18446744073709551614", "5"],
    ["01", "1", "2"],
    ["1.0", "1", "2"],
    ["01", "02", "10"],
]


@pytest.mark.parametrize("labels", DIFFERENT)
def test_labels_with_different_texts_are_different_classes(
    tmp_path: Path, labels: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, run = table(tmp_path / "my.csv", labels * 20), tmp_path / "run"
    dataset = data.load(path, label="y")
    assert dataset.classes == tuple(sorted(labels))
    arguments = ["train", str(path), "--label", "y", "--epochs", "1", "--set", "model.width=0.02", "--out", str(run)]
    monkeypatch.setattr("sys.argv", ["bayesbinn", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 0 and "classification: 3 classes" in capsys.readouterr().err
    assert json.loads((run / "data.json").read_text())["classes"] == sorted(labels)


@pytest.mark.parametrize("labels", DIFFERENT)
def test_labels_to_test_with_are_told_apart_as_well(tmp_path: Path, labels: list[str]) -> None:
    table(tmp_path / "train.csv", labels * 20)
    table(tmp_path / "test.csv", labels[:1])
    dataset = data.load(tmp_path, label="y")
    assert dataset.classes[int(dataset.test_targets[0])] == labels[0]


@pytest.mark.parametrize(
    ("labels", "task", "classes"),
    [
        (["1.0", "2.0"], None, ("1", "2")),
        (["-1", "1"], None, ("-1", "1")),
        (["0", "10", "9"], None, ("0", "9", "10")),
        (["1.50", "1.5", "2"], None, ()),
        (["01", "1", "2"], "regression", ()),
    ],
)
def test_ordinary_numbers_stay_numbers(tmp_path: Path, labels: list[str], task: Any, classes: tuple[str, ...]) -> None:
    assert data.load(table(tmp_path / "my.csv", labels * 20), label="y", task=task).classes == classes


@pytest.mark.parametrize("task", ["clasification", 3])
def test_a_misspelt_task_is_refused(tmp_path: Path, task: Any) -> None:
    path = table(tmp_path / "my.csv", np.arange(60) % 3)
    with pytest.raises(InvalidInput, match=rf"data.task is {task!r}: .*classification or regression"):
        data.load(path, label="y", task=task)
    with pytest.raises(InvalidInput, match=rf"data.task.*{task!r}"):
        prepare(str(path), None, None, None, "y", [f"data.task={task}"], None)


def test_the_command_line_takes_it_and_the_run_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, run = table(tmp_path / "my.csv", np.arange(300) % 60), tmp_path / "run"
    arguments = ["train", str(path), "--label", "y", "--epochs", "1", "--out", str(run), "--json"]
    monkeypatch.setattr("sys.argv", ["bayesbinn", *arguments, "--set", "data.task=classification"])
    with pytest.raises(SystemExit) as stopped:
        main()
    captured = capsys.readouterr()
    assert stopped.value.code == 0, captured.err
    assert "classification: 60 classes" in captured.err and "as data.task says" in captured.err
    assert "train" in json.loads(captured.out)["last epoch"]  # an accuracy, which regression has not
    experiment = load_experiment(str(run / "config.toml"))
    assert experiment.data.task == "classification" and experiment.training.loss == "cross_entropy"
    monkeypatch.setattr("sys.argv", ["bayesbinn", "summary", str(run)])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 0 and "60" in capsys.readouterr().out


def test_an_experiments_file_takes_it(tmp_path: Path) -> None:
    """For one task, and for a stream of tasks, which needs classes."""
    path = table(tmp_path / "my.csv", np.arange(300) % 60)
    experiment = prepare(str(path), None, None, None, "y", ["data.task=classification"], None).experiment
    file = tmp_path / "my.toml"
    file.write_text(experiment.to_toml())
    assert 'task = "classification"' in file.read_text()
    assert Run.open(load_experiment(str(file)), tmp_path / "run").dataset.num_classes == 60
    file.write_text(experiment.to_toml() + '\n[continual]\nstream = "split"\nclasses_per_task = 30\n')
    assert len(stream_for(load_experiment(str(file)))) == 2
    file.write_text(file.read_text().replace('task = "classification"\n', ""))
    with pytest.raises(InvalidInput, match="regression"):
        stream_for(load_experiment(str(file)))
