"""The model card: a metadata block that the Hugging Face hub reads, and text that Markdown shows as it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from bayesbinn.report import run, write_card
from tests.helpers.commands import done
from tests.report.conftest import EVIL, Place

pytestmark = pytest.mark.usefixtures("one_thread")


def block_of(path: Path) -> dict[str, object]:
    """The metadata of a card, which must be safe YAML."""
    _, block, _ = path.read_text(encoding="utf-8").split("---\n", 2)
    found = yaml.safe_load(block)
    assert isinstance(found, dict)
    return found


def test_the_hub_reads_the_card_and_its_results(place: Place, tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub, which Trackio brings, is not installed")
    out = tmp_path / "README.md"
    done("report", place.sources["digits"], "--card", "--license", "mit", "--out", out)
    card = hub.ModelCard.load(out)
    assert card.data.license == "mit" and card.data.library_name == "bayesbinn" and "bayesbinn" in card.data.tags
    results = {each.metric_type: each.metric_value for each in card.data.eval_results}
    facts = run.gather(place.sources["digits"], None)
    assert facts.scored is not None
    assert results["accuracy"] == pytest.approx(run.score_of(facts.scored) / 100, abs=1e-6)
    assert {"nll", "brier_score", "expected_calibration_error"} <= results.keys()


def test_a_card_says_what_it_is_how_to_run_it_and_its_limits(place: Place) -> None:
    path = write_card(place.sources["digits"])
    text = path.read_text(encoding="utf-8")
    assert path == place.sources["digits"] / "README.md" and block_of(path)["license"] == "unknown"
    for words in (
        "## How to run it",
        "## Evaluation",
        "360 test rows",
        "## Limits",
        "## Sizes",
        "bayesbinn train",
        "[method]",
    ):
        assert words in text, words


def test_names_that_hold_markup_stay_text(place: Place, tmp_path: Path) -> None:
    path = write_card(place.sources["table"], tmp_path / "README.md")
    text = path.read_text(encoding="utf-8").split("---\n", 2)[2]
    assert "<script>" not in text.split("````toml")[0] and "\\<script\\>" in text
    assert EVIL not in str(block_of(path))


def test_a_regression_has_its_own_metrics(place: Place, tmp_path: Path) -> None:
    found = block_of(write_card(place.sources["regression"], tmp_path / "README.md"))
    assert found["pipeline_tag"] == "tabular-regression" and found["metrics"] == ["rmse", "r_squared"]
