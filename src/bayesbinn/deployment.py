"""From a run's folder to a model file that takes raw inputs: pixels of 0 to 255, or the columns of a table."""

from __future__ import annotations

from pathlib import Path

import torch

from bayesbinn.calibration import calibrate
from bayesbinn.data import Dataset
from bayesbinn.data.normalise import WHITE
from bayesbinn.errors import InvalidInput
from bayesbinn.format import ModelFile
from bayesbinn.packing import Normalisation, pack
from bayesbinn.runs import load_trained

FILE_NAME = "model.safetensors"
_BATCH = 1000


def pack_run(
    folder: str | Path,
    path: str | Path | None = None,
    samples: int = 0,
    seed: int = 0,
    *,
    fit_scale: bool = True,
    data_dir: Path | None = None,
    real: str = "float32",
    verify: bool = True,
) -> ModelFile:
    """Pack a run as `bayesbinn train` writes it; by default into its own folder, as ``model.safetensors``.

    The file takes raw inputs and predicts what `bayesbinn predict` predicts: it holds the data's
    normalisation, the names of classes and columns, the logit scale that suits the validation part,
    and for regression the unit of the targets.

    Args:
        folder: of the run.
        path: of the file.
        samples: 0: the posterior's mode, or the weights of a full-precision run. C: an ensemble.
        seed: of the samples.
        fit_scale: whether to calibrate the logits.
        data_dir: where the data are.
        real: how weights that are not binary are stored.
        verify: as in `pack`.
    """
    folder = Path(folder)
    experiment, dataset, model, posterior = load_trained(folder, data_dir)
    if posterior is None and samples:
        raise InvalidInput(f"{folder}: a run of full precision has no posterior to draw {samples} samples from; use 0")
    classification = dataset.task == "classification"
    validation = dataset.split(experiment.data.validation, experiment.training.seed).validation
    if posterior is not None and fit_scale and classification and validation is not None:
        x, y = validation.whole()
        posterior = calibrate(model, posterior, x, y, samples=samples, seed=seed, batch_size=_BATCH)
    return pack(
        model,
        folder / FILE_NAME if path is None else path,
        posterior,
        samples,
        seed,
        dataset.normaliser(dataset.train_inputs[:2]),
        task=dataset.task,
        normalisation=_raw_units(dataset),
        target=None if classification else (dataset.target_mean, dataset.target_std),
        classes=dataset.classes,
        features=dataset.features if len(dataset.input_shape) == 1 else (),
        real=real,
        verify=verify,
    )


def _raw_units(dataset: Dataset) -> Normalisation:
    """Mean and deviation of the inputs as they are stored; those of images are stated for pixels in [0, 1]."""
    unit = WHITE if dataset.train_inputs.dtype == torch.uint8 else 1
    return dataset.mean.double() * unit, dataset.std.double() * unit
