"""The type stubs of the compiled modules name what the modules have."""

from __future__ import annotations

import ast
import importlib

import pytest

from tests.helpers.places import ROOT


def named(body: list[ast.stmt]) -> set[str]:
    """The public names that a stub, or a class in it, defines."""
    names: set[str] = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return {name for name in names if not name.startswith("_")}


def public(value: object) -> set[str]:
    return {name for name in vars(value) if not name.startswith("_")}


@pytest.mark.parametrize("room", ["kernels", "runtime"])
def test_the_stub_names_everything_that_the_module_exports(room: str) -> None:
    try:
        module = importlib.import_module(f"bayesbinn.{room}._native")
    except ModuleNotFoundError:
        pytest.skip(f"bayesbinn.{room}._native was not built")
    stub = ast.parse((ROOT / "src" / "bayesbinn" / room / "_native.pyi").read_text(encoding="utf-8"))
    assert named(stub.body) == public(module)
    for node in stub.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            assert named(node.body) == public(getattr(module, node.name))
