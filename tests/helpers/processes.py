"""Processes that share their imports, which take longer than what most tests do.

`warm_python()` is used like `sys.executable`; `Commands` starts `bayesbinn` commands to be killed and started again.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

from tests.helpers.places import ROOT

SERVER = ROOT / "tests" / "helpers" / "fork_server.py"

# Has the server start the program, hands on signals, and ends as the program does.
SHIM = """#!{python} -IS
import os, signal, socket, sys
sys.path.append({helpers!r})
from fork_client import request
connection = socket.socket(socket.AF_UNIX)
connection.connect({address!r})
request(connection, sys.argv[1:], dict(os.environ), os.getcwd(), (0, 1, 2))
answers = connection.makefile()
process = int(answers.readline())
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGABRT):
    signal.signal(number, lambda number, frame: os.kill(process, number))
code = int(answers.readline() or 1)
if code < 0:
    if -code not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""


class _Server:
    """A process that has imported everything and forks itself."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="forks"))
        self.address, self.python = str(self._folder / "socket"), str(self._folder / "python")
        text = SHIM.format(python=sys.executable, helpers=str(SERVER.parent), address=self.address)
        Path(self.python).write_text(text)
        os.chmod(self.python, 0o700)
        self._process = subprocess.Popen(
            [sys.executable, str(SERVER), self.address, self.python],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            cwd=ROOT,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n", "the process that forks did not start"

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        shutil.rmtree(self._folder, ignore_errors=True)


@functools.cache
def _server() -> _Server:
    started = _Server()
    atexit.register(started.close)
    return started


def warm_python() -> str:
    """A program that runs `-c CODE`, `-m MODULE` or a file as `sys.executable` would, without the time for imports.

    What it starts with its own `sys.executable` is as quick. Variables that are read during imports, such as
    BAYESBINN_KERNELS, need a real interpreter.
    """
    return _server().python


def run_ranks(work: Callable[..., None], *arguments: object, count: int = 2) -> None:
    """Call ``work(rank, *arguments)`` of a test module in that many processes, and wait until all have succeeded."""
    name, words = work.__name__, ", ".join(map(repr, arguments))
    codes = [f"from {work.__module__} import {name}; {name}({rank}, {words})" for rank in range(count)]
    started = [subprocess.Popen([warm_python(), "-c", code], cwd=ROOT) for code in codes]
    try:
        assert [process.wait(120) for process in started] == [0] * count
    finally:
        for process in started:
            process.kill()
            process.wait()


# Announces when the command handles signals: it does so only while it runs.
COMMAND = """
import faulthandler, resource, signal, sys
from pathlib import Path
import bayesbinn.__main__ as entry
started, limit = sys.argv[1], int(sys.argv[2])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
faulthandler.enable()
sys.argv = ["bayesbinn", *sys.argv[3:]]
explained = entry._explained
def announced():
    Path(started).touch()
    try:
        return explained()
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
entry._explained = announced
sys.exit(entry.main())
"""


class Commands:
    """`bayesbinn` commands as processes: start, kill, wait."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._answers: dict[int, tuple[socket.socket, IO[str]]] = {}

    def start(
        self, *arguments: str, limit: int = 0, environment: dict[str, str] | None = None, log: str = "err"
    ) -> int:
        from tests.helpers.fork_client import request

        (self._logs / f"{log}.started").unlink(missing_ok=True)
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(_server().address)
        words = ["-c", COMMAND, str(self._logs / f"{log}.started"), str(limit), *arguments]
        with (
            open(os.devnull) as nothing,
            (self._logs / f"{log}.out").open("w") as out,
            (self._logs / log).open("w") as err,
        ):
            files = (nothing.fileno(), out.fileno(), err.fileno())
            request(connection, words, {**os.environ, **(environment or {})}, os.getcwd(), files)
        answers = connection.makefile()
        process = int(answers.readline())
        self._answers[process] = connection, answers
        return process

    def start_ranks(self, count: int, *arguments: str) -> list[int]:
        """As torchrun does; rank r writes its errors to the log ``rank-r``."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        places = [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]
        return [self.start(*arguments, environment=place, log=f"rank-{place['RANK']}") for place in places]

    def wait_for_its_start(self, seconds: float = 60) -> None:
        """Wait until the last started command handles signals."""
        path, deadline = self._logs / "err.started", time.monotonic() + seconds
        while not path.exists():
            assert time.monotonic() < deadline, "the command did not start"
            time.sleep(0.001)

    def wait(self, process: int, seconds: float = 120) -> int:
        """The exit code; negative for a signal. A process that hangs is ended with SIGABRT."""
        connection, answers = self._answers.pop(process)
        with connection, answers:
            connection.settimeout(seconds)
            try:
                return int(answers.readline())
            except TimeoutError:
                os.kill(process, signal.SIGABRT)  # writes its stacks to its log
                return -signal.SIGABRT

    def send(self, process: int, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended: runs are faster once everything is in memory."""
        with suppress(ProcessLookupError):
            os.kill(process, number)

    def run(self, *arguments: str, limit: int = 0) -> int:
        return self.wait(self.start(*arguments, limit=limit))

    @property
    def errors(self) -> list[str]:
        return self.log("err")

    def log(self, name: str) -> list[str]:
        return (self._logs / name).read_text().splitlines()


def wait_for_a_checkpoint(folder: Path, after: float = 0.0) -> None:
    """Wait for a checkpoint that is newer than `after`."""
    path, deadline = folder / "checkpoint.pt", time.monotonic() + 60
    while not path.exists() or path.stat().st_mtime_ns <= after:
        assert time.monotonic() < deadline, "no checkpoint within a minute"
        time.sleep(0.002)
