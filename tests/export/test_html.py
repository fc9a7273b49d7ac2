"""The page of a model: drawn on with the mouse in real Chromium, filled in, read out, and compared with Python.

The models are those of the gallery, taken out of its pages; the pages under test are written anew.
"""

from __future__ import annotations

import io
import json
import re
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from bayesbinn.data.centred import centred
from bayesbinn.errors import InvalidInput
from bayesbinn.export import export_html
from bayesbinn.modelfile.bits import pack_rows
from bayesbinn.modelfile.columns import NumberColumn
from bayesbinn.modelfile.container import ModelFile, read, write
from bayesbinn.modelfile.encoding import TableEncoding
from bayesbinn.modelfile.graph import Graph, Node
from bayesbinn.runtime import load
from benchmarks import mouse
from benchmarks.glyphs import drawn
from docs.gallery import build
from tests.helpers.commands import call
from tests.helpers.hand_drawn import DIGITS, LETTERS, SCRIBBLES
from tests.helpers.places import ROOT

GALLERY = ROOT / "docs" / "gallery"
SOURCES = ROOT / "src" / "bayesbinn" / "export" / "page"
AXE = ROOT / "web" / "node_modules" / "axe-core" / "axe.min.js"
HOSTILE = "</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    pytest.importorskip("playwright", reason="playwright is not installed: pip install -c constraints.txt playwright")
    try:
        mouse.chromium()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    with mouse.browser() as running:
        yield running


def taken_out(name: str, folder: Path) -> Path:
    """The model file inside a page of the gallery."""
    page = (GALLERY / f"{name}.html").read_text(encoding="utf-8")
    found = re.search(r'id="model">([^<]+)<', page)
    assert found is not None
    path = folder / f"{name}.safetensors"
    path.write_bytes(b64decode(found[1]))
    return path


def test_the_gallery_says_what_its_networks_do(digits: Path, folder: Path) -> None:
    text = (GALLERY / "index.md").read_text(encoding="utf-8")
    measured = json.loads((ROOT / "results" / "benchmarks" / "drawings.json").read_text())["accuracy"]
    size = digits.stat().st_size
    assert size == measured["file_bytes"]
    assert f"{measured['networks']} networks with weights −1 and +1" in text
    assert f"{measured['test_accuracy']:.2f} % of the 10,000 test digits are right. {size / 1e6:.2f} MB." in text

    table, buys = build.made_up_customers()
    others, model = table[build.LEARNED :], load(taken_out("customers", folder))
    columns = {name: [None if pd.isna(cell) else cell for cell in others[name]] for name in others}
    columns["joined"] = [str(day.date()) for day in columns["joined"]]
    predicted = np.array(model.classes)[model.predict_rows(columns).argmax(axis=1)]
    right = np.mean(predicted == buys[build.LEARNED :])
    assert f"learned from {build.LEARNED} customers: {100 * right:.0f} % of {len(others)} others are right." in text


@pytest.fixture(scope="module")
def digits(folder: Path) -> Path:
    return taken_out("digits", folder)


@pytest.fixture(scope="module")
def digits_page(chromium: Any, digits: Path, folder: Path) -> Any:
    """The page in a window, without a network; every request is noted."""
    path = export_html(read(digits), folder / "digits.html")
    context = chromium.new_context(viewport={"width": 1000, "height": 900}, offline=True)
    requests: list[str] = []
    context.on("request", lambda request: requests.append(request.url))
    page = mouse.opened(context, path)
    page.requests_seen = requests
    return page


def seen(page: Any) -> Any:
    """[28, 28]: the pixels in the picture of what the networks see."""
    script = """() => Array.from(document.getElementById("sees").getContext("2d").getImageData(0, 0, 28, 28).data)"""
    return np.array(page.evaluate(script), dtype=np.uint8).reshape(28, 28, 4)[..., 0]


def says(page: Any, verdict: str) -> None:
    """Wait until the page says it."""
    page.wait_for_selector(f"#verdict:text-is('{verdict}')", timeout=10_000)


def test_digits_that_the_mouse_draws_are_recognised(digits_page: Any) -> None:
    for digit, strokes in DIGITS.items():
        mouse.draw(digits_page, strokes)
        assert mouse.answer(digits_page) == (digit, False)
        assert digits_page.inner_text("#verdict") == digit


def test_scribbles_and_letters_are_refused(digits_page: Any) -> None:
    for strokes in SCRIBBLES.values():
        mouse.draw(digits_page, strokes)
        assert mouse.answer(digits_page)[1] and digits_page.inner_text("#verdict") == "Not a digit"
    refused = []
    for strokes in LETTERS.values():
        mouse.draw(digits_page, strokes)
        refused.append(mouse.answer(digits_page)[1])
    assert sum(refused) >= len(LETTERS) - 1  # an H may pass for an open 4


