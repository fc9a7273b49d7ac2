"""Inference speed of packed networks compared with torch and onnxruntime.

One process, all contestants interleaved in every round, with idle gaps between them: a library's threads keep spinning
for a while after its last call and would slow down whatever is measured next.

    python benchmarks/inference.py [--out FOLDER] [--runs N] [--rounds N] [--only linear,conv,mlp,cnn] [--threads 1,2]

A run measures everything once; the tables show the median over runs of each run's ratio.
Writes FOLDER/inference.json and FOLDER/inference.md.

onnxruntime's default int8 is wrong for weights of ±1 where the CPU has no VNNI (pairs of products
saturate), so it is measured with reduce_range=True, which it needs to be correct.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("ORT_LOGGING_LEVEL", "3")

import numpy as np
import onnx
import onnxruntime
import torch
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_dynamic, quantize_static
from torch import nn

from bayesbinn import models
from bayesbinn.environment import describe
from bayesbinn.modelfile.bits import unpack_rows
from bayesbinn.modelfile.container import ModelFile, shapes
from bayesbinn.packing.packer import pack
from bayesbinn.runtime import Model

GAP = 0.1
SLICE = 0.02
OURS = ("int8", "exact")
OTHERS = ("torch fp32", "torch int8", "onnxruntime fp32", "onnxruntime int8")


@dataclass(frozen=True)
class Task:
    """A network to run, its batch sizes, and how much faster int8 mode must be on one thread."""

    name: str
    kind: str
    network: Callable[[], nn.Module]
    shape: tuple[int, ...]
    batches: tuple[int, ...] = (1, 8, 100)
    limits: dict[int, dict[str, float]] | None = None


LINEAR = {
    1: {"torch fp32": 12, "onnxruntime fp32": 7.5, "onnxruntime int8": 2.8},
    100: {"torch fp32": 4, "onnxruntime fp32": 3.3, "onnxruntime int8": 1.6},
}
CNN = {"torch fp32": 2.5, "onnxruntime fp32": 2.5, "onnxruntime int8": 1.0}


def linear(outputs: int, inputs: int) -> Task:
    return Task(
        f"{outputs}×{inputs}",
        "linear",
        lambda: nn.Sequential(nn.Linear(inputs, outputs, bias=False)),
        (inputs,),
        limits=LINEAR,
    )


def conv(channels: int, outputs: int, size: int) -> Task:
    def network() -> nn.Module:
        return nn.Conv2d(channels, outputs, 3, padding=1, bias=False)

    return Task(f"{channels}→{outputs}, {size}×{size}", "conv", network, (channels, size, size))


TASKS = [
    linear(2048, 784),
    linear(2048, 2048),
    linear(1024, 8192),
    conv(3, 128, 32),
    conv(128, 128, 32),
    conv(128, 256, 16),
    conv(256, 256, 16),
    conv(256, 512, 8),
    conv(512, 512, 8),
    Task(
        "MNIST MLP",
        "mlp",
        models.mnist_mlp,
        (784,),
        limits={1: {"torch fp32": 10, "onnxruntime int8": 2.5}},
    ),
    Task("VGG CNN", "cnn", models.vgg, (3, 32, 32), (1, 8, 50), {1: CNN, 50: CNN}),
]


# ---- contestants ---------------------------------------------------------------------------------------


def binary(network: nn.Module, shape: tuple[int, ...]) -> nn.Module:
    """Weights of ±1, and BatchNorm statistics as after training: outputs of unit variance."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randint(0, 2, parameter.shape) * 2.0 - 1.0)
        norms = [m for m in network.modules() if isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d))]
        for norm in norms:
            norm.momentum = None  # average over the following batches
        network.train()
        network(torch.randn(32, *shape)) if norms else None
    return network.eval()


