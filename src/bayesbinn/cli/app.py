"""The command line: parse, call one function, print."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from bayesbinn.cli import runtime as runtime_command
from bayesbinn.cli.options import (
    SAMPLES,
    Calibrate,
    DataDir,
    EpochChoice,
    Json,
    RunArgument,
    epoch_named,
    rates_named,
)
from bayesbinn.cli.printing import echo, facts_text, value_text
from bayesbinn.cli.report import report
from bayesbinn.cli.sweep import app as sweep_app
from bayesbinn.cli.train import train
from bayesbinn.errors import InvalidInput, printable


class OneLineErrors(TyperGroup):
    """Turns mistakes in the arguments into this package's one-line errors."""

    def main(self, *args: Any, **extra: Any) -> Any:
        try:
            code = super().main(*args, **{"prog_name": "bayesbinn", **extra, "standalone_mode": False})
        except typer.Abort:
            raise KeyboardInterrupt from None
        except Exception as error:
            # Click's errors, recognized by their attributes: newer versions of typer bundle their own click.
            describe, context = getattr(error, "format_message", None), getattr(error, "ctx", None)
            if describe is None:
                raise
            if context is not None and type(error).__name__ == "NoArgsIsHelpError":
                typer.echo(context.get_help())
                sys.exit(0)
            message = " ".join(describe().split()).rstrip(".")
            where = context.command_path if context is not None else "bayesbinn"
            raise InvalidInput(f"{message}; see `{where} --help`") from None
        sys.exit(code if isinstance(code, int) else 0)