def test_the_page_says_what_python_says_of_the_same_pixels(digits_page: Any, digits: Path) -> None:
    model = load(digits)
    for name in ("2", "E"):
        mouse.draw(digits_page, DIGITS.get(name) or LETTERS[name])
        x = seen(digits_page)[None, None].astype(np.float32)
        shown = [text.removesuffix(" %") for text in digits_page.locator("#bars .number").all_inner_texts()]
        np.testing.assert_allclose(np.array(shown, float) / 100, model.predict_proba(x)[0], atol=6e-4)
        score = float(digits_page.inner_text("#score").split(",")[0])
        assert score == pytest.approx(float(model.unfamiliarity(x)[0]), abs=0.006)
        assert digits_page.locator("#opinions li").count() == model.networks


def test_bars_follow_the_pointer_within_two_frames_of_the_screen(digits_page: Any) -> None:
    digits_page.evaluate("performance.clearMeasures()")
    mouse.draw(digits_page, DIGITS["8"])
    found = mouse.delays(digits_page)
    assert len(found) > 10 and np.median(found) < 100  # benchmarks/drawings.py measures it on a quiet machine


def test_no_request_leaves_the_page(digits_page: Any) -> None:
    assert [url for url in digits_page.requests_seen if not url.startswith(("file:", "data:", "blob:"))] == []


def test_the_preparation_is_pythons(chromium: Any) -> None:
    page = chromium.new_context().new_page()
    text = (SOURCES / "preparation.js").read_text(encoding="utf-8")
    script = """async ([text, inks]) => {
        const { centred } = await import("data:text/javascript," + encodeURIComponent(text));
        const bytes = (text) => Uint8Array.from(atob(text), (each) => each.charCodeAt(0));
        return inks.map((ink) => Array.from(centred(bytes(ink), 280, 28, 20)));
    }"""
    strokes = [*DIGITS.values(), *SCRIBBLES.values(), [[(30.0, 30.0), (31.0, 30.0)]]]
    inks = [drawn([np.array(stroke) for stroke in each], 4 + 2 * i) for i, each in enumerate(strokes)]
    inks.append(np.zeros((280, 280), dtype=np.uint8))
    for level in (15, 20):  # below and above what counts as ink
        inks.append(inks[3].copy())
        inks[-1][10:14, 40:240] = level
    found = np.array(page.evaluate(script, [text, [b64encode(ink.tobytes()).decode() for ink in inks]])).reshape(
        -1, 28, 28
    )
    expected = np.stack([centred(ink) for ink in inks])
    assert np.abs(np.array(found).reshape(-1, 28, 28) - expected.astype(int)).max() <= 1


def test_pictures_undo_clear_and_keyboard(digits_page: Any) -> None:
    page, ink = digits_page, drawn([np.array(stroke) for stroke in DIGITS["5"]], 9)
    picture = io.BytesIO()
    Image.fromarray(255 - ink).resize((500, 500)).save(picture, "PNG")
    file = {"name": "five.png", "mimeType": "image/png", "buffer": picture.getvalue()}
    page.set_input_files("#chooser", file)
    says(page, "5")
    page.click("#clear")
    says(page, "Draw a digit")
    assert not seen(page).any() and page.is_disabled("#clear")
    page.focus("#canvas")
    page.keyboard.press("Space")
    for _ in range(8):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Space")
    says(page, "1")
    page.keyboard.press("Control+z")
    says(page, "Draw a digit")
    page.set_input_files("#chooser", {**file, "name": "no.txt", "mimeType": "text/plain"})
    page.wait_for_selector("#note:has-text('That is not a picture')")


@pytest.mark.parametrize("name", ["digits", "customers"])
def test_narrow_screens_and_accessibility(chromium: Any, folder: Path, name: str) -> None:
    path = export_html(read(taken_out(name, folder)), folder / f"{name}-narrow.html")
    # The page forbids scripts from elsewhere, and so axe, unless the policy is set aside.
    context = chromium.new_context(viewport={"width": 380, "height": 800}, bypass_csp=True)
    page = mouse.opened(context, path)
    if name == "digits":
        mouse.draw(page, LETTERS["K"])
    assert page.evaluate("document.documentElement.scrollWidth") <= 380
    if not AXE.exists():
        pytest.skip("axe-core is not installed: cd web && npm install")
    page.evaluate(AXE.read_text(encoding="utf-8"))
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        found = page.evaluate("axe.run()")["violations"]
        assert [f"{each['impact']} {each['id']}: {each['nodes'][0]['html'][:120]}" for each in found] == []


