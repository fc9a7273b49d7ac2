"""What the storms share."""

from __future__ import annotations

import signal

import pytest
import torch

from tests.helpers.processes import Commands
from tests.storms.runs import Runs


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c_is_heard() -> None:
    """A shell makes background processes ignore Ctrl-C, and their children inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def runs(commands: Commands, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(commands, tmp_path_factory.mktemp("runs"))
