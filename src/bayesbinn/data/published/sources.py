"""Where to find the files of a published data set on this machine, and what to do if they are missing."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from bayesbinn.data.published.files import existing
from bayesbinn.environment import need
from bayesbinn.errors import MissingDependency

VARIABLE = "BAYESBINN_DATA"


@dataclass(frozen=True)
class Member:
    """One file of a data set."""

    name: str
    md5: str | None = None
    """Checksum of the decompressed content."""


@dataclass(frozen=True)
class Source:
    """The files of a data set and where to get them.

    Without an `archive`, each member is downloaded separately, as `MIRROR + name + ".gz"`.
    """

    name: str
    folders: tuple[str, ...]
    """The supported folder layouts; downloads use the first."""
    members: tuple[Member, ...]
    mirrors: tuple[str, ...]
    archive: str | None = None
    archive_md5: str | None = None
    archive_folder: str | None = None
    """Where the members are inside the archive; the first of `folders` unless stated."""

    @property
    def remote_names(self) -> tuple[str, ...]:
        return (self.archive,) if self.archive else tuple(f"{member.name}.gz" for member in self.members)


def roots(data_dir: str | os.PathLike[str] | None = None) -> list[Path]:
    """Folders to search, in this order: the caller's, the one in BAYESBINN_DATA, the user's cache."""
    named = [Path(folder).expanduser() for folder in (data_dir, os.environ.get(VARIABLE)) if folder]
    try:
        return [*named, Path(need("pooch", "finding the user's cache").os_cache("bayesbinn"))]
    except MissingDependency:
        if named:
            return named
        raise


def find(source: Source, data_dir: str | os.PathLike[str] | None = None) -> Path | None:
    """The first folder that contains every file of the data set, in one of its layouts or directly."""
    for root in roots(data_dir):
        for folder in (*source.folders, ""):
            if all(existing(root / folder, member.name) for member in source.members):
                return root / folder
    return None


def find_archive(source: Source, data_dir: str | os.PathLike[str] | None = None) -> Path | None:
    """The publisher's archive, if the user has put it in one of the folders."""
    if source.archive is None:
        return None
    return next((root / source.archive for root in roots(data_dir) if (root / source.archive).is_file()), None)


def target(source: Source, data_dir: str | os.PathLike[str] | None = None) -> Path:
    """Where a download goes: the first writable folder."""
    places = roots(data_dir)
    return next((place for place in places if _writable(place)), places[-1]) / source.folders[0]


def advice(source: Source, data_dir: str | os.PathLike[str] | None = None) -> str:
    """What to do by hand: which files to put where."""
    folder = target(source, data_dir)
    place = folder.parent if source.archive else folder
    return (
        f"put {', '.join(source.remote_names)} from {source.mirrors[0]} into {place}, "
        f"or name a folder that has {source.folders[0]}/ with --data-dir or {VARIABLE}"
    )


def _writable(folder: Path) -> bool:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK)
