"""The model card: a metadata block that the Hugging Face hub reads, and text that Markdown shows as it is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from bayesbinn.data.card import DataCard, read_card
from bayesbinn.modelfile.columns import NumberColumn
from bayesbinn.modelfile.container import write
from bayesbinn.modelfile.encoding import TableEncoding
from bayesbinn.report import run, write_card
from bayesbinn.report.card import how_to_run
from bayesbinn.runs.ship import pack_run
from bayesbinn.runtime import load
from tests.helpers.commands import done
from tests.helpers.random_graphs import GraphBuilder
from tests.report.conftest import EVIL, Place
from tests.tools.fuzz_model_files import table_model

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


def test_an_unequal_classifier_is_not_judged_by_accuracy_alone(place: Place, tmp_path: Path) -> None:
    path = write_card(place.sources["table"], tmp_path / "README.md")
    scored = run.gather(place.sources["table"], None).scored
    assert scored is not None
    right = scored.calibrated.classes.numpy() == scored.targets
    recalls = [right[scored.targets == k].mean() for k in (0, 1)]
    section = path.read_text(encoding="utf-8").split("## Evaluation")[1].split("## Limits")[0]
    rows = (row.strip("| ").split(" | ") for row in section.splitlines() if row.startswith("| "))
    shown = {key.strip(): value.strip() for key, value in rows}
    guess = np.bincount(scored.targets).max() / len(scored.targets)
    assert shown["balanced_accuracy"] == f"{np.mean(recalls):.4f}"
    assert shown["accuracy of guessing the most common class"] == f"{guess:.4f}"
    (lowest,) = (value for key, value in shown.items() if key.startswith("lowest recall of a class: "))
    assert lowest == f"{min(recalls):.4f}"
    (result,) = block_of(path)["model-index"][0]["results"]  # type: ignore[index]
    stored = {each["type"]: each["value"] for each in result["metrics"]}
    assert stored["balanced_accuracy"] == pytest.approx(np.mean(recalls), abs=1e-6)


def test_a_card_counts_columns_and_lists_a_tag_once(place: Place, tmp_path: Path) -> None:
    path = write_card(place.sources["table"], tmp_path / "README.md")
    card = read_card(place.sources["table"])
    assert card is not None and card.input_shape[0] > 2
    assert f"\nInputs: 2 columns of a table, encoded as {card.input_shape[0]} codes.\n" in path.read_text()
    tags = block_of(path)["tags"]
    assert isinstance(tags, list) and len(tags) == len(set(tags)) and "bayesbinn" in tags


# ---- the program that it shows -------------------------------------------------------------------------


def run_program(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that the card's program leaves, run next to the model file."""
    program = text.split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {}
    with monkeypatch.context() as patch:
        patch.chdir(folder)
        exec(compile(program, "README.md", "exec"), names)
    return names


@pytest.mark.parametrize("kind", ["digits", "table", "regression"])
def test_the_program_runs(kind: str, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack_run(place.sources[kind], tmp_path / "model.safetensors")
    text = write_card(place.sources[kind], tmp_path / "README.md").read_text(encoding="utf-8")
    names, model = run_program(text, tmp_path, monkeypatch), load(tmp_path / "model.safetensors")
    if kind == "digits":
        assert names["x"].shape == (1, *model.input_shape) and "predict_rows" not in text
        assert np.array_equal(names["probabilities"], model.predict_proba(names["x"]))
        return
    assert model.encoding is not None and list(names["row"]) == list(model.encoding.names)
    assert "predict_proba" not in text and None not in names["row"].values()
    answers = names["means" if kind == "regression" else "probabilities"]
    assert np.array_equal(answers, model.predict_rows([names["row"]]))


def card_with(card: DataCard | None, encoding: TableEncoding) -> DataCard:
    assert card is not None
    return replace(
        card,
        encoding=json.loads(encoding.to_json()),
        columns=encoding.names,
        column_types=tuple(column.kind for column in encoding.columns),
        input_shape=(encoding.width,),
        mean=(0.0,),
        std=(1.0,),
    )


def test_the_program_has_a_cell_for_every_kind_of_column(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = table_model()
    write(tmp_path / "model.safetensors", file)
    text = how_to_run(card_with(read_card(place.sources["table"]), file.encoding))
    names = run_program(text, tmp_path, monkeypatch)
    assert names["row"] == {"age": 40, "x": 0.0, 'job, "': "cook", "member": True, "since": "1984-04-05"}
    assert names["probabilities"].shape == (1, 3)


def test_the_program_does_not_write_out_a_wide_row(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoding = TableEncoding(tuple(NumberColumn(f"c{i}", codes=("line",)) for i in range(40)))
    graph = GraphBuilder((40,), 1, 0)
    graph.add("linear", shape=(2, 40), tensors={"weight": graph.weight((2, 40))})
    file = graph.model()
    file.encoding = encoding
    write(tmp_path / "model.safetensors", file)
    text = how_to_run(card_with(read_card(place.sources["table"]), encoding))
    assert len(text.splitlines()) < 20
    names = run_program(text, tmp_path, monkeypatch)
    assert list(names["row"]) == list(encoding.names) and names["probabilities"].shape == (1, 2)
