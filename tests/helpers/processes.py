"""`bayesbinn` commands as real processes, to be killed and started again."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

# Starts `bayesbinn` as separate processes that share the imports, which take longer than these runs.
STARTER = """
import faulthandler, json, os, resource, signal, sys, tempfile, time, traceback
from pathlib import Path
import torch
torch.set_num_threads(1)
import bayesbinn.cli.app, bayesbinn.runs.evaluate, bayesbinn.cli.progress
import bayesbinn.__main__ as entry
from bayesbinn.experiments import load_experiment
from bayesbinn.runs import Run
with tempfile.TemporaryDirectory() as folder:  # torch imports much of itself at the first step
    small = {"training.epochs": 1, "model.width": 0.01, "training.batch_size": 500}
    Run.open(load_experiment("digits", overrides=small), Path(folder)).train()
for line in sys.stdin:
    request = json.loads(line)
    if "wait" in request:
        deadline, ended = time.monotonic() + request["seconds"], (0, 0)
        while not ended[0]:
            time.sleep(0.01)
            ended = os.waitpid(request["wait"], os.WNOHANG)
            if not ended[0] and time.monotonic() > deadline:
                os.kill(request["wait"], 6)  # writes its stacks to its log
                ended = os.waitpid(request["wait"], 0)
        print(os.waitstatus_to_exitcode(ended[1]), flush=True)
        continue
    child = os.fork()
    if child:
        print(child, flush=True)
        continue
    for name, number in (("out", 1), ("err", 2)):
        os.dup2(os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    if request["limit"]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["limit"], request["limit"]))
    faulthandler.enable()
    sys.argv = ["bayesbinn", *request["arguments"]]
    os.environ.update(request["environment"])
    explained = entry._explained
    def announced():  # the command handles signals only while it runs
        Path(request["err"] + ".started").touch()
        try:
            return explained()
        finally:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    entry._explained = announced
    try:
        code = entry.main()
    except SystemExit as stop:
        code = stop.code
    except BaseException:
        traceback.print_exc()
        code = 99
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)
"""


class Commands:
    """`bayesbinn` commands as processes: start, kill, wait."""

    def __init__(self, logs: Path) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._starter = subprocess.Popen(
            [sys.executable, "-c", STARTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._logs = logs

    def start(
        self, *arguments: str, limit: int = 0, environment: dict[str, str] | None = None, log: str = "err"
    ) -> int:
        (self._logs / f"{log}.started").unlink(missing_ok=True)
        files = {"out": str(self._logs / f"{log}.out"), "err": str(self._logs / log)}
        request = {"arguments": arguments, **files, "limit": limit, "environment": environment or {}}
        return self._ask(request)

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
        return self._ask({"wait": process, "seconds": seconds})

    def run(self, *arguments: str, limit: int = 0) -> int:
        return self.wait(self.start(*arguments, limit=limit))

    @property
    def errors(self) -> list[str]:
        return self.log("err")

    def log(self, name: str) -> list[str]:
        return (self._logs / name).read_text().splitlines()

    def close(self) -> None:
        assert self._starter.stdin is not None and self._starter.stdout is not None
        self._starter.stdin.close()
        self._starter.wait()
        self._starter.stdout.close()

    def _ask(self, request: dict[str, Any]) -> int:
        assert self._starter.stdin is not None and self._starter.stdout is not None
        self._starter.stdin.write(json.dumps(request) + "\n")
        self._starter.stdin.flush()
        return int(self._starter.stdout.readline())


def wait_for_a_checkpoint(folder: Path, after: float = 0.0) -> None:
    """Wait for a checkpoint that is newer than `after`."""
    path, deadline = folder / "checkpoint.pt", time.monotonic() + 60
    while not path.exists() or path.stat().st_mtime_ns <= after:
        assert time.monotonic() < deadline, "no checkpoint within a minute"
        time.sleep(0.002)
