"""Checkpoints: written with a checksum, and compared with what the run itself would write before they are used.

A checksum detects damage, but a file that someone edited and sealed again, or that another program wrote, has a valid
one. So values without the shape and type that training expects are rejected here, not by a traceback an hour later.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayesbinn.errors import InvalidFile
from bayesbinn.files import check_zip, reason_of, seal_zip, write_whole
from bayesbinn.train.rows import check_rows

_MAX_COUNT = 2**62
_ADAM = ("exp_avg", "exp_avg_sq")


def write_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write a file that `torch.load` reads, with a checksum at its end."""
    content = io.BytesIO()  # when torch writes the file itself, its errors do not say why the disk failed
    torch.save(state, content)
    write_whole(path, seal_zip(content.getbuffer()))


def read_checkpoint(path: Path) -> dict[str, Any] | None:
    """The state that a run has saved; None if there is none."""
    if not path.exists():
        return None
    with resuming(path):
        content = path.read_bytes()
        check_zip(content)
        state = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
        if not isinstance(state, dict):
            raise InvalidFile(f"it contains {_kind(state)}, not the state of a run")
        return state


@contextmanager
def resuming(path: Path) -> Iterator[None]:
    """Report a checkpoint that is damaged or does not match the run in one line."""
    try:
        yield
    except Exception as error:
        missing = f"no entry {error}" if isinstance(error, KeyError) else ""
        reason = missing or reason_of(error)[:300]
        raise InvalidFile(f"{path}: cannot be resumed ({reason}); delete it to start again") from error


# ---- what a state must look like ------------------------------------------------------------------


def check_alike(saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Reject a saved state whose entries differ in type or shape from those of a new state."""
    for key in own.keys() & saved.keys():
        if problem := _difference(saved[key], own[key], key):
            raise InvalidFile(problem)


def check_accuracies(finished: list[dict[str, Any]]) -> None:
    """Reject lines of finished tasks whose accuracies are not {policy: {task: percent}}."""
    for line in finished:
        for policy, found in line["accuracy"].items():
            for task, value in found.items():
                int(task)
                if isinstance(value, bool) or not isinstance(value, (int, float)):
                    raise InvalidFile(f"accuracy of {policy} on task {task} is {_kind(value)}")


def check_progress(saved: Mapping[str, Any], examples: int) -> None:
    """Reject counts of the current epoch that exceed its number of examples."""
    totals = saved["totals"]
    for key in ("correct", "seen", "batches"):
        if totals[key] > examples:
            raise InvalidFile(f"totals.{key} is {totals[key]}, but there are only {examples} examples")
    if saved["elapsed"] < 0:
        raise InvalidFile(f"elapsed is {saved['elapsed']}: must be 0 or more")


def check_lines(lines: Any, what: str) -> None:
    """Reject metrics that cannot be written as lines of JSON, or that lack required values."""
    if not isinstance(lines, list):
        raise InvalidFile(f"{what} is {_kind(lines)}, not a list")
    json.dumps(lines)
    check_rows(lines)


def check_adam(saved: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> None:
    """Reject moments whose shape differs from their parameter's: torch would only notice at the next step."""
    if not isinstance(optimizer, torch.optim.Adam):
        return
    own = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    indices = [index for group in saved["param_groups"] for index in group["params"]]
    for index, parameter in zip(indices, own, strict=True):
        state = saved["state"].get(index)
        if state is None:
            continue  # no step yet
        for name in _ADAM:
            if problem := _difference(state[name], torch.zeros_like(parameter), f"{name} of parameter {index}"):
                raise InvalidFile(problem)
        if not 0 <= float(state["step"]) < _MAX_COUNT:
            raise InvalidFile(f"step of parameter {index} is {state['step']}")


def _difference(saved: Any, own: Any, where: str) -> str:
    """The first entry that training could not use, in words; empty if there is none."""
    if isinstance(own, Tensor):
        return _difference_of_tensors(saved, own, where)
    if isinstance(own, Mapping):
        if not isinstance(saved, Mapping):
            return f"{where} is {_kind(saved)}, not a table"
        if "lr" in own and "initial_lr" in saved:  # the schedule adds it at the first batch
            own = {**own, "initial_lr": own["lr"]}
        for key, value in own.items():
            place = f"{where}.{key}"
            if key in saved:
                if problem := _difference(saved[key], value, place):
                    return problem
            elif isinstance(value, (int, float)) and "param_groups" not in where:
                return f"{place} is missing"  # settings may be newer than the file; tensors are matched by name
        return ""
    if isinstance(own, (list, tuple)):
        if not isinstance(saved, (list, tuple)) or (own and len(saved) != len(own)):
            return f"{where} is {_kind(saved)}, not {_kind(own)}"
        pairs = zip(saved, own, strict=False)
        return next(filter(None, (_difference(s, o, f"{where}.{i}") for i, (s, o) in enumerate(pairs))), "")
    return _difference_of_values(saved, own, where)


def _difference_of_tensors(saved: Any, own: Tensor, where: str) -> str:
    if not isinstance(saved, Tensor):
        return f"{where} is {_kind(saved)}, not a tensor"
    if saved.shape != own.shape or saved.is_floating_point() != own.is_floating_point():
        return f"{where} is {_kind(saved)}, not {_kind(own)}"
    if saved.is_floating_point() and bool(torch.isnan(saved).any()):
        return f"{where} contains NaN"
    return ""


def _difference_of_values(saved: Any, own: Any, where: str) -> str:
    if own is None:
        fits = saved is None or (isinstance(saved, (int, float)) and 0 < saved < math.inf)
        return "" if fits else f"{where} is {_kind(saved)}"
    if isinstance(own, bool) or isinstance(saved, bool) or isinstance(own, str):
        fits = type(saved) is type(own)
    elif isinstance(own, int):
        fits = isinstance(saved, int) and 0 <= saved < _MAX_COUNT
    elif isinstance(own, float):
        fits = isinstance(saved, (int, float)) and (math.isfinite(saved) or not math.isfinite(own))
        fits = fits and (saved >= 0 or own < 0)
    else:
        fits = True
    return "" if fits else f"{where} is {_kind(saved)}, expected {_kind(own)}"


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a {str(value.dtype).removeprefix('torch.')} tensor of shape {tuple(value.shape)}"
    if isinstance(value, (list, tuple)):
        return f"a list of {len(value)}"
    if isinstance(value, Mapping):
        return "a table"
    return f"{value!r}"[:60]
