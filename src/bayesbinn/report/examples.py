"""Test rows worth a look: the hardest and the most unfamiliar, as small pictures or as rows of the table."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bayesbinn.data import Dataset
from bayesbinn.data.own.encoded import encode_table
from bayesbinn.data.own.tables import SUFFIXES, read_table
from bayesbinn.errors import BayesbinnError
from bayesbinn.report.blocks import Block, Picture, Pictures, Section, Table, Text
from bayesbinn.report.classification import Floats, Scored
from bayesbinn.report.regression import Regressed

COUNT = 12
MAX_COLUMNS = 8
MAX_PIXELS = 84
"""Larger pictures are scaled down to this size, at which they are shown."""
_FLAT_IMAGES = {"digits": (1, 8, 8)}
"""Named data sets whose rows are pictures."""


@dataclass(frozen=True)
class Chosen:
    """Test rows, and why they were chosen."""

    title: str
    why: str
    rows: Sequence[int]


def choose(scored: Scored) -> list[Chosen]:
    """The rows whose true class is least probable, and those with the most disagreement or entropy."""
    targets = torch.from_numpy(scored.targets)
    own = scored.calibrated.probabilities.gather(1, targets[:, None])[:, 0]
    hardest = own.argsort(stable=True)[:COUNT].tolist()
    disagreement = scored.networks > 1
    doubt = scored.calibrated.mutual_information if disagreement else scored.calibrated.entropy
    strange = doubt.argsort(descending=True, stable=True)[:COUNT].tolist()
    why = (
        f"The {COUNT} test rows on which the {scored.networks} networks disagree most (mutual information, in nats)."
        if disagreement
        else f"The {COUNT} test rows with the highest entropy, in nats; a single network has no other sign of doubt."
    )
    return [
        Chosen("Hardest", f"The {COUNT} test rows whose true class has the lowest probability.", hardest),
        Chosen("Most unfamiliar", why, strange),
    ]


def section(scored: Scored, dataset: Dataset) -> Section:
    """Both choices, each as pictures or rows."""
    blocks: list[Block] = []
    for chosen in choose(scored):
        if image_shape(dataset) is not None:
            blocks += [Text(f"{chosen.title}. {chosen.why}"), _pictures(chosen, scored, dataset)]
        else:
            blocks.append(_rows(chosen, scored, dataset))
    return Section("Examples", blocks)


def regression_section(regressed: Regressed, dataset: Dataset) -> Section:
    """The rows with the largest errors, and where the networks disagree most if there are several."""
    errors = np.abs(regressed.residuals)
    blocks: list[Block] = [_regression_rows("Hardest: the largest errors", errors, regressed, dataset)]
    if regressed.spread is not None:
        title = f"Most unfamiliar: the {regressed.networks} networks disagree most"
        blocks.append(_regression_rows(title, regressed.spread, regressed, dataset))
    return Section("Examples", blocks)


def _regression_rows(title: str, order: Floats, regressed: Regressed, dataset: Dataset) -> Table:
    chosen = np.argsort(-order, kind="stable")[:COUNT].tolist()
    names, cells = _cells(chosen, dataset)
    head = ["test row", "true", "predicted", "spread", *names[:MAX_COLUMNS]]
    rows = []
    for row, values in zip(chosen, cells, strict=True):
        spread = "" if regressed.spread is None else f"{regressed.spread[row]:.3g}"
        numbers = [f"{regressed.true[row]:.4g}", f"{regressed.predicted[row]:.4g}", spread]
        rows.append([str(row + 1), *numbers, *values[:MAX_COLUMNS]])
    more = f" The first {MAX_COLUMNS} of {len(names)} columns." if len(names) > MAX_COLUMNS else ""
    return Table(f"{title}.{more}", head, rows)


def image_shape(dataset: Dataset) -> tuple[int, ...] | None:
    """Channels, height and width, if the inputs are pictures."""
    shape = dataset.input_shape
    if len(shape) == 3 and shape[0] in (1, 3):
        return shape
    known = _FLAT_IMAGES.get(dataset.name)
    return known if known is not None and shape == (known[1] * known[2],) else None


def picture(image: Tensor) -> str:
    """A PNG as a data URI; numbers that are not pixels are scaled to range from black to white."""
    from PIL import Image

    array = image.numpy()
    if array.dtype != np.uint8:
        low, high = float(array.min()), float(array.max())
        array = ((array - low) / ((high - low) or 1.0) * 255).astype(np.uint8)
    shown = Image.fromarray(array[0] if len(array) == 1 else array.transpose(1, 2, 0))
    shown.thumbnail((MAX_PIXELS, MAX_PIXELS))
    content = io.BytesIO()
    shown.save(content, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()


def _pictures(chosen: Chosen, scored: Scored, dataset: Dataset) -> Pictures:
    shape = image_shape(dataset)
    assert shape is not None
    found = []
    for row in chosen.rows:
        true, guess, p = _answer(scored, row)
        doubt = _doubt(scored, row)
        alt = f"Test row {row + 1}: {true}, predicted as {guess} with {p}"
        lines = [f"{true} → {guess}, {p}", doubt]
        found.append(Picture(picture(dataset.test_inputs[row].reshape(shape)), alt, lines))
    return Pictures(found)


def _rows(chosen: Chosen, scored: Scored, dataset: Dataset) -> Table:
    names, cells = _cells(chosen.rows, dataset)
    head = ["test row", "true", "predicted", "probability", "doubt, nats", *names[:MAX_COLUMNS]]
    rows = []
    for row, values in zip(chosen.rows, cells, strict=True):
        true, guess, p = _answer(scored, row)
        rows.append([str(row + 1), true, guess, p, _doubt(scored, row).removesuffix(" nats"), *values[:MAX_COLUMNS]])
    more = f" The first {MAX_COLUMNS} of {len(names)} columns." if len(names) > MAX_COLUMNS else ""
    return Table(f"{chosen.title}. {chosen.why}{more}", head, rows, words=3)


def _answer(scored: Scored, row: int) -> tuple[str, str, str]:
    p = scored.calibrated.probabilities[row]
    guess = int(p.argmax())
    return scored.classes[int(scored.targets[row])], scored.classes[guess], f"{100 * float(p[guess]):.0f} %"


def _doubt(scored: Scored, row: int) -> str:
    found = scored.calibrated.mutual_information if scored.networks > 1 else scored.calibrated.entropy
    return f"{float(found[row]):.2g} nats"


def _cells(rows: Sequence[int], dataset: Dataset) -> tuple[list[str], list[list[str]]]:
    """The names of the columns, and the cells of some test rows as text."""
    inputs = dataset.test_inputs[list(rows)].flatten(1)
    if dataset.encoding is None:
        names = list(dataset.features) or [f"input {i + 1}" for i in range(inputs.shape[1])]
        return names, [[f"{value:.4g}" for value in row] for row in inputs.tolist()]
    return _encoded_cells(inputs, dataset)


def _encoded_cells(inputs: Tensor, dataset: Dataset) -> tuple[list[str], list[list[str]]]:
    """The cells of the file behind these codes: to the network, rows with the same codes are the same."""
    assert dataset.encoding is not None
    source = Path(dataset.source)
    beside = [source.with_name(f"test{end}") for end in SUFFIXES] if source.stem == "train" else []
    names = list(dataset.encoding.names)
    # A test file may have come after training, when a part of the source was held out: it counts if it has the rows.
    for path in (*(path for path in beside if path.is_file()), source):
        try:
            table, codes = read_table(path, []), encode_table(path, dataset.encoding)
        except (BayesbinnError, OSError):
            continue
        places = [(codes == row).all(dim=1).nonzero().flatten().tolist() for row in inputs]
        if all(places):
            return names, [[_cell(table.column(name)[place[0]].as_py()) for name in names] for place in places]
    return [], [[] for _ in inputs]


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
