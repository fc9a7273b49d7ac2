"""SHA-256 inside a file, over all of its other bytes: one flipped bit and the file is refused.

A checkpoint is a zip archive that `torch.load` reads. The digest is the archive's comment, at the very end.
A posterior is a safetensors file. The digest is in its metadata, computed while its own digits are zeros.
Files written before there were checksums have neither, and are still read.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from typing import Any

from bayesbinn.errors import InvalidFile

DAMAGED = "its checksum does not fit: the file is damaged"
KEY = "checksum"
_DIGITS = 64
_ZEROS = b"0" * _DIGITS
_ZIP_END = b"PK\x05\x06"
_ZIP_END_SIZE = 22
_COMMENT = b"bayesbinn sha256 "
_MAX_HEADER = 100_000_000
"""Bytes, as the safetensors library has it."""


# ---- zip archives ---------------------------------------------------------------------------------


def seal_zip(archive: bytes | bytearray | memoryview) -> bytearray:
    """An archive without a comment, with its digest as the comment."""
    content = bytearray(archive)
    if not _ends_without_comment(content):
        raise ValueError("not a zip archive without a comment")
    content[-2:] = (len(_COMMENT) + _DIGITS).to_bytes(2, "little")
    content += _COMMENT
    content += hashlib.sha256(content).hexdigest().encode()
    return content


def check_zip(content: bytes) -> None:
    """Refuse an archive that has changed since `seal_zip`. One that was never sealed passes."""
    if _ends_without_comment(content):
        return
    seal = content[-_DIGITS - len(_COMMENT) : -_DIGITS]
    digest = hashlib.sha256(memoryview(content)[:-_DIGITS]).hexdigest().encode()
    if seal != _COMMENT or content[-_DIGITS:] != digest:
        raise InvalidFile(DAMAGED)


def _ends_without_comment(content: bytes | bytearray) -> bool:
    return content[-_ZIP_END_SIZE : -_ZIP_END_SIZE + 4] == _ZIP_END and content[-2:] == b"\0\0"


# ---- safetensors ----------------------------------------------------------------------------------


def seal_safetensors(plain: bytes, metadata: dict[str, str]) -> bytearray:
    """A safetensors file without metadata, with this metadata and its digest: the same input gives the same bytes."""
    length = int.from_bytes(plain[:8], "little")
    header = {"__metadata__": {**metadata, KEY: _ZEROS.decode()}, **json.loads(plain[8 : 8 + length])}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # so that the tensors are aligned
    content = bytearray(len(text).to_bytes(8, "little") + text + plain[8 + length :])
    start = _place_of_digits(text, _ZEROS) + 8
    content[start : start + _DIGITS] = hashlib.sha256(content).hexdigest().encode()
    return content


def check_safetensors(content: bytes, was_never_sealed: Callable[[dict[str, str]], bool]) -> dict[str, str]:
    """The metadata of a file, refused if it has changed since `seal_safetensors`.

    `was_never_sealed` tells from metadata without a digest whether it is that of an older file.
    """
    header = _header_of(content)
    metadata = json.loads(header).get("__metadata__", {})
    digest = metadata.get(KEY)
    if digest is None and was_never_sealed(metadata):
        return dict(metadata)
    if not isinstance(digest, str) or not re.fullmatch(f"[0-9a-f]{{{_DIGITS}}}", digest):
        raise InvalidFile(DAMAGED)
    start = _place_of_digits(header, digest.encode()) + 8
    zeroed = hashlib.sha256(content[:start])
    zeroed.update(_ZEROS)
    zeroed.update(memoryview(content)[start + _DIGITS :])
    if zeroed.hexdigest() != digest:
        raise InvalidFile(DAMAGED)
    return dict(metadata)


def _header_of(content: bytes) -> bytes:
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 or length > min(len(content) - 8, _MAX_HEADER):
        raise InvalidFile("it is cut off, or no safetensors file")
    return content[8 : 8 + length]


def _place_of_digits(header: bytes, digits: bytes) -> int:
    # Only one place can follow the key: within a JSON string the quotes would be escaped.
    found: Any = re.search(rb'"' + KEY.encode() + rb'":"(' + digits + rb')"', header)
    if found is None:
        raise InvalidFile(DAMAGED)
    return int(found.start(1))
