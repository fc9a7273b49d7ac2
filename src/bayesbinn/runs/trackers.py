"""The trackers besides TensorBoard, each in a few lines: Trackio, Weights & Biases, MLflow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bayesbinn.environment import need
from bayesbinn.errors import InvalidUse
from bayesbinn.experiments.config import Experiment
from bayesbinn.runs.tensorboard import Curves, installed
from bayesbinn.runs.tracking import PROJECT, Open, Tracker, check_trackers, identity, settings_of, watcher
from bayesbinn.train.folder import RunFolder
from bayesbinn.train.trainer import Watcher


class _Logged(Tracker):
    """A run of Trackio or Weights & Biases, which have the same interface."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        self._run.log(dict(numbers), step=step)

    def close(self) -> None:
        self._run.finish()


def open_trackio(folder: RunFolder, first: int, experiment: Experiment) -> Tracker:
    """Trackio keeps runs on this machine and knows them by name; TRACKIO_DIR says where."""
    trackio = need("trackio", "--track trackio", "trackio")
    name = f"{folder.path.resolve().name}-{identity(folder, 'trackio')}"
    run = trackio.init(PROJECT, name=name, config=settings_of(experiment), resume="allow", embed=False)
    return _Logged(run)


def open_wandb(folder: RunFolder, first: int, experiment: Experiment) -> Tracker:
    """Weights & Biases needs an account; WANDB_MODE=offline collects runs in the folder for `wandb sync`."""
    wandb = need("wandb", "--track wandb", "wandb")
    run = wandb.init(
        project=PROJECT,
        name=folder.path.resolve().name,
        id=identity(folder, "wandb"),
        resume="allow",
        dir=str(folder.path),
        config=settings_of(experiment),
        settings=wandb.Settings(console="off"),
    )
    return _Logged(run)


class _MLflow(Tracker):
    def __init__(self, client: Any, run: str) -> None:
        self._client, self._run = client, run

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._client.log_metric(self._run, name, value, step=step)

    def close(self) -> None:
        self._client.set_terminated(self._run)


def open_mlflow(folder: RunFolder, first: int, experiment: Experiment) -> Tracker:
    """MLflow's server or store is what MLFLOW_TRACKING_URI names, or MLflow's default."""
    mlflow = need("mlflow", "--track mlflow", "mlflow")
    client = mlflow.MlflowClient()

    def create() -> str:
        known = client.get_experiment_by_name(PROJECT)
        place = client.create_experiment(PROJECT) if known is None else known.experiment_id
        run: str = client.create_run(place, run_name=folder.path.resolve().name).info.run_id
        for key, value in settings_of(experiment).items():
            client.log_param(run, key, value)
        return run

    run = identity(folder, "mlflow", create)
    try:
        client.update_run(run, status="RUNNING")
    except mlflow.exceptions.MlflowException as error:
        raise InvalidUse(
            f"--track mlflow: its store has no run {run}, which {folder.path} began ({' '.join(str(error).split())}); "
            "use the MLFLOW_TRACKING_URI it began with, or delete tracking.json to start a new one"
        ) from None
    return _MLflow(client, run)


def open_tensorboard(folder: RunFolder, first: int, experiment: Experiment) -> Tracker:
    """TensorBoard's file is in the folder of the run."""
    return Curves(folder, first)


OPEN: dict[str, Open] = {
    "tensorboard": open_tensorboard,
    "trackio": open_trackio,
    "wandb": open_wandb,
    "mlflow": open_mlflow,
}


def usual_trackers() -> tuple[str, ...]:
    """What a run of one task uses by default."""
    return ("tensorboard",) if installed() else ()


def watchers_of(names: tuple[str, ...], experiment: Experiment) -> tuple[Watcher, ...]:
    """What a trainer needs to send its metrics to these trackers."""
    return tuple(watcher(name, OPEN[name], experiment) for name in check_trackers(names))
