"""A run's metrics as curves for TensorBoard, where that is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class Curves:
    """Writes to the folder `tensorboard` of a run; without TensorBoard, nowhere.

    A resumed run starts at `first_epoch`: what an earlier session wrote from there on is hidden.
    """

    def __init__(self, folder: Path, first_epoch: int) -> None:
        self._writer: Any = None
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=first_epoch)

    def __enter__(self) -> Curves:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def add(self, row: dict[str, Any]) -> None:
        """One line of metrics; on the disk before the next epoch starts."""
        if self._writer is None:
            return
        for key, value in row.items():
            if key != "epoch" and value is not None:
                self._writer.add_scalar(key, value, row["epoch"])
        self._writer.flush()
