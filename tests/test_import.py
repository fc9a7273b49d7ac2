"""Importing the package is fast: it imports no other package until a name is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import bayesbinn as bb


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_the_import_takes_no_other_package_with_it() -> None:
    """That makes it fast: a wall clock would also measure the machine's other work."""
    code = (
        "import sys; before = set(sys.modules); import bayesbinn; "
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names))"
    )
    assert run(code).split() == ["bayesbinn"]


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
