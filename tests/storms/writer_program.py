"""``python tests/storms/writer_program.py FOLDER WRITES SEED``: two writers of the same files and two readers.

A model file, its exports and a posterior are written in two versions. Prints JSON: how many writes and reads there
were, and what went wrong.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import torch

import bayesbinn as bb
from bayesbinn.export import export_c, export_onnx
from bayesbinn.modelfile import container as model_file

MODEL = Path(__file__).parents[1] / "fixtures" / "model-v1.safetensors"


def writers(folder: Path, version: str, with_onnx: bool) -> dict[str, Callable[[], object]]:
    """One writer per file, or pair of files; each version has its own size."""
    model = model_file.read(MODEL)
    classes = tuple(version * (500 if version == "a" else 3000) + str(i) for i in range(len(model.graph.classes)))
    model = model_file.ModelFile(replace(model.graph, classes=classes), model.tensors)
    posterior = bb.BernoulliPosterior({"w": torch.full((3000 if version == "a" else 9000,), float(ord(version)))})
    found: dict[str, Callable[[], object]] = {
        "model": lambda: model_file.write(folder / "model.safetensors", model),
        "c": lambda: export_c(model, folder, name="net"),
        "posterior": lambda: posterior.save(folder / "posterior.safetensors"),
    }
    if with_onnx:
        found["onnx"] = lambda: export_onnx(model, folder / "net.onnx")
    return found


def read_all(folder: Path, versions: dict[str, set[bytes]]) -> int:
    """Read every file with its reader, and its bytes, which must be those of one version."""
    model_file.read(folder / "model.safetensors")
    bb.BernoulliPosterior.load(folder / "posterior.safetensors")
    for name, whole in versions.items():
        content = (folder / name).read_bytes()
        assert content in whole, f"{name}: {len(content)} bytes, not one of the versions"
    return 2 + len(versions)


def child(work: Callable[[], int], out: int) -> int:
    """A process that reports how often it did its work, or what went wrong."""
    process = os.fork()
    if process:
        return process
    try:
        answer = {"done": work()}
    except BaseException:
        answer = {"wrong": traceback.format_exc()[-1500:]}
    os.write(out, (json.dumps(answer) + "\n").encode())
    os._exit(0)


def storm(folder: Path, writes: int, seed: int, with_onnx: bool) -> dict[str, object]:
    torch.set_num_threads(1)
    versions: dict[str, set[bytes]] = {}
    for version in "ab":
        for write in writers(folder, version, with_onnx).values():
            write()
        for path in folder.iterdir():
            versions.setdefault(path.name, set()).add(path.read_bytes())
    assert all(len(whole) == 2 for name, whole in versions.items() if name != "net.h"), "the versions must differ"
    stop, place = folder.parent / "stop", folder.parent / "answers"
    out = os.open(place, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def keep_writing(version: str) -> int:
        chosen, random = list(writers(folder, version, with_onnx).values()), Random(f"{version} {seed}")
        for _ in range(writes):
            random.choice(chosen)()
            time.sleep(random.choice((0.0, 0.0, 0.001)))
        return writes

    def keep_reading() -> int:
        reads = 0
        while not stop.exists() or not reads:
            reads += read_all(folder, versions)
        return reads

    readers = [child(keep_reading, out) for _ in range(2)]
    writing = [child(partial(keep_writing, version), out) for version in "ab"]
    killed = child(partial(keep_writing, "a"), out)  # leaves an unfinished file, or none
    time.sleep(0.05)
    os.kill(killed, signal.SIGKILL)
    for process in (killed, *writing):
        os.waitpid(process, 0)
    stop.touch()
    for process in readers:
        os.waitpid(process, 0)
    answers = [json.loads(line) for line in place.read_text().splitlines()]
    for write in writers(folder, "a", with_onnx).values():
        write()
    return {
        "writes": 2 * writes,
        "reads": sum(answer.get("done", 0) for answer in answers) - 2 * writes,
        "wrong": [answer["wrong"] for answer in answers if "wrong" in answer],
        "left": sorted(path.name for path in folder.iterdir() if path.name not in versions),
    }


if __name__ == "__main__":
    print(json.dumps(storm(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "onnx")))
