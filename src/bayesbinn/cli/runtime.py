"""The commands that do not need torch: run, inspect, export, bench.

They are parsed with the standard library, so that they work after a plain ``pip install bayesbinn`` and start quickly.
The full command line also lists them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from bayesbinn.errors import BayesbinnError, InvalidFile, InvalidInput, TooMuchMemory, printable
from bayesbinn.files import write_whole

WIDTH = 100
_NO_DEVIATION = "no column std: this model file does not include its networks' error; pack it from a finished run"

_NO_PIXELS = "the model seems to be trained on pixels, whole numbers from 0 to 255; these numbers are different"


class _Parser(argparse.ArgumentParser):
    """Raises mistakes as this package's one-line errors."""

    def error(self, message: str) -> NoReturn:
        raise InvalidInput(f"{message}; see `{self.prog} --help`")


def parser_of(name: str) -> argparse.ArgumentParser:
    """The parser of one of `COMMANDS`."""
    description, add_arguments, _ = COMMANDS[name]
    parser = _Parser(
        prog=f"bayesbinn {name}",
        description=description,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, width=WIDTH),
    )
    add_arguments(parser)
    return parser


def main(name: str, arguments: Sequence[str]) -> int:
    """Run one of `COMMANDS`; returns the exit code."""
    parsed = parser_of(name).parse_args(arguments)
    try:
        COMMANDS[name][2](parsed)
    except BayesbinnError:
        raise
    except MemoryError:
        raise TooMuchMemory(f"`bayesbinn {name}` ran out of memory; give it a smaller file") from None
    return 0


# ---- run ---------------------------------------------------------------------------------------------


def _run_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="a model file, as `bayesbinn pack` writes it")
    parser.add_argument("inputs", type=Path, help="a .npy or .npz array or a .csv or .tsv table, one example per row")
    parser.add_argument("--out", type=Path, help="where to write, .csv or .json; without it, CSV is printed")
    parser.add_argument(
        "--activations",
        default="exact",
        choices=["exact", "int8"],
        help="exact: float32, as PyTorch computes; int8: 8-bit activations, several times faster",
    )
    parser.add_argument("--threads", type=int, help="number of threads; default: all cores")
    _memory_argument(parser)


def _memory_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-memory",
        default="1G",
        metavar="SIZE",
        help="memory limit of the model, such as 512M or 4G; a file that needs more is rejected (default: 1G)",
    )


def _run(arguments: argparse.Namespace) -> None:
    from bayesbinn.cli.answers import answers, as_csv, as_json
    from bayesbinn.runtime.inputs import SUFFIXES, are_pixels, input_strips
    from bayesbinn.runtime.memory import bytes_of
    from bayesbinn.runtime.model import load

    if arguments.out is not None and arguments.out.suffix not in (".csv", ".json"):
        raise InvalidInput(f"--out {arguments.out}: must end in .csv or .json")
    memory = bytes_of(arguments.max_memory)
    try:
        model = load(arguments.model, arguments.activations, arguments.threads, max_memory=memory)
    except InvalidFile as error:
        swapped = arguments.model.suffix.lower() in SUFFIXES
        raise InvalidFile(f"{error}{'; the model file comes first, then the inputs' if swapped else ''}") from None
    notes: list[str] = []
    sizes: list[int] = []

    def inputs() -> Iterator[Any]:
        for x in input_strips(arguments.inputs, model.graph, notes, model.encoding):
            if model.seems_to_take_pixels and not are_pixels(x):
                notes.append(f"{arguments.inputs}: {_NO_PIXELS}")
            sizes.append(len(x))
            yield x

    write_as = as_json if arguments.out is not None and arguments.out.suffix == ".json" else as_csv
    # All of it before anything is written or said: an error is one line.
    lines = [text.encode() for text in write_as(answers(model, inputs()))]
    if model.graph.task == "regression" and model.residual is None:
        notes.append(_NO_DEVIATION)
    if arguments.out is not None:
        _write(arguments.out, b"".join(lines))
    for note in notes:
        print(printable(f"note: {note}"), file=sys.stderr)
    if arguments.out is None:
        for line in lines:
            sys.stdout.write(line.decode())
        return
    print(printable(f"{sum(sizes)} predictions in {arguments.out}"), file=sys.stderr)


def _write(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidFile(f"{path}: could not be written ({error.strerror or error})") from None
    write_whole(path, content)


# ---- inspect -------------------------------------------------------------------------------------------


def _inspect_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="a model file")
    parser.add_argument("--json", action="store_true", help="print JSON for programs instead of text")


def _inspect(arguments: argparse.Namespace) -> None:
    from bayesbinn.runtime.inspection import inspect, table

    facts = inspect(arguments.model)
    print(json.dumps(facts, indent=2) if arguments.json else table(facts))


# ---- export --------------------------------------------------------------------------------------------


