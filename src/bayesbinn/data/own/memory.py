"""How much memory a user's data may take; asked before anything is allocated because a file says so."""

from __future__ import annotations

import os
from pathlib import Path

from bayesbinn.errors import InvalidFile

COPIES = 3
"""While a data set is built it exists as read, converted, and divided into training and test."""

_CONTAINER = Path("/sys/fs/cgroup/memory.max")
_UNKNOWN = 2**40


def available() -> int:
    """Bytes of memory that are free for this process, as far as the system tells."""
    try:
        facts = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        free = int(facts["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        free = _physical()
    try:
        return min(free, int(_CONTAINER.read_text()))
    except (OSError, ValueError):  # no container, or one without a limit
        return free


def _physical() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return _UNKNOWN


def check_fits(path: Path, size: int, what: str) -> None:
    """Refuse data of `size` bytes that would not fit into memory `COPIES` times."""
    limit = available() // COPIES
    if size > limit:
        raise InvalidFile(
            f"{path}: {what} would take {size / 1e9:,.1f} GB, but only {limit / 1e9:,.1f} GB (a third of the free "
            "memory) can be used for it: use fewer or smaller examples, or a machine with more memory"
        )
