"""Image files as pixels: which files are read, how large they may be, and which way up they are."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bayesbinn.data.own.memory import check_fits
from bayesbinn.environment import need
from bayesbinn.errors import BayesbinnError, InvalidFile

Pixels = npt.NDArray[np.uint8]
SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
MAX_PIXELS = 50_000_000
"""The largest image that is decoded. A few kilobytes of PNG can hold more, and take gigabytes."""

_ORIENTATION = 0x0112  # the EXIF tag


def is_image(path: Path) -> bool:
    """Whether the name is an image's; what is not a regular file is refused, as reading a pipe may never end."""
    if path.suffix.lower() not in SUFFIXES or path.name.startswith("."):
        return False
    if not path.is_file():
        raise InvalidFile(f"{path}: not a regular file, though its name is an image's: remove or rename it")
    return True


def check_name(folder: Path) -> None:
    """Refuse a class whose name could not be written into any file."""
    try:
        folder.name.encode()
    except UnicodeEncodeError:
        raise InvalidFile(f"{folder}: its name, which is that of a class, is not UTF-8: rename the folder") from None


def read_images(paths: Sequence[Path]) -> dict[Path, Pixels]:
    """Pixels of images of one size; nothing is decoded before it is known that all fit into memory."""
    total = 0
    for path in paths:
        with _opened(path) as image:
            total += image.width * image.height * (1 if image.mode in ("1", "L") else 3)
    check_fits(paths[0].parent, total, f"{len(paths)} images")
    pixels = {path: pixels_of(path) for path in paths}
    _check_sizes(pixels)
    return pixels


def pixels_of(path: Path) -> Pixels:
    """uint8 [H, W] of a grey image, [H, W, 3] of any other, turned as its EXIF orientation says."""
    with _opened(path) as image:
        if image.mode.startswith(("I", "F")):
            raise InvalidFile(f"{path}: more than 8 bits a pixel (mode {image.mode}): convert it to 8 bits first")
        plain = image.convert("L" if image.mode in ("1", "L") else "RGB")
        return np.asarray(_upright(plain, _orientation(image)))


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """An image whose header is read and whose size is allowed; damage found now or later is one line."""
    pillow = need("PIL.Image", "reading images")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Pillow, about metadata that are not used, and about size
            with pillow.open(path) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise InvalidFile(
                        f"{path}: {image.width:,}×{image.height:,} pixels; images of at most {MAX_PIXELS:,} pixels "
                        "are read: resize it"
                    )
                yield image
    except BayesbinnError:
        raise
    except Exception as error:  # damaged images make Pillow raise anything: struct.error, KeyError, ValueError, ...
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise InvalidFile(f"{path}: not a readable image ({reason}): replace or remove it") from error


def _orientation(image: Any) -> int:
    """Which way up, from 1 to 8; asked after decoding, because Pillow turns a TIFF itself and then says 1."""
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # damaged metadata say nothing; the pixels are whole
        return 1


def _upright(image: Any, orientation: int) -> Any:
    methods = need("PIL.Image", "reading images").Transpose
    turns = {
        2: methods.FLIP_LEFT_RIGHT,
        3: methods.ROTATE_180,
        4: methods.FLIP_TOP_BOTTOM,
        5: methods.TRANSPOSE,
        6: methods.ROTATE_270,
        7: methods.TRANSVERSE,
        8: methods.ROTATE_90,
    }
    return image.transpose(turns[orientation]) if orientation in turns else image


def _check_sizes(pixels: dict[Path, Pixels]) -> None:
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
