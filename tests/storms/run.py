"""``make storm``: the long form of every storm, one after another, with the results in results/storm.md.

Each storm prints one line: how many cases it had, how many failed and how long it took. What failed, and how to repeat
it, is in build/storm.log. ``--only NAME`` runs a single storm and keeps the other lines of the table.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.helpers.places import ROOT

REPORT = ROOT / "results" / "storm.md"
LOG = ROOT / "build" / "storm.log"

STORMS: dict[str, tuple[str, str]] = {
    "kills": ("tests/storms/test_kills.py", "a killed run ends like an undisturbed one, bit for bit"),
    "signals": ("tests/storms/test_signals.py", "Ctrl-C or SIGTERM: one line, and the same command resumes"),
    "full disk": ("tests/storms/test_full_disk.py", "one line names the cause; old files stay, nothing is left over"),
    "locks": ("tests/storms/test_locks.py", "one owner at a time, and soon the next one"),
    "graphs": ("tests/storms/test_graphs.py", "native, C and ONNX agree with the reference"),
    "data files": ("tests/data/test_damaged_files.py", "a damaged file loads or is rejected with one line"),
    "model files": ("tests/modelfile/test_damaged_files.py", "a forged file runs or is rejected with one line"),
    "optimizers": ("tests/storms/test_optimizers.py", "weights ±1, state finite, native = reference = resumed"),
    "writers": ("tests/storms/test_writers.py", "no corrupt read"),
}
HEAD = """# Storms

Many random cases, run by `make storm` (about half an hour on two cores; the suite runs a short
form of each). Each line is from the last run of its storm; `make storm STORM='--seed 1'` draws other cases.

| storm | what must hold | cases | failures | seconds |
| --- | --- | ---: | ---: | ---: |
"""


def run_storm(name: str, seed: int) -> list[dict[str, object]]:
    """Run a storm in a separate process; return what it recorded, or one failure if it recorded nothing."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.jsonl"
        environment = os.environ | {
            "BAYESBINN_STORM": "1",
            "BAYESBINN_STORM_SEED": str(seed),
            "BAYESBINN_STORM_RESULTS": str(results),
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", STORMS[name][0]]
        with LOG.open("ab") as log:
            code = subprocess.run(
                command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT, check=False
            ).returncode
        lines = results.read_text().splitlines() if results.exists() else []
    found = [json.loads(line) for line in lines]
    if code and not any(each["failures"] for each in found):
        found.append({"storm": name, "unit": "tests outside the cases", "cases": 1, "failures": 1, "seconds": 0.0})
    return found


def row(name: str, found: list[dict[str, object]]) -> str:
    """A line of the table; the parts of a storm are added up."""
    cases: dict[str, int] = {}
    for each in found:
        cases[str(each["unit"])] = cases.get(str(each["unit"]), 0) + int(str(each["cases"]))
    text = ", ".join(f"{number:,} {unit}" for unit, number in cases.items())
    failures = sum(int(str(each["failures"])) for each in found)
    seconds = sum(float(str(each["seconds"])) for each in found)
    return f"| {name} | {STORMS[name][1]} | {text} | {failures} | {seconds:.0f} |"


def rows_so_far() -> dict[str, str]:
    lines = REPORT.read_text().splitlines() if REPORT.exists() else []
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in lines if line.startswith("| ")}
    return {name: line for name, line in rows.items() if name in STORMS}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=STORMS, nargs="+", default=list(STORMS), help="run only these storms")
    parser.add_argument("--seed", type=int, default=0, help="choose other cases")
    arguments = parser.parse_args()
    LOG.parent.mkdir(exist_ok=True)
    LOG.write_bytes(b"")
    failed = False
    for name in arguments.only:
        line = row(name, run_storm(name, arguments.seed))
        print(line, flush=True)
        failed |= line.split(" | ")[3] != "0"
        rows = rows_so_far() | {name: line}
        text = "\n".join(rows[each] for each in STORMS if each in rows)
        REPORT.write_text(HEAD + text + "\n")
    if failed:
        print(f"what failed, and how to repeat it: {LOG.relative_to(ROOT)}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
