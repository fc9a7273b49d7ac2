"""Predictions of a model file as text: the columns that `bayesbinn predict` writes, in strips of rows."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator
from typing import Any

from bayesbinn.errors import csv_safe, printable

Columns = dict[str, list[Any]]


def answers(model: Any, strips: Iterable[Any]) -> Iterator[Columns]:
    """One column per predicted value, for inputs that come in strips of rows."""
    first = 0
    for x in strips:
        numbers = {"input": list(range(first, first + len(x)))}
        yield numbers | (_quantities(model, x) if model.graph.task == "regression" else _classes(model, x))
        first += len(x)


def _quantities(model: Any, x: Any) -> Columns:
    result = model.regression(x)
    found = {"mean": result.mean}
    if model.residual is not None:
        found["std"] = result.total_std(model.residual)
    if model.graph.networks > 1:
        found["spread"] = result.std
    columns: Columns = {}
    for name, values in found.items():
        flat = values.reshape(len(x), -1)
        for i in range(flat.shape[1]):
            columns[name if flat.shape[1] == 1 else f"{name}[{i}]"] = flat[:, i].tolist()
    return columns


def _classes(model: Any, x: Any) -> Columns:
    prediction = model.prediction(x)
    names = model.classes or [str(i) for i in range(prediction.probabilities.shape[1])]
    columns: Columns = {"class": [names[i] for i in prediction.classes]}
    for i, name in enumerate(names):
        columns[f"p({name})"] = prediction.probabilities[:, i].tolist()
    for key in ("entropy", "aleatoric", "mutual_information"):
        columns[key] = getattr(prediction, key).tolist()
    return columns


def as_csv(strips: Iterable[Columns]) -> Iterator[str]:
    """Lines of a CSV file, with a header.

    >>> "".join(as_csv([{"input": [0], "class": ["=a"]}, {"input": [1], "class": ["b"]}]))
    "input,class\\n0,'=a\\n1,b\\n"
    """
    for place, columns in enumerate(strips):
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if place == 0:
            writer.writerow(map(_cell, columns))
        writer.writerows(map(_cell, row) for row in zip(*columns.values(), strict=True))
        yield text.getvalue()


def _cell(value: Any) -> Any:
    """Text that neither a terminal nor a spreadsheet interprets as a command; numbers unchanged."""
    return csv_safe(printable(value)) if isinstance(value, str) else value


def as_json(strips: Iterable[Columns]) -> Iterator[str]:
    """A JSON list of objects, one for each row.

    >>> json.loads("".join(as_json([{"input": [0, 1]}, {"input": [2]}])))
    [{'input': 0}, {'input': 1}, {'input': 2}]
    """
    opening = "["
    for columns in strips:
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        yield opening + json.dumps(rows, indent=1)[1:-2]
        opening = ","
    yield "\n]"
