"""Text from files and names, made safe to print in a terminal or to open in a spreadsheet.

Names of columns, classes and files come from data that somebody else may have written. In a terminal an escape
sequence can move the cursor, retitle the window or hide a line; in a spreadsheet a cell that starts with ``=`` is a
formula.
"""

from __future__ import annotations

import re

# Control characters, line separators, changes of the writing direction, and the surrogates that stand for bytes of a
# file name that are not UTF-8: the first three act on the terminal, the last cannot be printed at all.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_FORMULA = re.compile("[=+\\-@\t\r\n]")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def printable(text: str, *, keep_lines: bool = False) -> str:
    r"""The text with every control character written as an escape; `keep_lines` leaves line breaks as they are.

    >>> print(printable("a\x1b[31mred\n"))
    a\x1b[31mred\n
    >>> printable("größe, 高さ")
    'größe, 高さ'
    """
    return _UNPRINTABLE.sub(lambda found: _escaped(found[0], keep_lines), text)


def _escaped(character: str, keep_lines: bool) -> str:
    if keep_lines and character == "\n":
        return character
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def csv_safe(text: str) -> str:
    """A cell that no spreadsheet takes for a formula: such text gets a leading single quote; a number stays as it is.

    >>> csv_safe("=1+1"), csv_safe("-1.5"), csv_safe("rose")
    ("'=1+1", '-1.5', 'rose')
    """
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text
