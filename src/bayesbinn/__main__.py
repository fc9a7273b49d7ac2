"""``python -m bayesbinn`` and the ``bayesbinn`` command."""

from __future__ import annotations

import os
import sys

from bayesbinn import __version__
from bayesbinn.errors import BayesbinnError, how_to_install, show_warnings_as_lines
from bayesbinn.runtime.command import COMMANDS
from bayesbinn.runtime.command import main as run_command


def main() -> int:
    """Run the command line; a user's error is one line and exit code 2."""
    arguments = sys.argv[1:]
    show_warnings_as_lines()
    try:
        if arguments == ["--version"]:  # also where typer is not installed
            print(f"bayesbinn {__version__}", flush=True)
            return 0
        if arguments and arguments[0] in COMMANDS:
            code = run_command(arguments[0], arguments[1:])
            sys.stdout.flush()
            return code
        return _full_command_line()
    except BayesbinnError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader, such as `head`, has left. Python would write what is left once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _full_command_line() -> int:
    try:
        from bayesbinn.cli import app
    except ModuleNotFoundError as error:
        print(
            f"error: this command needs {error.name}: {how_to_install('train')}. "
            f"Without it there are {', '.join(COMMANDS)}",
            file=sys.stderr,
        )
        return 2
    app()
    return 0


if __name__ == "__main__":
    sys.exit(main())
