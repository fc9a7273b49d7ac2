"""Runs send their metrics to the real trackers, and a resumed run continues the same tracked run."""

from __future__ import annotations

import json
import os
import struct
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bayesbinn.errors import InvalidInput, InvalidUse, MissingDependency
from bayesbinn.experiments import Experiment, load_experiment
from bayesbinn.runs import tracking
from bayesbinn.runs.folder import load_run
from bayesbinn.runs.open import open_any
from bayesbinn.runs.tracking import TrackingWarning, check_trackers
from bayesbinn.train.folder import RunFolder
from tests.helpers.commands import done

# Other people's packages warn about other people's packages.
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("one_thread")]


def digits() -> Experiment:
    return load_experiment("digits", overrides={"model.width": 0.02, "training.epochs": 3, "training.batch_size": 64})


def two_sessions(folder: Path, tracker: str) -> list[dict[str, Any]]:
    """One epoch, then the others; returns the run's metrics."""
    open_any(digits(), folder, None, [tracker]).train(stop_after=1)
    before = (folder / tracking.FILE_NAME).read_bytes()
    open_any(digits(), folder, None, [tracker]).train()
    assert (folder / tracking.FILE_NAME).read_bytes() == before
    return load_run(folder)[1]


@pytest.fixture(scope="module")
def trackio_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Trackio reads where to keep runs when it is imported."""
    if "trackio" in sys.modules:
        pytest.skip("trackio was imported before this test could say where it keeps its runs")
    folder = tmp_path_factory.mktemp("trackio")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACKIO_DIR", str(folder))
        pytest.importorskip("trackio", reason="the extra `trackio` is not installed")
        yield folder


def test_trackio_has_one_run_with_the_metrics_of_both_sessions(tmp_path: Path, trackio_folder: Path) -> None:
    from trackio.sqlite_storage import SQLiteStorage

    rows = two_sessions(tmp_path / "run", "trackio")
    names = SQLiteStorage.get_runs(tracking.PROJECT)
    assert len(names) == 1 and names[0].startswith("run-")
    logs = SQLiteStorage.get_logs(tracking.PROJECT, names[0])
    assert [(each["step"], each["train_loss"]) for each in logs] == [(row["epoch"], row["train_loss"]) for row in rows]
    assert [each["validation_accuracy"] for each in logs] == [row["validation_accuracy"] for row in rows]


@pytest.mark.usefixtures("trackio_folder")
def test_trackio_follows_a_stream_task_by_task_and_keeps_standard_output_for_results(tmp_path: Path) -> None:
    from trackio.sqlite_storage import SQLiteStorage

    short = ["--epochs", 1, "--set", "continual.tasks=2", "--set", "continual.samples=2", "--json"]
    summary = json.loads(done("train", "permuted-digits", *short, "--out", tmp_path / "stream", "--track", "trackio"))
    assert summary["tasks"] == "2 of 2"
    (name,) = [each for each in SQLiteStorage.get_runs(tracking.PROJECT) if each.startswith("stream-")]
    logs = SQLiteStorage.get_logs(tracking.PROJECT, name)
    assert [(each["step"], each["task"]) for each in logs] == [(1, 1), (2, 2)]


@pytest.mark.slow
@pytest.mark.usefixtures("trackio_folder")
def test_every_run_of_a_sweep_is_tracked(tmp_path: Path) -> None:
    from trackio.sqlite_storage import SQLiteStorage

    grid = tmp_path / "grid.toml"
    grid.write_text('experiment = "digits"\nseeds = 2\n[set]\n"training.epochs" = 1\n"model.width" = 0.02\n')
    done("sweep", "run", grid, "--out", tmp_path / "sweep", "--workers", 1, "--track", "trackio")
    names = [each for each in SQLiteStorage.get_runs(tracking.PROJECT) if each.startswith("bayesbinn-s")]
    assert len(names) == 2
    assert all(len(SQLiteStorage.get_logs(tracking.PROJECT, name)) == 1 for name in names)


def wandb_messages(path: Path) -> Iterator[bytes]:
    """The messages in a .wandb file: LevelDB's log format, with a header of 7 bytes in its first block of 32 KiB."""
    content, place, parts = path.read_bytes(), 7, b""
    while place + 7 <= len(content):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", content, place)
        parts += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


