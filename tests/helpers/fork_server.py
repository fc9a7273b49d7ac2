"""Imports what `bayesbinn` commands need, then forks a process for every request: fork_server.py SOCKET PYTHON.

PYTHON is the program that sends requests; it replaces `sys.executable` in the processes. The server runs until its
standard input is closed. A process whose client goes away is killed.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import tempfile
import threading
import traceback
import types
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

READ_DURING_IMPORTS = ("BAYESBINN_KERNELS", "BAYESBINN_ISA")


def import_everything() -> None:
    sys.path[0] = ""  # nothing may find the modules next to this file
    import torch

    torch.set_num_threads(1)
    state = torch.get_rng_state()
    import bayesbinn.__main__
    import bayesbinn.cli.app
    import bayesbinn.cli.progress
    import bayesbinn.runs.evaluate
    import bayesbinn.runs.process
    import bayesbinn.sweeps.executor  # noqa: F401
    from bayesbinn.experiments import load_experiment
    from bayesbinn.runs import Run

    with tempfile.TemporaryDirectory() as folder:  # torch imports much of itself at the first step
        small = {"training.epochs": 1, "model.width": 0.01, "training.batch_size": 500}
        Run.open(load_experiment("digits", overrides=small), Path(folder)).train()
    torch.set_rng_state(state)


def run(arguments: list[str]) -> None:
    """As the interpreter does with these arguments."""
    first, *rest = arguments
    if first == "-u":
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(write_through=True)  # type: ignore[union-attr]
        run(rest)
    elif first == "-c":
        main = types.ModuleType("__main__")
        sys.modules["__main__"], sys.argv, sys.path[0] = main, ["-c", *rest[1:]], ""
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    elif first == "-m":
        sys.argv, sys.path[0] = ["-m", *rest[1:]], os.getcwd()
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif not first.startswith("-"):
        sys.argv, sys.path[0] = arguments, str(Path(first).resolve().parent)
        runpy.run_path(first, run_name="__main__")
    else:
        raise ValueError(f"{first}: only -u, -c, -m and files are supported")


def become(wanted: dict[str, Any], python: str) -> NoReturn:
    """Run the program and end as the interpreter does."""
    code: Any = 0
    try:
        for number in READ_DURING_IMPORTS:
            assert wanted["environment"].get(number) == os.environ.get(number), f"{number} was read before the fork"
        os.environ.clear()
        os.environ.update(wanted["environment"])
        os.chdir(wanted["folder"])
        sys.executable = python
        # This also makes every warning appear again that was given before the fork.
        warnings.filterwarnings("ignore", message=".*found in sys.modules", category=RuntimeWarning, module="runpy")
        __import__("numpy").random.seed()
        run(wanted["arguments"])
    except SystemExit as stop:
        code = stop.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
            code = 1
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    with suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(code or 0)


class Server:
    def __init__(self, address: str, python: str) -> None:
        self.python = python
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(address)
        self.listener.listen(64)
        self.ended, wake = socket.socketpair()
        wake.setblocking(False)
        self.wake = wake
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.clients: dict[int, socket.socket] = {}
        self.events = selectors.DefaultSelector()
        for each in (0, self.listener, self.ended):
            self.events.register(each, selectors.EVENT_READ)

    def serve(self) -> None:
        """Until standard input is closed."""
        while True:
            for key, _ in self.events.select():
                if key.fileobj == 0:
                    return
                if key.fileobj is self.listener:
                    self.fork(self.listener.accept()[0])
                elif key.fileobj is self.ended:
                    self.ended.recv(4096)
                    self.report()
                else:  # a client that says something is one that has gone
                    self.abandon(key.data)

    def fork(self, client: socket.socket) -> None:
        length, files, _, _ = socket.recv_fds(client, 8, 3)
        text = b""
        while len(length) == 8 and len(text) < int.from_bytes(length, "big"):
            more = client.recv(1 << 20)
            if not more:
                break
            text += more
        if len(files) < 3 or not text:
            client.close()
            return
        process = os.fork()
        if process == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self.events.close()
            for each in (client, self.listener, self.ended, self.wake, *self.clients.values()):
                each.close()
            for number, file in enumerate(files):
                os.dup2(file, number)
                os.close(file)
            become(json.loads(text), self.python)
        for file in files:
            os.close(file)
        self.clients[process] = client
        self.events.register(client, selectors.EVENT_READ, process)
        self.tell(client, process)

    def report(self) -> None:
        for process in list(self.clients):
            found, status = os.waitpid(process, os.WNOHANG)
            if found:
                client = self.clients.pop(process)
                with suppress(KeyError):
                    self.events.unregister(client)
                self.tell(client, os.waitstatus_to_exitcode(status))
                client.close()

    def abandon(self, process: int) -> None:
        if process in self.clients:
            os.kill(process, signal.SIGKILL)
            self.events.unregister(self.clients[process])

    @staticmethod
    def tell(client: socket.socket, number: int) -> None:
        with suppress(OSError):
            client.sendall(f"{number}\n".encode())


def main(address: str, python: str) -> None:
    import_everything()
    server = Server(address, python)
    print("ready", flush=True)
    server.serve()
    for process in server.clients:
        os.kill(process, signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
