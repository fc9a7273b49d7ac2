"""The command line: parse, call one function, print."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from bayesbinn.cli import runtime as runtime_command
from bayesbinn.cli.sweep import app as sweep_app
from bayesbinn.errors import InvalidInput, printable


class OneLineErrors(TyperGroup):
    """Turns mistakes in the arguments into this package's errors, which are one line each."""

    def main(self, *args: Any, **extra: Any) -> Any:
        try:
            code = super().main(*args, **{"prog_name": "bayesbinn", **extra, "standalone_mode": False})
        except typer.Abort:
            raise KeyboardInterrupt from None
        except Exception as error:
            # Click's own errors. They are told by what they have: newer typers carry a click of their own.
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

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text.")]
DataDir = Annotated[
    Path | None,
    typer.Option(help="Folder of the data sets; otherwise BAYESBINN_DATA, the cache, or a download."),
]
Calibrate = Annotated[bool, typer.Option(help="Use the calibration that the run fitted on its validation part.")]
EpochChoice = Annotated[
    str,
    typer.Option(
        "--epoch",
        metavar="last|best",
        help="Which weights: those after the last epoch, or those with the best validation accuracy or RMSE.",
    ),
]


def _which(epoch: str) -> Any:
    if epoch not in ("last", "best"):
        raise InvalidInput(f"--epoch {epoch}: last or best is allowed")
    return epoch


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


RunFolder = Annotated[Path, typer.Argument(help="Folder of a run, as `bayesbinn train` wrote it.")]


@app.command()
def demo(
    all_methods: Annotated[bool, typer.Option("--all", help="Compare all six methods instead of three.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the split, the start and the noise.")] = 0,
    as_json: Json = False,
) -> None:
    """Train binary networks on scikit-learn's digits and show what they know and don't know.

    Takes under a minute. Prints accuracy, NLL and calibration error by the mode and by the mean over
    posterior samples, before and after calibration, and the digits that the posterior is unsure of.
    """
    from bayesbinn.demo.contest import run_demo

    run_demo(all_methods=all_methods, seed=seed, as_json=as_json)


