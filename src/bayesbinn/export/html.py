"""A model file as one web page that runs it: an area to draw on for images, a form for tables.

The page needs no server and no network: it contains the model file, the WebAssembly runtime and everything else.
"""

from __future__ import annotations

import html
import json
import re
from base64 import b64encode
from importlib.resources import files
from pathlib import Path
from typing import Any

from bayesbinn import __version__, web
from bayesbinn.export.page_facts import page_facts
from bayesbinn.files import write_whole
from bayesbinn.modelfile.container import ModelFile, to_bytes

_SCRIPTS = ("preparation", "drawing", "results", "unfamiliarity", "images", "form", "start")
"""In the order in which they are joined: each imports only those before it."""
_IMPORT = re.compile(r"^import .*;\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(async )?(function|class|const) )", re.MULTILINE)
_PLACE = re.compile(r"\{\{(\w+)\}\}")


def export_html(
    model: ModelFile,
    path: str | Path,
    *,
    title: str | None = None,
    about: str | None = None,
    box: int | None = None,
) -> Path:
    """Write a page that runs the model, and return its path.

    Args:
        model: a classifier of images with 1 or 3 channels, or any model of a table.
        path: the file to write.
        title: the page's heading.
        about: a line below it, such as the accuracy and how the model was trained.
        box: for images: prepare drawings like MNIST's digits, scaled to fit a box of this many pixels, with the center
            of mass in the middle. 0: scale the whole area instead. By default 20 for gray images of 28×28 pixels,
            otherwise 0.
    """
    content = to_bytes(model)
    facts = page_facts(model, len(content), box)
    heading = title or facts.pop("default_title")
    texts = {
        "version": __version__,
        "title": heading,
        "about": about or facts["default_about"],
        "sees": facts["sees"],
        "answer": facts["answer"],
    }
    filled = {key: html.escape(text) for key, text in texts.items()} | {
        "style": _read("page.css"),
        "facts_list": "\n".join(_term(name, text) for name, text in facts["details"].items()),
        "hide_classes": _hidden(model.graph.task != "classification"),
        "hide_unfamiliarity": _hidden("unfamiliarity" not in model.sections),
        "hide_opinions": _hidden(model.graph.networks == 1 or model.graph.task != "classification"),
        "facts": _inside_script(json.dumps(facts, ensure_ascii=False)),
        "model": b64encode(content).decode(),
        "runtime": web.bundle(),
        "script": _script(),
    }
    page = _PLACE.sub(lambda found: filled[found[1]], _read("page.html"))
    write_whole(path, page.encode())
    return Path(path)


def _script() -> str:
    """All modules as one: a page that was opened from disk cannot import files."""
    parts = [_EXPORT.sub("", _IMPORT.sub("", _read(f"{name}.js"))) for name in _SCRIPTS]
    return "\n".join([*parts, "start(globalThis.bayesbinn.load);"])


def _read(name: str) -> str:
    return files("bayesbinn.export").joinpath("page", name).read_text(encoding="utf-8")


def _inside_script(text: str) -> str:
    """JSON that cannot end the script element around it, nor start a comment."""
    return text.replace("<", "\\u003c")


def _hidden(condition: bool) -> str:
    return " hidden" if condition else ""


def _term(name: str, text: Any) -> str:
    return f"<dt>{html.escape(name)}</dt><dd>{html.escape(str(text))}</dd>"
