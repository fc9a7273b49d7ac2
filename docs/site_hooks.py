"""What the site needs beyond Markdown: pages from outside docs/, and equations as MathML.

Pages link to ``../results/...`` and ``../CHANGELOG.md``, which works where the repository is browsed. The site gets
these files as its own pages and pictures. Equations are rendered when the site is built, so it needs no scripts.
"""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
OUTSIDE = [ROOT / "CHANGELOG.md", *sorted((ROOT / "results").rglob("*"))]
SUFFIXES = {".md", ".png"}
_LINK = re.compile(r"\]\(((?:\.\./)+)(results/|CHANGELOG\.md)")
_UPWARDS = re.compile(r"\]\(\.\./docs/")
_MATH = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.S)


def on_files(files: Files, config: Any) -> Files:
    """Add results/ and the changelog."""
    for path in OUTSIDE:
        if path.suffix in SUFFIXES:
            name = path.relative_to(ROOT).as_posix()
            files.append(File(name, str(ROOT), config.site_dir, config.use_directory_urls))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links that leave docs/ to the copies inside the site."""
    if page.file.src_uri.startswith("results/"):
        return _UPWARDS.sub("](../", markdown)
    return _LINK.sub(lambda link: f"]({link[1][3:]}{link[2]}", markdown)


def on_page_content(content: str, **_: Any) -> str:
    """Equations as MathML, which browsers draw by themselves."""
    return _MATH.sub(_mathml, content)


def _mathml(found: re.Match[str]) -> str:
    display = "block" if found[1] == "div" else "inline"
    return convert(html.unescape(found[2]).strip(), display=display)
