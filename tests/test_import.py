"""Importing the package is fast and does not import torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

import bayesbinn as bb


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_import_is_fast_and_without_torch() -> None:
    code = (
        "import sys, time; t = time.perf_counter(); import bayesbinn; "
        "print(time.perf_counter() - t, 'torch' in sys.modules)"
    )
    timings = []
    for _ in range(3):
        seconds, has_torch = run(code).split()
        assert has_torch == "False"
        timings.append(float(seconds))
    assert min(timings) < 0.2


def test_every_public_name_can_be_had_in_any_order() -> None:
    """A submodule that is called like a function must not take its place, whichever is imported first."""
    others = {
        "METHODS": "dict",
        "__version__": "str",
        **dict.fromkeys(("data", "errors", "metrics", "train"), "module"),
    }
    names = list(bb.__all__)
    for order in (names, names[::-1]):
        kinds = run(f"import bayesbinn as bb; print(*(type(getattr(bb, n)).__name__ for n in {order!r}))").split()
        for name, kind in zip(order, kinds, strict=True):
            assert kind in ((others[name],) if name in others else ("function", "type", "ABCMeta")), name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        bb.nothing  # noqa: B018


def test_without_torch_the_message_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import bayesbinn\n"
        "try: bayesbinn.BayesBiNN\n"
        "except ImportError as error: print(error)"
    )
    assert "pip install -c constraints.txt '.[train]'" in run(code)
