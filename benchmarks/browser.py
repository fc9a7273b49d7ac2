"""The WebAssembly runtime beside onnxruntime-web, in Node, on one thread.

One process, all contestants interleaved in every round. The files for onnxruntime are those of benchmarks/inference.py:
float32 weights with the BatchNorm folded into them, and int8 with reduce_range=True, which weights of ±1 need.

    npm install --prefix benchmarks/browser
    python benchmarks/browser.py [--out FOLDER] [--rounds N] [--files FOLDER]

Writes FOLDER/browser.json and FOLDER/browser.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from bayesbinn import web
from bayesbinn.environment import describe
from bayesbinn.packing.packer import pack
from inference import TASKS, Task, binary, onnx_files

HERE = Path(__file__).parent
ORT = "onnxruntime-web"
MAX_BYTES = 100_000
MAX_FIRST = 100.0
"""Milliseconds from bytes to the first prediction, of the MNIST network in int8 mode."""


@dataclass(frozen=True)
class Contest:
    """A network of benchmarks/inference.py, and how much faster int8 mode must be."""

    task: Task
    limits: dict[str, float]


CONTESTS = [
    Contest(next(t for t in TASKS if t.kind == "mlp"), {f"{ORT} fp32": 5, f"{ORT} int8": 5}),
    Contest(next(t for t in TASKS if t.kind == "cnn"), {f"{ORT} fp32": 2.5}),
]


def prepared(contest: Contest, folder: Path) -> dict[str, Any]:
    """The files of a contest: a model file and its ONNX exports, made unless they are there."""
    task = contest.task
    folder.mkdir(parents=True, exist_ok=True)
    path, real, quantized = (folder / name for name in ("model.safetensors", "real.onnx", "int8.onnx"))
    if not quantized.exists():
        network = binary(task.network(), task.shape)
        onnx_files(task, pack(network, path, example_input=torch.randn(2, *task.shape)), folder)
    return {"model": str(path), "real": str(real), "int8": str(quantized), "shape": [1, *task.shape]}


def measured(contest: Contest, files: Path, rounds: int) -> dict[str, Any]:
    task = contest.task
    module = (HERE.parent / "src" / "bayesbinn" / "web" / "bayesbinn.js").as_uri()
    job = prepared(contest, files / task.kind) | {"rounds": rounds}
    listed = files / task.kind / "job.json"
    listed.write_text(json.dumps(job))
    command = ["node", str(HERE / "browser" / "measure.mjs"), module, str(listed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    found = json.loads(done.stdout)
    who = {"ours": "model", f"{ORT} fp32": "real", f"{ORT} int8": "int8"}
    sizes = {name: Path(job[key]).stat().st_size for name, key in who.items()}
    times = {who: median(each) for who, each in found["rounds"].items()}
    return {
        "task": task.name,
        "milliseconds": times,
        "ratios": {who: median(o / i for o, i in zip(each, found["rounds"]["int8"], strict=True))
                   for who, each in found["rounds"].items() if who.startswith(ORT)},
        "limits": contest.limits,
        "first": {mode: median(each) for mode, each in found["first"].items()},
        "errors": found["errors"],
        "bytes": sizes,
        "rounds": rounds,
        "node": found["node"],
        "onnxruntime": found["onnxruntime"],
    }  # fmt: skip


def runtime_bytes() -> dict[str, int]:
    """What a page downloads before the first weight."""
    dist = HERE / "browser" / "node_modules" / ORT / "dist"
    theirs = sum((dist / name).stat().st_size for name in ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.wasm"))
    return {"module": len(web.module().encode()), "wasm": len(web.wasm()), ORT: theirs}


def markdown(rows: list[dict[str, Any]], sizes: dict[str, int], facts: dict[str, Any]) -> str:
    ours = sizes["module"] + sizes["wasm"]
    lines = [
        "# In the browser: WebAssembly compared with onnxruntime-web",
        "",
        f"Node {rows[0]['node']}, onnxruntime-web {rows[0]['onnxruntime']}, one thread, one process, interleaved: "
        f"medians of {rows[0]['rounds']} rounds, batch 1. {facts['processor']}, {facts['cores']} cores. Ratios say how "
        "many times faster our int8 mode is, as the median over rounds; “required” has the least for both. "
        "onnxruntime's int8 has reduce_range=True (its default is wrong for weights of ±1), dynamic for the MLP, "
        "static for the CNN.",
        "",
        "| | int8, ms | exact, ms | onnxruntime-web fp32, ms | onnxruntime-web int8, ms | int8 vs fp32 | int8 vs int8 "
        "| required | first prediction int8, ms | first prediction exact, ms |",
        "| --- " * 10 + "|",
    ]
    for row in rows:
        ms = row["milliseconds"]
        cells = [row["task"], *(f"{ms[who]:.3g}" for who in ("int8", "exact", f"{ORT} fp32", f"{ORT} int8"))]
        others = (f"{ORT} fp32", f"{ORT} int8")
        cells += [f"{row['ratios'][who]:.1f}" for who in others]
        cells.append(", ".join(f"{row['limits'][who]:g}" if who in row["limits"] else "–" for who in others))
        cells += [f"{row['first'][mode]:.0f}" for mode in ("int8", "exact")]
        lines.append("| " + " | ".join(cells) + " |")
    lines += [
        "",
        "The first prediction counts from the bytes of the model file: compiling the WebAssembly, the checksum, and "
        "preparing the weights included.",
        "",
        "| download, bytes | runtime | " + " | ".join(row["task"] for row in rows) + " |",
        "| --- " * (2 + len(rows)) + "|",
        f"| bayesbinn | {ours:,} ({sizes['wasm']:,} WebAssembly, {sizes['module']:,} JavaScript) | "
        + " | ".join(f"{row['bytes']['ours']:,}" for row in rows) + " |",
        f"| onnxruntime-web, fp32 | {sizes[ORT]:,} | "
        + " | ".join(f"{row['bytes'][f'{ORT} fp32']:,}" for row in rows) + " |",
        f"| onnxruntime-web, int8 | {sizes[ORT]:,} | "
        + " | ".join(f"{row['bytes'][f'{ORT} int8']:,}" for row in rows) + " |",
        "",
        "Largest difference from onnxruntime-web fp32, as a fraction of the largest output: "
        + "; ".join(f"{row['task']}: " + ", ".join(f"{who} {row['errors'][who]:.2g}" for who in row["errors"]
                    if who != f"{ORT} fp32") for row in rows) + ".",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def missed(rows: list[dict[str, Any]], sizes: dict[str, int]) -> list[str]:
    """What is required and does not hold."""
    found = [
        f"{row['task']}: {row['ratios'][who]:.1f} × {who}, {limit:g} are required"
        for row in rows
        for who, limit in row["limits"].items()
        if row["ratios"][who] < limit
    ]
    if sizes["module"] + sizes["wasm"] > MAX_BYTES:
        found.append(f"{sizes['module'] + sizes['wasm']} bytes, {MAX_BYTES} are allowed")
    if rows[0]["first"]["int8"] > MAX_FIRST:
        found.append(f"{rows[0]['first']['int8']:.0f} ms to the first prediction, {MAX_FIRST:.0f} are allowed")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--files", type=Path, help="keep the networks' files here, for the next run")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        files = arguments.files or Path(temporary)
        rows = [measured(contest, files, arguments.rounds) for contest in CONTESTS]
    sizes, facts = runtime_bytes(), describe()
    text = markdown(rows, sizes, facts)
    print(text)
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "browser.md").write_text(text)
        (arguments.out / "browser.json").write_text(
            json.dumps({"machine": facts, "bytes": sizes, "rows": rows}, indent=1)
        )
    for line in missed(rows, sizes):
        print(line, file=sys.stderr)
    return 1 if missed(rows, sizes) else 0


if __name__ == "__main__":
    sys.exit(main())
