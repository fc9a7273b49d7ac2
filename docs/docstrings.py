"""Docstrings as Markdown: doctests and equation boxes become code blocks. Griffe loads this when the site is built."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_DOCTEST = re.compile(r"^>>> .*(?:\n.+)*", re.M)
_DIRECTIVE = re.compile(r"^\.\. code-block:: \w+\n\n", re.M)  # the indented lines after it are a block already


class Markdown(Extension):
    """Change what is shown, not what is written in the sources."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Called once for every module, class and function."""
        if obj.docstring:
            text = _DIRECTIVE.sub("", obj.docstring.value)
            obj.docstring.value = _DOCTEST.sub(lambda example: f"```pycon\n{example[0]}\n```", text)
