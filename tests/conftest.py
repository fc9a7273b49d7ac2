"""What several test files share."""

from __future__ import annotations

import os

# scikit-learn's checks of array-API input skip themselves without it, and SciPy reads it when it is first imported.
os.environ.setdefault("SCIPY_ARRAY_API", "1")

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.helpers.commands import Call, call
from tests.helpers.processes import Commands


@pytest.fixture(autouse=True)
def _same_start() -> Iterator[None]:
    """Every test starts from the same random state and leaves the thread count as it was."""
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def one_thread() -> None:
    """Threads cost more than they bring to small tensors. A file asks for it with `usefixtures`."""
    torch.set_num_threads(1)


@pytest.fixture(name="call")
def _call() -> Call:
    """Run a `bayesbinn` command in this process, as the installed script would."""
    return call


@pytest.fixture(scope="session")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Commands:
    """`bayesbinn` commands as processes that share their imports."""
    return Commands(tmp_path_factory.mktemp("logs"))


@pytest.fixture
def data_dir() -> Path:
    """The folder of real data sets; without it the test is skipped."""
    folder = os.environ.get("BAYESBINN_DATA")
    if not folder:
        pytest.skip("BAYESBINN_DATA is not set: it names a folder with the real data sets")
    return Path(folder)
