"""Data-parallel training with real processes: together they act as one, and none outlives another for long."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayesbinn as bb
from bayesbinn import data, ranks
from bayesbinn.data.batches import share_of
from bayesbinn.errors import InvalidInput
from bayesbinn.experiments import load_experiment
from bayesbinn.methods import METHODS
from bayesbinn.runs.open import check_ranks
from bayesbinn.runs.trained import load_trained
from bayesbinn.train import data_parallel as distributed
from bayesbinn.train.loop import Totals, correct_predictions, train_batches
from tests.helpers.processes import Commands, run_ranks, wait_for_a_checkpoint, warm_python

SETTINGS: dict[str, dict[str, Any]] = {
    "bayesbinn": {"lr": 1e-4, "temperature": 0.5, "initial_strength": 1.0, "momentum": 0.5},
    "bimu": {"lr": 1.0, "mc_samples": 2},
    "bop": {"lr": 1e-2, "threshold": 1e-4},
}
OWN_NOISE = ["bayesbinn", "bimu"]
# 1294 examples to train on: 68 batches of 19, which two ranks share unequally, and one of 2, too small to share.
BATCH, STEPS, FIRST = 19, 50, 40


pytestmark = pytest.mark.usefixtures("one_thread")


# ---- the same as one process -------------------------------------------------------------------------


def trained(method: str, independent: bool = False) -> dict[str, Any]:
    """State and totals after 50 steps of a small network without BatchNorm or dropout, with real biases."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    binary, real = bb.split_parameters(model)
    settings = {**SETTINGS.get(method, {}), **({"independent_noise": True} if independent else {})}
    optimizer = METHODS[method].create(binary, train_set_size=1294, seed=5, **settings)
    biases = torch.optim.Adam([p for _, p in real], lr=1e-3)
    replica = distributed.replicated(model, optimizer, biases)
    part, totals = data.load("digits").split(0.1, seed=1).train, Totals()
    shard = ranks.rank(), ranks.world()
    for epoch, start, end in ((1, FIRST, 69), (2, 0, STEPS - 69 + FIRST)):
        batches = part.batches(BATCH, seed=1, epoch=epoch, start=start, drop_single=True, shard=shard)
        chosen = (batch for batch, _ in zip(batches, range(end - start), strict=False))
        train_batches(
            *(replica, optimizer, chosen, totals),
            real_optimizer=biases,
            mc_samples=optimizer.mc_samples,
            sizes=batches.sizes,
        )
    own = distributed.own_batches(part, 100)
    with torch.no_grad():
        (correct,) = ranks.summed([sum(correct_predictions(model(x), y) for x, y in own)])
    state = {key: value.clone() for key, value in model.state_dict().items()}
    for index, entry in optimizer.state_dict()["state"].items():
        state |= {f"{index}.{key}": value for key, value in entry.items() if isinstance(value, Tensor)}
    return {"state": state, "totals": vars(distributed.total_of(totals)), "correct": correct}


def mean_of_scaled_gradients(independent: bool) -> Tensor:
    """s⊙g, averaged over the ranks, [draws, weights], at τ = 1 with a linear loss and the same data on all ranks."""
    torch.manual_seed(0)
    model = nn.Linear(100, 60, bias=False)
    settings = {"lr": 1e-3, "train_set_size": 1, "temperature": 1.0, "initial_strength": 0.5, "kl_weight": 0.0}
    optimizer = bb.BayesBiNN(bb.split_parameters(model)[0], seed=3, independent_noise=independent, **settings)
    replica = distributed.replicated(model, optimizer)
    found, before = [], optimizer.posterior().natural["weight"].clone()
    for _ in range(30):
        with optimizer.sampled_params(train=True):
            replica(torch.ones(2, 100)).sum().backward()
        optimizer.step()
        after = optimizer.posterior().natural["weight"].clone()
        found.append((before - after).flatten() / 1e-3)
        before = after
    return torch.stack(found)


