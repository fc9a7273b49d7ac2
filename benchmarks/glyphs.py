"""Digits, letters and scribbles that no network was trained on, for benchmarks/drawings.py.

All are drawn on a large canvas, the digits and the letters in the same fonts, and prepared alike by
`bayesbinn.data.centred`, as MNIST was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import cos, pi, sin
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from bayesbinn.data.centred import centred

DIGITS = "0123456789"
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
LOOK_ALIKES = "OoDQaIlZzYySsbGBgq"
"""Letters that some people write, alone and at the size of a digit, as others write one: O, o, D, Q and a like 0,
I and l like 1, Z and z like 2, Y and y like an open 4, S and s like 5, b and G like 6, B like 8, g and q like 9.
A network cannot refuse these and accept all digits. Chosen before anything was measured."""

FONTS = {
    "fonts-dejavu": ("DejaVuSans.ttf", "DejaVuSerif.ttf"),
    "fonts-liberation": ("LiberationSans-Regular.ttf", "LiberationSerif-Italic.ttf"),
    "fonts-freefont-ttf": ("FreeSans.ttf", "FreeSerif.ttf"),
    "fonts-comic-neue": ("ComicNeue-Regular.otf", "ComicNeue-Italic.otf"),
    "fonts-humor-sans": ("Humor-Sans.ttf",),
    "fonts-dkg-handwriting": ("dkg.ttf",),
    "fonts-bwht": ("BecauseWeOrganize-Regular.otf", "BecauseWeLearn-Regular.otf"),
    "fonts-breip": ("Breip.ttf",),
    "fonts-klee": ("KleeOne-Regular.ttf",),
}
"""Debian packages and the fonts taken from them: print, italics and handwriting."""
OTHER_FONTS = {
    "fonts-open-sans": ("OpenSans-Regular.ttf",),
    "fonts-roboto-unhinted": ("Roboto-Regular.ttf",),
    "fonts-linuxlibertine": ("LinLibertine_R.otf", "LinLibertine_RI.otf"),
    "fonts-kaushanscript": ("KaushanScript-Regular.otf",),
    "fonts-play": ("Play-Regular.ttf",),
}
"""Fonts for a second look: everything was settled when they were first drawn."""
CAPITALS_ONLY = {"Humor-Sans.ttf", *FONTS["fonts-bwht"]}
"""Fonts whose small letters are capitals; only these are drawn."""

FONT_FOLDER = Path("/usr/share/fonts")
CANVAS = 280
_TURN, _SHEAR = pi / 18, 0.15  # the largest slants: 10 degrees, and 15 % of the height

Pixels = NDArray[np.uint8]


def font_paths(packages: Mapping[str, tuple[str, ...]]) -> list[Path]:
    """The files of such fonts; FileNotFoundError names the packages to install."""
    found = {path.name: path for path in FONT_FOLDER.rglob("*.[to]tf")}
    lost = [package for package, names in packages.items() if not set(names) <= set(found)]
    if lost:
        raise FileNotFoundError(f"fonts are missing: apt-get install {' '.join(lost)}")
    return [found[name] for names in packages.values() for name in names]


def glyphs(characters: str, fonts: Sequence[Path], times: int, seed: int) -> tuple[Pixels, list[str]]:
    """[images, 28, 28] of each character in each font, `times` over at random slants, and the characters."""
    random = np.random.default_rng(seed)
    images, names = [], []
    for path in fonts:
        font = ImageFont.truetype(str(path), CANVAS // 2)
        capitals = path.name in CAPITALS_ONLY
        for character in (each for each in characters if not (capitals and each.islower())):
            for _ in range(times):
                images.append(centred(_slanted(_written(character, font), random)))
                names.append(character)
    return np.stack(images), names


def scribbles(count: int, seed: int) -> Pixels:
    """[count, 28, 28] aimless lines of a round pen: waves, zigzags, knots, hatching, and several short strokes."""
    random = np.random.default_rng(seed)
    kinds = (_wave, _zigzag, _knot, _hatching, _dashes)
    images = [centred(drawn(kinds[i % len(kinds)](random), random.uniform(14, 26))) for i in range(count)]
    return np.stack(images)


def drawn(strokes: Sequence[NDArray[np.float64]], width: float) -> Pixels:
    """[CANVAS, CANVAS]: lines of a round pen, white on black, with soft edges."""
    fine = 3  # drawn larger and averaged
    image = Image.new("L", (CANVAS * fine, CANVAS * fine))
    pen = ImageDraw.Draw(image)
    radius = width * fine / 2
    for stroke in strokes:
        points = [(float(x) * fine, float(y) * fine) for x, y in stroke]
        pen.line(points, fill=255, width=round(2 * radius))
        for x, y in points:
            pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=255)
    return np.asarray(image.reduce(fine))


def _written(character: str, font: ImageFont.FreeTypeFont) -> Image.Image:
    image = Image.new("L", (CANVAS, CANVAS))
    ImageDraw.Draw(image).text((CANVAS / 2, CANVAS / 2), character, fill=255, font=font, anchor="mm")
    return image


def _slanted(image: Image.Image, random: np.random.Generator) -> Pixels:
    turn, shear = random.uniform(-_TURN, _TURN), random.uniform(-_SHEAR, _SHEAR)
    a, b, c, d = cos(turn), -sin(turn) + shear, sin(turn), cos(turn)
    middle = CANVAS / 2
    data = (a, b, middle - a * middle - b * middle, c, d, middle - c * middle - d * middle)
    return np.asarray(image.transform(image.size, Image.Transform.AFFINE, data, Image.Resampling.BILINEAR))


def _placed(points: NDArray[np.float64], random: np.random.Generator) -> list[NDArray[np.float64]]:
    """One stroke, in the middle of the canvas at a random size and angle."""
    points = points - (points.min(axis=0) + points.max(axis=0)) / 2
    points = points * (random.uniform(0.25, 0.4) * CANVAS / np.abs(points).max())
    turn = random.uniform(0, 2 * pi)
    return [points @ np.array([[cos(turn), sin(turn)], [-sin(turn), cos(turn)]]) + CANVAS / 2]


def _wave(random: np.random.Generator) -> list[NDArray[np.float64]]:
    t = np.linspace(0, 1, 120)
    return _placed(np.stack([t, random.uniform(0.2, 0.5) * np.sin(2 * pi * random.uniform(2, 4) * t)], axis=1), random)


def _zigzag(random: np.random.Generator) -> list[NDArray[np.float64]]:
    corners = random.integers(5, 10)
    heights = random.uniform(0.3, 0.8) * (np.arange(corners) % 2 + random.uniform(-0.15, 0.15, corners))
    return _placed(np.stack([np.linspace(0, 1, corners), heights], axis=1), random)


def _knot(random: np.random.Generator) -> list[NDArray[np.float64]]:
    """A closed curve of a few random frequencies: loops that cross."""
    t = np.linspace(0, 2 * pi, 200)
    curve = np.zeros((200, 2))
    for frequency in (1, 2, 3, 4):
        amplitudes, phases = random.normal(size=2), random.uniform(0, 2 * pi, 2)
        curve += amplitudes * np.sin(frequency * t[:, None] + phases)
    return _placed(curve, random)


def _hatching(random: np.random.Generator) -> list[NDArray[np.float64]]:
    """Two or three lines across two or three others."""
    strokes = []
    for axis in (0, 1):
        for place in np.linspace(0.25, 0.75, random.integers(2, 4)):
            ends = np.array([[0.15, place], [0.85, place]]) + random.normal(0, 0.03, (2, 2))
            strokes.append(CANVAS * (ends if axis == 0 else ends[:, ::-1]))
    return strokes


def _dashes(random: np.random.Generator) -> list[NDArray[np.float64]]:
    """Three to six short strokes anywhere."""
    starts = random.uniform(0.2, 0.8, (random.integers(3, 7), 2))
    return [CANVAS * np.stack([start, start + random.uniform(-0.25, 0.25, 2)]) for start in starts]
