"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bayesbinn.errors import InvalidInput

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text.")]
DataDir = Annotated[
    Path | None,
    typer.Option(help="Folder of the data sets; otherwise BAYESBINN_DATA, the cache, or a download."),
]
SAMPLES = "10; 0 if they would all be the mode, or if the network is an ensemble itself"
Calibrate = Annotated[bool, typer.Option(help="Use the calibration that the run fitted on its validation part.")]
EpochChoice = Annotated[
    str,
    typer.Option(
        "--epoch",
        metavar="last|best",
        help="Which weights: those after the last epoch, or those with the best validation accuracy or RMSE.",
    ),
]
Track = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Also send the metrics to wandb, trackio, tensorboard or mlflow; repeatable."),
]
RunArgument = Annotated[Path, typer.Argument(help="Folder of a run, as `bayesbinn train` wrote it.")]


def epoch_named(text: str) -> Any:
    """The value of --epoch, checked."""
    if text not in ("last", "best"):
        raise InvalidInput(f"--epoch {text}: must be last or best")
    return text


def rates_named(texts: list[str]) -> dict[str, float]:
    """The values of --rate by name.

    >>> rates_named(["mnist.bop=1e-4"])
    {'mnist.bop': 0.0001}
    """
    rates = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            rates[name.strip()] = float(value)
        except ValueError:
            raise InvalidInput(f"--rate {text}: write PRESET.METHOD=RATE, for example mnist.bop=1e-4") from None
    return rates
