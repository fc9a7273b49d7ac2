"""The command that makes a page, or a model card, of a run, a stream, a sweep or a model file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from bayesbinn.cli.options import DataDir, EpochChoice, Json, epoch_named
from bayesbinn.cli.printing import echo
from bayesbinn.errors import InvalidInput


def report(
    source: Annotated[
        Path,
        typer.Argument(metavar="RUN|SWEEP|MODEL", help="Folder of a run, a stream or a sweep, or a MODEL.safetensors."),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The file to write; default report.html in the folder, or MODEL.report.html."),
    ] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    card: Annotated[
        bool, typer.Option("--card", help="Write a model card for the Hugging Face hub instead: RUN/README.md.")
    ] = False,
    license_name: Annotated[
        str, typer.Option("--license", help="With --card: the license of the model, as the hub spells it.")
    ] = "unknown",
    speed: Annotated[bool, typer.Option(help="Measure how fast the network runs here.")] = True,
    epoch: EpochChoice = "last",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Show a run, a stream of tasks, a sweep or a model file as one HTML page that needs nothing else.

    A run: curves (over the authors' for the paper's experiments), confusion matrix, calibration, accuracy if uncertain
    rows are refused, the posterior's weights, layers, the hardest and the most unfamiliar examples, speed, settings.
    A stream: every task over time, and forgetting. A sweep: all runs, parallel coordinates, failures.

    Sections whose data are missing say so.
    """
    from bayesbinn.report import write_card, write_report

    which = epoch_named(epoch)
    if card:
        if open_it:
            raise InvalidInput("--open: a model card is Markdown; leave out --open or --card")
        path = write_card(source, out, data_dir=data_dir, epoch=which, license_name=license_name)
    else:
        path = write_report(source, out, data_dir=data_dir, epoch=which, measure_speed=speed)
    size = path.stat().st_size
    echo(json.dumps({"out": str(path), "bytes": size}) if as_json else f"{path}  {size:,} bytes")
    if open_it:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())
