"""The command line: its errors in one table, its output for people and programs, a user's own data."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bayesbinn import __version__
from bayesbinn.cli.reference import reference
from tests.helpers.commands import Call
from tests.helpers.places import ROOT
from tests.helpers.processes import warm_python

COMMANDS = (
    "demo",
    "train",
    "evaluate",
    "predict",
    "report",
    "reproduce",
    "methods",
    "presets",
    "data",
    "summary",
    "info",
)


def flowers(path: Path, count: int = 60) -> Path:
    """A table of two kinds of flowers that differ in both columns; a third column is noise."""
    random = np.random.default_rng(0)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["length", "width", "noise", "kind"])
        for row in range(count):
            shift = 3.0 * (row % 2)
            numbers = random.normal([shift, -shift, 0.0]).round(3).tolist()
            writer.writerow([*numbers, ("rose", "tulip")[row % 2]])
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table, a run on it with only the label set, and files that cause errors."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("place")
    table = flowers(folder / "flowers.csv")
    done = subprocess.run(
        [warm_python(), "-m", "bayesbinn", "train", str(table), "--label", "kind", "--out", str(folder / "run")],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    (folder / "said").write_text(done.stderr)
    (folder / "answer").write_text(done.stdout)
    (folder / "empty.csv").write_text("")
    (folder / "header.csv").write_text("a,b,kind\n")
    (folder / "words.csv").write_text("a,b,kind\n" + "1,2,x\n3,4,y\n" * 4 + "5,many,x\n")
    (folder / "narrow.csv").write_text("length,width\n1,2\n")
    np.savez(folder / "wide.npz", x=np.zeros((4, 7), np.float32))
    (folder / "broken.npz").write_bytes(b"PK\x03\x04 no archive")
    (folder / "images" / "cats").mkdir(parents=True)
    for name, text in (("torn", "[method"), ("no-epoch", (folder / "run" / "config.toml").read_text())):
        (folder / name).mkdir()
        (folder / name / "config.toml").write_text(text)
    (folder / "damaged").mkdir()
    for name in ("config.toml", "metrics.jsonl"):
        (folder / "damaged" / name).write_bytes((folder / "run" / name).read_bytes())
    (folder / "damaged" / "checkpoint.pt").write_bytes((folder / "run" / "checkpoint.pt").read_bytes()[:1000])
    (folder / "text.txt").write_text("1 2 3")
    return folder


# Arguments (PLACE is the folder above) and a part of the message; each exits with code 2 and prints one line.
ERRORS: list[tuple[str, str]] = [
    ("trian", "No such command 'trian'"),
    ("train", "Missing argument"),
    ("train digits --sed 3", "No such option: --sed"),
    ("train digits --seed three", "Invalid value for '--seed'"),
    ("train digits --stop-after 0", "Invalid value for '--stop-after'"),
    ("train digits --epochs 0", "training.epochs: input should be greater than 0"),
    ("train digit", "there is no preset 'digit'. Did you mean 'digits'?"),
    ("train digits --method stee", "has no method 'stee'. Did you mean 'ste'? It has: bayesbinn"),
    ("train moons --method pmf", "moons has no method 'pmf'. It has: bayesbinn, ste"),
    ("train digits --set lr", "--set lr: must be key=value"),
    ("train digits --set temperatur=1", "Did you mean 'temperature'?"),
    ("train digits --set batch_size=1", "Did you mean 'training.batch_size'?"),
    ("train digits --set training.batch_size=many", "training.batch_size: input should be a valid integer"),
    ("train digits --set lr=-1", "lr=-1: it must be a finite number, at least 0"),
    ("train digits --set training.loss=mse --out PLACE/x", "needs 'cross_entropy'"),
    ("train digits --set model.name=vgg --out PLACE/x", "vgg needs images (channels, height, width)"),
    ("train digits --label kind", "--label is for your own table"),
    ("train digits --out PLACE/text.txt/x", "cannot create the folder of the run"),
    ("train digits --out PLACE/run", "holds another experiment (data.encode is True there, False here)"),
    ("train nowhere.toml", "nowhere.toml: there is no such file"),
    ("train nowhere.csv --label y", "nowhere.csv: no such file or folder"),
    ("train PLACE/text.txt", "cannot load files ending in .txt"),
    ("train PLACE/flowers.csv", "which column holds the labels?"),
    ("train PLACE/flowers.csv --label knid", "no column 'knid'. Did you mean 'kind'?"),
    ("train PLACE/flowers.csv --label kind --method stee", "there is no method 'stee'"),
    ("train PLACE/flowers.csv --label kind --set shedule=1", "Did you mean 'schedule'?"),
    ("train PLACE/empty.csv --label y", "the file is empty"),
    ("train PLACE/header.csv --label kind", "it has a header but no rows"),
    (
        "train PLACE/words.csv --label kind --set data.encode=false",
        "column 'b' holds 'many' in row 9, which is not a number",
    ),
    ("train PLACE/broken.npz", "not a readable .npz file"),
    ("train PLACE/images", "it has only one subfolder, cats"),
    ("train mnist --data-dir PLACE/nowhere --out PLACE/x", ""),
    ("evaluate PLACE/nowhere", "there is no run here (no config.toml)"),
    ("evaluate PLACE/torn", "config.toml: not TOML"),
    ("evaluate PLACE/no-epoch", "no epoch is finished yet; train first"),
    ("evaluate PLACE/damaged", "checkpoint.pt: cannot be resumed"),
    ("evaluate PLACE/run --samples -1", "Invalid value for '--samples'"),
    ("predict PLACE/run", "Missing argument"),
    ("predict PLACE/run PLACE/flowers.csv --out x.xlsx", "must end in .csv, .parquet or .json"),
    ("predict PLACE/run PLACE/nowhere.csv", "no such file or folder"),
    ("predict PLACE/run PLACE/narrow.csv", "no column 'noise', which the model was trained on"),
    ("predict PLACE/run PLACE/wide.npz", "shape (4, 7)"),
    ("predict PLACE/run PLACE/text.txt", "can be read"),
    ("predict PLACE/run PLACE/flowers.csv --out PLACE/text.txt/x.csv", "could not be written"),
    ("predict PLACE/damaged PLACE/flowers.csv", "checkpoint.pt: cannot be resumed"),
    ("evaluate PLACE/run --epoch first", "--epoch first: must be last or best"),
    ("summary digit", "Did you mean 'digits'?"),
    ("summary PLACE/images", "there is no preset"),
]


@pytest.mark.parametrize(("arguments", "message"), ERRORS, ids=[arguments for arguments, _ in ERRORS])
def test_a_user_error_prints_one_line_and_exits_with_2(
    arguments: str, message: str, call: Call, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in ("BAYESBINN_DATA", "XDG_CACHE_HOME"):
        monkeypatch.setenv(variable, str(tmp_path))
    for proxy in ("http_proxy", "https_proxy"):  # no network: a closed port on this machine
        monkeypatch.setenv(proxy, "http://127.0.0.1:9")
    answer = call(*arguments.replace("PLACE", str(place)).split())
    assert answer.code == 2, answer
    assert message in answer.err and answer.err.startswith("error: ")
    lines = [line for line in answer.err.splitlines() if not line.startswith(("Downloading ", "downloading "))]
    assert len(lines) == 1, answer.err
    assert "Traceback" not in answer.err and not answer.out
    assert not (place / "x").exists() and not (tmp_path / "runs").exists()


def test_errors_in_the_installed_program_have_no_traceback() -> None:
    done = subprocess.run([sys.executable, "-m", "bayesbinn", "trian"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and done.stdout == ""


# ---- help ------------------------------------------------------------------------------------------


def test_help_is_quick() -> None:
    """Under half a second of processor time, however busy the machine is; torch is not imported."""
    timings = []
    for _ in range(3):
        before = os.times()
        started = time.perf_counter()
        done = subprocess.run([sys.executable, "-m", "bayesbinn", "--help"], capture_output=True, text=True, check=True)
        after, wall = os.times(), time.perf_counter() - started
        used = after.children_user - before.children_user + after.children_system - before.children_system
        timings.append(min(used, wall))
    assert statistics.median(timings) < 0.5, timings
    assert all(name in done.stdout for name in COMMANDS)
    code = "import sys; import bayesbinn.cli; print(*(m for m in ('torch', 'numpy', 'pydantic') if m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split() == []


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, call: Call) -> None:
    answer = call(command, "--help")
    assert answer.code == 0 and answer.err == ""
    usage, about = answer.out.splitlines()[0], answer.out.splitlines()[2].strip()
    assert usage.startswith(f"Usage: bayesbinn {command}")
    assert about and about[0].isupper()
    for line in answer.out.split("Options:")[1].splitlines():
        words = line.split()
        if words and words[0].startswith("--") and not line.endswith("range>"):
            assert len(words) > 2, f"{line}: an option without an explanation"


def test_without_arguments_the_help_is_shown(call: Call) -> None:
    answer = call()
    assert "Usage: bayesbinn" in answer.out and "train" in answer.out and answer.code == 0


def test_the_reference_matches_the_commands() -> None:
    path = ROOT / "docs" / "cli.md"
    if not path.exists():
        pytest.skip("the documentation is not here")
    assert path.read_text(encoding="utf-8") == reference(), "stale: python -m bayesbinn.cli.reference docs/cli.md"


def test_the_version_is_printed_even_if_only_the_runtime_is_installed(call: Call) -> None:
    from bayesbinn import __version__

    assert call("--version").out == f"bayesbinn {__version__}\n"
    code = (
        "import sys; sys.modules['typer'] = sys.modules['torch'] = None; sys.argv = ['bayesbinn', '--version']; "
        "from bayesbinn.__main__ import main; sys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"bayesbinn {__version__}\n"


# ---- output for programs ---------------------------------------------------------------------------


def test_json_answers_parse(call: Call, place: Path) -> None:
    methods = json.loads(call("methods", "--json").out)
    assert set(methods) == {"bayesbinn", "bimu", "ste", "bop", "pmf", "lrnet", "float", "ewc"}
    assert methods["bayesbinn"]["defaults"]["momentum"] == 0.0
    presets = json.loads(call("presets", "--json").out)
    assert presets["digits"]["methods"][0] == "bayesbinn"
    names = {row["name"] for row in json.loads(call("data", "--json").out)}
    assert names == {"mnist", "cifar10", "cifar100", "snelson", "moons", "digits"}
    info = json.loads(call("info", "--json").out)
    assert {"bayesbinn", "python", "torch", "processor", "kernels"} <= info.keys()
    summary = json.loads(call("summary", place / "run", "--json").out)
    assert summary
    scores = json.loads(call("evaluate", place / "run", "--json").out)
    assert scores["test examples"] == 12 and scores["mode"]["accuracy"] >= 75


@pytest.mark.parametrize(
    ("command", "word"),
    [("methods", "temperature"), ("presets", "CIFAR-100"), ("data", "scikit-learn"), ("info", "torch")],
)
def test_lists_for_people(command: str, word: str, call: Call) -> None:
    answer = call(command)
    assert answer.code == 0 and word in answer.out and "{" not in answer.out


def test_train_answers_in_json_and_resumes(call: Call, tmp_path: Path) -> None:
    arguments = ["train", "digits", "--out", tmp_path / "run", "--epochs", "3", "--set", "model.width=0.02", "--json"]
    first = call(*arguments, "--stop-after", "2")
    assert first.code == 0 and json.loads(first.out)["epochs"] == "2 of 3"
    assert [line.split()[1] for line in first.err.splitlines() if line.startswith("epoch ")] == ["1/3", "2/3"], (
        "a line per epoch without a terminal"
    )
    second = call(*arguments)
    assert json.loads(second.out)["epochs"] == "3 of 3" and "\nresuming " in second.err
    assert {"train", "validation", "test", "test (mean)"} <= json.loads(second.out)["last epoch"].keys()
    again = call(*arguments)
    assert json.loads(again.out)["last epoch"] == json.loads(second.out)["last epoch"]


def test_the_best_epoch_is_the_first_with_the_highest_validation_accuracy() -> None:
    from bayesbinn.runs.evaluate import best_epoch

    rows: list[dict[str, Any]] = [
        {"epoch": e, "validation_accuracy": v} for e, v in enumerate([None, 90.0, 91.0, 91.0])
    ]
    best = best_epoch(rows)
    assert best is not None and best["epoch"] == 2
    assert best_epoch(rows[:1]) is None


# ---- a user's own data -----------------------------------------------------------------------------


def test_a_users_table_trains_with_no_further_settings_and_says_what_was_chosen(place: Path) -> None:
    said = (place / "said").read_text()
    assert "classification: 2 classes, rose, tulip" in said
    assert "48 training and 12 test examples" in said
    for choice in (
        "table_ensemble",
        "2 hidden layers of 80 units",
        "bayesbinn",
        "50 epochs",
        "batch 32",
        "10 %",
        "use --set to change any of these",
    ):
        assert choice in said, choice
    assert (place / "answer").read_text().splitlines()[0].split() == ["run", str(place / "run")]
    last = json.loads((place / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["epoch"] == 50 and last["test_accuracy"] >= 75


def read(path: Path) -> list[dict[str, Any]]:
    """Read predictions in any format."""
    if path.suffix == ".json":
        rows: list[dict[str, Any]] = json.loads(path.read_text())
        return rows
    if path.suffix == ".parquet":
        from pyarrow import parquet

        table: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
        return table
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".json"])
def test_predictions_have_classes_probabilities_and_uncertainty(
    suffix: str, call: Call, place: Path, tmp_path: Path
) -> None:
    answer = call("predict", place / "run", place / "flowers.csv", "--out", tmp_path / f"new/p{suffix}")
    assert answer.code == 0, answer.err
    first, second = answer.out.splitlines()
    assert first == f"60 predictions in {tmp_path / f'new/p{suffix}'} (epoch: last, 50 of 50)"
    assert second.startswith(f"scored against the labels in {place / 'flowers.csv'}: accuracy ")
    rows = read(tmp_path / f"new/p{suffix}")
    columns = ["input", "class", "p(rose)", "p(tulip)", "entropy", "aleatoric", "mutual_information"]
    assert len(rows) == 60 and list(rows[0]) == columns
    right = 0
    for number, row in enumerate(rows):
        p, q, total, aleatoric, model = (float(row[name]) for name in columns[2:])
        assert p + q == pytest.approx(1, abs=1e-5) and total == pytest.approx(aleatoric + model, abs=1e-5)
        assert row["class"] == ("rose" if p > q else "tulip") and int(row["input"]) == number
        right += row["class"] == ("rose", "tulip")[number % 2]
    assert right >= 50 and f"accuracy {100 * right / 60:.4f} " in second


def test_predictions_with_the_mode_and_without_calibration(call: Call, place: Path, tmp_path: Path) -> None:
    inputs = place / "flowers.csv"
    assert call("predict", place / "run", inputs, "--samples", "0", "--out", tmp_path / "mode.json").code == 0
    assert any(row["mutual_information"] > 0 for row in read(tmp_path / "mode.json")), "four networks side by side"
    plain = call("predict", place / "run", inputs, "--no-calibrate", "--json", "--out", tmp_path / "plain.json")
    answer = json.loads(plain.out)
    assert (answer["predictions"], answer["out"]) == (60, str(tmp_path / "plain.json"))
    assert read(tmp_path / "plain.json") != read(tmp_path / "mode.json")


def test_a_run_on_a_table_can_be_used_from_anywhere(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    flowers(Path("mine.csv"))
    assert call("train", "mine.csv", "--label", "kind", "--epochs", "2", "--method", "float").code == 0
    monkeypatch.chdir(tmp_path)
    answer = call("evaluate", "here/runs/mine-float-0", "--json")
    assert answer.code == 0, answer.err
    scores = json.loads(answer.out)
    assert scores.keys() >= {"run", "epoch", "test examples", "weights"}
    assert not scores.keys() & {"mode", "mean of 10"}, "full-precision run has no posterior"
    assert "mean" not in call("predict", "here/runs/mine-float-0", "here/mine.csv", "--out", "p.csv").err


def test_a_regression_table(call: Call, tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    x = random.normal(size=(160, 2))
    y = 50 + 20 * x[:, 0] + random.normal(size=160)
    np.savetxt(tmp_path / "m.csv", np.column_stack([x, y]), delimiter=",", header="a,b,y", comments="", fmt="%.4f")
    run = tmp_path / "run"
    trained = call(
        "train", tmp_path / "m.csv", "--label", "y", "--out", run, "--epochs", "60", "--set", "data.encode=false"
    )
    assert trained.code == 0 and "regression" in trained.err
    scores = json.loads(call("evaluate", run, "--json").out)
    assert (
        scores["mode"].keys() == {"RMSE", "R²", "within 2 std"}
        and scores["mode"]["RMSE"] < 20
        and scores["mode"]["R²"] > 0
    )
    assert "mean of 10" in scores
    assert call("predict", run, tmp_path / "m.csv", "--out", tmp_path / "p.json").code == 0
    rows = read(tmp_path / "p.json")
    assert list(rows[0])[:3] == ["input", "mean", "std"] and len(rows) == 160
    answer = json.loads(call("predict", run, tmp_path / "m.csv", "--out", tmp_path / "p.json", "--json").out)
    error = float(np.sqrt(np.mean((np.array([row["mean"] for row in rows]) - y) ** 2)))
    assert answer["scores"] == {"RMSE": pytest.approx(error, rel=1e-3)}
    predicted = np.array([row["mean"] for row in rows])
    assert np.corrcoef(predicted, y)[0, 1] > 0.7 and 30 < predicted.mean() < 70, "in the unit of the table"
    assert call("summary", run).code == 0


def test_tables_that_differ_only_in_the_suffix_get_separate_runs(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = flowers(tmp_path / "flowers.csv").read_text()
    (tmp_path / "flowers.tsv").write_text(text.replace(",", "\t"))
    settings = ["--label", "kind", "--epochs", "2", "--method", "float", "--set", "model.width=0.02"]
    for name in ("flowers.csv", "flowers.tsv"):
        assert call("train", name, *settings).code == 0
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"flowers-float-0", "flowers.tsv-float-0"}
    again = call("train", "flowers.tsv", *settings)
    assert again.code == 0 and "runs/flowers.tsv-float-0 is finished" in again.err
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "flowers.tsv").write_text((tmp_path / "flowers.tsv").read_text())
    refused = call("train", "other/flowers.tsv", *settings)
    assert refused.code == 2 and "runs/flowers.tsv-float-0 holds another experiment (data.name is" in refused.err


def test_labels_that_do_not_match_are_not_scored(call: Call, place: Path, tmp_path: Path) -> None:
    text = (place / "flowers.csv").read_text()
    (tmp_path / "new.csv").write_text(text.replace("tulip", "lily", 1))
    answer = call("predict", place / "run", tmp_path / "new.csv", "--out", tmp_path / "p.csv")
    assert answer.code == 0 and "scored against" not in answer.out
    assert answer.err == "note: not scored: column 'kind' holds 'lily' in row 2, which is not one of the 2 classes\n"
    unlabelled = "\n".join(line.rpartition(",")[0] for line in text.splitlines())
    (tmp_path / "plain.csv").write_text(unlabelled)
    answer = call("predict", place / "run", tmp_path / "plain.csv", "--out", tmp_path / "q.csv")
    assert answer.code == 0 and answer.err == "" and "scored" not in answer.out
    assert read(tmp_path / "p.csv") == read(tmp_path / "q.csv"), "the labels do not reach the network"


def test_reports_show_what_accuracy_hides_when_classes_are_unequal(call: Call, tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    x, rare = random.normal(size=(100, 2)), np.arange(100) % 10 == 0
    rows = [f"{a:.3f},{b:.3f},{'rare' if r else 'common'}" for (a, b), r in zip(x, rare, strict=True)]
    (tmp_path / "noise.csv").write_text("\n".join(["a,b,kind", *rows]) + "\n")
    settings = ["--label", "kind", "--out", tmp_path / "run", "--epochs", "2", "--set", "model.width=0.02", "--json"]
    trained = json.loads(call("train", tmp_path / "noise.csv", *settings).out)
    scores = json.loads(call("evaluate", tmp_path / "run", "--json").out)
    assert trained["majority accuracy"] == scores["majority accuracy"] == 90.0
    recall, balanced = (trained[f"{name} (test, calibrated)"] for name in ("recall", "balanced accuracy"))
    assert recall == scores["recall (mode)"]
    assert recall.keys() == {"common", "rare"}
    assert balanced == pytest.approx(np.mean(list(recall.values())))
    assert scores["mode"]["balanced accuracy"] == pytest.approx(balanced)
    assert scores["mode"]["accuracy"] == pytest.approx(trained["accuracy (test, calibrated)"])


def test_arrays_of_images(call: Call, tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    y = np.arange(40) % 2
    x = random.integers(0, 50, (40, 6, 6), dtype=np.uint8)
    x[y == 1, :3] += 150
    np.savez(tmp_path / "images.npz", x=x, y=y)
    run = tmp_path / "run"
    trained = call("train", tmp_path / "images.npz", "--out", run, "--epochs", "15", "--method", "ste")
    assert trained.code == 0, trained.err
    assert "(1, 6, 6)" in trained.err
    scores = json.loads(call("evaluate", run, "--json").out)
    assert scores["mode"]["accuracy"] >= 75
    scored = call("predict", run, tmp_path / "images.npz", "--out", tmp_path / "p.csv", "--json")
    assert json.loads(scored.out)["scores"]["accuracy"] >= 75
    assert [row["class"] for row in read(tmp_path / "p.csv")].count("1") in range(12, 29)
    np.savez(tmp_path / "scaled.npz", x=x / 255.0)
    answer = call("predict", run, tmp_path / "scaled.npz")
    assert answer.code == 2 and "whole numbers from 0 to 255" in answer.err, "pixels are not silently truncated to 0"


# ---- the display -----------------------------------------------------------------------------------


def test_a_terminal_gets_a_bar_with_accuracy_and_flips() -> None:
    from rich.console import Console

    from bayesbinn.cli.progress import shown
    from bayesbinn.train.loop import Totals
    from bayesbinn.train.progress import Progress

    row = {"epoch": 2, "train_loss": 0.5, "test_accuracy": 93.25, "flip_ratio": 0.125, "seconds": 1.5}
    for classification, note in ((True, "train 80.0 %"), (False, "loss 2.000")):
        text = io.StringIO()
        console = Console(file=text, force_terminal=True, width=140, color_system=None)
        with shown(console, "ste", 3, done=1) as update:
            totals = Totals(loss=20.0, correct=8, seen=10, batches=5)
            update(Progress(2, 3, 5, 10, totals, classification=classification))
            time.sleep(0.4)  # the bar is drawn ten times a second
            assert note in text.getvalue() and ("80.0 %" in text.getvalue()) == classification
            update(Progress(2, 3, 10, 10, Totals(), row))
        assert "ste  epoch 2/3" in text.getvalue()
        assert "test 93.25 %  flipped 12.50 %  1.5 s" in text.getvalue()


def test_the_calibration_after_the_last_epoch_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    from bayesbinn.cli import progress as display
    from bayesbinn.train.loop import Totals
    from bayesbinn.train.progress import Progress

    row = {"epoch": 3, "train_loss": 0.5, "test_accuracy": 93.25, "seconds": 1.5}
    for terminal in (True, False):
        text = io.StringIO()
        console = Console(file=text, force_terminal=terminal, width=140, color_system=None)
        monkeypatch.setattr(display, "SILENCE", 0.2)
        with display.shown(console, "ste", 3) as update:
            update(Progress(3, 3, 10, 10, Totals(), row))
            update(Progress(3, 3, 0, 1, Totals(), calibrated=0.125))
            assert "calibrating" not in text.getvalue() or terminal, "a short calibration needs no line in a log"
            time.sleep(0.4)
            update(Progress(3, 3, 0, 1, Totals(), calibrated=0.5))
            time.sleep(0.4 if terminal else 0)
            assert "calibrating 50 %" in text.getvalue()
            update(Progress(3, 3, 0, 1, Totals(), calibrated=1.0))
        assert text.getvalue().rindex("test 93.25 %") > text.getvalue().rindex("calibrating") or not terminal
        assert text.getvalue().count("calibrating") == 1 or terminal


def test_the_second_ctrl_c_ends_at_once() -> None:
    from bayesbinn.train.progress import stoppable

    before = signal.getsignal(signal.SIGINT)
    with stoppable() as asked:
        assert not asked()
        signal.raise_signal(signal.SIGINT)
        assert asked()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_sigterm_ends_at_once() -> None:
    from bayesbinn.train.progress import stoppable

    before = signal.getsignal(signal.SIGTERM)
    with stoppable() as asked:
        signal.raise_signal(signal.SIGTERM)
        assert asked() and asked.exit_code == 143
        with pytest.raises(SystemExit) as ended:
            signal.raise_signal(signal.SIGTERM)
    assert ended.value.code == 143 and signal.getsignal(signal.SIGTERM) is before


def test_ctrl_c_while_the_program_starts_prints_one_line() -> None:
    """At many points during the imports, which take seconds."""
    for moment in (5, 100, 400, 800):
        started = subprocess.Popen(
            [sys.executable, "-c", PAUSED_START, str(moment)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        out, said = started.communicate(timeout=120)
        assert (started.returncode, out, said) == (130, "", "interrupted\n"), moment


# Ctrl-C comes when the command has done its work, just before the usual handler is restored.
LATE = """
import os, signal, sys
import bayesbinn.__main__ as entry
usual = signal.signal
def restored(number, handler):
    if handler is signal.default_int_handler:
        os.kill(os.getpid(), signal.SIGINT)
    return usual(number, handler)
signal.signal = restored
sys.argv = ["bayesbinn", "--version"]
sys.exit(entry.main())
"""


def test_ctrl_c_after_the_work_changes_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"bayesbinn {__version__}\n", "")


# Ctrl-C comes just before the n-th module is imported.
PAUSED_START = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
from bayesbinn.__main__ import main
count, limit = 0, int(sys.argv[1])
class Finder:
    def find_spec(self, *_):
        global count
        count += 1
        if count == limit:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
sys.argv = ["bayesbinn", "train", "digits", "--out", os.devnull + "/x"]
sys.exit(main())
"""