def _export_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="a model file")
    parser.add_argument("--to", required=True, choices=["html", "onnx", "c"], help="the format to write")
    parser.add_argument("--out", type=Path, help="HTML, ONNX: the file, C: the folder; default: next to the model file")
    parser.add_argument("--name", default="model", help="C: the prefix of all names and of the two files")
    parser.add_argument("--title", help="HTML: the page's heading")
    parser.add_argument("--about", help="HTML: a line below it, such as the accuracy and how the model was trained")
    parser.add_argument(
        "--box",
        type=int,
        metavar="PIXELS",
        help="HTML: prepare drawings as MNIST's digits were, scaled to this box, the centre of mass in the middle; "
        "0: scale the whole area (default: 20 for grey images of 28×28 pixels, otherwise 0)",
    )


def _export(arguments: argparse.Namespace) -> None:
    from bayesbinn.export import export_c, export_html, export_onnx
    from bayesbinn.modelfile.container import read

    model = read(arguments.model)
    if arguments.out is not None:
        _make_folder(arguments.out if arguments.to == "c" else arguments.out.parent)
    if arguments.to == "html":
        page = arguments.out or arguments.model.with_suffix(".html")
        title, about, box = arguments.title, arguments.about, arguments.box
        written = [export_html(model, page, title=title, about=about, box=box)]
    elif arguments.to == "onnx":
        written = [export_onnx(model, arguments.out or arguments.model.with_suffix(".onnx"))]
    else:
        folder = arguments.out or arguments.model.parent
        written = list(export_c(model, folder / arguments.name, name=arguments.name))
    if model.encoding is not None and arguments.to != "html":
        print(
            f"note: the input is the encoded vector of {model.encoding.width} codes, not a raw row of the table; "
            "`encode_rows` of the model that bayesbinn.runtime loads makes it, docs/format.md says how",
            file=sys.stderr,
        )
    for path in written:
        print(printable(f"{path}  {path.stat().st_size:,} bytes"))


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidFile(f"{path}: cannot create the folder ({error.strerror or error})") from None


# ---- bench ---------------------------------------------------------------------------------------------


def _bench_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=["inference"], help="what to measure")
    parser.add_argument("model", type=Path, help="a model file")
    parser.add_argument("--batches", default="1,8,100", help="batch sizes, separated by commas")
    parser.add_argument("--threads", default="1,2", help="numbers of threads, separated by commas")
    _memory_argument(parser)
    parser.add_argument("--json", action="store_true", help="print JSON for programs instead of text")


def _bench(arguments: argparse.Namespace) -> None:
    from bayesbinn.runtime.measure import measure
    from bayesbinn.runtime.memory import bytes_of

    batches, threads = _numbers("--batches", arguments.batches), _numbers("--threads", arguments.threads)
    rows = []
    for row in measure(arguments.model, batches, threads, bytes_of(arguments.max_memory)):
        rows.append(row)
        if not arguments.json:
            if len(rows) == 1:
                print("threads  batch    exact ms   examples/s     int8 ms   examples/s")
            print(
                f"{row['threads']:7}  {row['batch']:5}  {row['exact_ms']:10.3f}  {row['exact_per_second']:11,.0f}"
                f"  {row['int8_ms']:10.3f}  {row['int8_per_second']:11,.0f}",
                flush=True,
            )
    if arguments.json:
        print(json.dumps(rows, indent=2))


def _numbers(option: str, text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise InvalidInput(f"{option} {text}: must be whole numbers from 1 up, separated by commas")
    return numbers


Command = tuple[str, Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], None]]

COMMANDS: dict[str, Command] = {
    "run": (
        "Predict a file of inputs with a model file, without PyTorch: classes, probabilities and uncertainty.\n\n"
        "Inputs are raw: pixels from 0 to 255, or the columns of a table. Uncertainty is in nats: the entropy of\n"
        "a prediction, its aleatoric part, and for an ensemble the mutual information, how much the networks\n"
        "disagree. Regression: the mean, its standard deviation if the file includes the networks' error on the\n"
        "run's validation data, and for an ensemble how much the networks disagree, as spread.\n\n"
        "Example: bayesbinn run model.safetensors images.npy --activations int8",
        _run_arguments,
        _run,
    ),
    "inspect": ("Show what is in a model file: layers, sizes, bits, checksum.", _inspect_arguments, _inspect),
    "export": (
        "Write a model file as a web page that runs it (one file, no server: draw a digit, fill in a form), as ONNX\n"
        "(standard operators, weights as bits) or as C99 (one .h, one .c, no heap).\n\n"
        "Examples: bayesbinn export model.safetensors --to html\n"
        "          bayesbinn export model.safetensors --to onnx\n"
        "          bayesbinn export model.safetensors --to c --name digits --out firmware/",
        _export_arguments,
        _export,
    ),
    "bench": ("Measure how fast a model file runs on this machine.", _bench_arguments, _bench),
}
"""Each command's description, arguments and function."""
