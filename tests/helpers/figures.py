"""A figure or table of the paper, reproduced from the contents of a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bayesbinn import paper


def reproduced(name: str, folder: Path, **options: Any) -> tuple[list[str], str, dict[str, Any]]:
    """The lines, the Markdown and the numbers; the pictures must exist and not be blank."""
    options = {"runs": folder / "runs", "out": folder / "out", **options}
    lines = list(paper.reproduce(name, **options))
    for suffix, magic in (("png", b"\x89PNG"), ("pdf", b"%PDF")):
        if f"{name}.{suffix}" not in lines[-1]:
            continue
        content = (folder / "out" / f"{name}.{suffix}").read_bytes()
        assert content.startswith(magic) and len(content) > 5000
    text = (folder / "out" / f"{name}.md").read_text(encoding="utf-8")
    return lines, text, json.loads((folder / "out" / f"{name}.json").read_text(encoding="utf-8"))
