"""A folder of images, one subfolder for each class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bayesbinn.data.dataset import Dataset
from bayesbinn.data.optional import need
from bayesbinn.data.own import Examples, build
from bayesbinn.errors import InvalidFile

Pixels = npt.NDArray[np.uint8]
SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})


def load_images(path: Path) -> Dataset:
    """`path/CLASS/*.png`, or `path/train/CLASS/*.png` and `path/test/CLASS/*.png`."""
    divided = (path / "train").is_dir() and (path / "test").is_dir()
    folders = [path / "train", path / "test"] if divided else [path]
    found = [_files(folder) for folder in folders]
    pixels = {file: pixels_of(file) for files in found for file, _ in files}
    check_sizes(pixels)
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
        own = sorted(p for p in each.iterdir() if p.suffix.lower() in SUFFIXES and not p.name.startswith("."))
        if not own:
            kinds = " ".join(sorted(SUFFIXES))
            raise InvalidFile(f"{each}: no image in it ({kinds}): put some there or remove the folder")
        files += [(p, each.name) for p in own]
    return files


def pixels_of(path: Path) -> Pixels:
    """uint8 [H, W] of a grey image, [H, W, 3] of any other."""
    pillow = need("PIL.Image", "reading images")
    try:
        with pillow.open(path) as image:
            if image.mode.startswith(("I", "F")):
                raise InvalidFile(f"{path}: more than 8 bits a pixel (mode {image.mode}): convert it to 8 bits first")
            return np.asarray(image.convert("L" if image.mode in ("1", "L") else "RGB"))
    except (OSError, SyntaxError, pillow.DecompressionBombError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InvalidFile(f"{path}: not a readable image ({reason}): replace or remove it") from error


def check_sizes(pixels: dict[Path, Pixels]) -> None:
    first = next(iter(pixels))
    height, width = pixels[first].shape[:2]
    for path, image in pixels.items():
        if image.shape[:2] != (height, width):
            raise InvalidFile(
                f"{path}: {image.shape[1]}×{image.shape[0]} pixels, but {first} has {width}×{height}: all images need "
                f"one size; resize them, for example with ImageMagick: mogrify -resize '{width}x{height}!' FILES"
            )


def stack(images: list[Pixels], channels: int) -> Tensor:
    """[N, channels, H, W]; a grey image is repeated where three channels are wanted."""
    if channels == 1:
        return torch.from_numpy(np.stack(images)[:, None])
    colours = [np.stack([i] * 3) if i.ndim == 2 else i.transpose(2, 0, 1) for i in images]
    return torch.from_numpy(np.stack(colours))