@app.command()
def train(
    experiment: Annotated[
        str,
        typer.Argument(
            help="A preset (see `bayesbinn presets`), a FILE.toml, or your own table, .npz or image folder."
        ),
    ],
    method: Annotated[str | None, typer.Option(help="bayesbinn, bimu, ste, bop, pmf, lrnet, float or ewc.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the split, the start, the order and the noise.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Train for fewer epochs; the schedule is compressed.")] = None,
    stop_after: Annotated[
        int | None,
        typer.Option(
            min=1, help="Stop after this epoch (of a stream: task) of the unchanged schedule; resume by raising it."
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
    checkpoint_minutes: Annotated[
        float, typer.Option(min=0, help="Minutes between two checkpoints inside an epoch.")
    ] = 3.0,
    independent_noise: Annotated[
        bool, typer.Option("--independent-noise", help="Under torchrun: every rank draws its own noise.")
    ] = False,
    sync_batchnorm: Annotated[
        bool, typer.Option("--sync-batchnorm", help="Under torchrun on GPUs: BatchNorm sees the batch of all ranks.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=1, help="Under torchrun: seconds after which a silent rank counts as lost.")
    ] = 300.0,
    as_json: Json = False,
) -> None:
    """Train a binary network; a killed or interrupted run resumes where it was.

    Examples: `bayesbinn train digits`, `bayesbinn train mnist --method ste --epochs 20`,
    `bayesbinn train my.csv --label species`.

    docs/experiments.md has every key of --set, every network, every method's settings, and how to write a FILE.toml.

    Several processes divide every batch: `torchrun --nproc-per-node 2 -m bayesbinn train mnist`. A run can be
    resumed by another number of them.
    """
    from bayesbinn import ranks
    from bayesbinn.cli.console import PlainConsole
    from bayesbinn.cli.progress import shown
    from bayesbinn.runs.open import open_any, prepare
    from bayesbinn.runs.report import report
    from bayesbinn.train.data_parallel import session, sole_writer
    from bayesbinn.train.progress import RunStopped, stoppable

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
            with sole_writer(folder, lambda text: console.print(text, soft_wrap=True)) as may_write:
                run = open_any(chosen.experiment, folder, data_dir)
                run.may_write = may_write
                for note in (*chosen.notes, *run.notes):  # not before it is open: an error is one line
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
        typer.echo(json.dumps(summary, indent=2) if as_json else _lines(summary))


@app.command()
def evaluate(
    run: RunFolder,
    samples: Annotated[int, typer.Option(min=0, help="Posterior samples behind the mean; 0 leaves it out.")] = 10,
    calibrate: Calibrate = True,
    epoch: EpochChoice = "last",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Score a run on its test data, by mode and by mean.

    Classes: accuracy, balanced accuracy, NLL, Brier score and calibration error, the recall of each of up to 20
    classes, and the accuracy of always guessing the most common one. Regression: RMSE and explained variance.

    The data must be those that the run was trained on; others are refused.
    """
    from bayesbinn.runs.evaluate import evaluate_run

    scores = evaluate_run(run, samples, calibrate, data_dir, _which(epoch))
    typer.echo(json.dumps(scores, indent=2) if as_json else _lines(scores))


@app.command()
def predict(
    run: RunFolder,
    inputs: Annotated[
        Path, typer.Argument(help="A .csv, .tsv or .parquet table, an .npz or .npy array, an image or a folder.")
    ],
    out: Annotated[Path, typer.Option(help="Where to write: .csv, .parquet or .json.")] = Path("predictions.csv"),
    samples: Annotated[int, typer.Option(min=0, help="Posterior samples; 0 predicts by the mode.")] = 10,
    calibrate: Calibrate = True,
    epoch: EpochChoice = "last",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Predict a file of inputs: classes, probabilities and uncertainty, in nats.

    The entropy of a prediction is its total uncertainty: the aleatoric part is what stays uncertain
    whatever the weights are, the mutual information is how much the networks disagree.
    Regression: the mean, its standard deviation (from the errors on the run's validation data and the
    networks' disagreement), and that disagreement alone as `spread` where the posterior has several networks.

    If the file also has the labels (the column that the run predicts, or `y` in an .npz file), the predictions are
    scored. The data that the run was trained on are not needed.
    """
    from bayesbinn.runs.evaluate import predict_file

    done = predict_file(run, inputs, out, samples, data_dir, calibrate, _which(epoch))
    for note in done.notes:
        typer.echo(f"note: {printable(note)}", err=True)
    answer: dict[str, Any] = {"predictions": done.count, "out": str(out), "epoch": done.epoch}
    answer |= {"scores": done.scores} if done.scores else {}
    text = f"{done.count} predictions in {out} (epoch: {done.epoch})"
    text += f"\nscored by the labels in {inputs}: {_text(done.scores)}" if done.scores else ""
    _echo(json.dumps(answer) if as_json else text)


@app.command()
def pack(
    run: RunFolder,
    out: Annotated[Path | None, typer.Option(help="The model file; default RUN/model.safetensors.")] = None,
    samples: Annotated[
        int, typer.Option(min=0, help="Networks drawn from the posterior, as an ensemble; 0 packs the mode.")
    ] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the samples.")] = 0,
    calibrate: Calibrate = True,
    epoch: EpochChoice = "last",
    real: Annotated[
        str, typer.Option(help="How weights that are not binary are stored: float32 or float16.")
    ] = "float32",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Write a run as a model file: one bit per weight, some 32 times smaller, runs without PyTorch.

    The file takes raw inputs (pixels of 0 to 255, or a table's columns) and knows the names of its
    classes. `bayesbinn run` predicts with it, `inspect` shows it, `export` turns it into ONNX or C.
    The data that the run was trained on are not needed.
    """
    from bayesbinn.runs.ship import FILE_NAME, pack_network
    from bayesbinn.runs.trained import load_network

    path = out or run / FILE_NAME
    trained = load_network(run, _which(epoch), data_dir)
    pack_network(trained, path, samples, seed, fit_scale=calibrate, data_dir=data_dir, real=real)
    from bayesbinn.runtime.inspection import inspect

    facts = inspect(path)
    text = f"{path}  {facts['bytes']:,} bytes, {facts['times_smaller']:.1f} times smaller than as float32"
    text += f" (epoch: {trained.epoch})"
    _echo(json.dumps(facts, indent=2) if as_json else text)


class _Forwarded(TyperCommand):
    """A command of the runtime, which has a parser of its own: it must work where typer is not installed."""

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
    name: Annotated[str, typer.Argument(help="A table or figure of the paper, or `list`.")],
    seeds: Annotated[int, typer.Option(help="Seeds per cell.")] = 1,
    epochs: Annotated[int | None, typer.Option(help="Epochs per run; the schedule is compressed.")] = None,
    stop_after: Annotated[
        int | None, typer.Option(min=1, help="Stop every run after this epoch of the unchanged schedule.")
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="Comma-separated methods of a table or of figure-continual; default: all.")
    ] = None,
    width: Annotated[float | None, typer.Option(help="Width factor of the networks, for small machines.")] = None,
    train_missing: Annotated[
        bool, typer.Option("--train/--no-train", help="Run what is missing, or show only what is there.")
    ] = True,
    runs: Annotated[Path, typer.Option(help="Where runs are kept; finished ones are reused.")] = Path("runs"),
    out: Annotated[Path, typer.Option(help="Where tables and figures are written.")] = Path("results/paper"),
    workers: Annotated[
        int, typer.Option(min=1, help="Missing runs at once, each in a process of its own, for tables and curves.")
    ] = 1,
    scheduler: Annotated[
        str | None,
        typer.Option(help="Run them on the workers of this Dask scheduler instead, --workers (above 1) at once."),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Reproduce a table or figure of the paper, next to the paper's own numbers."""
    from bayesbinn.paper import reproduce as run_reproduction

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
    ):
        _echo(line)


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
    """List the data sets, and where each was found."""
    from dataclasses import asdict

    from bayesbinn.data import available

    rows = available(data_dir)
    if as_json:
        typer.echo(json.dumps([asdict(row) for row in rows], indent=2))
        return
    for row in rows:
        _echo(f"{row.name:10} {row.description}\n{'':10} {row.where or row.advice}")


@app.command()
def summary(
    experiment: Annotated[str, typer.Argument(help="A preset, a FILE.toml or the folder of a run.")],
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Show a network layer by layer: binary and real parameters, bytes, multiply-adds."""
    from bayesbinn.runs.evaluate import summarise

    result = summarise(experiment, data_dir)
    _echo(json.dumps(result.to_dict(), indent=2) if as_json else str(result))


@app.command()
def info(as_json: Json = False) -> None:
    """Tell versions, and which kernels are in use, and why."""
    from bayesbinn.environment import describe

    facts = describe()
    typer.echo(json.dumps(facts, indent=2) if as_json else _lines(facts))


def _echo(text: str) -> None:
    """Print lines that may hold names from a user's files."""
    typer.echo(printable(text, keep_lines=True))


def _lines(facts: dict[str, Any]) -> str:
    width = max(map(len, facts))
    return "\n".join(printable(f"{key:{width}}  {_text(value)}") for key, value in facts.items())


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, dict):
        return "  ".join(f"{key} {_text(each)}" for key, each in value.items())
    return str(value)
