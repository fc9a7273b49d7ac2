"""From a run's folder to a model file that takes raw inputs: pixels from 0 to 255, or the columns of a table."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from bayesbinn.data.card import DataCard
from bayesbinn.data.normalise import WHITE
from bayesbinn.errors import InvalidInput
from bayesbinn.modelfile.container import ModelFile, check_model, write
from bayesbinn.packing.ensemble import calibrated, join
from bayesbinn.packing.packer import Normalisation, pack
from bayesbinn.prediction.logit_fit import FEWEST_ROWS
from bayesbinn.runs.trained import Trained, load_network
from bayesbinn.runtime import image_unfamiliarity
from bayesbinn.runtime.model import Model
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
    unfamiliarity: bool = False,
) -> ModelFile:
    """Pack a run that `bayesbinn train` wrote; by default into its own folder, as ``model.safetensors``.

    The file takes raw inputs and predicts what `bayesbinn predict` predicts: it holds the data's normalization, the
    names of classes and columns, the calibration that the run fitted on its validation part, and for regression the
    unit of the targets and the error on the validation part. The data are not needed, except with a certainty for
    samples that the run has stored no BatchNorm statistics of (more than 10, or of another seed than 0) and for a run
    that was stopped within an epoch.

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
        unfamiliarity: also learn what images are unlike the training images; needs the data.
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
        unfamiliarity=unfamiliarity,
    )


def pack_runs(
    folders: Sequence[str | Path],
    path: str | Path,
    samples: int = 0,
    seed: int = 0,
    *,
    fit_scale: bool = True,
    data_dir: Path | None = None,
    epoch: Which = "last",
    real: str = "float32",
    unfamiliarity: bool = False,
) -> ModelFile:
    """Pack the networks of several runs, for example with different seeds, into one file: an ensemble.

    The runs must train one network on the same data. If they held out the same rows for validation
    (`data.split_seed`), the mean of their probabilities is calibrated on these rows, which needs the data. Otherwise
    every network keeps the calibration of its own run.

    Args:
        folders: the folders of two or more runs.
        path: the file to write.
        samples: per run. 0: its mode. C: an ensemble of posterior samples.
        seed: the seed of the samples.
        fit_scale: whether to calibrate the logits.
        data_dir: where the data are.
        epoch: as in `pack_run`.
        real: as in `pack_run`.
        unfamiliarity: as in `pack_run`; the runs must have held out the same rows.
    """
    if len(folders) < 2:
        raise InvalidInput(f"an ensemble of {len(folders)} runs: give at least 2")
    places = [Path(folder).resolve() for folder in folders]
    for folder, place in zip(folders, places, strict=True):
        if places.count(place) > 1:
            raise InvalidInput(f"{folder}: named twice; name each run once")
    runs = [load_network(Path(folder), epoch, data_dir) for folder in folders]
    for run in runs[1:]:
        if run.card.fingerprint != runs[0].card.fingerprint:
            raise InvalidInput(
                f"{run.folder}: trained on different data ({run.card.name}) from {runs[0].folder} "
                f"({runs[0].card.name}); an ensemble needs networks trained on the same data"
            )
    together = fit_scale and _share_validation(runs)
    with tempfile.TemporaryDirectory() as scratch:
        files = [
            pack_network(
                run,
                Path(scratch) / f"{index}.safetensors",
                samples,
                seed,
                fit_scale=fit_scale and not together,
                data_dir=data_dir,
                real=real,
            )
            for index, run in enumerate(runs)
        ]
    joined = join(files, [str(run.folder) for run in runs])
    if together:
        validation, dataset = runs[0].parts(data_dir).validation, runs[0].load_data(data_dir)
        assert validation is not None
        rows = validation.rows
        joined = calibrated(joined, dataset.train_inputs[rows].numpy(), dataset.train_targets[rows].numpy())
    if unfamiliarity:
        if len({_split(run) for run in runs}) > 1:
            raise InvalidInput("the runs held out different images; train them with the same data.split_seed")
        joined = with_unfamiliarity(joined, runs[0], data_dir)
    check_model(joined)
    write(Path(path), joined)
    return joined


def _share_validation(runs: Sequence[Trained]) -> bool:
    """Whether all runs held out the same rows for validation, and enough of them to calibrate."""
    if runs[0].card.task != "classification" or any(run.tasks_learned is not None for run in runs):
        return False
    return len({_split(run) for run in runs}) == 1 and runs[0].card.validation_rows >= FEWEST_ROWS


def _split(run: Trained) -> tuple[float, int, bool]:
    """What decides which rows are held out."""
    return run.card.validation, run.card.seed, run.experiment.data.stratify


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
    unfamiliarity: bool = False,
) -> ModelFile:
    """Pack the network of a run; see `pack_run`."""
    card, posterior = trained.card, trained.posterior
    if posterior is None and samples:
        raise InvalidInput(
            f"{trained.folder}: a full-precision run has no posterior to draw {samples} samples from; use 0"
        )
    calibration = trained.find_calibration(data_dir)[0] if fit_scale else None
    packed = pack(
        trained.model,
        path,
        posterior,
        samples,
        seed,
        card.example(),
        calibration=calibration,
        statistics=trained.sample_statistics(samples, seed, data_dir),
        task=card.task,
        normalisation=None if card.encoding is not None else raw_units(card),
        target=None if card.task == "classification" else (card.target_mean, card.target_std),
        classes=card.classes,
        features=card.columns if len(card.input_shape) == 1 and card.encoding is None else (),
        encoding=card.table_encoding,
        real=real,
        verify=verify,
        residual=None if trained.residuals is None else trained.residuals.of(posterior, samples),
    )
    if unfamiliarity:
        packed = with_unfamiliarity(packed, trained, data_dir)
        write(Path(path), packed)
    return packed


def with_unfamiliarity(packed: ModelFile, run: Trained, data_dir: Path | None) -> ModelFile:
    """The file with what tells images unlike the run's training images; held-out images set the threshold."""
    held_out = run.parts(data_dir).validation
    if run.card.task != "classification" or len(run.card.input_shape) != 3 or run.tasks_learned is not None:
        raise InvalidInput(f"{run.folder}: unfamiliarity is learned for classifiers of images; leave it out")
    if held_out is None or len(held_out) < FEWEST_ROWS:
        raise InvalidInput(
            f"{run.folder}: unfamiliarity needs {FEWEST_ROWS} or more held-out images; train with data.validation=0.1"
        )
    dataset = run.load_data(data_dir)
    rows, others = held_out.rows, run.parts(data_dir).train.rows
    assert rows is not None and others is not None
    images, classes = dataset.train_inputs.numpy(), dataset.train_targets.numpy()
    entropy = Model(packed).prediction(images[rows]).entropy
    section = image_unfamiliarity.learn(images[others], classes[others], images[rows], entropy)
    return replace(packed, sections={**packed.sections, "unfamiliarity": section})


def raw_units(card: DataCard) -> Normalisation:
    """Mean and deviation of the inputs as stored; a card gives those of images for pixels in [0, 1]."""
    unit = WHITE if card.input_type == "uint8" else 1
    return torch.tensor(card.mean).double() * unit, torch.tensor(card.std).double() * unit
