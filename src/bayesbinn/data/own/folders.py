"""A folder of images, one subfolder for each class."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bayesbinn.data.dataset import Dataset
from bayesbinn.data.own.build import Examples, build
from bayesbinn.data.own.images import SUFFIXES, check_name, is_image, read_images, stack
from bayesbinn.errors import InvalidFile


def load_images(path: Path) -> Dataset:
    """`path/CLASS/*.png`, or `path/train/CLASS/*.png` and `path/test/CLASS/*.png`."""
    divided = (path / "train").is_dir() and (path / "test").is_dir()
    folders = [path / "train", path / "test"] if divided else [path]
    found = [_files(folder) for folder in folders]
    pixels = read_images([file for files in found for file, _ in files])
    channels = 1 if all(image.ndim == 2 for image in pixels.values()) else 3
    return build(
        path,
        *(
            Examples(stack([pixels[file] for file, _ in files], channels), np.array([name for _, name in files]))
            for files in found
        ),
    )


def _files(folder: Path) -> list[tuple[Path, str]]:
    """Every image with its class, sorted, so that the order does not depend on the file system."""
    classes = sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    if len(classes) < 2:
        held = f"only one subfolder, {classes[0].name}" if classes else "no subfolder"
        raise InvalidFile(f"{folder}: it has {held}: 2 or more are needed, one with the images of each class")
    files = []
    for each in classes:
        check_name(each)
        own = sorted(p for p in each.iterdir() if is_image(p))
        if not own:
            kinds = " ".join(sorted(SUFFIXES))
            raise InvalidFile(f"{each}: no image in it ({kinds}): put some there or remove the folder")
        files += [(p, each.name) for p in own]
    return files
