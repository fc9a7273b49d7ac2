"""The paper's presets compute the same numbers, bit for bit, as when their hashes were recorded.

Every method of every preset trains a few steps on the real data, with one thread, as `bayesbinn train` does,
and with the preset's number of epochs, which determines the learning rate. The test compares the state of the optimizer
(λ, or the latent weights and their moments), the model's real parameters, and the BatchNorm statistics.

A different processor, torch version or kernel adds numbers in a different order, so the tests are skipped there. To
record the cases that have no hash yet (delete the file to record all of them, from a state known to be correct):

    BAYESBINN_DATA=FOLDER python tests/experiments/test_preset_hashes.py --record
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bayesbinn.experiments import load_experiment
from bayesbinn.experiments.config import describe_presets
from bayesbinn.kernels import native
from bayesbinn.methods.contract import BinaryOptimizer
from bayesbinn.runs import stream
from bayesbinn.runs.single import Run
from bayesbinn.train.progress import RunStopped
from tests.helpers.places import FIXTURES

FIXTURE = FIXTURES / "preset_hashes.json"
OURS = {"digits", "permuted-digits"}
"""Presets that are not experiments in the paper; they may change."""
STEPS, SHORT_STEPS = 50, 3
SMALL_WIDTH = 0.125
CONVOLUTIONAL = {"cifar10", "cifar100", "lrnet-cifar10"}
"""Networks too wide for a test, trained at `SMALL_WIDTH` instead."""
SIMILAR = {"cifar100", "mnist-learning-rates", "mnist-temperatures"}
"""Presets that differ from another one only in numbers; the short form skips them."""


@dataclass(frozen=True)
class Case:
    preset: str
    method: str
    steps: int
    width: float

    @property
    def name(self) -> str:
        return f"{self.preset}/{self.method}/{self.steps} steps/width {self.width:g}"


def cases() -> list[Case]:
    """Every method of every preset of the paper."""
    return [
        Case(preset, method, STEPS, SMALL_WIDTH if preset in CONVOLUTIONAL else 1.0)
        for preset, content in describe_presets().items()
        if preset not in OURS
        for method in content["methods"]
    ]


def short_cases() -> list[Case]:
    return [Case(case.preset, case.method, SHORT_STEPS, SMALL_WIDTH) for case in cases() if case.preset not in SIMILAR]


def machine() -> dict[str, str]:
    """What the order of additions depends on."""
    kind = platform.processor() or platform.machine()
    if (info := Path("/proc/cpuinfo")).is_file():
        first = info.read_text().partition("\n\n")[0].splitlines()
        facts = dict(map(str.strip, line.split(":", 1)) for line in first if ":" in line)
        kind = ", ".join(facts.get(key, "?") for key in ("vendor_id", "model name", "cpu family", "model"))
    return {
        "processor": kind,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "kernels": native.isa(),
    }


def trained(case: Case, data: Path, folder: Path) -> tuple[nn.Module, BinaryOptimizer]:
    """The model and the optimizer of the case's run after its steps."""
    changes: dict[str, Any] = {"model.width": case.width}
    if load_experiment(case.preset, method=case.method).continual is not None:
        changes["continual.rows"] = "diagonal"  # does not measure the untrained network on all tasks
    experiment = load_experiment(case.preset, method=case.method, overrides=changes)
    open_run = Run.open if experiment.continual is None else stream.open_run
    run = open_run(experiment, folder, data)
    with pytest.raises(RunStopped):
        run.train(should_stop=after(case.steps))
    return run.model, run.optimizer


def after(steps: int) -> Callable[[], bool]:
    """Returns "stop" at the `steps`-th call; it is called once per batch."""
    left = iter(range(steps - 1, -1, -1))
    return lambda: next(left) == 0


def hashes(model: nn.Module, optimizer: BinaryOptimizer) -> dict[str, str]:
    """SHA-256 of the optimizer's state, the real parameters and the BatchNorm statistics."""
    owned = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    real = [(name, p) for name, p in model.named_parameters() if not optimizer.binary or id(p) not in owned]
    return {"state": digest(state_of(optimizer)), "real": digest(real), "statistics": digest(model.named_buffers())}


def state_of(optimizer: BinaryOptimizer) -> Iterator[tuple[str, Tensor]]:
    saved = optimizer.state_dict()
    for group in saved["param_groups"]:
        for name, index in zip(group["param_names"], group["params"], strict=True):
            for key, value in sorted(saved["state"][index].items()):
                if isinstance(value, Tensor):
                    yield f"{name}/{key}", value


def digest(tensors: Iterable[tuple[str, Tensor]]) -> str:
    total = hashlib.sha256()
    for name, tensor in tensors:
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        total.update(tensor.detach().contiguous().numpy().tobytes())
    return total.hexdigest()


def compare(case: Case, data: Path, folder: Path) -> None:
    recorded = json.loads(FIXTURE.read_text())
    if (here := machine()) != recorded["machine"]:
        differing = "; ".join(
            f"{k}: {here[k]}, recorded on {v}" for k, v in recorded["machine"].items() if here[k] != v
        )
        pytest.skip(f"hashes are valid only on one kind of machine ({differing})")
    torch.set_num_threads(1)
    assert hashes(*trained(case, data, folder)) == recorded["hashes"][case.name]


@pytest.mark.slow
@pytest.mark.parametrize("case", cases(), ids=lambda case: f"{case.preset}-{case.method}")
def test_presets_train_as_recorded(case: Case, data_dir: Path, tmp_path: Path) -> None:
    compare(case, data_dir, tmp_path / "run")


@pytest.mark.parametrize("case", short_cases(), ids=lambda case: f"{case.preset}-{case.method}")
def test_small_presets_train_as_recorded(case: Case, data_dir: Path, tmp_path: Path) -> None:
    compare(case, data_dir, tmp_path / "run")


def test_every_case_is_recorded() -> None:
    assert set(json.loads(FIXTURE.read_text())["hashes"]) == {case.name for case in [*cases(), *short_cases()]}


def test_a_hash_notices_the_last_bit() -> None:
    values = torch.tensor([1.0, 10.0])
    changed = torch.nextafter(values, torch.tensor([1.0, 11.0]))
    assert digest([("natural", values)]) != digest([("natural", changed)])


def record() -> None:
    """Add the hashes of the current state for the cases that have none."""
    data = os.environ.get("BAYESBINN_DATA")
    if not data:
        raise SystemExit("BAYESBINN_DATA is not set: it names a folder with the real data sets")
    known = json.loads(FIXTURE.read_text()) if FIXTURE.is_file() else {"machine": machine(), "hashes": {}}
    if known["machine"] != machine():
        raise SystemExit(f"the hashes were recorded on {known['machine']}, this is {machine()}: delete the file first")
    torch.set_num_threads(1)
    found: dict[str, dict[str, str]] = known["hashes"]
    for case in [*cases(), *short_cases()]:
        if case.name in found:
            continue
        with tempfile.TemporaryDirectory() as folder:
            found[case.name] = hashes(*trained(case, Path(data), Path(folder) / "run"))
        print(case.name, found[case.name]["state"][:12], flush=True)
    FIXTURE.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] != ["--record"]:
        raise SystemExit(__doc__)
    record()