app = typer.Typer(
    cls=OneLineErrors,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Train, understand and ship neural networks whose weights are only -1 and +1.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from bayesbinn import __version__

        typer.echo(f"bayesbinn {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Train, understand and ship neural networks whose weights are only -1 and +1."""


@app.command()
def demo(
    all_methods: Annotated[bool, typer.Option("--all", help="Compare all six methods instead of three.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the split, the initial weights and the noise.")] = 0,
    as_json: Json = False,
) -> None:
    """Train binary networks on scikit-learn's digits and show what they know and don't know.

    Takes under a minute. Prints accuracy, NLL and calibration error for the mode and for the mean over
    posterior samples, before and after calibration, and the digits that the posterior is unsure about.
    Ends with a report of a run, in runs/demo-SEED.
    """
    from bayesbinn.demo.contest import run_demo

    run_demo(all_methods=all_methods, seed=seed, as_json=as_json)


app.command()(train)


@app.command()
def evaluate(
    run: RunArgument,
    samples: Annotated[
        int | None,
        typer.Option(min=0, show_default=SAMPLES, help="Posterior samples in the mean; 0 leaves it out."),
    ] = None,
    calibrate: Calibrate = True,
    epoch: EpochChoice = "last",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Score a run on its test data, for the mode and the mean.

    Classes: accuracy, balanced accuracy, NLL, Brier score and calibration error, the recall of each of up to 20
    classes, and the accuracy of always guessing the most common one. Regression: RMSE and explained variance.

    The data must be those that the run was trained on.
    """
    from bayesbinn.runs.evaluate import evaluate_run

    scores = evaluate_run(run, samples, calibrate, data_dir, epoch_named(epoch))
    typer.echo(json.dumps(scores, indent=2) if as_json else facts_text(scores))


@app.command()
def predict(
    run: RunArgument,
    inputs: Annotated[
        Path, typer.Argument(help="A .csv, .tsv or .parquet table, an .npz or .npy array, an image or a folder.")
    ],
    out: Annotated[Path, typer.Option(help="Where to write: .csv, .parquet or .json.")] = Path("predictions.csv"),
    samples: Annotated[
        int | None, typer.Option(min=0, show_default=SAMPLES, help="Posterior samples; 0 predicts with the mode.")
    ] = None,
    calibrate: Calibrate = True,
    epoch: EpochChoice = "last",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Predict a file of inputs: classes, probabilities and uncertainty, in nats.

    The entropy of a prediction is its total uncertainty: the aleatoric part stays uncertain whatever the
    weights are, the mutual information is how much the networks disagree.
    Regression: the mean, its standard deviation (from the errors on the run's validation data and the
    networks' disagreement), and only the disagreement as `spread` if the posterior has several networks.

    If the file also has the labels (the column that the run predicts, or `y` in an .npz file), the predictions are
    scored. The data that the run was trained on are not needed, except with a certainty for more than 10 samples and
    for a run that was stopped within an epoch.
    """
    from bayesbinn.runs.evaluate import predict_file

    done = predict_file(run, inputs, out, samples, data_dir, calibrate, epoch_named(epoch))
    for note in done.notes:
        typer.echo(f"note: {printable(note)}", err=True)
    answer: dict[str, Any] = {"predictions": done.count, "out": str(out), "epoch": done.epoch}
    answer |= {"scores": done.scores} if done.scores else {}
    text = f"{done.count} predictions in {out} (epoch: {done.epoch})"
    text += f"\nscored against the labels in {inputs}: {value_text(done.scores)}" if done.scores else ""
    echo(json.dumps(answer) if as_json else text)


@app.command()
def pack(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...", help="Folders of runs, as `bayesbinn train` wrote them; several make an ensemble."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The model file; default RUN/model.safetensors.")
    ] = None,
    samples: Annotated[
        int, typer.Option(min=0, help="Networks drawn from the posterior, as an ensemble; 0 packs the mode.")
    ] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the samples.")] = 0,
    calibrate: Calibrate = True,
    epoch: EpochChoice = "last",
    real: Annotated[
        str, typer.Option(help="How to store weights that are not binary: float32 or float16.")
    ] = "float32",
    unfamiliarity: Annotated[
        bool,
        typer.Option("--unfamiliarity", help="Learn which images are unlike the training images; needs the data."),
    ] = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Write a run as a model file: one bit per weight, about 32 times smaller, runs without PyTorch.

    The file takes raw inputs (pixels from 0 to 255, or a table's columns) and contains the names of its
    classes. `bayesbinn run` predicts with it, `inspect` shows it, `export` turns it into a web page, ONNX or C.
    The data that the run was trained on are not needed, except with a certainty for more than 10 samples, for
    another seed than 0 and for a run that was stopped within an epoch.

    Several runs of one network on the same data, for example with different seeds, become an ensemble in one
    file. If they share their validation rows (data.split_seed), the ensemble is calibrated on them, which
    needs the data; otherwise each network keeps its own run's calibration.
    """
    from bayesbinn.runs.ship import FILE_NAME, pack_network, pack_runs
    from bayesbinn.runs.trained import load_network

    which = epoch_named(epoch)
    if len(runs) > 1:
        if out is None:
            raise InvalidInput(f"{len(runs)} runs in one file need a name; add -o MODEL.safetensors")
        path, about = out, f"{len(runs)} runs"
        pack_runs(
            runs,
            path,
            samples,
            seed,
            fit_scale=calibrate,
            data_dir=data_dir,
            epoch=which,
            real=real,
            unfamiliarity=unfamiliarity,
        )
    else:
        path, trained = out or runs[0] / FILE_NAME, load_network(runs[0], which, data_dir)
        about = f"epoch: {trained.epoch}"
        pack_network(
            trained,
            path,
            samples,
            seed,
            fit_scale=calibrate,
            data_dir=data_dir,
            real=real,
            unfamiliarity=unfamiliarity,
        )
    from bayesbinn.runtime.inspection import inspect

    facts = inspect(path)
    text = f"{path}  {facts['bytes']:,} bytes, {facts['times_smaller']:.1f} times smaller than float32 ({about})"
    echo(json.dumps(facts, indent=2) if as_json else text)


app.command()(report)


class _Forwarded(TyperCommand):
    """A command of the runtime, which has a separate parser because it must work without typer."""

    def get_help(self, ctx: Any) -> str:
        return runtime_command.parser_of(str(self.name)).format_help().rstrip()


def _forward(name: str) -> None:
    def forwarded(context: typer.Context) -> None:
        raise typer.Exit(runtime_command.main(name, context.args))

    forwarded.__doc__ = runtime_command.COMMANDS[name][0].partition("\n")[0]
    app.command(
        name,
        cls=_Forwarded,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )(forwarded)


for _name in runtime_command.COMMANDS:
    _forward(_name)


@app.command()
def reproduce(
    name: Annotated[
        str, typer.Argument(help="A table or figure of the paper, `list`, or `all` to draw everything again.")
    ],
    seeds: Annotated[int, typer.Option(help="Seeds per cell.")] = 1,
    epochs: Annotated[int | None, typer.Option(help="Epochs per run; the schedule is compressed.")] = None,
    stop_after: Annotated[
        int | None, typer.Option(min=1, help="Stop every run after this epoch of the unchanged schedule.")
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="Comma-separated methods of a table or of figure-continual; default: all.")
    ] = None,
    width: Annotated[float | None, typer.Option(help="Width factor of the networks, for small machines.")] = None,
    rate: Annotated[
        list[str] | None, typer.Option(help="Another learning rate for one method, for example mnist.bop=1e-4.")
    ] = None,
    train_missing: Annotated[
        bool, typer.Option("--train/--no-train", help="Train missing runs, or only show what is there.")
    ] = True,
    runs: Annotated[
        Path | None,
        typer.Option(help="Where to keep runs; finished ones are reused. [default: runs; all: results/runs]"),
    ] = None,
    out: Annotated[Path, typer.Option(help="Where to write tables and figures.")] = Path("results/paper"),
    workers: Annotated[
        int, typer.Option(min=1, help="Missing runs to train at once, each in its own process, for tables and curves.")
    ] = 1,
    scheduler: Annotated[
        str | None,
        typer.Option(help="Train them on this Dask scheduler's workers instead, --workers (above 1) at once."),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Reproduce a table or figure of the paper, next to the published numbers."""
    from bayesbinn.paper import reproduce as run_reproduction
    from bayesbinn.train.memory import keep_freed_memory

    keep_freed_memory()
    for line in run_reproduction(
        name,
        seeds=seeds,
        epochs=epochs,
        methods=methods,
        width=width,
        runs=runs,
        out=out,
        data_dir=data_dir,
        stop_after=stop_after,
        train=train_missing,
        workers=workers,
        scheduler=scheduler,
        rates=rates_named(rate or []),
    ):
        echo(line)


app.add_typer(sweep_app, name="sweep")


@app.command()
def methods(as_json: Json = False) -> None:
    """List the methods with their settings and defaults."""
    from bayesbinn.methods import METHODS

    if as_json:
        rows = {m.name: {"description": m.description, "defaults": m.defaults} for m in METHODS.values()}
        typer.echo(json.dumps(rows, indent=2))
        return
    for method in METHODS.values():
        typer.echo(f"{method.name:10} {method.description}")
        settings = (f"{key}={method.defaults[key]}" if key in method.defaults else key for key in method.settings)
        typer.echo(f"{'':10} {', '.join(settings)}\n")


@app.command()
def presets(as_json: Json = False) -> None:
    """List the experiments that `train` knows by name."""
    from bayesbinn.experiments.config import describe_presets

    rows = describe_presets()
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    for name, row in rows.items():
        typer.echo(f"{name:22} {row['title']}\n{'':22} methods: {', '.join(row['methods'])}")


@app.command("data")
def data_command(data_dir: DataDir = None, as_json: Json = False) -> None:
    """List the data sets and where each was found."""
    from dataclasses import asdict

    from bayesbinn.data import available

    rows = available(data_dir)
    if as_json:
        typer.echo(json.dumps([asdict(row) for row in rows], indent=2))
        return
    for row in rows:
        echo(f"{row.name:10} {row.description}\n{'':10} {row.where or row.advice}")


@app.command()
def summary(
    experiment: Annotated[str, typer.Argument(help="A preset, a FILE.toml or the folder of a run.")],
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Show a network layer by layer: binary and real parameters, bytes, multiply-adds."""
    from bayesbinn.runs.evaluate import summarise

    result = summarise(experiment, data_dir)
    echo(json.dumps(result.to_dict(), indent=2) if as_json else str(result))


@app.command()
def info(as_json: Json = False) -> None:
    """Show versions, which kernels are in use, and why."""
    from bayesbinn.environment import describe

    facts = describe()
    typer.echo(json.dumps(facts, indent=2) if as_json else facts_text(facts))
