"""Reports in a real Chromium with the network off, under axe, and in the eyes of an HTML validator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bayesbinn.experiments import load_experiment
from bayesbinn.report import write_report
from bayesbinn.runs.open import open_any
from tests.helpers.browser import axe, chromium, invalid_html
from tests.report.conftest import KINDS, Place


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


def test_the_pages_are_valid_html(place: Place, tmp_path: Path) -> None:
    broken = tmp_path / "broken.html"
    broken.write_text(
        '<!DOCTYPE html>\n<html lang="en"><head><title>x</title></head><body><p><div></div></p></body></html>\n'
    )
    found = invalid_html([*place.pages.values(), broken], tmp_path)
    assert [line for line in found if not line.startswith("broken.html")] == []
    assert found, "the validator notices a broken page"


def problems(page: Any, theme: str) -> list[str]:
    """What axe finds in a page."""
    page.emulate_media(color_scheme=theme)
    rules = (
        {"runOnly": ["wcag2a", "wcag2aa", "wcag21aa", "best-practice"]}
        if theme == "light"
        else {"runOnly": ["color-contrast"]}
    )
    found = page.evaluate("rules => axe.run(document, rules)", rules)
    assert any(rule["id"] == "color-contrast" for rule in found["passes"]), "contrast was measured"
    return [f"{theme} {rule['id']}: {node['html'][:120]}" for rule in found["violations"] for node in rule["nodes"]]


def check_page(path: Path, browser: Any, themes: tuple[str, ...] = ("light", "dark")) -> None:
    """Nothing is requested, nothing sticks out of a narrow screen, every picture loads, and axe has no objection."""
    source = axe()
    context = browser.new_context(viewport={"width": 380, "height": 800}, offline=True, bypass_csp=True)
    page = context.new_page()
    requests: list[str] = []
    errors: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: errors.append(message.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(path.as_uri())
    assert [each for each in requests if not each.startswith("data:")] == [path.as_uri()]
    assert not errors
    assert page.evaluate("document.documentElement.scrollWidth") <= 380
    assert page.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 0)")
    page.evaluate(source)
    assert [problem for theme in themes for problem in problems(page, theme)] == []
    context.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_asks_for_nothing_fits_a_phone_and_passes_axe(kind: str, place: Place, browser: Any) -> None:
    """All pages have one style sheet, so two of them show that its dark colors have enough contrast."""
    check_page(place.pages[kind], browser, ("light", "dark") if kind in ("digits", "sweep") else ("light",))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_page_passes_axe_in_the_dark(kind: str, place: Place, browser: Any) -> None:
    check_page(place.pages[kind], browser)


@pytest.mark.slow
def test_the_page_of_an_mnist_run_does_as_well(data_dir: Path, tmp_path: Path, browser: Any) -> None:
    changes = {"model.width": 0.05, "training.epochs": 1}
    open_any(load_experiment("mnist", overrides=changes), tmp_path / "run", data_dir).train()
    page = write_report(tmp_path / "run", data_dir=data_dir)
    assert page.stat().st_size < 1_500_000 and page.read_text(encoding="utf-8").count("<img ") == 24
    assert invalid_html([page], tmp_path) == []
    check_page(page, browser)


def test_the_policy_of_a_page_stops_requests(place: Place, browser: Any) -> None:
    """Even markup that slipped through could not call home."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(place.pages["digits"].as_uri())
    blocked = page.evaluate(
        """() => new Promise(resolve => {
            document.addEventListener("securitypolicyviolation", event => resolve(event.violatedDirective));
            document.body.append(Object.assign(new Image(), {src: "http://127.0.0.1:9/x.png"}));
        })"""
    )
    assert blocked == "img-src"
    context.close()


def test_one_drawing_serves_light_dark_and_print(place: Place, browser: Any, tmp_path: Path) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(place.pages["digits"].as_uri())
    colors = {}
    for theme, medium in (("light", "screen"), ("dark", "screen"), ("dark", "print")):
        page.emulate_media(color_scheme=theme, media=medium)
        line = 'getComputedStyle(document.querySelector("figure svg path[style*=\\"--c1\\"]")).stroke'
        colors[theme, medium] = (
            page.evaluate(line),
            page.evaluate("getComputedStyle(document.documentElement).backgroundColor"),
        )
    assert colors["light", "screen"] != colors["dark", "screen"]
    assert colors["dark", "print"] == colors["light", "screen"], "paper is white, whatever the screen is"
    content = page.pdf(path=str(tmp_path / "page.pdf"), format="A4")
    assert content.startswith(b"%PDF") and content.count(b"/Type /Page\n") + content.count(b"/Type /Page/") >= 2
    context.close()
