"""MNIST test accuracy against the length of the schedule: the paper's settings, better ones, and augmented images.

The better settings were chosen among those of the part ``beyond`` of the evidence queue, by validation accuracy at a
quarter of the width. Everything is read from records; `make evidence` computes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bayesbinn.errors import InvalidInput
from bayesbinn.paper import records
from bayesbinn.paper.drawing import (
    BLACK,
    BLUE,
    GRAY,
    ORANGE,
    machine,
    machine_rows,
    markdown_table,
    new_figure,
    save_figure,
    save_text,
    written,
)
from bayesbinn.paper.evidence import Part, Tried, best_settings, candidates, load_queue, planned
from bayesbinn.paper.gather import Budget, duration
from bayesbinn.paper.published import DETAILED, Value
from bayesbinn.runs.best_epoch import best_epoch
from bayesbinn.runs.folder import load_run

LENGTHS = (5, 10, 20, 50, 100, 500)
NOT_YET = "not computed yet"
NOT_PLANNED = "–"
COLUMNS = {"paper": "The paper's settings", "best": "Best settings", "shifted": "Best settings, shifted images"}
_STEMS = {"mnist-best": "best", "mnist-shifted": "shifted"}
_WORDS = {
    "lr": "learning rate {}",
    "training.batch_size": "batches of {}",
    "model.affine": "BatchNorm with learned gain and shift",
    "training.label_smoothing": "labels smoothed by {}",
    "training.average_epochs": "λ averaged over the last {} epochs",
}
_LOOKS = {"paper": (BLACK, "o"), "best": (BLUE, "s"), "shifted": (ORANGE, "^")}


@dataclass(frozen=True)
class Reached:
    """What one run reached in its first epoch with the highest validation accuracy."""

    seed: int
    epoch: int
    validation: float
    test: float
    seconds: float
    run: str
    origin: records.Provenance


def reproduce_schedules(name: str, budget: Budget, out: Path) -> Iterator[str]:
    """Read the records, and write table and figure; cells without a record say so."""
    if budget.train:
        raise InvalidInput(f"{name} is drawn from records: add --no-train; `make evidence` computes what is missing")
    return _reproduce(name, budget, out)


def _reproduce(name: str, budget: Budget, out: Path) -> Iterator[str]:
    parts = {part.name: part for part in load_queue().parts}
    found = gathered(parts, budget.runs)
    tried = candidates(parts["beyond"], budget.runs)
    best = best_settings(parts["beyond"], budget.runs)
    for column, by_length in found.items():
        yield f"{COLUMNS[column]}: {sum(map(len, by_length.values()))} records"
    runs = [each.run for by_length in found.values() for reached in by_length.values() for each in reached]
    facts = machine(records.machines(budget.runs / run for run in runs))
    numbers = {
        "name": name,
        "machine": facts,
        "paper": asdict(DETAILED["mnist", "bayesbinn"].test),
        "columns": {
            column: {str(length): [asdict(each) for each in runs] for length, runs in by_length.items()}
            for column, by_length in found.items()
        },
        "tried": [{"settings": each.settings, "validation": list(each.validation)} for each, _ in tried],
        "best settings": best,
        "answer": answer(found),
    }
    paths = save_text(out, name, _markdown(found, planned_lengths(parts), tried, best, facts), numbers)
    yield written([*paths, *_draw(name, found, out)])


def gathered(parts: dict[str, Part], kept: Path) -> dict[str, dict[int, list[Reached]]]:
    """By column and length of the schedule, what every recorded run reached."""
    found: dict[str, dict[int, list[Reached]]] = {column: {length: [] for length in LENGTHS} for column in COLUMNS}
    for part in parts.values():
        for run in planned(part, kept):
            experiment = run.experiment
            stem, _, rest = run.name.partition("-bayesbinn-e")
            column = "paper" if stem == "mnist" else _STEMS.get(stem)
            if not rest or column is None or experiment.training.epochs not in LENGTHS:
                continue
            origin = records.provenance(kept / run.name)
            if origin is not None and records.epochs_done(kept / run.name) >= run.epochs:
                reached = _reached(kept / run.name, experiment.training.seed, origin)
                found[column][experiment.training.epochs].append(reached)
    return found


def _reached(folder: Path, seed: int, origin: records.Provenance) -> Reached:
    _, rows = load_run(folder)
    row = best_epoch(rows) or rows[-1]
    test, validation = float(row["test_accuracy"]), float(row["validation_accuracy"])
    return Reached(seed, int(row["epoch"]), validation, test, origin.seconds, folder.name, origin)


def answer(found: dict[str, dict[int, list[Reached]]]) -> str:
    """Is the paper's accuracy reached in 50 epochs or fewer, without augmentation?"""
    paper = DETAILED["mnist", "bayesbinn"].test.mean
    short = [
        (Value.of([run.test for run in runs]), length, column)
        for column in ("paper", "best")
        for length, runs in found[column].items()
        if runs and length <= 50
    ]
    if not short:
        return f"Whether the paper's {paper:.2f} % is reached in 50 epochs or fewer: {NOT_YET}."
    value, length, column = max(short, key=lambda each: each[0].mean)
    best = f"{value} % after {length} epochs ({COLUMNS[column][0].lower()}{COLUMNS[column][1:]})"
    if value.mean < paper and not all(found[each][50] for each in ("paper", "best")):
        return f"Whether the paper's {paper:.2f} % is reached in 50 epochs or fewer: {NOT_YET}; so far, {best}."
    verdict = "is reached" if value.mean >= paper else "is not reached"
    return f"The paper's {paper:.2f} % {verdict} in 50 epochs or fewer without augmentation: the best is {best}."


