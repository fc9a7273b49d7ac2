"""JSON from a file that may be damaged or hostile: an object without what JSON leaves open."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from bayesbinn.errors import InvalidFile

_MAX_DIGITS = 18


def strict_json(text: bytes | str, what: str) -> dict[str, Any]:
    """An object without repeated keys, NaN, endless numbers and broken Unicode.

    >>> strict_json('{"a":1,"a":2}', "the graph")
    Traceback (most recent call last):
    bayesbinn.errors.InvalidFile: the graph has the same key twice
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise InvalidFile(f"{what} has the same key twice")
        return found

    def no_constant(name: str) -> NoReturn:
        raise InvalidFile(f"{what} has {name} as a number")

    def whole(digits: str) -> int:
        if len(digits) > _MAX_DIGITS:
            raise InvalidFile(f"{what} has a number of {len(digits)} digits")
        return int(digits)

    try:
        document = json.loads(
            text.decode() if isinstance(text, bytes) else text,
            object_pairs_hook=unique,
            parse_constant=no_constant,
            parse_int=whole,
        )
        # Half a surrogate pair cannot even be printed.
        json.dumps(document, ensure_ascii=False).encode()
    except InvalidFile:
        raise
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InvalidFile(f"{what} is not JSON ({reason}): the file is damaged or of another kind") from None
    if not isinstance(document, dict):
        raise InvalidFile(f"{what} is not a JSON object")
    return document


def compact_json(document: Any) -> str:
    """The shortest text; what is not a number is refused."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