def _rank(rank: int, folder: str, port: int) -> None:
    torch.set_num_threads(1)
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({key: str(value) for key, value in place.items()})
    with distributed.session(60):
        results: dict[str, Any] = {method: trained(method) for method in METHODS}
        results |= {f"{method}, own noise": trained(method, independent=True) for method in OWN_NOISE}
        results |= {f"noise {kind}": mean_of_scaled_gradients(kind) for kind in (False, True)}
        torch.save(results, f"{folder}/{rank}.pt")


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The results of each of two ranks."""
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    run_ranks(_rank, str(folder), port)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("name", [*METHODS, *(f"{method}, own noise" for method in OWN_NOISE)])
def test_the_ranks_stay_equal_bit_for_bit(name: str, both: list[dict[str, Any]]) -> None:
    first, second = (each[name] for each in both)
    assert first["state"].keys() == second["state"].keys()
    for key, value in first["state"].items():
        assert torch.equal(value, second["state"][key]), key
    assert first["totals"] == second["totals"] and first["correct"] == second["correct"]


@pytest.mark.parametrize("method", [method for method in METHODS if method != "lrnet"])
def test_two_ranks_equal_one_process_with_the_whole_batch(method: str, both: list[dict[str, Any]]) -> None:
    alone, together = trained(method), both[0][method]
    for key, value in alone["state"].items():
        error = (together["state"][key].float() - value.float()).abs().max()
        assert error <= 1e-5 * value.float().abs().max(), f"{key}: {error}"
    assert together["totals"]["seen"] == alone["totals"]["seen"] == 28 * 19 + 2 + 21 * 19
    assert together["totals"]["batches"] == STEPS
    assert together["totals"]["loss"] == pytest.approx(alone["totals"]["loss"], rel=1e-4)
    assert (together["totals"]["correct"], together["correct"]) == (alone["totals"]["correct"], alone["correct"])


def test_independent_noise_on_every_rank_halves_the_variance(both: list[dict[str, Any]]) -> None:
    shared, own = (both[0][f"noise {kind}"].var(0).mean() for kind in (False, True))
    assert float(own / shared) == pytest.approx(0.5, abs=0.05)
    means = [both[0][f"noise {kind}"].mean() for kind in (False, True)]
    assert float(means[0]) == pytest.approx(float(means[1]), rel=0.02)


@pytest.mark.parametrize("method", OWN_NOISE)
def test_independent_noise_differs_between_ranks(method: str, both: list[dict[str, Any]]) -> None:
    key = "0.natural"
    assert not torch.equal(both[0][method]["state"][key], both[0][f"{method}, own noise"]["state"][key])


@pytest.mark.parametrize("world", [1, 2, 3, 8])
@pytest.mark.parametrize("count", [2, 3, 15, 16, 17, 100])
def test_shares_are_contiguous_and_no_rank_has_a_single_example(count: int, world: int) -> None:
    rows = list(range(count))
    shares = [rows[share_of(count, rank, world)] for rank in range(world)]
    sizes = [len(share) for share in shares]
    assert min(sizes) >= 2 and max(sizes) - min(sizes) <= 1
    if count < 2 * world:
        assert all(share == rows for share in shares)
    else:
        assert [row for share in shares for row in share] == rows


# ---- runs --------------------------------------------------------------------------------------------


def training(folder: Path, epochs: int = 4, **changes: Any) -> list[str]:
    """Arguments of a small run with BatchNorm and dropout."""
    relaxed = {"lr": 0.03, "temperature": 0.5, "initial_strength": 1.0}
    changes = {"model.width": 0.02, "training.batch_size": 64, **relaxed, **changes}
    settings = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    return [
        *("train", "digits", "--out", str(folder), "--epochs", str(epochs), "--timeout", "60", *settings),
    ]


# Every few batches. A run that nobody stops does without, which takes less time.
OFTEN = ("--checkpoint-minutes", "0.0001")


def train_in_ranks(commands: Commands, *arguments: str) -> list[int]:
    return [commands.wait(process) for process in commands.start_ranks(2, *arguments)]


def checkpoint_of(folder: Path) -> dict[str, Tensor]:
    """Every tensor of a checkpoint, by its path."""
    found: dict[str, Tensor] = {}

    def walk(tree: Any, where: str) -> None:
        if isinstance(tree, Tensor):
            found[where] = tree
        elif isinstance(tree, (dict, list)):
            for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
                walk(value, f"{where}.{key}")

    walk(torch.load(folder / "checkpoint.pt", weights_only=True), "")
    return found


def scores_of(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if key != "seconds"} for line in lines]


def test_a_killed_rank_ends_the_other_and_any_number_of_ranks_resumes(commands: Commands, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert train_in_ranks(commands, *training(whole)) == [0, 0], commands.log("rank-0")
    survivor, victim = commands.start_ranks(2, *training(killed), *OFTEN)
    wait_for_a_checkpoint(killed)
    os.kill(victim, signal.SIGKILL)
    started = time.monotonic()
    assert commands.wait(victim) == -signal.SIGKILL
    assert commands.wait(survivor) == 2
    assert time.monotonic() - started < 30
    said = [line for line in commands.log("rank-0") if not line.startswith(("epoch ", "learning rate: "))]
    assert len(said) == 1 and said[0].startswith("error: rank 0 of 2 lost the others ("), said
    assert said[0].endswith("the same command resumes from the last checkpoint")
    assert len(scores_of(killed)) < 4

    by_one = tmp_path / "by-one"
    shutil.copytree(killed, by_one)
    assert commands.run(*training(by_one)) == 0, commands.errors
    assert any(line.startswith(f"resuming {by_one} in epoch ") for line in commands.errors)
    assert [row["epoch"] for row in scores_of(by_one)] == [1, 2, 3, 4]

    assert train_in_ranks(commands, *training(killed)) == [0, 0], commands.log("rank-0")
    assert scores_of(killed) == scores_of(whole)
    expected, found = checkpoint_of(whole), checkpoint_of(killed)
    assert expected.keys() == found.keys() and all(torch.equal(expected[key], found[key]) for key in expected)


def test_a_silent_rank_is_abandoned_after_the_timeout(commands: Commands, tmp_path: Path) -> None:
    arguments = training(tmp_path / "run", epochs=200)
    arguments[arguments.index("--timeout") + 1] = "2"
    survivor, silent = commands.start_ranks(2, *arguments, *OFTEN)
    wait_for_a_checkpoint(tmp_path / "run")
    os.kill(silent, signal.SIGSTOP)
    try:
        started = time.monotonic()
        assert commands.wait(survivor) == 2, commands.log("rank-0")
        assert time.monotonic() - started < 30
        assert commands.log("rank-0")[-1].startswith("error: rank 0 of 2 lost the others (")
        assert not (tmp_path / "run" / "lock").exists()
    finally:
        os.kill(silent, signal.SIGKILL)
        commands.wait(silent)


LEAVING = """
import sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from bayesbinn.train import data_parallel as distributed
torch.set_num_threads(1)
sys.setswitchinterval(1000)  # nobody gets the interpreter's lock who does not wait for it to be let go
for number in range(2):  # what the first one imports holds on to its group
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    replica = DistributedDataParallel(torch.nn.Linear(2, 2))
    distributed._replicas.add(replica)
    tensor, gathered = torch.ones(4_000_000), torch.empty(4_000_000)
    work = dist.all_gather([gathered], tensor, async_op=True)
    del tensor, gathered, work  # a thread of gloo has the last references: it needs that lock to drop them
    distributed._leave()
    del replica