@pytest.mark.slow
def test_wandb_has_one_run_in_two_offline_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="the extra `wandb` is not installed")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    rows = two_sessions(tmp_path / "run", "wandb")
    found: dict[int, float] = {}
    files = sorted((tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(files) == 2 and len({path.name for path in files}) == 1, "two sessions of one run"
    for message in (message for path in files for message in wandb_messages(path)):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(message)
        values = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
        if "train_loss" in values:
            found[record.history.step.num] = values["train_loss"]
    assert found == {row["epoch"]: row["train_loss"] for row in rows}


@pytest.mark.slow
def test_mlflow_has_one_run_with_settings_and_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="the extra `mlflow` is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    rows = two_sessions(tmp_path / "run", "mlflow")
    client = mlflow.MlflowClient()
    place = client.get_experiment_by_name(tracking.PROJECT)
    (run,) = client.search_runs([place.experiment_id])
    history = client.get_metric_history(run.info.run_id, "train_loss")
    assert [(each.step, each.value) for each in history] == [(row["epoch"], row["train_loss"]) for row in rows]
    assert run.data.params["training.epochs"] == "3" and run.info.status == "FINISHED"

    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "another").as_uri())
    experiment = load_experiment("digits", overrides={"model.width": 0.02, "training.epochs": 4})
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / tracking.FILE_NAME).write_text(json.dumps({"mlflow": run.info.run_id}))
    with pytest.raises(InvalidUse, match=r"its store has no run .* delete tracking\.json"):
        open_any(experiment, tmp_path / "new", None, ["mlflow"]).train(stop_after=1)


# ---- a tracker that fails, is unknown or is not there ----------------------------------------------------


def test_a_tracker_that_fails_costs_a_warning_and_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        finished = False

        def log(self, numbers: dict[str, float], step: int) -> None:
            raise ConnectionError("the server is away")

        def finish(self) -> None:
            Broken.finished = True

    fake = types.SimpleNamespace(init=lambda *_, **__: Broken())
    monkeypatch.setitem(sys.modules, "trackio", fake)
    with pytest.warns(TrackingWarning, match="--track trackio failed and is off from now on: the server is away"):
        open_any(digits(), tmp_path, None, ["trackio"]).train()
    assert len(load_run(tmp_path)[1]) == 3 and Broken.finished


def test_a_tracker_that_does_not_start_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ValueError("no\naccount")

    monkeypatch.setitem(sys.modules, "trackio", types.SimpleNamespace(init=refuse))
    with pytest.raises(InvalidUse, match=r"^--track trackio: it could not be started \(no account\)$"):
        open_any(digits(), tmp_path, None, ["trackio"]).train()


def test_unknown_and_missing_trackers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        InvalidInput, match=r"--track wanbd: Did you mean 'wandb'\? Allowed: tensorboard, trackio, wandb"
    ):
        check_trackers(["wanbd"])
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(MissingDependency, match=r"--track mlflow needs mlflow: pip install .*'\.\[mlflow\]'"):
        check_trackers(["mlflow"])
    assert check_trackers([]) == ()


def test_a_run_without_trackers_has_no_identity(tmp_path: Path) -> None:
    open_any(digits(), tmp_path, None).train(stop_after=1)
    assert tracking.FILE_NAME not in os.listdir(tmp_path)


@pytest.mark.parametrize("damage", ["", "[]", '{"trackio": 3}'])
def test_a_damaged_identity_is_made_again(tmp_path: Path, damage: str) -> None:
    (tmp_path / tracking.FILE_NAME).write_text(damage)
    with RunFolder.locked(tmp_path) as folder:
        made = tracking.identity(folder, "trackio")
        assert len(made) == 8 and tracking.identity(folder, "trackio") == made != tracking.identity(folder, "wandb")
