"""From a run's folder to a model file that takes raw inputs: pixels from 0 to 255, or the columns of a table."""

from __future__ import annotations

from pathlib import Path

import torch

from bayesbinn.data.card import DataCard
from bayesbinn.data.normalise import WHITE
from bayesbinn.errors import InvalidInput
from bayesbinn.modelfile.container import ModelFile
from bayesbinn.packing.packer import Normalisation, pack
from bayesbinn.runs.trained import Trained, load_network
from bayesbinn.train.calibration import Which

FILE_NAME = "model.safetensors"


def pack_run(
    folder: str | Path,
    path: str | Path | None = None,
    samples: int = 0,
    seed: int = 0,
    *,
    fit_scale: bool = True,
    data_dir: Path | None = None,
    epoch: Which = "last",
    real: str = "float32",
    verify: bool = True,
) -> ModelFile:
    """Pack a run that `bayesbinn train` wrote; by default into its own folder, as ``model.safetensors``.

    The file takes raw inputs and predicts what `bayesbinn predict` predicts: it holds the data's normalization, the
    names of classes and columns, the calibration that the run fitted on its validation part, and for regression the
    unit of the targets and the error on the validation part. The data are not needed.

    Args:
        folder: the run's folder.
        path: the file to write.
        samples: 0: the posterior's mode, or the weights of a full-precision run. C: an ensemble.
        seed: the seed of the samples.
        fit_scale: whether to calibrate the logits.
        data_dir: where the data are; only needed for runs that have no ``data.json`` or were interrupted.
        epoch: "last", or "best": the one with the best validation accuracy.
        real: how to store weights that are not binary.
        verify: as in `pack`.
    """
    folder = Path(folder)
    trained = load_network(folder, epoch, data_dir)
    return pack_network(
        trained,
        folder / FILE_NAME if path is None else path,
        samples,
        seed,
        fit_scale=fit_scale,
        data_dir=data_dir,
        real=real,
        verify=verify,
    )


def pack_network(
    trained: Trained,
    path: str | Path,
    samples: int = 0,
    seed: int = 0,
    *,
    fit_scale: bool = True,
    data_dir: Path | None = None,
    real: str = "float32",
    verify: bool = True,
) -> ModelFile:
    """Pack the network of a run; see `pack_run`."""
    card, posterior = trained.card, trained.posterior
    if posterior is None and samples:
        raise InvalidInput(
            f"{trained.folder}: a full-precision run has no posterior to draw {samples} samples from; use 0"
        )
    calibration = trained.find_calibration(data_dir)[0] if fit_scale else None
    return pack(
        trained.model,
        path,
        posterior,
        samples,
        seed,
        card.example(),
        calibration=calibration,
        task=card.task,
        normalisation=_raw_units(card),
        target=None if card.task == "classification" else (card.target_mean, card.target_std),
        classes=card.classes,
        features=card.columns if len(card.input_shape) == 1 else (),
        real=real,
        verify=verify,
        residual=None if trained.residuals is None else trained.residuals.of(posterior, samples),
    )


def _raw_units(card: DataCard) -> Normalisation:
    """Mean and deviation of the inputs as stored; a card gives those of images for pixels in [0, 1]."""
    unit = WHITE if card.input_type == "uint8" else 1
    return torch.tensor(card.mean).double() * unit, torch.tensor(card.std).double() * unit
