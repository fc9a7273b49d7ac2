"""``python -m bayesbinn`` and the ``bayesbinn`` command."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

INTERRUPTED = 130
"""The exit code after Ctrl-C, by shell convention."""
_interrupted = False
"""Whether Ctrl-C came: imports take seconds, and some turn it into other errors or lose it, so remember it."""


def main() -> int:
    """Run the command line; a user error prints one line and exits with 2, Ctrl-C one line and 130."""
    global _interrupted
    _interrupted = over = False

    def interrupt(number: int, frame: Any) -> None:
        global _interrupted
        if not over:  # else the work is done, and there is nothing left to interrupt
            _interrupted = True
            raise KeyboardInterrupt

    usual = signal.getsignal(signal.SIGINT)
    catches = usual is signal.default_int_handler and threading.current_thread() is threading.main_thread()
    try:
        if catches:
            signal.signal(signal.SIGINT, interrupt)
        return _explained()
    except BaseException as error:
        # Typer turns it into a silent exit.
        other_exit = isinstance(error, SystemExit) and error.code != INTERRUPTED
        if not isinstance(error, KeyboardInterrupt) and (not _interrupted or other_exit):
            raise
        print("interrupted", file=sys.stderr, flush=True)
        return INTERRUPTED
    finally:
        over = True
        if catches:
            signal.signal(signal.SIGINT, usual)


def _explained() -> int:
    from bayesbinn.errors import BayesbinnError, show_warnings_as_lines

    show_warnings_as_lines()
    try:
        return _command_line(sys.argv[1:])
    except BayesbinnError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader, such as `head`, has exited. Otherwise Python would try to write the rest again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _command_line(arguments: list[str]) -> int:
    from bayesbinn import __version__
    from bayesbinn.cli.runtime import COMMANDS
    from bayesbinn.cli.runtime import main as run_command
    from bayesbinn.errors import how_to_install

    if arguments == ["--version"]:  # works without typer
        print(f"bayesbinn {__version__}", flush=True)
        return 0
    if arguments and arguments[0] in COMMANDS:
        _stop_if_interrupted()
        code = run_command(arguments[0], arguments[1:])
        sys.stdout.flush()
        return code
    try:
        from bayesbinn.cli.app import app
    except ModuleNotFoundError as error:
        print(
            f"error: this command needs {error.name}: {how_to_install('train')}. "
            f"Without it, these work: {', '.join(COMMANDS)}",
            file=sys.stderr,
        )
        return 2
    _stop_if_interrupted()
    app()
    return 0


def _stop_if_interrupted() -> None:
    if _interrupted:
        raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
