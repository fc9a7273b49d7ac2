"""A run's metrics as curves for TensorBoard: the tracker that every run of one task uses if it is installed.

Only TensorBoard's message classes are imported, which takes 0.03 s; its writer, or torch's, would add ten times as much
to the start of every run. They are written to a file that is a list of records::

    length of the message: 8 bytes | checksum of the length: 4 | message | checksum of the message: 4

all little-endian, with TFRecord's masked CRC-32C as the checksum.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, BinaryIO

from bayesbinn.errors import InvalidFile
from bayesbinn.files import make_folder, reason_of
from bayesbinn.runs.tracking import Tracker
from bayesbinn.train.folder import RunFolder

FOLDER = "tensorboard"
_VERSION = "brain.Event:2"


def installed() -> bool:
    """Whether TensorBoard's message classes can be imported."""
    try:
        from tensorboard.compat.proto import event_pb2, summary_pb2

        return bool(event_pb2 and summary_pb2)
    except ImportError:
        return False


class Curves(Tracker):
    """Writes to the folder `tensorboard` of a run.

    A resumed run starts at `first_epoch`: TensorBoard hides what an earlier session wrote from there on.
    """

    def __init__(self, folder: RunFolder, first_epoch: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._event, self._summary = Event, Summary
        self._path = folder.writable(FOLDER) / _file_name()
        make_folder(self._path.parent)
        try:
            self._file: BinaryIO = self._path.open("xb")
        except OSError as error:
            raise InvalidFile(f"{self._path}: could not be written ({reason_of(error)})") from None
        self._write(file_version=_VERSION)
        self._write(step=first_epoch, session_log=SessionLog(status=SessionLog.START))

    def close(self) -> None:
        with suppress(OSError):  # what could not be written has been reported
            self._file.close()

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Add the numbers of an epoch; they are visible before the next one starts."""
        values = [self._summary.Value(tag=key, simple_value=value) for key, value in numbers.items()]
        self._write(step=step, summary=self._summary(value=values))

    def _write(self, **content: Any) -> None:
        try:
            self._file.write(_record(self._event(wall_time=time.time(), **content).SerializeToString()))
            self._file.flush()
        except OSError as error:
            raise InvalidFile(f"{self._path}: could not be written ({reason_of(error)})") from None


def _file_name() -> str:
    """A new name that sorts after earlier ones: TensorBoard reads the files of a folder in order of name."""
    seconds, nanoseconds = divmod(time.time_ns(), 10**9)
    return f"events.out.tfevents.{seconds}.{socket.gethostname()}.{os.getpid()}.{nanoseconds:09d}"


def _record(message: bytes) -> bytes:
    length = struct.pack("<Q", len(message))
    return length + struct.pack("<I", _masked_crc(length)) + message + struct.pack("<I", _masked_crc(message))


def _masked_crc(content: bytes) -> int:
    """CRC-32C, rotated by 15 bits plus a constant, as TFRecord masks it."""
    crc = _crc32c(content)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _crc32c(content: bytes) -> int:
    """Castagnoli's checksum.

    >>> hex(_crc32c(b"123456789"))
    '0xe3069283'
    """
    crc = 0xFFFFFFFF
    for byte in content:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _table_entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_TABLE = [_table_entry(byte) for byte in range(256)]
