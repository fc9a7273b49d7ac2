"""Packages that only some data sets need, imported on use."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from bayesbinn.errors import MissingDependency, how_to_install


def need(module: str, purpose: str) -> Any:
    """Import a module, or raise one line that says what to install.

    >>> need("json", "reading JSON").loads("[1]")
    [1]
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise MissingDependency(f"{purpose} needs {package}: {how_to_install('train')}") from error
