"""The experiment reference: every section and key of the TOML files, every network and every method.

``python -m bayesbinn.cli.experiments_reference docs/experiments.md`` writes it; a test fails when the file is stale.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from bayesbinn import models
from bayesbinn.experiments.config import PROVIDED, SECTIONS, describe_presets
from bayesbinn.methods import METHODS
from bayesbinn.methods.registry import Method
from bayesbinn.train.schedules import SCHEDULES

INTRODUCTION = """\
# Experiments

Written by `python -m bayesbinn.cli.experiments_reference docs/experiments.md` from the code. Do not edit.

`bayesbinn train` takes a preset (`bayesbinn presets`), your own data ([data.md](data.md)) or a TOML file such as this
one, which trains in seconds:

```toml
# mine.toml
title = "Digits with a small network"

[data]
name = "digits"        # a data set from `bayesbinn data`, or the path of your own
validation = 0.1

[model]
name = "table_mlp"
hidden = 64

[training]
epochs = 20
batch_size = 50

[method]
name = "bayesbinn"
schedule = { kind = "cosine" }

[method.settings]
lr = 3e-3
temperature = 1e-10
```

```console
$ bayesbinn train mine.toml                                          # the run is in runs/mine-bayesbinn-0
$ bayesbinn train mine.toml --set lr=1e-2 --set training.epochs=40 --out runs/longer
$ bayesbinn train mine.toml --set method.schedule.kind=constant --set model.hidden=128 --out runs/wider
```

`--set KEY=VALUE` changes any key below: `section.key`, or just the name for a setting of the method (`lr` is
`method.settings.lr`). A value is a number, true, false, a word, or a list such as `[0.9,0.999]`. The error for an
unknown key suggests the nearest known one. Grids and searches use the same keys in their tables `[grid]`, `[search]`
and `[set]` ([scale.md](scale.md)).

A run stores its complete experiment as `config.toml`, which `bayesbinn train` also accepts. A file for several
methods has a table `[methods.NAME]` for each instead of `[method]`, with the method's settings and the other keys of
`[method]` side by side; `--method` selects one. The presets are such files
(`src/bayesbinn/experiments/presets/`).

If TensorBoard is installed (`pip install -c constraints.txt '.[train,tensorboard]'`), it can plot a run's metrics:
`tensorboard --logdir runs`. `--track` sends them to [other trackers](report.md#trackers).
"""

SECTION_NOTES = {
    "data": "Required.",
    "model": "Required.",
    "training": "Required.",
    "method": "Required.",
    "continual": "Only for a stream of tasks ([continual.md](continual.md)).",
}


def reference() -> str:
    """The whole page as Markdown."""
    return "\n".join([INTRODUCTION, *_sections(), *_schedules(), *_networks(), *_methods(), *_presets()])


# ---- sections ---------------------------------------------------------------------------------------


def _sections() -> Iterator[str]:
    yield "## Sections\n\n`title` (text, required) goes above all sections.\n"
    for name, section in SECTIONS.items():
        summary = (inspect.getdoc(section) or "").partition("\n")[0]
        yield f"### [{name}]\n\n{summary} {SECTION_NOTES[name]}\n"
        yield _table(("key", "type", "default", "meaning"), _keys(section))


def _schedules() -> Iterator[str]:
    yield "## Schedules\n\n`method.schedule` is a table with `kind` and the keys of that kind.\n"
    for kind, schedule in SCHEDULES.items():
        yield f"**`{kind}`**: {(inspect.getdoc(schedule) or '').partition(chr(10))[0]}\n"
        if rows := _keys(schedule):
            yield _table(("key", "type", "default", "meaning"), rows)


def _keys(section: type[BaseModel]) -> list[tuple[str, ...]]:
    meanings = _attribute_docstrings(section)
    fields = {name: field for name, field in section.model_fields.items() if name != "kind"}
    return [(f"`{name}`", _type_of(field), _default_of(field), meanings[name]) for name, field in fields.items()]


def _attribute_docstrings(kind: type) -> dict[str, str]:
    """The docstring below each attribute of a class."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    name = ""
    for statement in body.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            name = statement.target.id
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) and name:
            found[name] = " ".join(str(statement.value.value).split())
            name = ""
    return found


def _default_of(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if isinstance(field.default, BaseModel):
        return f'`{{ kind = "{field.default.model_dump()["kind"]}" }}`'
    return "" if field.default in (None, ()) else f"`{_toml(field.default)}`"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    return str(list(value)) if isinstance(value, tuple) else repr(value)


def _type_of(field: FieldInfo) -> str:
    bounds = []
    for constraint in field.metadata:
        for attribute, words in (("gt", "above"), ("ge", "from"), ("lt", "below"), ("le", "up to")):
            limit = getattr(constraint, attribute, None)
            if limit is not None:
                bounds.append(f"{words} {limit}")
    return " ".join([_type_name(field.annotation), *bounds])


def _type_name(annotation: Any) -> str:
    plain = {str: "text", int: "whole number", float: "number", bool: "true or false"}
    if annotation in plain:
        return plain[annotation]
    if get_origin(annotation) is Literal:
        return " or ".join(f'`"{each}"`' for each in get_args(annotation))
    inner = [each for each in get_args(annotation) if each not in (type(None), ...)]
    if get_origin(annotation) is tuple:
        return "list of numbers"
    if len(inner) == 1:
        return _annotated(inner[0])
    return "table"


def _annotated(annotation: Any) -> str:
    """A type that may have limits, inside an optional one."""
    return _type_of(FieldInfo.from_annotation(annotation))


# ---- networks, methods, presets ---------------------------------------------------------------------


def _networks() -> Iterator[str]:
    yield "## Networks\n\n`model.name` is one of these. The number of inputs and outputs follows from the data.\n"
    rows = []
    for name, fits in models.NETWORKS.items():
        summary = " ".join((inspect.getdoc(getattr(models, name)) or "").partition("\n\n")[0].split())
        rows.append((f"`{name}`", fits, summary.rstrip(".")))
    yield _table(("name", "fits", "what it is"), rows)


def _methods() -> Iterator[str]:
    yield (
        "## Methods\n\n`method.name` is one of these; [methods.md](methods.md) says which to choose. Their settings "
        "go in `[method.settings]`.\n"
    )
    for method in METHODS.values():
        yield f"### {method.name}\n\n{method.description}\n"
        yield _table(("setting", "default", "meaning"), _settings(method))


def _settings(method: Method) -> list[tuple[str, ...]]:
    meanings = _arguments(inspect.getdoc(method.optimizer) or "")
    names = [name for name in method.settings if name not in PROVIDED]
    return [(f"`{name}`", _setting_default(method, name), meanings[name]) for name in names]


def _setting_default(method: Method, name: str) -> str:
    if name not in method.defaults:
        return "required"
    value = method.defaults[name]
    return "" if value is None else f"`{_toml(value)}`"


def _arguments(docstring: str) -> dict[str, str]:
    """What the section "Args" of a docstring says about each argument."""
    part = docstring.partition("Args:\n")[2].partition("\n\n")[0]
    found = re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", part, re.MULTILINE)
    words = {name: " ".join(text.replace("``", "`").split()) for name, text in found}
    return {name: text[0].upper() + text[1:] if text[1:2].islower() else text for name, text in words.items()}


def _presets() -> Iterator[str]:
    yield "## Presets\n"
    rows = [(f"`{name}`", each["title"], ", ".join(each["methods"])) for name, each in describe_presets().items()]
    yield _table(("name", "experiment", "methods"), rows)


def _table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [heads, tuple("---" for _ in heads), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(reference(), encoding="utf-8")
