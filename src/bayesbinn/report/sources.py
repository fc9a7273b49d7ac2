"""Finds out whether a path is a run, a stream, a sweep or a model file, and writes its page or card."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from bayesbinn.errors import InvalidInput
from bayesbinn.files import make_folder, write_whole
from bayesbinn.report import card, model, run, stream, sweep
from bayesbinn.report.page import Page
from bayesbinn.runs.folder import CONFIG, load_config
from bayesbinn.sweeps.grid import PLAN
from bayesbinn.train.calibration import Which

REPORT, CARD = "report.html", "README.md"
Kind = Literal["run", "stream", "sweep", "model"]


def kind_of(source: Path) -> Kind:
    """What the path is."""
    if source.is_file() and source.suffix == ".safetensors":
        return "model"
    if (source / CONFIG).is_file():
        return "run" if load_config(source).continual is None else "stream"
    if (source / PLAN).is_file():
        return "sweep"
    there = "no such file or folder" if not source.exists() else f"it contains neither {CONFIG} nor {PLAN}"
    raise InvalidInput(f"{source}: {there}; give the folder of a run or a sweep, or a MODEL.safetensors")


def page_of(source: Path, *, data_dir: Path | None, epoch: Which, measure_speed: bool) -> Page:
    """The page about whatever the path is."""
    kind = kind_of(source)
    if kind == "run":
        return run.page(run.gather(source, data_dir, epoch), measure_speed=measure_speed)
    if epoch != "last":
        raise InvalidInput(f"--epoch {epoch}: {source} is a {kind}; only a run keeps its best epoch")
    if kind == "stream":
        return stream.page(stream.gather(source, data_dir))
    if kind == "sweep":
        return sweep.page(sweep.gather(source))
    return model.page(model.gather(source), measure_speed=measure_speed)


def write_report(
    source: str | Path,
    out: str | Path | None = None,
    *,
    data_dir: Path | None = None,
    epoch: Which = "last",
    measure_speed: bool = True,
) -> Path:
    """Write one HTML file that needs nothing else; return its path.

    Args:
        source: the folder of a run, a stream or a sweep, or a model file.
        out: the file to write; default: report.html in the folder, or MODEL.report.html next to the model file.
        data_dir: where the data are. Without them the page says what is missing.
        epoch: which weights of a run: "last", or "best" on validation data.
        measure_speed: whether to measure how fast the network runs here, which takes seconds.
    """
    source = Path(source)
    page = page_of(source, data_dir=data_dir, epoch=epoch, measure_speed=measure_speed)
    path = Path(out) if out is not None else source.with_suffix(".report.html") if source.is_file() else source / REPORT
    make_folder(path.parent)
    write_whole(path, page.to_html().encode())
    return path


def write_card(
    source: str | Path,
    out: str | Path | None = None,
    *,
    data_dir: Path | None = None,
    epoch: Which = "last",
    license_name: str = card.UNKNOWN,
) -> Path:
    """Write the model card of a run: README.md with the metadata block of the Hugging Face hub; return its path."""
    source = Path(source)
    if (kind := kind_of(source)) != "run":
        raise InvalidInput(f"--card: {source} is a {kind}; a model card describes a run, so give a run's folder")
    text = card.card_of(run.gather(source, data_dir, epoch), license_name)
    path = Path(out) if out is not None else source / CARD
    make_folder(path.parent)
    write_whole(path, text.encode())
    return path
