"""What TensorBoard shows for a run, read by TensorBoard itself."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bayesbinn.experiments import Experiment, load_experiment
from bayesbinn.experiments.choose import choose_for_file
from bayesbinn.runs.folder import load_run
from bayesbinn.runs.single import Run
from bayesbinn.runs.tensorboard import Curves
from bayesbinn.train.folder import RunFolder

pytest.importorskip("tensorboard", reason="the extra `tensorboard` is not installed")


def shown(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """(step, value) pairs by the name of the curve."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder / "tensorboard"))
    found.Reload()
    return {tag: [(each.step, each.value) for each in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def expected(rows: list[dict[str, Any]]) -> dict[str, list[tuple[int, Any]]]:
    keys = [key for key in rows[0] if key != "epoch" and rows[0][key] is not None]
    return {key: [(row["epoch"], pytest.approx(row[key], rel=1e-6)) for row in rows] for key in keys}


def digits() -> Experiment:
    return load_experiment("digits", overrides={"model.width": 0.02, "training.epochs": 3, "training.batch_size": 64})


def test_tensorboard_shows_the_metrics_of_all_sessions(tmp_path: Path) -> None:
    Run.open(digits(), tmp_path).train(stop_after=1)
    Run.open(digits(), tmp_path).train()
    Run.open(digits(), tmp_path).train()  # finished: nothing to write
    assert len(list((tmp_path / "tensorboard").iterdir())) == 2
    assert shown(tmp_path) == expected(load_run(tmp_path)[1])


def test_a_regression_has_curves_of_its_errors(tmp_path: Path) -> None:
    lines = [f"{i % 7},{i % 11},{i % 7 + 0.5 * (i % 3)}" for i in range(80)]
    (tmp_path / "t.csv").write_text("\n".join(["a,b,y", *lines]))
    experiment, _ = choose_for_file(str(tmp_path / "t.csv"), "y", "bayesbinn", {"training.epochs": 2})
    Run.open(experiment, tmp_path / "run").train()
    curves = shown(tmp_path / "run")
    assert {"validation_rmse", "test_rmse"} <= curves.keys() and "validation_accuracy" not in curves
    assert curves == expected(load_run(tmp_path / "run")[1])


def test_what_a_killed_session_wrote_ahead_is_hidden(tmp_path: Path) -> None:
    for first, value in ((1, 1.0), (3, 2.0)):
        with RunFolder.locked(tmp_path) as folder, closing(Curves(folder, first)) as curves:
            for epoch in range(first, 5):
                curves.log(epoch, {"train_loss": value})
    assert shown(tmp_path) == {"train_loss": [(1, 1.0), (2, 1.0), (3, 2.0), (4, 2.0)]}


def test_the_slow_parts_of_tensorboard_are_not_imported(tmp_path: Path) -> None:
    code = (
        "import sys; from contextlib import closing; from pathlib import Path\n"
        "from bayesbinn.runs.tensorboard import Curves; from bayesbinn.train.folder import RunFolder\n"
        f"with RunFolder.locked(Path({str(tmp_path)!r})) as folder, closing(Curves(folder, 1)) as curves:\n"
        "    curves.log(1, {'a': 1.0})\n"
        "print([name for name in sys.modules if name.startswith(('tensorboard.summary', 'absl', 'tensorflow'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert shown(tmp_path) == {"a": [(1, 1.0)]}
