"""Runs the WebAssembly runtime in Node, Chromium and Firefox; a test skips if they are missing."""

from __future__ import annotations

import functools
import json
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
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


@contextmanager
def firefox(profile: Path, address: str) -> Iterator[Callable[[str, list[str]], Any]]:
    """Firefox on a page, driven by WebDriver BiDi; gives a function that calls one of the page's own."""
    client = pytest.importorskip("websockets.sync.client", reason="the Python package websockets is not installed")
    program = shutil.which("firefox") or shutil.which("firefox-esr")
    if program is None:
        pytest.skip("there is no firefox on the PATH; install it with `apt-get install firefox-esr`")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [program, "--headless", "--profile", str(profile), "--remote-debugging-port", str(port)]
    profile.mkdir()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        stack = ExitStack()
        line = _connected(stack, client, port)
        numbers = iter(range(1, 1000))

        def ask(method: str, **parameters: Any) -> Any:
            number = next(numbers)
            line.send(json.dumps({"id": number, "method": method, "params": parameters}))
            while (said := json.loads(line.recv(timeout=1200))).get("id") != number:
                pass
            assert said["type"] == "success", said
            return said["result"]

        def call(function: str, texts: list[str]) -> Any:
            listed = {"type": "array", "value": [{"type": "string", "value": text} for text in texts]}
            found = ask(
                "script.callFunction",
                functionDeclaration=function,
                arguments=[listed],
                awaitPromise=True,
                target={"context": tab},
            )
            assert found["type"] == "success", found
            return found["result"]["value"]

        ask("session.new", capabilities={})
        tab = ask("browsingContext.create", type="tab")["context"]
        ask("browsingContext.navigate", context=tab, url=address, wait="complete")
        yield call
        stack.close()
    finally:
        process.terminate()
        process.wait()


def _connected(stack: ExitStack, client: Any, port: int, seconds: float = 60) -> Any:
    deadline = time.monotonic() + seconds
    while True:
        try:
            return stack.enter_context(client.connect(f"ws://127.0.0.1:{port}/session", max_size=None))
        except OSError:
            assert time.monotonic() < deadline, "Firefox did not start"
            time.sleep(0.2)


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
