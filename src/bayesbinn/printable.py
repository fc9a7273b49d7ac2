"""Text from a file, made safe to print: no character in it can drive a terminal or hide others."""

from __future__ import annotations

import unicodedata

_UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode categories: controls, formatting such as changes of direction, half pairs, separators of lines."""


def printable(text: str) -> str:
    r"""The text with every character that a terminal acts on written as Python writes it in a string.

    >>> print(printable("red \x1b[31mrose\n"))
    red \x1b[31mrose\n
    """
    if text.isprintable():
        return text
    return "".join(_escaped(c) if unicodedata.category(c) in _UNSEEN else c for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
