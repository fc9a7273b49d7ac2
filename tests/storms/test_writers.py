"""Two writers of a model file, its exports and a posterior, a third that is killed, two readers: no corrupt read."""

from __future__ import annotations

import json
import os
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path

from tests.helpers.processes import warm_python
from tests.storms import writer_program
from tests.storms.cases import SEED, count, record


def test_two_writers_never_break_a_read(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    onnx = "onnx" if find_spec("onnx") is not None else "none"
    command = [warm_python(), writer_program.__file__, str(folder), str(count("writers")), str(SEED), onnx]
    started, environment = time.monotonic(), {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    record("writers", "writes", found["writes"], len(found["wrong"]), time.monotonic() - started)
    record("writers", "reads", found["reads"], len(found["wrong"]), 0.0)
    assert found["wrong"] == [], f"seed {SEED}"
    assert found["writes"] == 2 * count("writers") and found["reads"] > 10
    assert found["left"] == [], "the next writer removes what a killed one left"