def test_a_form_answers_as_python_does(chromium: Any, folder: Path) -> None:
    path = taken_out("customers", folder)
    model = load(path)
    page = mouse.opened(chromium.new_context(), export_html(read(path), folder / "customers.html"))
    row = {"age": 25, "income": 1000.5, "job": "cook", "joined": "2021-05-06"}
    for age, job in ((25, "cook"), (70, "cook"), (70, "nurse"), (None, None)):
        row |= {"age": age, "job": job}
        page.fill("#field-0", "" if age is None else str(age))
        page.fill("#field-1", "1000.5")
        page.select_option("#field-2", "" if job is None else f"={job}")
        page.fill("#field-3", "2021-05-06")
        expected = model.predict_rows([row])[0]
        shown = [text.removesuffix(" %") for text in page.locator("#bars .number").all_inner_texts()]
        np.testing.assert_allclose(np.array(shown, float) / 100, expected, atol=6e-4)
        assert page.inner_text("#verdict") == model.classes[int(expected.argmax())]
    score = float(page.inner_text("#score").split(",")[0])
    assert score == pytest.approx(float(model.unfamiliarity(model.encode_rows([row]))[0]), abs=0.006)
    page.fill("#field-1", "1e9")
    assert page.inner_text("#note") == ""


def regression() -> ModelFile:
    """Three networks y = ±x + 3 of an encoded column."""
    encoding = TableEncoding((NumberColumn(HOSTILE, range=(-1.0, 1.0), knots=(-1.0, 1.0), codes=("line",)),))
    node = Node("linear", (0,), "fc", {"shape": (1, 1)}, {"weight": "w", "shift": "b"})
    weights = np.stack([pack_rows(np.array([[sign]])) for sign in (1, 1, -1)])
    graph = Graph((1,), (node,), networks=3, task="regression")
    return ModelFile(graph, {"w": weights, "b": np.array([3], np.float32)}, residual=0.5, encoding=encoding)


def test_a_quantity_comes_with_its_deviation_and_hostile_names_stay_text(chromium: Any, folder: Path) -> None:
    path = export_html(regression(), folder / "quantity.html", title=HOSTILE, about=HOSTILE)
    page = mouse.opened(chromium.new_context(), path)
    page.fill("#field-0", "0.5")
    mean, deviation = 3 + 0.5 / 3, np.hypot(np.std([0.5, 0.5, -0.5], ddof=1), 0.5)
    assert page.inner_text("#verdict") == f"{mean:.4g} ± {deviation:.4g}"
    assert page.inner_text("#form label") == HOSTILE == page.inner_text("h1") == page.title()
    assert page.locator("img").count() == 0


def images(channels: int, height: int, width: int) -> ModelFile:
    """Two classes: is the first channel brighter than the paper?"""
    size = channels * height * width
    flat = Node("reshape", (0,), "flat", {"shape": (size,)})
    node = Node("linear", (1,), "fc", {"shape": (2, size)}, {"weight": "w"})
    signs = np.ones((2, size))
    signs[1] = -1
    return ModelFile(Graph((channels, height, width), (flat, node), classes=("ink", HOSTILE)), {"w": pack_rows(signs)})


def test_colour_images_are_scaled_to_the_networks_size(chromium: Any, folder: Path) -> None:
    page = mouse.opened(chromium.new_context(), export_html(images(3, 8, 12), folder / "colour.html"))
    assert page.locator("#colour-choice").is_visible()
    mouse.draw(page, [[(10, 5), (270, 5)], [(10, 18), (270, 18)]])
    script = """() => Array.from(document.getElementById("sees").getContext("2d").getImageData(0, 0, 12, 8).data)"""
    pixels = np.array(page.evaluate(script)).reshape(8, 12, 4)
    assert pixels[0, 6].tolist() == [192, 48, 32, 255] and pixels[7, 6].tolist() == [255, 255, 255, 255]
    assert page.inner_text("#verdict") == "ink"


def test_models_that_no_page_can_show_are_refused(folder: Path) -> None:
    with pytest.raises(InvalidInput, match="images of 1 or 3 channels"):
        export_html(images(2, 8, 8), folder / "no.html")
    with pytest.raises(InvalidInput, match="box=20"):
        export_html(images(3, 8, 8), folder / "no.html", box=20)
    assert not (folder / "no.html").exists()


def test_the_command_writes_the_page_next_to_the_model(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", regression())
    done = call("export", tmp_path / "model.safetensors", "--to", "html", "--title", "A quantity")
    assert done.code == 0 and "model.html" in done.out and done.err == ""
    page = (tmp_path / "model.html").read_text(encoding="utf-8")
    assert "<title>A quantity</title>" in page and not re.search(r"\{\{\w+\}\}", page)


def test_the_scripts_join_without_clashing_names() -> None:
    names: list[str] = []
    for path in SOURCES.glob("*.js"):
        text = path.read_text(encoding="utf-8")
        names += re.findall(r"^(?:export )?(?:async )?(?:function|class|const|let) (\w+)", text, re.MULTILINE)
    assert len(names) == len(set(names))
