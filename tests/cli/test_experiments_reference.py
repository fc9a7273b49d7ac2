"""docs/experiments.md is up to date, complete, and its example trains."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from bayesbinn import models
from bayesbinn.cli.app import app
from bayesbinn.cli.experiments_reference import reference
from bayesbinn.errors import InvalidInput
from bayesbinn.experiments.config import PROVIDED, SECTIONS, load_experiment
from bayesbinn.methods import METHODS
from bayesbinn.runs.build import build_model
from bayesbinn.runs.data import load_data
from bayesbinn.runs.folder import load_config, load_run
from bayesbinn.runs.single import Run
from tests.helpers.places import ROOT

PAGE = ROOT / "docs" / "experiments.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_the_page_is_up_to_date() -> None:
    assert reference() == TEXT, f"stale: python -m bayesbinn.cli.experiments_reference docs/{PAGE.name}"


def part(heading: str) -> str:
    """The text below a heading, up to the next one of any level."""
    return re.split(r"^#", TEXT.partition(f"\n{heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]


def test_every_key_network_and_setting_is_there_with_a_meaning() -> None:
    for name, section in SECTIONS.items():
        for key in section.model_fields:
            assert re.search(rf"^\| `{key}` \| [^|]+ \| [^|]* \| \w.* \|$", part(f"### [{name}]"), re.MULTILINE), key
    for name in models.NETWORKS:
        assert f"| `{name}` |" in part("## Networks")
    for method in METHODS.values():
        for setting in set(method.settings) - PROVIDED:
            assert re.search(rf"^\| `{setting}` \| [^|]* \| .+ \|$", part(f"### {method.name}"), re.MULTILINE), setting


@pytest.mark.parametrize("name", models.NETWORKS)
def test_every_named_network_is_built_or_says_what_it_needs(name: str) -> None:
    experiment = load_experiment("moons" if name == "synthetic_mlp" else "digits", overrides={"model.name": name})
    data = load_data(experiment)
    if "images" in models.NETWORKS[name]:
        with pytest.raises(InvalidInput, match=rf"{name} (takes|needs) images"):
            build_model(experiment, data)
    else:
        assert build_model(experiment, data)


def test_the_example_and_its_commands_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (example,) = re.findall(r"```toml\n# mine.toml\n(.*?)```", TEXT, re.DOTALL)
    commands = re.findall(r"^\$ bayesbinn (train mine.toml.*)$", TEXT, re.MULTILINE)
    assert len(commands) == 3
    (tmp_path / "mine.toml").write_text(example)
    monkeypatch.chdir(tmp_path)
    for command in commands:
        words = shlex.split(command, comments=True)
        monkeypatch.setattr(sys, "argv", ["bayesbinn", *words, "--stop-after", "3"])
        with pytest.raises(SystemExit) as ended:
            app()
        assert ended.value.code == 0, capsys.readouterr().err
    assert "learning rate" in capsys.readouterr().err
    assert load_config(tmp_path / "runs/mine-bayesbinn-0").training.epochs == 20
    assert load_config(tmp_path / "runs/longer").method.settings["lr"] == 0.01
    assert load_config(tmp_path / "runs/wider").method.schedule.describe() == "constant"


def test_the_example_learns(tmp_path: Path) -> None:
    (example,) = re.findall(r"```toml\n# mine.toml\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "mine.toml").write_text(example)
    Run.open(load_experiment(str(tmp_path / "mine.toml")), tmp_path / "run").train()
    assert load_run(tmp_path / "run")[1][-1]["test_accuracy"] > 90
