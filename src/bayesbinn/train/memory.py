"""The memory that a training step frees is kept for the next step."""

from __future__ import annotations

import ctypes
import os
import platform

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
"""From glibc's <malloc.h>."""
_THRESHOLD = 1 << 30
_PAD = 1 << 26


def keep_freed_memory() -> bool:
    """Let this process keep memory that it frees instead of returning it to the system; whether that is possible.

    Every step allocates the gradients and frees them. With its default settings glibc returns large blocks to the
    system, which must then clear and map every page again in the next step. The `bayesbinn` command calls this when it
    trains. It changes how the whole process allocates memory, so the library leaves it to you. Only glibc (most Linux
    systems) has these settings; those in the environment take precedence.
    """
    chosen = "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "") or any(k.startswith("MALLOC_") for k in os.environ)
    if chosen or platform.libc_ver()[0] != "glibc":
        return False
    settings = ((M_MMAP_THRESHOLD, _THRESHOLD), (M_TRIM_THRESHOLD, _THRESHOLD), (M_TOP_PAD, _PAD))
    set_option = ctypes.CDLL(None).mallopt
    accepted = [set_option(option, value) == 1 for option, value in settings]
    return all(accepted)
