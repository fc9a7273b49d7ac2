"""Records of runs: what the repository keeps of a run without its checkpoints.

``results/runs/NAME/`` has unchanged copies of the small files in a run's folder (``config.toml``, ``metrics.jsonl``
and, for a stream, ``tasks.jsonl`` and ``result.json``), so that tables and figures can read it like the run, and

record.json   where the run came from: command, commit, wall time, SHA-256 of the whole folder, machine; and what
              its posterior looked like, which the tables need
mean.json     for some runs, the accuracy of the mean over posterior samples, measured after training

A folder without a complete ``record.json`` is not evidence and counts as empty.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from bayesbinn.continual.record import SATURATED
from bayesbinn.environment import describe
from bayesbinn.errors import InvalidFile
from bayesbinn.experiments.config import Experiment, load_experiment
from bayesbinn.files import write_whole
from bayesbinn.posterior import BernoulliPosterior

T = TypeVar("T")
RECORD = "record.json"
MEAN = "mean.json"
KEPT = ("config.toml", "data.json", "metrics.jsonl", "scores.json", "tasks.jsonl", "result.json")
"""The files of a run that a record keeps, if they exist."""

HASHED = (
    *(*KEPT, "checkpoint.pt", "posterior.safetensors", "best.pt", "best.safetensors", "calibration.json"),
    *("statistics.safetensors", "best-statistics.safetensors"),
)
"""The files of a run that its hash covers: not the log, the lock or the curves."""


@dataclass(frozen=True)
class Provenance:
    """Where the numbers of a run come from."""

    command: str
    commit: str
    seconds: float
    """Wall time of training and evaluation, including every time the run was resumed."""
    sha256: str
    """The hash of the run's folder, see `folder_hash`."""
    machine: dict[str, Any]
    posterior: dict[str, float] | None
    """See `posterior_facts`; None for a method without a posterior."""


def folder_hash(folder: Path) -> str:
    """SHA-256 of the names and contents of a run's files, sorted by name."""
    total = hashlib.sha256()
    for name in sorted(HASHED):
        path = folder / name
        if path.is_file():
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256")
            total.update(f"{name}\0{content.hexdigest()}\n".encode())
    return total.hexdigest()


def posterior_facts(folder: Path) -> dict[str, float] | None:
    """How spread out a run's posterior is: fractions of its weights, and how far a sample is from the mode."""
    path = folder / "posterior.safetensors"
    if not path.is_file():
        return None
    weights = saturated = flips = 0.0
    for natural in BernoulliPosterior.load(path).natural.values():
        # In double precision: in float32, σ(2λ) is exactly 1 from λ = 9 on, where one weight in 10⁸ still flips.
        unlikely = (-2 * natural.double().abs()).sigmoid()
        weights += unlikely.numel()
        saturated += float((unlikely <= 1 - SATURATED).sum())
        flips += float(unlikely.sum())
    return {"weights": weights, "saturated": saturated / weights, "expected_flips": flips}


def keep(folder: Path, into: Path, *, command: str, commit: str) -> Path:
    """Write the record of a run atomically; a record of the same name is replaced."""
    origin = Provenance(
        command=command,
        commit=commit,
        seconds=_seconds(folder),
        sha256=folder_hash(folder),
        machine={key: value for key, value in describe().items() if key not in ("platform", "why")},
        posterior=posterior_facts(folder),
    )
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".record-", dir=into) as scratch:
        record = Path(scratch) / folder.name
        record.mkdir()
        for name in KEPT:
            if (folder / name).is_file():
                shutil.copyfile(folder / name, record / name)
        (record / RECORD).write_text(json.dumps(asdict(origin), indent=1) + "\n", encoding="utf-8")
        target = into / folder.name
        if target.exists():
            shutil.rmtree(target)
        record.replace(target)
    return into / folder.name


def _seconds(folder: Path) -> float:
    keys = ("seconds", "evaluation_seconds") if (folder / "tasks.jsonl").is_file() else ("seconds",)
    total = 0.0
    for name in ("metrics.jsonl", "tasks.jsonl"):
        if (folder / name).is_file():
            lines = [json.loads(line) for line in (folder / name).read_text(encoding="utf-8").splitlines()]
            total += sum(float(line.get(key) or 0.0) for line in lines for key in keys)
    return total


def provenance(folder: Path) -> Provenance | None:
    """Where a run's numbers come from; None without a record."""
    return _read(folder / RECORD, Provenance, "not a record of a run", "delete the folder to create it again")


def epochs_done(folder: Path) -> int:
    """How many epochs a run, or its record, has finished, over all tasks of a stream."""
    path = folder / "metrics.jsonl"
    return len(path.read_text(encoding="utf-8").splitlines()) if path.is_file() else 0


def complete(folder: Path, epochs: int) -> bool:
    """Whether there is a record of a run that came so far. That of a stopped one shows its curve, and no more."""
    return provenance(folder) is not None and epochs_done(folder) >= epochs


def _read(path: Path, kind: type[T], wrong: str, remedy: str) -> T | None:
    """A dataclass from its JSON file; None without the file."""
    if not path.is_file():
        return None
    try:
        return kind(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise InvalidFile(f"{path}: {wrong} ({error}); {remedy}") from None


def machines(folders: Iterable[Path]) -> list[dict[str, Any]]:
    """The machines that computed these runs; this one for a run without a record."""
    found = [describe() if (origin := provenance(folder)) is None else origin.machine for folder in folders]
    return [each for index, each in enumerate(found) if each not in found[:index]]


def facts_of(folder: Path) -> dict[str, float] | None:
    """`posterior_facts` of a run or of its record."""
    origin = provenance(folder)
    return posterior_facts(folder) if origin is None else origin.posterior


def expected_flips(folder: Path) -> float | None:
    """The expected number of weights in which a sample differs from the mode; None without a posterior."""
    facts = facts_of(folder)
    return None if facts is None else facts["expected_flips"]


@dataclass(frozen=True)
class MeasuredMean:
    """The accuracy of the mean over posterior samples, measured after training."""

    command: str
    commit: str
    epoch: int
    """The best epoch by validation accuracy, whose weights were used."""
    samples: int
    accuracy: float
    """On the test data, in percent."""


def keep_mean(record: Path, measured: MeasuredMean) -> None:
    """Add it to the record of a run."""
    write_whole(record / MEAN, (json.dumps(asdict(measured), indent=1) + "\n").encode())


def measured_mean(folder: Path) -> MeasuredMean | None:
    """What `keep_mean` wrote; None without it."""
    return _read(folder / MEAN, MeasuredMean, "not the accuracy of a mean", "delete it to measure it again")


def find(runs: Path, wanted: Experiment) -> Path | None:
    """The folder under `runs` with a record of exactly this experiment, whatever its name.

    Presets may agree in everything but their titles, and the rounding of another machine or version can change a run.
    A record under the wanted title comes first, so that a later one of another preset does not change a table.
    """
    equal: Path | None = None
    for path in sorted(runs.glob(f"*/{RECORD}")):
        existing = load_experiment(str(path.parent / "config.toml"))
        if existing == wanted:
            return path.parent
        if equal is None and existing.model_copy(update={"title": wanted.title}) == wanted:
            equal = path.parent
    return equal
