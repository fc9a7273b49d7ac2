"""What a process that wants another one to be forked says; it imports little, because a program starts with it."""

from __future__ import annotations

import json
import socket


def request(
    connection: socket.socket,
    arguments: list[str],
    environment: dict[str, str],
    folder: str,
    files: tuple[int, int, int],
) -> None:
    """Ask for a process with these arguments of an interpreter and these standard files.

    The answer is its number in a line and, when it has ended, its exit code in another.
    """
    text = json.dumps({"arguments": arguments, "environment": environment, "folder": folder}).encode()
    socket.send_fds(connection, [len(text).to_bytes(8, "big")], files)
    connection.sendall(text)
