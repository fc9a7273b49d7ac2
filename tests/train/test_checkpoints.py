"""Damaged and tampered files of a run: one line each, never a silently different result."""

from __future__ import annotations

import io
import random
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from bayesbinn import BernoulliPosterior, LogitScale
from bayesbinn.errors import BayesbinnError, InvalidFile
from bayesbinn.experiments import load_experiment
from bayesbinn.runs.open import open_any
from bayesbinn.runs.trained import load_trained
from bayesbinn.train.checkpoints import read_checkpoint, write_checkpoint
from tests.helpers.places import FIXTURES

BEFORE = FIXTURES / "before"
KINDS = ("run", "stream")


def resumed(folder: Path) -> Any:
    return open_any(load_experiment(str(folder / "config.toml")), folder, None)


@pytest.fixture(params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """An unfinished run, or a stream of tasks, in its own folder."""
    return Path(shutil.copytree(BEFORE / request.param, tmp_path / request.param))


def sealed(folder: Path) -> bytes:
    """The checkpoint in the current format."""
    path = folder / "checkpoint.pt"
    state = read_checkpoint(path)
    assert state is not None
    write_checkpoint(path, state)
    return path.read_bytes()


# ---- old files without checksums -------------------------------------------------------------------


def test_a_run_without_checksums_is_resumed_and_gets_them(folder: Path) -> None:
    old = (folder / "checkpoint.pt").read_bytes()
    torch.load(io.BytesIO(old), weights_only=True)
    assert b"bayesbinn sha256" not in old
    run = resumed(folder)
    assert run.epochs_done == 2 and not run.finished
    run.train()
    assert run.finished and b"bayesbinn sha256" in (folder / "checkpoint.pt").read_bytes()[-90:]
    torch.load(folder / "checkpoint.pt", weights_only=True)  # still a file for torch
    assert resumed(folder).finished


def test_a_checksum_does_not_change_what_is_learned(tmp_path: Path) -> None:
    posteriors = []
    for name in ("without", "with"):
        place = Path(shutil.copytree(BEFORE / "run", tmp_path / name))
        if name == "with":
            sealed(place)
        resumed(place).train()
        posteriors.append((place / "posterior.safetensors").read_bytes())
    assert posteriors[0] == posteriors[1], "equal runs give equal bytes"


def test_a_posterior_without_a_checksum_is_read(tmp_path: Path) -> None:
    posterior = BernoulliPosterior.load(BEFORE / "posterior.safetensors")
    assert posterior.logit_scale == LogitScale(2.5, 3.5)
    expected = torch.randn(3, 5, generator=torch.Generator().manual_seed(1))
    assert torch.equal(posterior.natural["0.weight"], expected)
    assert posterior.natural["2.weight"].tolist() == [torch.inf, -2.0]
    for kind in KINDS:
        _, _, _, kept = load_trained(BEFORE / kind)
        assert kept is not None
        saved = BernoulliPosterior.load(BEFORE / kind / "posterior.safetensors")
        assert all(torch.equal(saved.natural[name], value) for name, value in kept.natural.items())


# ---- damage ------------------------------------------------------------------------------------------


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << (bit % 8)
    return bytes(changed)


def places(size: int, count: int) -> Iterator[int]:
    """Random bits, and many in the last bytes, where the checksum is."""
    moments = random.Random(7)
    yield from (moments.randrange(8 * size) for _ in range(count))
    yield from range(8 * (size - 110), 8 * size, 5)


def test_no_flipped_bit_of_a_checkpoint_is_resumed(folder: Path) -> None:
    content = sealed(folder)
    resumed(folder)
    for bit in places(len(content), 100):
        (folder / "checkpoint.pt").write_bytes(flipped(content, bit))
        with pytest.raises(InvalidFile, match=r"checkpoint\.pt: cannot be resumed \(.+\); delete it") as refused:
            read_checkpoint(folder / "checkpoint.pt")
        assert "\n" not in str(refused.value)
    with pytest.raises(InvalidFile, match="checksum mismatch"):
        resumed(folder)


def test_no_flipped_bit_of_a_posterior_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "posterior.safetensors"
    BernoulliPosterior.load(BEFORE / "posterior.safetensors").save(path)
    content = path.read_bytes()
    BernoulliPosterior.load(path)
    for bit in {*places(len(content), 200), *range(0, 8 * 300, 7)}:
        path.write_bytes(flipped(content, bit))
        with pytest.raises(InvalidFile) as refused:
            BernoulliPosterior.load(path)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("keep", [0, 1, 7, 8, 100, -1, -64, -81, -103])
def test_a_truncated_file_is_rejected(keep: int, tmp_path: Path) -> None:
    place = Path(shutil.copytree(BEFORE / "run", tmp_path / "run"))
    (place / "checkpoint.pt").write_bytes(sealed(place)[:keep])
    with pytest.raises(InvalidFile, match="cannot be resumed"):
        resumed(place)
    path = tmp_path / "posterior.safetensors"
    BernoulliPosterior({"w": torch.ones(100)}).save(path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(InvalidFile):
        BernoulliPosterior.load(path)


# ---- tampering: whole files, with a checksum, that no run wrote -----------------------------------------

VALUES: list[Any] = [None, "x", -1, 10**30, float("nan"), [], {}, torch.ones(2, 3), b"x"]


def entries(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, (list, tuple)) else ()
    for key, value in inner:
        yield from entries(value, (*path, key))


def changed(tree: Any, path: tuple[Any, ...], change: Callable[[Any, Any], None]) -> Any:
    """A copy of a tree with one entry changed."""
    key, *rest = path
    copy = dict(tree) if isinstance(tree, dict) else list(tree)
    if rest:
        copy[key] = changed(tree[key], tuple(rest), change)
    else:
        change(copy, key)
    return copy


def shortened(copy: Any, key: Any) -> None:
    value = copy[key]
    copy[key] = value.flatten()[1:] if isinstance(value, Tensor) else float("nan")


def removed(copy: Any, key: Any) -> None:
    del copy[key]


def test_a_tampered_checkpoint_is_used_or_rejected_in_one_line(folder: Path) -> None:
    """Whatever is changed, training continues, or one line says why not."""
    state = read_checkpoint(folder / "checkpoint.pt")
    moments, refusals = random.Random(3), []
    paths = [path for path in entries(state) if path and "histogram" not in path]
    for path in moments.sample(paths, 24):
        value = moments.choice(VALUES)
        replaced = partial(lambda copy, key, value: copy.__setitem__(key, value), value=value)
        change = moments.choice([replaced, replaced, removed, shortened])
        write_checkpoint(folder / "checkpoint.pt", changed(state, path, change))
        try:
            resumed(folder).train(stop_after=3 if folder.name == "run" else 2)
        except BayesbinnError as error:
            refusals.append(str(error))
    assert len(refusals) >= 8 and not any("\n" in each for each in refusals)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("epoch",), "x", r"epoch is 'x', expected 1"),
        (("epoch",), 2, r"epoch 2 with metrics of 2 epochs"),
        (("elapsed",), None, r"elapsed is None"),
        (("totals", "batches"), 10**9, r"totals.batches is 1000000000, but there are only 1437 examples"),
        (("rows",), 5, r"rows is 5, not a list of 0"),
        (("rows", 0), {}, r"line 1: epoch is None"),
        (("signs", 1), torch.ones(2, 3), r"signs.1 is a float32 tensor of shape \(2, 3\), not a int8 tensor"),
        (("optimizer", "state", 0, "step"), -1, r"optimizer.state.0.step is -1"),
        (("optimizer", "param_groups", 0, "momentum"), None, r"optimizer.param_groups.0.momentum is None"),
    ],
)
def test_the_line_names_what_does_not_match(path: tuple[Any, ...], value: Any, message: str, tmp_path: Path) -> None:
    place = Path(shutil.copytree(BEFORE / "run", tmp_path / "run"))
    state = read_checkpoint(place / "checkpoint.pt")
    write_checkpoint(place / "checkpoint.pt", changed(state, path, lambda copy, key: copy.__setitem__(key, value)))
    with pytest.raises(InvalidFile, match=message):
        resumed(place)


def test_a_checkpoint_that_is_not_a_state_is_rejected(folder: Path) -> None:
    torch.save([1, 2], folder / "checkpoint.pt")
    with pytest.raises(InvalidFile, match="it contains a list of 2, not the state of a run"):
        resumed(folder)