print("left")
"""


def test_leaving_does_not_wait_for_a_thread_that_waits_for_it() -> None:
    done = subprocess.run([sys.executable, "-c", LEAVING], capture_output=True, text=True, timeout=60)
    assert done.stdout == "left\n", done.stderr


def test_torchrun_writes_one_set_of_files_and_scores_as_one_process_does(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    launcher = [warm_python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    arguments = [*training(folder, epochs=2, **{"training.mean_samples": 2}), "--independent-noise", "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*launcher, "-m", "bayesbinn", *arguments], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["epochs"] == "2 of 2"
    assert done.stderr.count("epoch 1/2") == 1
    names = {path.name for path in folder.iterdir()} - {"tensorboard"}
    assert names == {
        *("config.toml", "data.json", "metrics.jsonl", "checkpoint.pt"),
        *("posterior.safetensors", "best.safetensors", "calibration.json", "scores.json"),
    }

    rows = scores_of(folder)
    assert [row["epoch"] for row in rows] == [1, 2]
    experiment, dataset, model, posterior = load_trained(folder)
    assert experiment.training.independent_noise
    part = dataset.split(experiment.data.validation, experiment.training.seed).test
    assert part is not None and posterior is not None
    x, y = part.whole()
    with torch.no_grad():
        assert 100 * correct_predictions(model(x), y) / len(part) == rows[-1]["test_accuracy"]
    averaged = int((bb.predict(model, posterior, x, samples=2, seed=0).classes == y).sum())
    assert 100 * averaged / len(part) == rows[-1]["test_accuracy_mean"]


# ---- errors ------------------------------------------------------------------------------------------


def test_an_error_is_reported_once(commands: Commands, tmp_path: Path) -> None:
    assert train_in_ranks(commands, *training(tmp_path / "run"), "--sync-batchnorm") == [2, 2]
    assert commands.log("rank-1") == []
    (line,) = commands.log("rank-0")
    assert line.startswith("error: sync_batchnorm: torch's SyncBatchNorm does not run on CPUs; leave it out")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("preset", "changes", "message"),
    [
        ("digits", {"training.batch_size": 7}, "training.batch_size=7: 4 ranks need 8 or more, 2 examples per rank"),
        ("digits", {"training.sync_batchnorm": True}, "SyncBatchNorm does not run on CPUs"),
        ("permuted-digits", {}, "only one process can learn a stream of tasks; start it without torchrun"),
    ],
)
def test_what_several_ranks_cannot_do_is_rejected(preset: str, changes: dict[str, Any], message: str) -> None:
    experiment = load_experiment(preset, overrides=changes)
    check_ranks(experiment, 1)
    with pytest.raises(InvalidInput) as caught:
        check_ranks(experiment, 4)
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("method", ["ste", "bop", "pmf", "lrnet", "float"])
def test_methods_that_do_not_sample_weights_reject_independent_noise(method: str) -> None:
    with pytest.raises(InvalidInput, match=r"is for methods that sample weights \(bayesbinn, bimu\); remove it"):
        load_experiment("digits", method=method, overrides={"training.independent_noise": True})


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"RANK": "0"}, "RANK is set, but WORLD_SIZE is not; start with `torchrun"),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}, "but MASTER_ADDR is not"),
        ({"RANK": "2", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, "RANK=2, WORLD"),
        ({"RANK": "x", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, "RANK=x"),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "a", "MASTER_PORT": "b"}, "MASTER_PORT=b"),
    ],
)
def test_an_incomplete_environment_is_rejected(
    environment: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(key, raising=False)
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    with pytest.raises(InvalidInput, match=message), distributed.session():
        pass


def test_a_shard_outside_the_world_is_rejected() -> None:
    part = data.load("digits").split(0.1, seed=1).train
    with pytest.raises(InvalidInput, match=r"shard=\(2, 2\): must be \(rank, world\)"):
        part.batches(10, shard=(2, 2))
