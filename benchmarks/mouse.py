"""A browser without a window, and a hand that moves its mouse over a page of ``bayesbinn export --to html``."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CANVAS = 280
"""Strokes are in pixels of a canvas of this size, whatever its size on the screen."""


def chromium() -> str:
    """The path of Debian's Chromium; FileNotFoundError says how to get it."""
    found = shutil.which("chromium")
    if found is None:
        raise FileNotFoundError("no chromium on the PATH: apt-get install chromium")
    return found


@contextmanager
def browser() -> Iterator[Any]:
    """A running Chromium, driven by Playwright."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield running
        running.close()


def opened(context: Any, path: Path) -> Any:
    """A page from disk, once it is ready; its errors are raised when they happen."""
    page = context.new_page()
    page.goto(path.resolve().as_uri())
    page.wait_for_selector("html[data-ready=true]", timeout=20_000)
    return page


def draw(page: Any, strokes: Sequence[Any]) -> None:
    """Draw strokes with the mouse, on an empty canvas."""
    page.keyboard.press("Escape")
    box = page.locator("#canvas").bounding_box()
    scale = box["width"] / CANVAS
    for stroke in strokes:
        points = [(box["x"] + float(x) * scale, box["y"] + float(y) * scale) for x, y in stroke]
        page.mouse.move(*points[0])
        page.mouse.down()
        for point in points[1:]:
            page.mouse.move(*point)
        page.mouse.up()
    # The bars are drawn in the next frame.
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def answer(page: Any) -> tuple[str, bool]:
    """The likeliest class on the page, and whether the page refuses to say it."""
    refused = page.get_attribute("#result", "data-refused") == "true"
    return page.inner_text("#bars .likeliest th"), refused


def delays(page: Any) -> list[float]:
    """Milliseconds from each pointer event to the bars that answer it, since the page was opened."""
    found: list[float] = page.evaluate('performance.getEntriesByName("pointer to bars").map((each) => each.duration)')
    return found
