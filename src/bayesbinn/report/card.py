"""The model card of a run: Markdown with the metadata block of the Hugging Face hub."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from bayesbinn import metrics
from bayesbinn.data.card import DataCard
from bayesbinn.errors import InvalidInput, printable
from bayesbinn.modelfile.columns import BooleanColumn, CategoryColumn, Column, DateColumn, NumberColumn, Scale
from bayesbinn.paper.drawing import markdown_table
from bayesbinn.report.classification import Scored
from bayesbinn.report.network import size_text
from bayesbinn.report.provenance import command_of
from bayesbinn.report.run import RunFacts, score_of
from bayesbinn.runs.scores import classification_scores

UNKNOWN = "unknown"
_HUB = {"mnist": "ylecun/mnist", "cifar10": "uoft-cs/cifar10", "cifar100": "uoft-cs/cifar100"}
"""Data sets on the hub."""
_TAGS = ("bayesbinn", "binary-neural-network", "bayesian", "quantization")
_METRICS = ("accuracy", "balanced_accuracy", "rmse", "r_squared", "brier_score")
"""Those of the metadata's list of metrics."""
_MAX_CELLS = 30
"""A row of more columns is not written out."""


def card_of(facts: RunFacts, license_name: str = UNKNOWN) -> str:
    """The text of a README.md."""
    if facts.trained is None or facts.network is None:
        raise InvalidInput(f"--card: {facts.problem}")
    name = printable(facts.folder.resolve().name)
    parts = [
        f"---\n{metadata(facts, license_name)}---\n",
        f"# {_plain(name)}\n",
        _what(facts),
        how_to_run(facts.trained.card),
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
        # The package and a method have the same name.
        "tags": list(dict.fromkeys([*_TAGS, facts.experiment.method.name])),
    }
    if data in _HUB:
        block["datasets"] = [_HUB[data]]
    scores = scores_of(facts)
    if scores:
        block["metrics"] = [key for key in scores if key in _METRICS]
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
    """Scores on the test rows, with the names of the hub; accuracies from 0 to 1. Empty without the data."""
    if facts.scored is not None:
        found = classification_scores(facts.scored.calibrated, torch.from_numpy(facts.scored.targets))
        names = {"NLL": "nll", "Brier": "brier_score", "ECE": "expected_calibration_error"}
        accuracies = {
            "accuracy": score_of(facts.scored) / 100,
            "balanced_accuracy": found["balanced accuracy"] / 100,
        }
        return accuracies | {names[key]: found[key] for key in names}
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
        f"Inputs: {_inputs(card)}.",
    ]
    if card.classes:
        said.append(f"Classes: {', '.join(map(_plain, card.classes))}.")
    if card.columns:
        said.append(f"Columns: {', '.join(map(_plain, card.columns))}.")
    return "\n\n".join(said) + "\n"


def _inputs(card: DataCard) -> str:
    if card.encoding is None:
        return " × ".join(map(str, card.input_shape))
    columns, codes = len(card.columns), card.input_shape[0]
    return f"{columns:,} column{'s' * (columns > 1)} of a table, encoded as {codes:,} code{'s' * (codes > 1)}"


# ---- how to run it -------------------------------------------------------------------------------------


def how_to_run(card: DataCard) -> str:
    """The section with a program, which runs as it is."""
    program = "\n".join(_rows_program(card) if card.encoding is not None else _array_program(card))
    return f"""## How to run it

`bayesbinn pack RUN` writes `model.safetensors`, which runs with NumPy and safetensors, without PyTorch:

```python
{program}
```
"""


def _rows_program(card: DataCard) -> list[str]:
    """How to predict raw rows of a table; the cells are typical ones."""
    encoding = card.table_encoding
    assert encoding is not None
    if len(encoding.columns) > _MAX_CELLS:
        row = ["row = dict.fromkeys(model.encoding.names)  # your cells by column; a missing one is None"]
    else:
        cells = [f"    {_literal(column.name)}: {_literal(_cell(column))}," for column in encoding.columns]
        row = ["row = {  # your cells; a missing one is None", *cells, "}"]
    return [
        "import bayesbinn.runtime",
        "",
        'model = bayesbinn.runtime.load("model.safetensors")',
        *row,
        f"{_answer(card)} = model.predict_rows([row])",
    ]


def _array_program(card: DataCard) -> list[str]:
    """How to predict an array of raw inputs."""
    if card.input_type == "uint8":
        kind, about = "uint8", "your images: pixels from 0 to 255"
    else:
        kind, about = "float32", "the columns above, in this order" if card.columns else "your numbers, not normalized"
    return [
        "import numpy as np",
        "",
        "import bayesbinn.runtime",
        "",
        'model = bayesbinn.runtime.load("model.safetensors")',
        f"x = np.zeros({(1, *card.input_shape)}, np.{kind})  # {about}",
        f"{_answer(card)} = model.{'predict' if card.task == 'regression' else 'predict_proba'}(x)",
    ]


def _answer(card: DataCard) -> str:
    return "means" if card.task == "regression" else "probabilities"


def _cell(column: Column) -> object:
    """A cell such as the column had in training."""
    if isinstance(column, BooleanColumn):
        return True
    if isinstance(column, CategoryColumn):
        return next(iter(column.categories), None)
    assert isinstance(column, Scale)
    last = len(column.knots) - 1
    middle = column.knots[last // 2] / 2 + column.knots[(last + 1) // 2] / 2
    if isinstance(column, DateColumn):
        return str(np.datetime64(round(middle), "s").astype("datetime64[D]"))
    whole = isinstance(column, NumberColumn) and column.whole and abs(middle) < 1e15
    return round(middle) if whole else float(f"{middle:.4g}")


def _literal(value: object) -> str:
    """Python for a value. Markup in a name stays text even where a code block is not recognized."""
    return repr(value).replace("<", "\\x3c")


# ---- how good it is ------------------------------------------------------------------------------------


def _evaluation(facts: RunFacts) -> str:
    scores = scores_of(facts)
    if not scores:
        return f"## Evaluation\n\nNot evaluated: {_plain(facts.no_data)}.\n"
    assert facts.trained is not None
    card = facts.trained.card
    rows = [*scores.items(), *(_by_class(facts.scored) if facts.scored is not None else [])]
    table = markdown_table(["metric", "test"], [[name, f"{value:.4f}"] for name, value in rows])
    calibrated = (
        " Probabilities are calibrated on validation rows." if facts.scored and facts.scored.is_calibrated else ""
    )
    return f"## Evaluation\n\n{card.test_rows:,} test rows ({_plain(card.test_part)}).{calibrated}\n\n{table}\n"


def _by_class(scored: Scored) -> list[tuple[str, float]]:
    """What accuracy hides when classes are unequal."""
    recalls = metrics.recall_per_class(scored.calibrated.probabilities, scored.targets)
    lowest = min(recalls, key=lambda each: recalls[each])
    name = _plain(scored.classes[lowest]).replace("\\|", "|")  # the table escapes it
    return [
        ("accuracy of guessing the most common class", metrics.majority_accuracy(scored.targets)),
        (f"lowest recall of a class: {name}", recalls[lowest]),
    ]


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
