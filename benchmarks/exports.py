"""What the exports cost: bytes of flash and RAM, and time per prediction, of the paper's networks as C and as ONNX.

    python benchmarks/exports.py [--out FOLDER] [--rounds N]

Sizes do not depend on the values of the weights, so the networks are drawn at random. C needs gcc; the columns for a
microcontroller need arm-none-eabi-gcc and stay empty without it; ONNX needs the extra `onnx`. All times are medians of
calls that alternate between the contestants, one thread. Prints the tables and writes FOLDER/exports.json and .md.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import bayesbinn as bb
from bayesbinn import models
from bayesbinn.environment import describe
from bayesbinn.export import export_c, export_onnx
from bayesbinn.format import ModelFile
from bayesbinn.paper.drawing import markdown_table

NETWORKS: dict[str, tuple[Callable[[], torch.nn.Module], tuple[int, ...]]] = {
    "continual_mlp": (models.continual_mlp, (784,)),
    "lrnet_mnist": (models.lrnet_mnist, (1, 28, 28)),
    "mnist_mlp": (models.mnist_mlp, (784,)),
    "vgg": (models.vgg, (3, 32, 32)),
}
CORTEX_M4 = "-mcpu=cortex-m4 -mthumb -mfloat-abi=hard -mfpu=fpv4-sp-d16 -std=c99 -Os -DMODEL_NO_PROBABILITIES"
TIMER = """
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "model.h"
static float input[MODEL_INPUTS], output[MODEL_OUTPUTS], buffer[MODEL_BUFFER_BYTES / sizeof(float) + 1];
int main(int argc, char **argv)
{
    int calls = atoi(argv[1]);
    struct timespec from, to;
    for (unsigned i = 0; i < MODEL_INPUTS; i++) input[i] = (float)((i * 2654435761u) >> 8) * 0x1p-24f - 0.5f;
    for (int i = 0; i < calls; i++) {
        clock_gettime(CLOCK_MONOTONIC, &from);
        if (model_predict(input, output, buffer, sizeof buffer)) return 1;
        clock_gettime(CLOCK_MONOTONIC, &to);
        printf("%.9f\\n", (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec));
    }
    return argc != 2;
}
"""


def packed(name: str, path: Path) -> ModelFile:
    """The network with random weights, written to a model file."""
    torch.manual_seed(0)
    make, shape = NETWORKS[name]
    model = make().eval()
    binary, _ = bb.split_parameters(model)
    with torch.no_grad():
        for _, weight in binary:
            weight.copy_(torch.where(torch.rand_like(weight) < 0.5, -1.0, 1.0))
    return bb.pack(model, path, example_input=torch.zeros(1, *shape))


def sizes_of(program: str, compiler: str, flags: str, folder: Path) -> tuple[int, int]:
    """Bytes of code and of constants that the compiler makes of model.c."""
    made = folder / "model.o"
    subprocess.run([compiler, *flags.split(), "-c", "model.c", "-o", str(made)], check=True, cwd=folder)
    listing = subprocess.run([program, "-A", str(made)], check=True, capture_output=True, text=True).stdout
    code = constants = 0
    for line in listing.splitlines():
        name, *rest = line.split() or [""]
        if name.startswith(".text"):
            code += int(rest[0])
        elif name.startswith((".rodata", ".data", ".eh_frame")):
            constants += int(rest[0])
    return code, constants


def sizes(name: str, folder: Path) -> dict[str, Any]:
    """Bytes of a network in every form."""
    path = folder / f"{name}.safetensors"
    file = packed(name, path)
    here = folder / name
    here.mkdir()
    sources = export_c(file, here / "model")
    onnx = export_onnx(file, folder / f"{name}.onnx")
    code, constants = sizes_of("size", "gcc", "-std=c99 -O2", here)
    header = (here / "model.h").read_text()
    buffer = next(line.split()[2] for line in header.splitlines() if line.startswith("#define MODEL_BUFFER_BYTES"))
    make, _ = NETWORKS[name]
    found: dict[str, Any] = {
        "weights": sum(weight.numel() for _, weight in bb.split_parameters(make())[0]),
        "model file": path.stat().st_size,
        "ONNX": onnx.stat().st_size,
        "C source": sum(source.stat().st_size for source in sources),
        "flash": code + constants,
        "RAM": int(buffer.strip("()u")),
    }
    if shutil.which("arm-none-eabi-gcc"):
        small = sizes_of("arm-none-eabi-size", "arm-none-eabi-gcc", CORTEX_M4, here)
        found |= {"Cortex-M4 code": small[0], "Cortex-M4 constants": small[1]}
    return found


def time_c(folder: Path, rounds: int) -> dict[str, float]:
    """Milliseconds per call of the compiled networks, which take turns."""
    for name in NETWORKS:
        (folder / name / "timer.c").write_text(TIMER)
        build = ["gcc", "-std=gnu99", "-O3", "model.c", "timer.c", "-o", "timer", "-lm"]
        subprocess.run(build, check=True, cwd=folder / name)
    taken: dict[str, list[float]] = {name: [] for name in NETWORKS}
    for _ in range(rounds):
        for name, times in taken.items():
            calls = 3 if name == "vgg" else 20
            done = subprocess.run(
                [str(folder / name / "timer"), str(calls)], check=True, capture_output=True, text=True
            )
            times += [float(line) for line in done.stdout.split()]
    return {name: 1000 * statistics.median(times) for name, times in taken.items()}


def time_onnx(folder: Path, rounds: int) -> dict[str, dict[str, float]]:
    """The MNIST network in onnxruntime: its weights as bits, unpacked once or in every run, and as float32."""
    import onnxruntime

    make, _ = NETWORKS["mnist_mlp"]
    floats = folder / "float.onnx"
    torch.onnx.export(make().eval(), (torch.zeros(1, 784),), str(floats), dynamo=False)
    levels = onnxruntime.GraphOptimizationLevel
    cases = {
        "bits, unpacked at session creation (the default)": (folder / "mnist_mlp.onnx", levels.ORT_ENABLE_ALL),
        "bits, with all of onnxruntime's optimizations off": (folder / "mnist_mlp.onnx", levels.ORT_DISABLE_ALL),
        "the same network with float32 weights": (floats, levels.ORT_ENABLE_ALL),
    }
    sessions, x = {}, np.zeros((1, 784), np.float32)
    for case, (path, level) in cases.items():
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.graph_optimization_level = 1, level
        sessions[case] = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    taken: dict[str, list[float]] = {case: [] for case in cases}
    for _ in range(5 * rounds):
        for case, session in sessions.items():
            feed = {session.get_inputs()[0].name: x}
            start = time.perf_counter()
            session.run(None, feed)
            taken[case].append(time.perf_counter() - start)
    return {
        case: {"bytes": cases[case][0].stat().st_size, "ms": 1000 * statistics.median(times)}
        for case, times in taken.items()
    }


def report(found: dict[str, Any]) -> str:
    """The tables as Markdown."""
    networks, c, onnx = found["sizes"], found["C, ms"], found["onnxruntime, ms"]
    head = ["weights", "model file", "ONNX", "C source", "flash", "RAM", "Cortex-M4 code", "Cortex-M4 constants"]
    rows = [
        [f"`{name}`", *(f"{each[key]:,}" if key in each else "" for key in head), f"{c[name]:.3g}"]
        for name, each in networks.items()
    ]
    runs = [[case, f"{each['bytes'] / 1e6:.3g} MB", f"{each['ms']:.2g} ms"] for case, each in onnx.items()]
    return "\n\n".join(
        [
            "# Exports",
            "`python benchmarks/exports.py --out results/benchmarks`: medians of alternating calls, one thread of "
            f"{found['machine']['processor']}.",
            "## C\n\nBytes; flash is code and constants of `gcc -O2` on x86-64, RAM is the buffer. Time: one "
            "prediction, `gcc -O3`, milliseconds.",
            markdown_table(["network", *head, "ms"], rows),
            f"## ONNX\n\nThe MNIST network, one input, onnxruntime {found['machine']['onnxruntime']}.",
            markdown_table(["weights", "file", "a run"], runs),
        ]
    )


def main() -> None:
    import onnxruntime

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder for exports.json and exports.md")
    parser.add_argument("--rounds", type=int, default=10, help="rounds of timed calls (default: %(default)s)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = {
            "machine": {**describe(), "onnxruntime": onnxruntime.__version__},
            "sizes": {network: sizes(network, folder) for network in NETWORKS},
            "C, ms": time_c(folder, arguments.rounds),
            "onnxruntime, ms": time_onnx(folder, arguments.rounds),
        }
    text = report(found)
    print(text)
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "exports.json").write_text(json.dumps(found, indent=1) + "\n")
        (arguments.out / "exports.md").write_text(text + "\n")


if __name__ == "__main__":
    main()
