"""Damaged and forged model files: Node refuses what Python refuses, and runs what Python runs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bayesbinn.errors import InvalidFile, InvalidInput, InvalidUse, TooMuchMemory
from bayesbinn.modelfile.container import read
from bayesbinn.runtime import load
from tests.helpers.places import ROOT
from tests.helpers.web import close, job, node, run_jobs
from tests.tools.fuzz_model_files import MAX_MEMORY, MAX_WORK, choose, forged, originals, sealed, work_of

REPLAY = ROOT / "csrc" / "tests" / "replay.sh"


def python_says(path: Path, activations: Any, x: Any) -> tuple[str, Any]:
    """The verdict in predict.mjs's words, and the outputs."""
    try:
        model = load(path, activations, 1, max_memory=MAX_MEMORY)
    except TooMuchMemory:
        return "TooMuchMemory", None
    except InvalidFile as error:
        return "InvalidModel", str(error)
    if x is None:
        return "runs", None
    try:
        with np.errstate(all="ignore"):
            return "runs", model.predict(x)
    except (InvalidInput, InvalidUse):
        return "InvalidInput", None


def inputs_of(path: Path, random: np.random.Generator) -> Any:
    """Two examples for a model that is read and not too slow to run."""
    try:
        model = read(path, MAX_MEMORY)
        small = work_of(model) <= MAX_WORK
    except (InvalidFile, TooMuchMemory):
        return None
    if not small:
        return None
    x = random.standard_normal((2, *model.graph.input_shape)).astype(np.float32)
    if model.encoding is None:
        return x
    # Python rejects what cannot be codes of a table; JavaScript computes with any numbers.
    heights = [column.height for column in model.encoding.columns for _ in range(column.width)]
    return np.clip(x, -np.array(heights, np.float32), np.array(heights, np.float32))


def feed(count: int, start: int, folder: Path, *arguments: str) -> Counter[str]:
    """Verdicts of `count` files: odd ones have a matching checksum, as an attacker's would."""
    node()
    made, jobs, expected = originals(), [], []
    for index in range(count):
        random = np.random.default_rng([start, index])
        content = forged(random, choose(random, made))[1]
        path = folder / f"{index}.safetensors"
        path.write_bytes(sealed(content) if index % 2 else content)
        x = inputs_of(path, random)
        mode = ("exact", "int8")[index // 2 % 2]
        jobs.append(job(folder, str(index), path, mode, x, maxMemory=MAX_MEMORY))
        expected.append(python_says(path, mode, x))
    counts: Counter[str] = Counter()
    for index, (said, (verdict, y)) in enumerate(zip(run_jobs(jobs, folder, *arguments), expected, strict=True)):
        what = f"file {index} of seed {start}: {said}, but Python says {verdict} {y!r:.300}"
        assert said["verdict"] != "unexplained", what
        assert "\n" not in said.get("message", ""), what
        # Both count memory, but a pointer is half as long in WebAssembly: near the limit they may differ.
        assert said["verdict"] == verdict or "TooMuchMemory" in (said["verdict"], verdict), what
        if said["verdict"] == verdict == "runs" and y is not None:
            assert close(said["y"], y.reshape(-1)), what
        counts[said["verdict"]] += 1
    return counts


def test_node_refuses_what_python_refuses(tmp_path: Path) -> None:
    counts = feed(300, 1, tmp_path)
    assert counts["InvalidModel"] > 150 and counts["runs"] > 10, counts


def replayed(record: Path) -> None:
    """The calls that Node made, made again to a native build with sanitizers."""
    compiler = os.environ.get("CXX", "c++")
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no C++ compiler {compiler!r}")
    done = subprocess.run(["sh", str(REPLAY), str(record)], capture_output=True, text=True, check=False)
    if "cannot find" in done.stderr and "asan" in done.stderr:
        pytest.skip("this compiler has no sanitizer libraries")
    assert done.returncode == 0 and "clean" in done.stdout, done.stdout + done.stderr[-3000:]


@pytest.mark.slow
def test_node_refuses_five_thousand_files_as_python_does(tmp_path: Path) -> None:
    """And what reached the kernels reads and writes nothing outside its memory."""
    counts = feed(5000, 0, tmp_path, str(tmp_path / "calls"))
    assert counts["InvalidModel"] > 2500 and counts["runs"] > 150, counts
    replayed(tmp_path / "calls")


def test_a_trap_is_explained(tmp_path: Path) -> None:
    """A file that asks for more than the limit comes back as one line, and a later model is not affected."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(originals()[2])
    tight, roomy = run_jobs(
        [job(tmp_path, "m", path, "exact", maxMemory=20_000), job(tmp_path, "m", path, "exact")], tmp_path
    )
    assert tight["verdict"] == "TooMuchMemory" and "bytes are needed" in tight["message"]
    assert roomy["verdict"] == "runs"