# ---- Markdown and figure --------------------------------------------------------------------------


def _markdown(
    found: dict[str, dict[int, list[Reached]]],
    lengths: dict[str, set[int]],
    tried: list[tuple[Tried, bool]],
    best: dict[str, Any] | None,
    facts: dict[str, str],
) -> str:
    head = ["Epochs"]
    for title in COLUMNS.values():
        head += [f"{title}: test", "validation", "seeds", "wall time"]
    rows = [
        [
            str(length),
            *(
                cell
                for column in COLUMNS
                for cell in _cells(found[column][length], is_planned=length in lengths[column])
            ),
        ]
        for length in LENGTHS
    ]
    ranked = sorted(tried, key=lambda each: -each[0].mean if each[0].validation else 0.0)
    options = [[settings_text(each.settings), _text(each.validation), str(len(each.validation))] for each, _ in ranked]
    chosen = NOT_YET if best is None else settings_text(best)
    return (
        "# MNIST against the length of the schedule\n\n"
        f"{markdown_table(head, [*rows, *machine_rows(len(head), facts)])}\n\n"
        f"{answer(found)}\n\n"
        "## What was tried beyond the paper, on validation data alone\n\n"
        f"{markdown_table(['Settings', 'Validation accuracy', 'Seeds'], options)}\n\n"
        f"- Best settings: {chosen}.\n"
        "- Accuracies in percent, mean ± population standard deviation over seeds, in the first epoch with the highest "
        "validation accuracy; the schedule is the preset's own, compressed. Wall times are sums over seeds.\n"
        f"- The paper: {DETAILED['mnist', 'bayesbinn'].test} % on test data after 500 epochs, 5 seeds.\n"
        "- Tried at a quarter of the paper's width (512 units), 20 epochs; the full width has 2048 units. Shifted "
        "images: training images moved by up to 2 pixels at random.\n"
    )


def settings_text(settings: dict[str, Any]) -> str:
    """In words for a table.

    >>> settings_text({"model.affine": True, "training.batch_size": 50}), settings_text({})
    ('BatchNorm with learned gain and shift, batches of 50', "the paper's")
    """
    return ", ".join(_WORDS.get(key, f"{key} {{}}").format(value) for key, value in settings.items()) or "the paper's"


def planned_lengths(parts: dict[str, Part]) -> dict[str, set[int]]:
    """By column, the lengths of schedule that the queue computes, once the best settings are known."""
    lengths: dict[str, set[int]] = {"paper": set(LENGTHS)}
    for each in (runs for part in parts.values() for runs in part.runs if runs.chosen):
        lengths.setdefault(_STEMS[str(each.name)], set()).add(int(each.settings["training.epochs"]))
    return lengths


def _cells(runs: list[Reached], *, is_planned: bool) -> list[str]:
    if not runs:
        return [NOT_YET if is_planned else NOT_PLANNED, "", "", ""]
    seeds = ", ".join(str(run.seed) for run in runs)
    test, validation = [run.test for run in runs], [run.validation for run in runs]
    return [_text(test), _text(validation), seeds, duration(sum(run.seconds for run in runs))]


def _text(values: list[float] | tuple[float, ...]) -> str:
    return str(Value.of(values)) if values else NOT_YET


def _draw(name: str, found: dict[str, dict[int, list[Reached]]], out: Path) -> list[Path]:
    paper = DETAILED["mnist", "bayesbinn"].test
    with new_figure(1, 1, size=(4.2, 3.0)) as (figure, axes):
        axis = axes[0, 0]
        for column, by_length in found.items():
            points = [(length, Value.of([run.test for run in runs])) for length, runs in by_length.items() if runs]
            if points:
                colour, marker = _LOOKS[column]
                x, y = [length for length, _ in points], [value.mean for _, value in points]
                spread = [value.std or 0.0 for _, value in points]
                axis.errorbar(x, y, yerr=spread, color=colour, marker=marker, capsize=2, label=COLUMNS[column])
        axis.axhline(paper.mean, color=GRAY, linestyle="--", linewidth=0.9, label="the paper, 500 epochs")
        axis.set(xscale="log", xlabel="epochs of the schedule", ylabel="test accuracy (%)", title="MNIST")
        axis.set_xticks(LENGTHS, [str(length) for length in LENGTHS])
        axis.minorticks_off()
        axis.grid(linewidth=0.4, color="#dddddd")
        axis.legend()
        return save_figure(figure, out, name)
