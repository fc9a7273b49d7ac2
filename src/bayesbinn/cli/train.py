"""The command that trains a run, or a stream of tasks."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from bayesbinn.cli.options import DataDir, Json, Track
from bayesbinn.cli.printing import facts_text
from bayesbinn.errors import printable


def train(
    experiment: Annotated[
        str,
        typer.Argument(
            help="A preset (see `bayesbinn presets`), a FILE.toml, or your own table, .npz or image folder."
        ),
    ],
    method: Annotated[str | None, typer.Option(help="bayesbinn, bimu, ste, bop, pmf, lrnet, float or ewc.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the split, initial weights, order and noise.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Train for fewer epochs; the schedule is compressed.")] = None,
    stop_after: Annotated[
        int | None,
        typer.Option(
            min=1, help="Stop after this epoch (stream: task), with the schedule unchanged; raise it to resume."
        ),
    ] = None,
    data_dir: DataDir = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; default runs/NAME-METHOD-SEED. An existing run is resumed.")
    ] = None,
    label: Annotated[str | None, typer.Option(help="The column of your table to predict.")] = None,
    model: Annotated[
        str | None,
        typer.Option(help="package.module:function, which returns your own torch.nn.Module for the data it is given."),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="key=value: a setting of the method (lr=0.01) or section.key (training.batch_size=50)."
        ),
    ] = None,
    track: Track = None,
    checkpoint_minutes: Annotated[
        float, typer.Option(min=0, help="Minutes between checkpoints within an epoch.")
    ] = 3.0,
    independent_noise: Annotated[
        bool, typer.Option("--independent-noise", help="Under torchrun: every rank draws its own noise.")
    ] = False,
    sync_batchnorm: Annotated[
        bool, typer.Option("--sync-batchnorm", help="Under torchrun on GPUs: BatchNorm sees the batches of all ranks.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=1, help="Under torchrun: seconds after which a silent rank counts as lost.")
    ] = 300.0,
    as_json: Json = False,
) -> None:
    """Train a binary network; a killed or interrupted run resumes where it stopped.

    Examples: `bayesbinn train digits`, `bayesbinn train mnist --method ste --epochs 20`,
    `bayesbinn train my.csv --label species`.

    docs/experiments.md lists every key of --set, every network and every method's settings, and shows a FILE.toml.

    Several processes share every batch: `torchrun --nproc-per-node 2 -m bayesbinn train mnist`. A run can be
    resumed with a different number of processes.
    """
    from bayesbinn import ranks
    from bayesbinn.cli.console import PlainConsole
    from bayesbinn.cli.progress import shown
    from bayesbinn.runs.open import open_any, prepare
    from bayesbinn.runs.report import advice_on, report
    from bayesbinn.train.data_parallel import session
    from bayesbinn.train.folder import RunFolder
    from bayesbinn.train.memory import keep_freed_memory
    from bayesbinn.train.progress import RunStopped, stoppable

    keep_freed_memory()
    wanted = list(changes or [])
    wanted += [f"model.name={model}"] if model is not None else []
    wanted += ["training.independent_noise=true"] if independent_noise else []
    wanted += ["training.sync_batchnorm=true"] if sync_batchnorm else []
    with session(timeout):
        first = ranks.rank() == 0
        console = PlainConsole(stderr=True, quiet=not first)
        chosen = ranks.decided(lambda: prepare(experiment, method, seed, epochs, label, wanted, data_dir))
        folder = out or chosen.folder
        try:
            with RunFolder.locked(folder, tell=lambda text: console.print(text, soft_wrap=True)) as writable:
                run = open_any(chosen.experiment, writable, data_dir, track or ())
                for note in (*chosen.notes, *run.notes):  # only once it is open, so that an error is one line
                    console.print(printable(note), soft_wrap=True)
                if run.finished:
                    console.print(f"{folder} is finished; choose another --out to train again", soft_wrap=True)
                elif run.where_to_resume:
                    console.print(f"resuming {folder} in {run.where_to_resume}", soft_wrap=True)
                with (
                    shown(console, chosen.experiment.method.name, run.total_epochs, done=run.epochs_done) as update,
                    stoppable() as should_stop,
                ):
                    run.train(
                        stop_after=stop_after,
                        checkpoint_seconds=60 * checkpoint_minutes,
                        on_progress=update,
                        should_stop=should_stop,
                    )
        except RunStopped as stopped:
            console.print(str(stopped), soft_wrap=True)
            raise typer.Exit(should_stop.exit_code) from None
    if first:
        summary = report(folder)
        typer.echo(json.dumps(summary, indent=2) if as_json else facts_text(summary))
        if advice := advice_on(folder):
            console.print(advice, soft_wrap=True)
        console.print(f"to look at it: {shlex.join(['bayesbinn', 'report', str(folder)])}", soft_wrap=True)
