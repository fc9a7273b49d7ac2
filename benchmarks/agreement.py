"""Check that packed networks agree with the trained ones on real test data.

    python benchmarks/agreement.py --mnist RUN --cifar10 RUN --ensemble RUN [--out FOLDER]

Each RUN is a folder of `bayesbinn train`: on MNIST, on CIFAR-10, and one whose posterior is spread out. Packs each and
compares the logits, classes and accuracy of both modes with PyTorch's; for the ensemble of 10 samples, also NLL, ECE
and time. Writes FOLDER/agreement.json and FOLDER/agreement.md.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from bayesbinn import metrics
from bayesbinn.environment import describe
from bayesbinn.posterior import BernoulliPosterior
from bayesbinn.runs.evaluate import predicted
from bayesbinn.runs.ship import pack_run
from bayesbinn.runs.trained import load_network, load_trained
from bayesbinn.runtime import load
from bayesbinn.runtime.model import Activations

MODES: tuple[Activations, ...] = ("exact", "int8")
SAMPLES = 10
RUNS = 5


def network(run: Path, count: int, limits: dict[str, float]) -> dict[str, Any]:
    """The mode of a run, as a model file and in PyTorch."""
    experiment, dataset, model, posterior = load_trained(run, None)
    assert posterior is not None and dataset.test_targets is not None
    pixels, targets = dataset.test_inputs[:count], dataset.test_targets[:count].numpy()
    posterior.apply(model)
    model.eval()
    with torch.inference_mode():
        x = dataset.normaliser(pixels)
        logits = torch.cat([model(part) for part in x.split(500)]).numpy()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        pack_run(run, path, fit_scale=False)
        size = path.stat().st_size
        outputs = {mode: load(path, mode).outputs(pixels.numpy())[0] for mode in MODES}
    largest = np.abs(logits).max()
    ordered = np.sort(logits, axis=1)
    margin = ordered[:, -1] - ordered[:, -2]
    classes = logits.argmax(1)
    difference = float(np.abs(outputs["exact"] - logits).max() / largest)
    clear = margin > 2 * difference * largest
    row: dict[str, Any] = {
        "run": f"{experiment.title.partition(',')[0]}, seed {experiment.training.seed}",
        "method": experiment.method.name,
        "epochs": len((run / "metrics.jsonl").read_text().splitlines()),
        "width": experiment.model.width,
        "inputs": len(targets),
        "file_bytes": size,
        "accuracy": 100 * float((classes == targets).mean()),
        "exact_difference": difference,
        "exact_same_where_clear": bool((outputs["exact"].argmax(1) == classes)[clear].all()),
        "limits": limits,
    }
    for mode in MODES:
        chosen = outputs[mode].argmax(1)
        row[f"{mode}_agreement"] = 100 * float((chosen == classes).mean())
        row[f"{mode}_accuracy"] = 100 * float((chosen == targets).mean())
    row["holds"] = (
        difference <= 1e-4
        and row["exact_same_where_clear"]
        and row["int8_agreement"] >= limits["agreement"]
        and abs(row["int8_accuracy"] - row["accuracy"]) <= limits["accuracy"] + 1e-9
    )
    return row


def ensemble(run: Path) -> dict[str, Any]:
    """Ten samples of a posterior, as a model file and with `predict`."""
    trained = load_network(run)
    dataset, posterior = trained.load_data(), trained.posterior
    assert posterior is not None and dataset.test_targets is not None
    pixels, targets = dataset.test_inputs, dataset.test_targets
    calibration, _ = trained.find_calibration()
    expected = predicted(trained, dataset.normaliser(pixels), SAMPLES, calibration).probabilities
    with tempfile.TemporaryDirectory() as folder:
        many, one = Path(folder) / "many.safetensors", Path(folder) / "one.safetensors"
        pack_run(run, many, samples=SAMPLES)
        pack_run(run, one, fit_scale=False)
        row: dict[str, Any] = {"samples_differ": 100 * flips(posterior), "file_bytes": many.stat().st_size}
        loaded = {mode: (load(many, mode, 1), load(one, mode, 1)) for mode in MODES}
        for mode in MODES:
            given = torch.from_numpy(load(many, mode).predict_proba(pixels.numpy()))
            for name, score in (("nll", metrics.nll), ("ece", metrics.ece)):
                row[f"{name}_torch"] = score(expected, targets)
                row[f"{name}_{mode}"] = score(given, targets)
            row[f"accuracy_{mode}"] = 100 * metrics.accuracy(given, targets)
        for _ in range(RUNS):
            for mode in MODES:
                for batch in (1, 100):
                    found = ratio(*loaded[mode], pixels[:batch].numpy())
                    row.setdefault(f"times_{mode}_{batch}", []).append(found)
    row["holds"] = (
        row["samples_differ"] >= 1
        and row["file_bytes"] <= 13.1e6
        and all(abs(row[f"{name}_exact"] - row[f"{name}_torch"]) <= 1e-4 for name in ("nll", "ece"))
        and all(median(row[f"times_{mode}_{batch}"]) <= 10 for mode in MODES for batch in (1, 100))
    )
    return row


def flips(posterior: BernoulliPosterior) -> float:
    """The fraction of weights in which two samples differ."""
    first, second = posterior.draw(0, 0), posterior.draw(0, 1)
    different = sum(int((first[name] != second[name]).sum()) for name in first)
    return different / sum(value.numel() for value in first.values())


def ratio(many: Any, one: Any, x: Any, rounds: int = 31) -> float:
    """The ensemble's time divided by one network's: the median of interleaved rounds."""
    ratios = []
    for _ in range(rounds):
        # Ten calls of one network against one of the ensemble: equally long, so equally exposed to other load.
        seconds = []
        for each, calls in ((many, 1), (one, SAMPLES)):
            start = time.perf_counter()
            for _ in range(calls):
                each.outputs(x)
            seconds.append((time.perf_counter() - start) / calls)
        ratios.append(seconds[0] / seconds[1])
    return median(ratios)


def spread(values: list[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def markdown(rows: list[dict[str, Any]], many: dict[str, Any] | None) -> str:
    facts = describe()
    lines = [
        "# Packed networks compared with the trained ones",
        "",
        f"`python benchmarks/agreement.py`, {facts['processor']}, torch {facts['torch']}. Real test data; networks "
        "trained with `bayesbinn train` and packed with `bayesbinn pack`. Difference: the largest between a logit and "
        "PyTorch's, as a fraction of the largest logit.",
        "",
        "| network | inputs | file, bytes | accuracy by torch | exact: difference | exact: same class "
        "| int8: same class | int8: accuracy | holds |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {row['run']}, width {row['width']:g}, {row['epochs']} epochs | {row['inputs']:,} "
        f"| {row['file_bytes']:,} | {row['accuracy']:.2f} % | {row['exact_difference']:.1e} "
        f"| {row['exact_agreement']:.2f} % | {row['int8_agreement']:.2f} % (≥ {row['limits']['agreement']}) "
        f"| {row['int8_accuracy']:.2f} % (± {row['limits']['accuracy']}) | {'yes' if row['holds'] else 'NO'} |"
        for row in rows
    ]
    if many is not None:
        lines += [
            "",
            f"## An ensemble of {SAMPLES} posterior samples of the MNIST MLP",
            "",
            f"Two samples differ in {many['samples_differ']:.1f} % of their weights; the file has "
            f"{many['file_bytes']:,} bytes. 10,000 test digits, calibrated.",
            "",
            "| | torch | exact | int8 |",
            "| --- | --- | --- | --- |",
            f"| NLL | {many['nll_torch']:.5f} | {many['nll_exact']:.5f} | {many['nll_int8']:.5f} |",
            f"| ECE | {many['ece_torch']:.5f} | {many['ece_exact']:.5f} | {many['ece_int8']:.5f} |",
            *(
                f"| time relative to one network, batch {batch} | | {spread(many[f'times_exact_{batch}'])} "
                f"| {spread(many[f'times_int8_{batch}'])} |"
                for batch in (1, 100)
            ),
            "",
            f"Times are on one thread: the median of {RUNS} runs (minimum to maximum), each the median of interleaved "
            "rounds.",
            "",
            f"Holds: {'yes' if many['holds'] else 'NO'}.",
        ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mnist", type=Path, action="append", default=[])
    parser.add_argument("--cifar10", type=Path, action="append", default=[])
    parser.add_argument("--ensemble", type=Path)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows = [network(run, 10_000, {"agreement": 99.8, "accuracy": 0.05}) for run in arguments.mnist]
    rows += [network(run, 2_000, {"agreement": 99.0, "accuracy": 0.3}) for run in arguments.cifar10]
    many = ensemble(arguments.ensemble) if arguments.ensemble else None
    text = markdown(rows, many)
    print(text)
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "agreement.md").write_text(text)
        (arguments.out / "agreement.json").write_text(json.dumps({"networks": rows, "ensemble": many}, indent=1))
    return 0 if all(row["holds"] for row in [*rows, *([many] if many else [])]) else 1


if __name__ == "__main__":
    raise SystemExit(main())
