"""The folders of `make evidence`: what it keeps between calls, and the commit and environment of each part."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayesbinn.paper import records
from bayesbinn.paper.evidence import Part, Planned

REPOSITORY = Path(__file__).resolve().parent.parent
COMMITS = "commits.json"
SHOWN = "shown.json"


@dataclass(frozen=True)
class Places:
    """The folders in use."""

    home: Path
    """Checkouts, environments, run folders and logs: kept between calls, not part of the repository."""
    results: Path
    in_place: bool
    """Run this installation instead of a checkout (for tests)."""

    @property
    def runs(self) -> Path:
        return self.home / "runs"

    @property
    def kept(self) -> Path:
        return self.results / "runs"


def done(run: Planned, places: Places) -> bool:
    """Whether the repository has the record of this run, to its last epoch."""
    return records.complete(places.kept / run.name, run.epochs)


def shown(part: Part, places: Places) -> bool:
    """Whether the tables of a part were drawn since its last run ended."""
    return not (part.show or part.measure) or part.name in read_json(places.home / SHOWN)


def mark_shown(part: Part, commit: str, places: Places) -> None:
    path = places.home / SHOWN
    write_json(path, {**read_json(path), part.name: commit})


# ---- commits and environments ----------------------------------------------------------------------


def commit_of(part: Part, places: Places) -> str:
    """The commit a part started on; the current one if it starts now."""
    path = places.home / COMMITS
    begun = read_json(path)
    if part.name not in begun:
        begun[part.name] = git("rev-parse", "HEAD")
        write_json(path, begun)
    return str(begun[part.name])


def interpreter(commit: str, places: Places) -> Path:
    """The Python of the environment with that commit installed, created on first use."""
    if places.in_place:
        return Path(sys.executable)
    tree = places.home / "checkouts" / commit[:12]
    python = tree / ".venv" / "bin" / "python"
    ready = tree / ".venv" / "ready"
    if not ready.is_file():
        say(f"setting up {tree}")
        if not (tree / ".git").exists():
            tree.parent.mkdir(parents=True, exist_ok=True)
            git("clone", "--quiet", "--no-checkout", str(REPOSITORY), str(tree))
        git("-C", str(tree), "checkout", "--quiet", "--force", commit)
        subprocess.run([sys.executable, "-m", "venv", str(tree / ".venv")], check=True)
        install = [str(python), "-m", "pip", "--disable-pip-version-check", "-q", "install"]
        install += ["-c", str(tree / "constraints.txt"), f"{tree}[train]"]
        subprocess.run(install, check=True)
        ready.touch()
    return python


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], check=True, capture_output=True, text=True, cwd=REPOSITORY)
    return done.stdout.strip()


# ---- small files and messages ----------------------------------------------------------------------


def read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.is_file() else {}


def write_json(path: Path, content: dict[str, Any]) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(content, indent=1))
    os.replace(partial, path)


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)