def tensors_of(model: ModelFile, index: int) -> dict[str, Any]:
    """A layer's tensors, including a BatchNorm after max-pooling: with positive scales the two can be swapped."""
    names = dict(model.graph.nodes[index].tensors)
    after = model.graph.nodes[index + 1 : index + 3]
    if [node.op for node in after] == ["max_pool2d", "affine"]:
        names |= after[1].tensors
        assert (model.tensors[names["scale"]] > 0).all()
    return {role: model.tensors[name] for role, name in names.items()}


def plain_onnx(model: ModelFile, path: Path) -> None:
    """The network as others would deploy it: float32 weights with the BatchNorm folded into them."""
    nodes: list[Any] = []
    constants: list[Any] = []

    def constant(name: str, array: Any) -> str:
        constants.append(onnx.numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def add(index: int, op: str, *extra: str, **settings: Any) -> None:
        nodes.append(onnx.helper.make_node(op, [value, *extra], [f"v{index}"], **settings))

    value = "input"
    for index, node in enumerate(model.graph.nodes):
        given, tensors = node.settings, tensors_of(model, index)
        if node.op in ("linear", "conv2d"):
            true = given["shape"]
            weight = unpack_rows(tensors["weight"], prod(true[1:])).reshape(true)
            if "scale" in tensors:
                weight = weight * tensors["scale"].reshape(-1, *[1] * (len(true) - 1))
            bias = [constant(f"b{index}", tensors["shift"])] if "shift" in tensors else []
            if node.op == "conv2d":
                top, bottom, left, right = given["padding"]
                add(index, "Conv", constant(f"w{index}", weight), *bias, pads=[top, left, bottom, right])
            else:
                add(index, "MatMul", constant(f"w{index}", weight.T))
                if bias:
                    nodes.append(onnx.helper.make_node("Add", [f"v{index}", *bias], [f"a{index}"]))
                    value = f"a{index}"
                    continue
        elif node.op == "affine":
            continue  # folded into the convolution before the pooling
        elif node.op == "relu":
            add(index, "Relu")
        elif node.op == "max_pool2d":
            add(index, "MaxPool", kernel_shape=given["kernel"], strides=given["stride"])
        else:
            assert node.op == "reshape", node.op
            add(index, "Flatten")
        value = f"v{index}"
    make = onnx.helper.make_tensor_value_info
    inputs = [make("input", onnx.TensorProto.FLOAT, ["batch", *model.graph.input_shape])]
    outputs = [make(value, onnx.TensorProto.FLOAT, ["batch", *shapes(model)[-1]])]
    graph = onnx.helper.make_graph(nodes, "network", inputs, outputs, constants)
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=10)
    onnx.checker.check_model(made)
    onnx.save(made, path)


