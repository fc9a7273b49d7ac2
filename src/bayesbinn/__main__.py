"""``python -m bayesbinn`` and the ``bayesbinn`` command."""

from __future__ import annotations

import sys

from bayesbinn.errors import BayesbinnError


def main() -> int:
    """Run the command line; a user's error is one line and exit code 2."""
    try:
        from bayesbinn.cli import app
    except ModuleNotFoundError as error:
        print(f"error: the command line needs {error.name}: pip install 'bayesbinn[train]'", file=sys.stderr)
        return 2
    try:
        app()
    except BayesbinnError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
