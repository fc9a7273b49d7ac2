"""Large tables from the command line: memory grows with the strips that are read, not with the table."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from bayesbinn.modelfile.columns import BooleanColumn, CategoryColumn, DateColumn, NumberColumn
from bayesbinn.modelfile.container import write
from bayesbinn.modelfile.encoding import TableEncoding
from tests.helpers.places import ROOT
from tests.helpers.random_graphs import GraphBuilder

MIB = 2**20


@pytest.fixture(scope="module")
def large_table() -> ModuleType:
    spec = importlib.util.spec_from_file_location("large_table", ROOT / "benchmarks" / "large_table.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its processes look for it by name
    spec.loader.exec_module(module)
    return module


def model_file(path: Path) -> Path:
    """A model of the table's columns, with weights drawn at random."""
    encoding = TableEncoding(
        (
            NumberColumn("age", missing=True, knots=(18.0, 50.0, 90.0), codes=("line", "rank")),
            NumberColumn('income, "net"', knots=(0.0, 1000.0, 9000.0), codes=("line", "rank")),
            CategoryColumn("job", categories=("cook", "nurse"), other=True),
            DateColumn("joined", range=(1.4e9, 1.7e9), knots=(1.4e9, 1.7e9), codes=("line",), cycles=("year",)),
            BooleanColumn("member"),
        )
    )
    g = GraphBuilder((encoding.width,), 1, 0)
    g.add("linear", shape=(2, encoding.width), tensors={"weight": g.weight((2, encoding.width)), **g.scales(2)})
    model = g.model(classes=("no", "yes"))
    model.encoding = encoding
    write(path, model)
    return path


def peak(*command: object) -> int:
    """Bytes of memory that a command takes at most, without the interpreter's and NumPy's own."""
    program = (
        "import sys, bayesbinn.runtime.model, bayesbinn.cli.answers\n"
        "from bayesbinn.__main__ import main\n"
        "def most(): return int(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])\n"
        "before, code = most(), main()\n"
        "print(1024 * (most() - before), file=sys.stderr)\n"
        "sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, command)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    return int(done.stderr.splitlines()[-1])


@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured as Linux reports it")
def test_predicting_more_rows_takes_little_more_memory(large_table: ModuleType, tmp_path: Path) -> None:
    model, found = model_file(tmp_path / "model.safetensors"), []
    for rows in (40_000, 100_000):
        large_table.write_table(tmp_path / "big.csv", rows)
        found.append(peak("run", model, tmp_path / "big.csv", "--out", tmp_path / "answers.csv"))
        assert len((tmp_path / "answers.csv").read_text().splitlines()) == rows + 1
    assert found[1] - found[0] < 12 * MIB, "the answers as text, and no more"


@pytest.mark.slow
def test_a_million_rows_take_ten_minutes_and_two_gibibytes_at_most(large_table: ModuleType, tmp_path: Path) -> None:
    for name, found in large_table.measure(tmp_path, 1_000_000).items():
        assert found["seconds"] <= large_table.MAX_SECONDS and found["gib"] <= large_table.MAX_GIB, (name, found)
