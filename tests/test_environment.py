"""Optional packages and the machine: one message for what is missing, one count of processors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bayesbinn.environment import cores, need
from bayesbinn.errors import MissingDependency


def test_a_missing_package_is_one_line_that_says_what_to_install() -> None:
    with pytest.raises(MissingDependency) as caught:
        need("no_such_package.part", "drawing curves", "figures")
    assert str(caught.value) == (
        "drawing curves needs no_such_package: pip install -c constraints.txt '.[figures]' in a clone of the repository"
    )


def test_a_package_that_lacks_another_one_says_so_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half_installed.py").write_text("import no_such_package")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_package") as caught:
        need("half_installed", "reading files")
    assert not isinstance(caught.value, MissingDependency)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system cannot bind a process to processors")
def test_only_processors_that_may_be_used_count() -> None:
    code = "import os, bayesbinn.environment as e; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]); "
    done = subprocess.run([sys.executable, "-c", code + "print(e.cores())"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1"]
    assert cores() == len(os.sched_getaffinity(0))
