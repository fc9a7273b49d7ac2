"""The files that a page downloads: small, complete, and built from the sources in this repository."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bayesbinn import web
from tests.helpers.places import ROOT
from tests.helpers.web import chromium, node

WEB = ROOT / "web"
BUILD = ROOT / "csrc" / "wasm" / "build.sh"
MOST = 100_000
"""Bytes of both files together."""


def tool(name: str) -> Path:
    node()
    path = WEB / "node_modules" / name
    if not path.exists():
        pytest.skip(f"{name} is not installed; `npm install --prefix web` installs it")
    return path


def run(*command: str, **environment: str) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, **environment}, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_both_files_are_small() -> None:
    assert len(web.module().encode()) + len(web.wasm()) <= MOST


def test_the_webassembly_needs_nothing_from_the_page() -> None:
    count = (
        "const module = new WebAssembly.Module(require('fs').readFileSync(0));"
        "process.stdout.write(String(WebAssembly.Module.imports(module).length))"
    )
    done = subprocess.run([node(), "-e", count], input=web.wasm(), capture_output=True, check=True)
    assert done.stdout == b"0"


def test_the_webassembly_is_of_these_sources() -> None:
    recorded = (ROOT / "src" / "bayesbinn" / "web" / "bayesbinn.wasm.sources").read_text()
    assert run("sh", str(BUILD), "--sources") == recorded, "csrc/ has changed: run `make wasm`"


@pytest.mark.slow
def test_compiling_the_sources_gives_the_same_bytes(tmp_path: Path) -> None:
    """A minute or more where the compiler has not yet built its own libraries."""
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("ziglang, the compiler, is not installed (the `test` extra has it)")
    made = tmp_path / "made.wasm"
    run("sh", str(BUILD), str(made), PYTHON=sys.executable)
    assert made.read_bytes() == web.wasm(), "run `make wasm`"


def test_bundling_the_sources_gives_the_same_module(tmp_path: Path) -> None:
    tool("esbuild")
    made = tmp_path / "made.js"
    run("node", str(WEB / "build.mjs"), str(made))
    assert made.read_text(encoding="utf-8") == web.module(), "web/src has changed: run `make web`"


def packed_for_npm(folder: Path) -> None:
    tool("typescript")
    run("node", str(WEB / "prepack.mjs"), str(folder))


def test_the_types_are_right_and_the_package_for_npm_is_complete(tmp_path: Path) -> None:
    packed_for_npm(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} >= {"bayesbinn.js", "bayesbinn.wasm", "bayesbinn.d.ts"}


@pytest.mark.slow
def test_the_types_serve_a_program_in_typescript(tmp_path: Path) -> None:
    packed_for_npm(tmp_path / "dist")
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "use.ts").write_text(
        'import { load } from "./dist/bayesbinn.js";\n'
        "const model = await load(new Uint8Array(), { activations: 'int8' });\n"
        "const y: Float32Array = model.predict(new Float32Array(3));\n"
        "// @ts-expect-error there is no such mode\n"
        "await load(new Uint8Array(), { activations: 'int4' });\n"
        "export { y };\n"
    )
    flags = ["--noEmit", "--strict", "--module", "nodenext", "--target", "es2022", "--skipLibCheck"]
    run("node", str(tool("typescript") / "bin" / "tsc"), *flags, str(tmp_path / "use.ts"))


def test_a_page_on_disk_runs_the_bundle_without_a_network(tmp_path: Path) -> None:
    """One file with the script and the WebAssembly in it, opened from disk, offline."""
    page_file = tmp_path / "page.html"
    page_file.write_text(
        f'<!doctype html><meta charset="utf-8"><title>t</title><script type="module">{web.bundle()}</script>'
    )
    content = list((ROOT / "tests" / "fixtures" / "model-v1.safetensors").read_bytes())
    with chromium() as browser:
        context = browser.new_context(offline=True)
        page = context.new_page()
        requests: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        page.goto(page_file.as_uri())
        classes = page.evaluate(
            "async (bytes) => { const m = await bayesbinn.load(new Uint8Array(bytes));"
            "return Array.from(m.prediction(new Float32Array(2 * 6 * 7).fill(0.3)).probabilities); }",
            content,
        )
        assert len(classes) == 3 and abs(sum(classes) - 1) < 1e-6
        assert requests == [page_file.as_uri()]