class Examples(CalibrationDataReader):
    """The examples from which static quantization chooses its scales."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.rest = iter(np.random.default_rng(1).standard_normal((8, 4, *shape)).astype(np.float32))

    def get_next(self) -> Any:
        x = next(self.rest, None)
        return None if x is None else {"input": x}


def onnx_files(task: Task, packed: ModelFile, folder: Path) -> tuple[Path, Path]:
    """float32 and int8 files: dynamic int8 for linear layers, static for convolutions, where dynamic is slower."""
    real, quantized = folder / "real.onnx", folder / "int8.onnx"
    plain_onnx(packed, real)
    logging.disable(logging.WARNING)
    if task.kind in ("conv", "cnn"):
        quantize_static(
            real, quantized, Examples(task.shape), weight_type=QuantType.QInt8, reduce_range=True, per_channel=True
        )
    else:
        quantize_dynamic(
            real, quantized, weight_type=QuantType.QInt8, extra_options={"MatMulConstBOnly": True}, reduce_range=True
        )
    return real, quantized


def session(path: Path, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def contestants(task: Task, threads: int, folder: Path) -> dict[str, Callable[[Any], Any]]:
    """By name, a function of a batch (NumPy) that returns outputs (NumPy)."""
    network = binary(task.network(), task.shape)
    packed = pack(network, folder / "model.safetensors", example_input=torch.randn(2, *task.shape))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dynamic = torch.ao.quantization.quantize_dynamic(network, {nn.Linear}, torch.qint8)
        sessions = [session(path, threads) for path in onnx_files(task, packed, folder)]

    def by_torch(module: nn.Module) -> Callable[[Any], Any]:
        def run(x: Any) -> Any:
            with torch.inference_mode():
                return module(torch.from_numpy(x)).numpy()

        return run

    def by_onnx(one: onnxruntime.InferenceSession) -> Callable[[Any], Any]:
        return lambda x: one.run(None, {"input": x})[0]

    found: dict[str, Callable[[Any], Any]] = {}
    for mode in OURS:
        model = Model(packed, mode, threads, backend="native")
        found[mode] = lambda x, model=model: model.outputs(x)[0]
    found["torch fp32"] = by_torch(network)
    if task.kind in ("linear", "mlp"):
        found["torch int8"] = by_torch(dynamic)
    found["onnxruntime fp32"], found["onnxruntime int8"] = map(by_onnx, sessions)
    return found


# ---- measuring -----------------------------------------------------------------------------------------


def slice_of(run: Callable[[Any], Any], x: Any) -> float:
    """Seconds per call: the median over about 20 ms of calls, after an idle gap and a warm-up call."""
    time.sleep(GAP)
    run(x)
    seconds: list[float] = []
    total = 0.0
    while total < SLICE:
        start = time.perf_counter()
        run(x)
        seconds.append(time.perf_counter() - start)
        total += seconds[-1]
    return median(seconds)


def measured(task: Task, threads: int, rounds: int, folder: Path) -> Iterator[dict[str, Any]]:
    torch.set_num_threads(threads)
    runs = contestants(task, threads, folder)
    order = list(runs)
    for batch in task.batches:
        x = np.random.default_rng(2).standard_normal((batch, *task.shape)).astype(np.float32)
        exact = runs["torch fp32"](x)
        largest = np.abs(exact).max()
        errors = {name: float(np.sqrt(np.mean((run(x) - exact) ** 2)) / largest) for name, run in runs.items()}
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(rounds):
            random.shuffle(order)
            for name in order:
                seconds[name].append(slice_of(runs[name], x))
        medians = {name: median(each) for name, each in seconds.items()}
        yield {
            "task": task.name,
            "kind": task.kind,
            "threads": threads,
            "batch": batch,
            "milliseconds": {name: 1e3 * each for name, each in medians.items()},
            "rms_error": errors,
            "limits": (task.limits or {}).get(batch, {}) if threads == 1 else {},
        }


def one_run(tasks: list[Task], threads: list[int], rounds: int, label: str) -> list[dict[str, Any]]:
    rows = []
    for task in tasks:
        for count in threads:
            with tempfile.TemporaryDirectory() as folder:
                for row in measured(task, count, rounds, Path(folder)):
                    rows.append(row)
                    times = "  ".join(f"{name} {ms:.3f}" for name, ms in row["milliseconds"].items())
                    print(f"{label} {task.name}, batch {row['batch']}, {count} threads: {times} ms", flush=True)
            gc.collect()
    return rows


# ---- reporting -----------------------------------------------------------------------------------------


def combined(runs: list[list[dict[str, Any]]], rounds: int) -> list[dict[str, Any]]:
    """The median over runs: of the times, and of each run's ratio to int8 mode."""
    rows = []
    for same in zip(*runs, strict=True):
        row = dict(same[0])
        times = [each["milliseconds"] for each in same]
        row["milliseconds"] = {name: median(t[name] for t in times) for name in times[0]}
        row["ratios"] = {name: median(t[name] / t["int8"] for t in times) for name in times[0] if name in OTHERS}
        row["runs"], row["rounds"] = len(runs), rounds
        row["exact_ratio"] = median(t["torch fp32"] / t["exact"] for t in times)
        rows.append(row)
    return rows


