"""The metrics of a run: one line of JSON per epoch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bayesbinn.errors import InvalidFile
from bayesbinn.files import reason_of


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The metrics of a run, one row per epoch; empty if there is no file yet."""
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        check_rows(rows)
    except FileNotFoundError:
        return []
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidFile(
            f"{path}: expected one line of JSON per epoch ({reason_of(error)}); resume the run to rewrite it"
        ) from None
    return rows


def check_rows(rows: list[Any]) -> None:
    """Reject metrics without the values that every table and display reads."""
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise InvalidFile(f"line {number} is {row!r:.40}")
        for key in ("epoch", "train_loss", "seconds"):
            if not _is_number(row.get(key)):
                raise InvalidFile(f"line {number}: {key} is {row.get(key)!r:.40}")
        for key, value in row.items():
            whole = value if key == "accuracy" and isinstance(value, list) else [value]
            if "accuracy" in key and not all(each is None or _is_number(each) for each in whole):
                raise InvalidFile(f"line {number}: {key} is {value!r:.40}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
