"""Every shell command on the pages exists; those of `bayesbinn` on shipped or own data run, in a short form.

What cannot run here, such as a command on MNIST or on a cluster, is at least parsed: command, options, values, presets,
extras and targets must exist.
"""

from __future__ import annotations

import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer

import bayesbinn as bb
from bayesbinn import models
from bayesbinn.__main__ import main
from bayesbinn.cli.app import app
from bayesbinn.cli.runtime import COMMANDS, parser_of
from tests.helpers.markdown import blocks
from tests.helpers.places import ROOT
from tests.test_docs import PAGES

GROUP: Any = typer.main.get_command(app)
OTHER_PROGRAMS = {"dask", "helm", "arm-none-eabi-gcc", "pre-commit"}
"""Named on the pages, but not ours to check."""
OTHER_OPTIONS = {
    *("--nproc-per-node", "--nworkers", "--nthreads", "--lifetime", "--logdir", "--port", "--strict"),
    *("--choose", "--keep"),
}
FEWER = ["--epochs", "1"]
SHORT = {"train": FEWER, "bench": ["--batches", "1", "--threads", "1"]}
"""What makes a command quick."""


@dataclass(frozen=True)
class Line:
    """A command as a page shows it."""

    page: Path
    words: tuple[str, ...]

    @property
    def runs(self) -> bool:
        """Whether it needs neither downloads nor a cluster, and takes seconds."""
        text = " ".join(self.words)
        far = ("mnist", "figure-moons", "figure-continual", "sweep", "/shared", "best.toml", "demo")
        return self.words[0] == "bayesbinn" and "--help" not in self.words and not any(word in text for word in far)


def lines() -> Iterator[Line]:
    """The commands of all shell blocks; output, prompts, comments and variables are left out."""
    for page in PAGES:
        for block in blocks(page):
            if block.language not in ("sh", "console"):
                continue
            for text in block.code.replace("\\\n", " ").splitlines():
                prompt = re.match(r"\w*\$ ", text)
                if block.language == "console" and prompt is None:
                    continue
                words = shlex.split(text[prompt.end() if prompt else 0 :], comments=True)
                while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
                    words.pop(0)
                if words:
                    yield Line(page, tuple(words))


LINES = list(lines())


def parse(name: str, words: list[str]) -> None:
    """Parse a command without running it; a mistake raises."""
    if name in COMMANDS:
        parser_of(name).parse_args(words)
        return
    command = GROUP.commands[name]
    if hasattr(command, "commands"):
        command, words = command.commands[words[0]], words[1:]
    command.make_context(name, words)


def test_every_command_is_one_that_exists() -> None:
    assert len(LINES) > 60
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    for line in LINES:
        program, *words = line.words
        if program == "torchrun":
            program, words = "bayesbinn", words[words.index("bayesbinn") + 1 :]
        if program == "bayesbinn":
            if words[-1] == "--help":
                continue  # the page is made of these
            assert words[0] in GROUP.commands, line
            parse(words[0], words[1:])
            if words[0] == "train" and not re.search(r"[./]", words[1]):
                assert (ROOT / "src/bayesbinn/experiments/presets" / f"{words[1]}.toml").exists(), line
        elif program == "make":
            assert words[0] in targets, line
        elif program == "pip":
            for extra in re.findall(r"\.\[([\w,]+)\]", " ".join(words)):
                assert set(extra.split(",")) <= set(project["optional-dependencies"]), line
        elif program.endswith("python"):
            place = words[1].replace(".", "/") if words[0] == "-m" else words[0]
            assert words[1] == "pytest" or any(
                (ROOT / base / place).with_suffix(".py").exists() for base in ("", "src")
            )
        else:
            assert program in OTHER_PROGRAMS, line


def test_every_command_and_option_in_the_text_exists() -> None:
    reference = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    known = set(re.findall(r"--[a-z][a-z-]+", reference)) | OTHER_OPTIONS
    for page in PAGES:
        text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        for code in re.findall(r"`([^`\n]+)`", text):
            if not re.match(r"(pip|gcc|arm-|dask|python|mypy|make) ?", code):
                assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", code)) <= known, (page.name, code)
            for command in re.findall(r"^bayesbinn (?!model$)([a-z]+)", code):  # what a model file calls itself
                assert command in GROUP.commands, (page.name, code)


# ---- in a short form, for real -------------------------------------------------------------------------


def readers_files(folder: Path) -> None:
    """The files that the pages say the reader has."""
    random = np.random.default_rng(0)
    kinds = random.integers(0, 2, 60)
    columns = np.stack([kinds + 0.1 * random.normal(size=60), random.normal(size=60)], 1)
    table = "\n".join(f"{a:.3f},{b:.3f},{'ab'[kind]}" for (a, b), kind in zip(columns, kinds, strict=True))
    (folder / "my.csv").write_text(f"length,width,species\n{table}\n")
    (folder / "new.csv").write_text("length,width\n0.1,0.2\n1.1,-0.3\n")
    zips = "\n".join(f"{a:.3f},{b:.3f},{10001 + kind}" for (a, b), kind in zip(columns, kinds, strict=True))
    (folder / "zip-codes.csv").write_text(f"a,b,zip\n{zips}\n")
    (experiment,) = [block.code for block in blocks(ROOT / "docs/experiments.md") if block.language == "toml"]
    (folder / "mine.toml").write_text(experiment)
    model = models.table_mlp(10, inputs=64, hidden=16).eval()
    bb.pack(model, folder / "model.safetensors", bb.STEAdam(bb.split_parameters(model)[0]).posterior())
    np.save(folder / "images.npy", np.zeros((2, 64), dtype=np.float32))


def short_forms() -> list[list[str]]:
    """Every command that can run here, once, what trains first."""
    order = {"train": 0, "evaluate": 1, "predict": 1, "pack": 1}
    found: dict[tuple[str, ...], None] = {}
    for line in LINES:
        if line.runs:
            words = line.words[1:]
            found[*words, *SHORT.get(words[0], [])] = None
    return [list(words) for words in sorted(found, key=lambda words: order.get(words[0], 2))]


def test_the_commands_run_in_a_short_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
    readers_files(tmp_path)
    commands = short_forms()
    assert {words[0] for words in commands} >= {
        *("train", "evaluate", "predict", "pack", "run", "inspect", "bench", "export", "reproduce"),
    }
    for number, words in enumerate(commands):
        if words[0] == "train" and "--set" in words and "--out" not in words:
            words = [*words, "--out", f"runs/set-{number}"]  # other settings of a run that is there already
        monkeypatch.setattr(sys, "argv", ["bayesbinn", *words])
        try:
            code = main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        assert code == 0, (words, capsys.readouterr().err)
    assert {path.name for path in tmp_path.iterdir()} >= {"predictions.csv", "model.onnx", "digits.c", "digits.h"}
