"""The standard deviation of a predicted quantity: correct, or absent with a reason."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_diabetes

from bayesbinn.cli.runtime import main
from bayesbinn.errors import InvalidFile
from bayesbinn.experiments.choose import choose_for_file
from bayesbinn.modelfile.container import read, to_bytes
from bayesbinn.runs.evaluate import evaluate_run, predict_file
from bayesbinn.runs.ship import pack_run
from bayesbinn.runs.single import Run
from bayesbinn.runs.trained import load_network
from bayesbinn.train import residuals as run_residuals


def trained(folder: Path, x: Any, y: Any, x_test: Any, y_test: Any, **changes: Any) -> Path:
    """A run on arrays with the settings that the command line chooses."""
    folder.mkdir()
    np.savez(folder / "d.npz", x_train=x, y_train=y, x_test=x_test, y_test=y_test)
    np.save(folder / "new.npy", x_test)
    overrides = {key.replace("__", "."): value for key, value in changes.items()}
    experiment, _ = choose_for_file(str(folder / "d.npz"), None, "bayesbinn", overrides)
    Run.open(experiment, folder / "run").train()
    return folder / "run"


def linear(folder: Path, rows: int = 200, noise: float = 5.0, **changes: Any) -> Path:
    random = np.random.default_rng(0)
    x = random.normal(size=(rows + 100, 3)).astype(np.float32)
    y = 100 + 20 * x[:, 0] + noise * random.normal(size=rows + 100)
    return trained(folder, x[:rows], y[:rows], x[rows:], y[rows:], **changes)


def predicted(run: Path, samples: int = 10) -> tuple[dict[str, Any], tuple[str, ...]]:
    done = predict_file(run, run.parent / "new.npy", run.parent / "p.json", samples, None)
    rows = json.loads((run.parent / "p.json").read_text())
    return {key: np.array([row[key] for row in rows]) for key in rows[0]}, done.notes


def test_two_deviations_cover_most_of_diabetes(tmp_path: Path) -> None:
    x, y = load_diabetes(return_X_y=True)
    covered = []
    for split in range(4):
        order = np.random.default_rng(split).permutation(len(x))
        train, test = order[:350], order[350:]
        settings = {} if split < 3 else {"certainty": 100.0}  # one network, and a posterior whose networks differ
        run = trained(tmp_path / str(split), x[train], y[train], x[test], y[test], **settings)
        found, _ = predicted(run)
        assert split < 3 or found["spread"].min() > 1
        assert found["std"].min() > 20, "not the rounding errors of one network"
        inside = 100 * np.mean(np.abs(found["mean"] - y[test]) <= 2 * found["std"])
        scores = evaluate_run(run, 10, True, None)
        assert scores["mode"]["within 2 std"] == pytest.approx(inside, abs=1.1)
        covered.append(inside)
    assert 90 < np.mean(covered) < 99, covered
    assert min(covered) > 82, covered


def test_the_spread_is_part_of_the_deviation(tmp_path: Path) -> None:
    run = linear(tmp_path / "r", certainty=10.0, training__epochs=10)
    found, notes = predicted(run)
    network = load_network(run)
    kept = run_residuals.stored(run, "last", network.model, network.posterior)
    assert kept is not None and kept.rows == 20 and not notes
    assert found["spread"].min() > 0.1
    np.testing.assert_allclose(found["std"], np.sqrt(found["spread"] ** 2 + kept.mean**2), rtol=1e-4)
    by_mode, _ = predicted(run, samples=0)
    assert list(by_mode) == ["input", "mean", "std"]
    np.testing.assert_allclose(by_mode["std"], kept.mode, rtol=1e-4)
    assert kept.mean < kept.mode, "the mean is nearer to the truth"


def test_one_sample_has_no_deviation(tmp_path: Path) -> None:
    found, notes = predicted(linear(tmp_path / "r", certainty=10.0, training__epochs=2), samples=1)
    assert list(found) == ["input", "mean"] and "use --samples 0" in notes[0]


def test_too_few_validation_rows_give_no_deviation(tmp_path: Path) -> None:
    run = linear(tmp_path / "r", rows=60, training__epochs=2)  # 6 of them for validation
    found, notes = predicted(run)
    assert list(found) == ["input", "mean"]
    assert len(notes) == 1 and notes[0].startswith("no column std") and "10 validation rows" in notes[0]
    assert evaluate_run(run, 0, True, None)["mode"].keys() == {"RMSE", "R²"}


def test_the_best_epoch_has_its_own_residuals(tmp_path: Path) -> None:
    run = linear(tmp_path / "r", training__epochs=6)
    best = json.loads((run / "residuals.json").read_text())["best"]
    done = predict_file(run, run.parent / "new.npy", run.parent / "p.json", 0, None, epoch="best")
    assert done.epoch.startswith(f"best, {best['epoch']} of")
    assert json.loads((run.parent / "p.json").read_text())[0]["std"] == pytest.approx(best["mode"])


def test_a_damaged_file_is_named_and_rewritten(tmp_path: Path) -> None:
    run = linear(tmp_path / "r", training__epochs=2)
    before = (run / "residuals.json").read_bytes()
    (run / "residuals.json").write_text('{"last": {"epoch": 2, "rows": 20, "mode": -1, "mean": 1}}')
    with pytest.raises(InvalidFile, match=r"residuals.json: damaged \(mode is -1\)"):
        predicted(run)
    Run.open(Run.load(run).experiment, run).train()
    assert (run / "residuals.json").read_bytes() == before


def test_a_model_file_gives_the_same_deviations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for samples, certainty in ((0, None), (5, 10.0)):
        changes = {} if certainty is None else {"certainty": certainty}
        run = linear(tmp_path / str(samples), training__epochs=3, **changes)
        packed = pack_run(run, tmp_path / "m.safetensors", samples)
        assert packed.residual == read(tmp_path / "m.safetensors").residual
        assert main("run", [str(tmp_path / "m.safetensors"), str(run.parent / "new.npy")]) == 0
        said = capsys.readouterr()
        assert not said.err
        rows = list(csv.DictReader(said.out.splitlines()))
        found, _ = predicted(run, samples)
        assert list(rows[0]) == list(found)
        for key in list(found)[1:]:
            np.testing.assert_allclose([float(row[key]) for row in rows], found[key], rtol=2e-3, atol=2e-2)


def test_a_model_file_without_a_residual_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = linear(tmp_path / "r", rows=60, training__epochs=2)
    pack_run(run, tmp_path / "m.safetensors")
    assert main("run", [str(tmp_path / "m.safetensors"), str(run.parent / "new.npy")]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[0] == "input,mean" and said.err.startswith("note: no column std")


@pytest.mark.parametrize("text", ["-1", "nan", "1e999", "", "1_0", "²", "Infinity"])
def test_a_forged_residual_is_rejected(text: str, tmp_path: Path) -> None:
    packed = pack_run(linear(tmp_path / "r", training__epochs=1), tmp_path / "m.safetensors")
    content = bytes(to_bytes(replace(packed, residual=0.0)))
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header["__metadata__"] |= {"residual": text, "checksum": "0" * 64}
    plain = json.dumps(header).encode()
    forged = len(plain).to_bytes(8, "little") + plain + content[8 + length :]
    (tmp_path / "f.safetensors").write_bytes(forged.replace(b"0" * 64, sha256(forged).hexdigest().encode()))
    with pytest.raises(InvalidFile, match="residual"):
        read(tmp_path / "f.safetensors")


def test_classes_have_no_residual(tmp_path: Path) -> None:
    graph = replace(pack_run(linear(tmp_path / "r", training__epochs=1)).graph, task="classification")
    with pytest.raises(InvalidFile, match="only a regression has a residual"):
        to_bytes(replace(read(tmp_path / "r/run/model.safetensors"), graph=graph))
