"""Pieces of C: numbers, strings, arrays and the templates of `c_templates`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesbinn.errors import InvalidInput

_MAX_NAME_BYTES = 255  # C99 only guarantees string literals of 4095 bytes


def check_name(name: str) -> None:
    """Raise unless C identifiers can start with this name.

    >>> check_name("2nd")
    Traceback (most recent call last):
    bayesbinn.errors.InvalidInput: name='2nd': C names start with it, so it must be letters, digits and _, ...
    """
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,39}", name):
        allowed = "letters, digits and _, starting with a letter, at most 40"
        raise InvalidInput(f"name={name!r}: C names start with it, so it must be {allowed}; try name='model'")


@cache
def template(part: str) -> str:
    """One or a few functions with names model_... and MODEL_..., see `renamed`."""
    return (files("bayesbinn.export") / "c_templates" / f"{part}.c").read_text(encoding="utf-8")


def needs_math(part: str) -> bool:
    """Whether a template calls a function of math.h.

    >>> [needs_math(part) for part in ("sigmoid", "relu", "concat")]
    [True, False, False]
    """
    return re.search(r"\b(?!sizeof)[a-z]+[0-9]*f\(", template(part)) is not None


def renamed(code: str, name: str) -> str:
    """The code with the user's prefix in its names.

    >>> renamed("MODEL_INPUTS model_linear(remodel_x)", "net")
    'NET_INPUTS net_linear(remodel_x)'
    """
    return re.sub(r"\b(model|MODEL)_", lambda found: f"{name if found[1] == 'model' else name.upper()}_", code)


def number(value: float) -> str:
    """A float32 as a hexadecimal constant, which every compiler reads exactly.

    >>> number(0.75), number(1.0), number(-0.0)
    ('0x1.8p-1f', '0x1p+0f', '-0x0p+0f')
    """
    mantissa, exponent = float(np.float32(value)).hex().split("p")
    return f"{mantissa.rstrip('0').rstrip('.') if '.' in mantissa else mantissa}p{exponent}f"


def array(name: str, values: NDArray[Any]) -> str:
    """A constant array of bytes or floats."""
    flat = values.ravel()
    texts = list(map(str, flat.tolist())) if flat.dtype == np.uint8 else [number(v) for v in flat.tolist()]
    kind, per_line = ("uint8_t", 28) if flat.dtype == np.uint8 else ("float", 7)
    lines = (", ".join(texts[i : i + per_line]) for i in range(0, len(texts), per_line))
    body = ",\n".join(f"    {line}" for line in lines)
    return f"static const {kind} {name}[{len(texts)}] = {{\n{body}\n}};\n"


def comment(text: str) -> str:
    """Text that is safe inside a C comment.

    >>> comment("a*/ b")
    'a__ b'
    """
    return re.sub(r"[^A-Za-z0-9_.,:=()\[\] -]", "_", text)[:100]


def string(text: str) -> str:
    r"""A string constant in which every UTF-8 byte that is special to a compiler is escaped.

    >>> print(string('3"?'))
    "3\042\077"
    """
    data = text.encode("utf-8", "replace")
    if len(data) > _MAX_NAME_BYTES:
        data = data[:_MAX_NAME_BYTES].decode("utf-8", "ignore").encode()
    plain = re.compile(rb"[A-Za-z0-9 _.-]")
    return '"' + "".join(chr(b) if plain.match(bytes([b])) else f"\\{b:03o}" for b in data) + '"'


def struct(kind: str, name: str, fields: Iterable[tuple[str, int]]) -> str:
    """A constant of a struct type, field by field."""
    body = ", ".join(f".{field} = {value}{'' if field == 'count_padding' else 'u'}" for field, value in fields)
    return f"static const {kind} {name} = {{{body}}};\n"
