"""Runs the WebAssembly runtime in Node and in Chromium; a test skips if they are missing."""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.places import ROOT

MODULE = ROOT / "src" / "bayesbinn" / "web" / "bayesbinn.js"
PROGRAM = ROOT / "tests" / "web" / "predict.mjs"
OLDEST_NODE = 18


@functools.cache
def _node_version() -> int:
    node = shutil.which("node")
    if node is None:
        return 0
    text = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.match(r"v(\d+)", text)
    return int(found[1]) if found else 0


def node() -> str:
    """The command `node`."""
    if _node_version() < OLDEST_NODE:
        have = f"this is version {_node_version()}" if _node_version() else "there is no `node` on the PATH"
        pytest.skip(f"Node {OLDEST_NODE} or newer is needed; {have}")
    return "node"


def job(folder: Path, name: str, model: Path, activations: str, x: Any = None, **other: Any) -> dict[str, Any]:
    """A job for `run_jobs`: a model file, and inputs if it is to run."""
    made = {"model": str(model), "activations": activations, **other}
    if x is not None:
        inputs = folder / f"{name}.inputs"
        if not inputs.exists():
            inputs.write_bytes(np.ascontiguousarray(x, np.float32).tobytes())
        made |= {"inputs": str(inputs), "outputs": str(folder / f"{name}.{activations}.outputs")}
    return made


def run_jobs(jobs: Sequence[dict[str, Any]], folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """What Node says to each job (see predict.mjs); `y` is what it computed."""
    listed = folder / "jobs.json"
    listed.write_text(json.dumps(jobs))
    command = [node(), str(PROGRAM), MODULE.as_uri(), str(listed), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[dict[str, Any]] = json.loads(done.stdout)
    for one, said in zip(jobs, found, strict=True):
        if said["verdict"] == "runs" and "outputs" in one:
            said["y"] = np.fromfile(one["outputs"], np.float32)
    return found


@contextmanager
def chromium() -> Iterator[Any]:
    """Debian's Chromium, driven by Playwright."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed (the `test` extra has it)"
    )
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("there is no chromium on the PATH; install it with `apt-get install chromium`")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


class _Quiet(SimpleHTTPRequestHandler):
    extensions_map = {**SimpleHTTPRequestHandler.extensions_map, ".wasm": "application/wasm"}  # noqa: RUF012

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """A folder as a web site on this machine; gives its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def same_bits(a: Any, b: Any) -> bool:
    """Whether two arrays hold the same floats, to the bit."""
    return a.size == b.size and bool((a.ravel().view(np.uint32) == b.ravel().view(np.uint32)).all())


def close(a: Any, b: Any) -> bool:
    """Whether logits agree within 1e-5 of the largest, and classes unless the two best are closer than that."""
    if a.size != b.size:
        return False
    rows = a.reshape(b.shape)
    limit = 1e-5 * max(float(np.abs(b).max()), 1e-30)
    if float(np.abs(rows - b).max()) > limit:
        return False
    if b.ndim != 2 or b.shape[1] < 2:
        return True
    ordered = np.sort(b, axis=1)
    certain = ordered[:, -1] - ordered[:, -2] > limit
    return bool((rows.argmax(axis=1) == b.argmax(axis=1))[certain].all())
