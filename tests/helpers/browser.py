"""A real Chromium, the HTML validator and axe, or a skip that says which of them is missing."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.places import ROOT

WEB = ROOT / "web"
HOW = "install them with `npm install` in web/"


@contextmanager
def chromium() -> Iterator[Any]:
    """A headless browser of this machine, driven by Playwright."""
    pytest.importorskip("playwright", reason="Playwright is not installed; it is part of the extra `test`")
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("there is no Chromium on the PATH")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


def axe() -> str:
    """The source of axe-core, to be run in a page."""
    path = WEB / "node_modules" / "axe-core" / "axe.min.js"
    if not path.is_file():
        pytest.skip(f"axe-core is not there; {HOW}")
    return path.read_text(encoding="utf-8")


def invalid_html(pages: list[Path], folder: Path) -> list[str]:
    """What html-validate finds wrong with pages, by the standard and for accessibility; settings go to `folder`."""
    program = WEB / "node_modules" / "html-validate" / "bin" / "html-validate.mjs"
    node = shutil.which("node")
    if node is None or not program.is_file():
        pytest.skip(f"node or html-validate is not there; {HOW}")
    settings = folder / ".htmlvalidate.json"
    settings.write_text(json.dumps({"root": True, "extends": ["html-validate:standard", "html-validate:a11y"]}))
    found = folder / "found.json"
    arguments = [node, str(program), "--config", str(settings), "--formatter", f"json={found}", *map(str, pages)]
    said = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    assert found.is_file(), said.stderr
    return [
        f"{Path(each['filePath']).name}:{message['line']} {message['ruleId']}: {message['message']}"
        for each in json.loads(found.read_text(encoding="utf-8"))
        for message in each["messages"]
    ]
