"""Memory that training frees is kept for the next step, unless the user's own settings say otherwise."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these settings")

STEPS = 20
PROGRAM = f"""
import ctypes, resource, sys
from bayesbinn.train.memory import keep_freed_memory
print(keep_freed_memory() if sys.argv[1] == "keep" else None)
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]

def step():
    blocks = [libc.malloc(size << 20) for size in (16, 48)]
    for block, size in zip(blocks, (16, 48)):
        ctypes.memset(block, 1, size << 20)
    for block in blocks:
        libc.free(block)

step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({STEPS}):
    step()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / {STEPS})
"""


def measured(how: str, **environment: str) -> tuple[str, float]:
    """What the function returned, and the page faults of a step that allocates and frees 64 MiB."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    words = [sys.executable, "-c", PROGRAM, how]
    said = subprocess.run(words, capture_output=True, text=True, check=True, env={**kept, **environment}).stdout
    answer, faults = said.split()
    return answer, float(faults)


def test_freed_memory_is_kept_for_the_next_step() -> None:
    assert measured("default")[1] > 1000, "the system maps the pages again in every step"
    answer, faults = measured("keep")
    assert answer == "True"
    assert faults < 10


def test_the_user_s_own_settings_take_precedence() -> None:
    tunables = "glibc.malloc.mmap_threshold=65536"
    for environment in ({"GLIBC_TUNABLES": tunables}, {"MALLOC_MMAP_THRESHOLD_": "65536"}):
        answer, faults = measured("keep", **environment)
        assert answer == "False"
        assert faults > 1000
