"""The rooms of the package: a room imports only rooms above it, and no two modules import each other.

Imports inside functions count like all others, so none can hide a cycle.
"""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.helpers.places import ROOT

PACKAGE = ROOT / "src" / "bayesbinn"
MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}

ROOMS = [
    "errors",
    "files environment ranks binary kernels",
    "modelfile format",  # needs errors and files alone; a table's encoding is part of it
    "posterior metrics forgetting models",
    "prediction",
    "methods",
    "data",
    "train",
    "runtime web",
    "export",
    "packing",
    "continual",
    "experiments",
    "runs",
    "sklearn",
    "sweeps",
    "paper",
    "report",
    "demo",
    "cli",
    "__main__",
]
"""From the top down. The package's `__init__` stands outside: it imports a public name when it is first used."""

LEVEL = {room: level for level, rooms in enumerate(ROOMS) for room in rooms.split()}
MAX_TOP_LEVEL = 12


def imports(path: Path) -> set[str]:
    """The modules of this package that a file imports anywhere but under `if TYPE_CHECKING`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("bayesbinn.")}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "bayesbinn":
            assert node.module
            modules = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name.removeprefix("bayesbinn.") in MODULES else node.module for name in modules}
    return {name.removeprefix("bayesbinn.") for name in found} & MODULES.keys()


def room_of(module: str) -> str:
    return module.partition(".")[0]


@pytest.mark.parametrize("module", [name for name in MODULES if name != "__init__"])
def test_a_room_imports_only_rooms_above_it(module: str) -> None:
    own = room_of(module)
    for name in imports(MODULES[module]):
        room = room_of(name)
        if room not in (own, "__init__"):
            assert LEVEL[room] <= LEVEL[own], f"{module} imports {name}, a room below it"


def test_no_two_modules_import_each_other() -> None:
    graph = {name: imports(path) - {name, "__init__"} for name, path in MODULES.items() if name != "__init__"}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_the_top_level_stays_small() -> None:
    modules = [path.name for path in PACKAGE.glob("*.py")]
    assert len(modules) <= MAX_TOP_LEVEL, modules