def markdown(rows: list[dict[str, Any]], facts: dict[str, Any]) -> str:
    titles = {"linear": "Linear layers", "conv": "Convolutions 3×3", "mlp": "The MNIST MLP", "cnn": "The VGG CNN"}
    lines = [
        "# Inference compared with torch and onnxruntime",
        "",
        "Medians over several runs; in a run the contestants are interleaved, "
        f"with idle gaps of {1000 * GAP:.0f} ms. {facts['processor']}, {facts['cores']} cores; "
        f"torch {facts['torch']}, onnxruntime {onnxruntime.__version__}. Ratios say how many times faster our int8 "
        "mode is; “limit” is the required ratio on one thread.",
        "",
        "torch int8 is dynamic quantization of linear layers; onnxruntime int8 has reduce_range=True (its default "
        "is wrong for weights of ±1 without VNNI), dynamic for linear layers, static for convolutions.",
    ]
    for kind, title in titles.items():
        own = [row for row in rows if row["kind"] == kind]
        if not own:
            continue
        names = [name for name in (*OURS, *OTHERS) if name in own[0]["milliseconds"]]
        others = [name for name in names if name in OTHERS]
        lines += [
            "",
            f"## {title}",
            "",
            f"{own[0]['runs']} runs of {own[0]['rounds']} rounds.",
            "",
            "| "
            + " | ".join(
                [
                    "",
                    "batch",
                    "threads",
                    *(f"{n}, ms" for n in names),
                    *(f"int8 vs {n}" for n in others),
                    "limit",
                    "exact vs torch",
                ]
            )
            + " |",
        ]
        lines.append("| --- " * (3 + len(names) + len(others) + 2) + "|")
        for row in own:
            limits = ", ".join(f"{limit:g}" for limit in row["limits"].values()) or "–"
            cells = [row["task"], row["batch"], row["threads"]]
            cells += [f"{row['milliseconds'][name]:.3g}" for name in names]
            cells += [f"{row['ratios'][name]:.1f}" + ("" if holds(row, name) else " ✗") for name in others]
            lines.append("| " + " | ".join(map(str, [*cells, limits, f"{row['exact_ratio']:.1f}"])) + " |")
    worst = {
        name: max(row["rms_error"][name] for row in rows if name in row["rms_error"]) for name in (*OURS, *OTHERS[1:])
    }
    lines += [
        "",
        "Largest rms error against torch fp32, as a fraction of the largest output: "
        + ", ".join(f"{name} {error:.2g}" for name, error in worst.items())
        + ".",
    ]
    return "\n".join(lines) + "\n"


def holds(row: dict[str, Any], name: str) -> bool:
    return name not in row["limits"] or row["ratios"][name] >= row["limits"][name]


def earlier(out: Path | None) -> list[dict[str, Any]]:
    """Earlier measurements: with --only, the other sections are kept."""
    file = out / "inference.json" if out else None
    return json.loads(file.read_text())["rows"] if file and file.is_file() else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="linear,conv,mlp,cnn")
    parser.add_argument("--threads", default="1,2")
    arguments = parser.parse_args()
    tasks = [task for task in TASKS if task.kind in arguments.only.split(",")]
    threads = [int(count) for count in arguments.threads.split(",")]
    rows: list[dict[str, Any]] = []
    runs = []
    kept = [row for row in earlier(arguments.out) if row["kind"] not in {task.kind for task in tasks}]
    for index in range(arguments.runs):
        runs.append(one_run(tasks, threads, arguments.rounds, f"[{index + 1}/{arguments.runs}]"))
        rows = [*combined(runs, arguments.rounds), *kept]
        text = markdown(rows, describe())
        if arguments.out:
            # After every run, so that an interrupted measurement keeps its results so far.
            arguments.out.mkdir(parents=True, exist_ok=True)
            (arguments.out / "inference.md").write_text(text)
            (arguments.out / "inference.json").write_text(json.dumps({"machine": describe(), "rows": rows}, indent=1))
    print(text)
    missed = [f"{row['task']} batch {row['batch']}: {name}" for row in rows for name in OTHERS if not holds(row, name)]
    if missed:
        print("below the limit: " + "; ".join(missed), file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
