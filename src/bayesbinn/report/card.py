"""The model card of a run: Markdown with the metadata block of the Hugging Face hub."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch

from bayesbinn.errors import InvalidInput, printable
from bayesbinn.paper.drawing import markdown_table
from bayesbinn.report.network import size_text
from bayesbinn.report.provenance import command_of
from bayesbinn.report.run import RunFacts, score_of
from bayesbinn.runs.scores import classification_scores

UNKNOWN = "unknown"
_HUB = {"mnist": "ylecun/mnist", "cifar10": "uoft-cs/cifar10", "cifar100": "uoft-cs/cifar100"}
"""Data sets on the hub."""


def card_of(facts: RunFacts, license_name: str = UNKNOWN) -> str:
    """The text of a README.md."""
    if facts.trained is None or facts.network is None:
        raise InvalidInput(f"--card: {facts.problem}")
    name = printable(facts.folder.resolve().name)
    parts = [
        f"---\n{metadata(facts, license_name)}---\n",
        f"# {_plain(name)}\n",
        _what(facts),
        _how(),
        _evaluation(facts),
        _limits(facts),
        _sizes(facts),
        f"## Training\n\n```sh\n{printable(command_of(facts.experiment, facts.folder))}\n```\n",
        f"````toml\n{printable(facts.experiment.to_toml().strip(), keep_lines=True)}\n````\n",
    ]
    return "\n".join(parts)


def metadata(facts: RunFacts, license_name: str) -> str:
    """The hub's block, in YAML. JSON is valid YAML, so every value is written as JSON: no name can break out of it."""
    assert facts.trained is not None
    data, card = facts.experiment.data.name, facts.trained.card
    pictures = len(card.input_shape) == 3
    task = "image-classification" if pictures else f"tabular-{card.task}"
    block: dict[str, Any] = {
        "license": license_name,
        "library_name": "bayesbinn",
        "pipeline_tag": task,
        "tags": ["bayesbinn", "binary-neural-network", "bayesian", "quantization", facts.experiment.method.name],
    }
    if data in _HUB:
        block["datasets"] = [_HUB[data]]
    scores = scores_of(facts)
    if scores:
        block["metrics"] = [key for key in scores if key in ("accuracy", "rmse", "r_squared", "brier_score")]
        block["model-index"] = [
            {
                "name": facts.folder.resolve().name,
                "results": [
                    {
                        "task": {"type": task},
                        "dataset": {"name": card.name, "type": _HUB.get(data, card.name), "split": "test"},
                        "metrics": [{"type": key, "value": round(value, 6)} for key, value in scores.items()],
                    }
                ],
            }
        ]
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in block.items())


def scores_of(facts: RunFacts) -> Mapping[str, float]:
    """Scores on the test rows, with the names of the hub; accuracy from 0 to 1. Empty without the data."""
    if facts.scored is not None:
        found = classification_scores(facts.scored.calibrated, torch.from_numpy(facts.scored.targets))
        names = {"NLL": "nll", "Brier": "brier_score", "ECE": "expected_calibration_error"}
        return {"accuracy": score_of(facts.scored) / 100, **{names[key]: found[key] for key in names}}
    if facts.regressed is not None:
        return {"rmse": facts.regressed.scores["RMSE"], "r_squared": facts.regressed.scores["R²"]}
    return {}


def _plain(text: str) -> str:
    """Text that Markdown shows as it is."""
    return "".join(f"\\{each}" if each in "\\`*_[]<>#|$" else each for each in printable(text))


def _what(facts: RunFacts) -> str:
    assert facts.trained is not None and facts.network is not None
    card, total = facts.trained.card, facts.network.sizes.total
    kind = "The weights are exactly −1 and +1" if total.binary else "The weights are real numbers"
    said = [
        f"A network for {card.task}, trained with bayesbinn by the method "
        f"`{facts.experiment.method.name}`. {kind}: {total.binary:,} binary and {total.real:,} real parameters, "
        f"{size_text(total.packed_bytes)} packed.",
        f"Inputs: {' × '.join(map(str, card.input_shape))}.",
    ]
    if card.classes:
        said.append(f"Classes: {', '.join(map(_plain, card.classes))}.")
    if card.columns:
        said.append(f"Columns: {', '.join(map(_plain, card.columns))}.")
    return "\n\n".join(said) + "\n"


def _how() -> str:
    return """## How to run it

`bayesbinn pack RUN` writes `model.safetensors`, which runs with NumPy and safetensors, without PyTorch:

```python
import bayesbinn.runtime

model = bayesbinn.runtime.load("model.safetensors")
probabilities = model.predict_proba(x)  # raw inputs: pixels from 0 to 255, or a table's columns
```
"""


def _evaluation(facts: RunFacts) -> str:
    scores = scores_of(facts)
    if not scores:
        return f"## Evaluation\n\nNot evaluated: {_plain(facts.no_data)}.\n"
    assert facts.trained is not None
    card = facts.trained.card
    table = markdown_table(["metric", "test"], [[name, f"{value:.4f}"] for name, value in scores.items()])
    calibrated = (
        " Probabilities are calibrated on validation rows." if facts.scored and facts.scored.is_calibrated else ""
    )
    return f"## Evaluation\n\n{card.test_rows:,} test rows ({_plain(card.test_part)}).{calibrated}\n\n{table}\n"


def _limits(facts: RunFacts) -> str:
    assert facts.trained is not None
    posterior, card = facts.trained.posterior, facts.trained.card
    said = [
        f"It has learned only from rows like those of {_plain(card.name)}: for anything else its answer means nothing, "
        "however certain it looks.",
        "The scores above come from one split and one seed.",
    ]
    if posterior is None or posterior.saturated:
        said.append(
            "Its posterior is a single network, so there is no disagreement to measure: unfamiliar inputs are "
            "recognized only by the entropy of the prediction."
        )
    if card.task == "classification":
        said.append("It always names one of its classes, even for inputs that belong to none of them.")
    return "## Limits\n\n" + "".join(f"- {each}\n" for each in said)


def _sizes(facts: RunFacts) -> str:
    assert facts.network is not None
    sizes = facts.network.sizes
    rows = [
        [
            _plain(layer.name),
            layer.kind,
            f"{layer.binary:,}",
            f"{layer.real:,}",
            f"{layer.packed_bytes:,}",
            f"{layer.macs or 0:,}",
        ]
        for layer in (*sizes.layers, sizes.total)
    ]
    head = ["layer", "type", "binary", "real", "packed bytes", "multiply-adds"]
    return f"## Sizes\n\n{markdown_table(head, rows)}\n\n{sizes.compression:.1f} times smaller than float32.\n"
