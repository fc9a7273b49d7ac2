"""Converts columns to JSON and back. Default values are left out, and whole numbers have no decimal point."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

from bayesbinn.errors import InvalidFile, InvalidInput, nearest
from bayesbinn.modelfile.columns import KINDS, Column, settings_of

_MAX_WHOLE = 1e15


def column_document(column: Column) -> dict[str, Any]:
    """A column as plain values.

    >>> from bayesbinn.modelfile.columns import BooleanColumn
    >>> column_document(BooleanColumn("member", missing=True))
    {'name': 'member', 'kind': 'boolean', 'missing': True}
    """
    usual = {each.name: each.default for each in fields(column)}
    changed = {key: value for key, value in settings_of(column).items() if key != "name" and value != usual[key]}
    return {"name": column.name, "kind": column.kind, **{key: _plain(value) for key, value in changed.items()}}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return int(value) if type(value) is float and value.is_integer() and abs(value) < _MAX_WHOLE else value


def column_from(document: Any, place: int) -> Column:
    """Read a column that `column_document` wrote; anything else raises `InvalidFile`."""
    if not isinstance(document, dict):
        raise InvalidFile(f"column {place} is not an object")
    content = dict(document)
    kind = content.pop("kind", None)
    if not isinstance(kind, str) or kind not in KINDS:
        raise InvalidFile(f"column {place}: its kind is {kind!r}, it must be one of {', '.join(KINDS)}")
    known = {each.name: each for each in fields(KINDS[kind])}
    for key, value in content.items():
        if key not in known:
            raise InvalidFile(f"column {place}: a {kind} has no {key!r}.{nearest(key, known)}")
        content[key] = _typed(value, known[key].default)
    if "name" not in content:
        raise InvalidFile(f"column {place} has no name")
    try:
        return KINDS[kind](**content)
    except InvalidInput as error:
        raise InvalidFile(f"column {place} ({content['name']!r:.100}): {error}") from None


def _typed(value: Any, like: Any) -> Any:
    """Lists as tuples, and integers as floats where the field holds floats."""
    if isinstance(value, list):
        return tuple(_typed(each, like[0] if isinstance(like, tuple) and like else None) for each in value)
    if like is not MISSING and type(like) is float and type(value) is int:
        return float(value)
    return value
