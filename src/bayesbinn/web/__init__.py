"""The runtime for browsers and Node: an ES module and the WebAssembly that it runs.

Both files are part of the package. ``make wasm`` and ``make web`` build them from ``csrc/`` and ``web/src/``.
"""

from __future__ import annotations

import re
from base64 import b64encode
from importlib.resources import files

__all__ = ["bundle", "module", "wasm"]

_EXPORTS = re.compile(r"export\{([^}]*)\};?\s*$")


def module() -> str:
    """The text of the ES module, whose `load` reads a model file."""
    return files(__name__).joinpath("bayesbinn.js").read_text(encoding="utf-8")


def wasm() -> bytes:
    """The content of ``bayesbinn.wasm``, which must be next to the module or passed to `load` as an option."""
    return files(__name__).joinpath("bayesbinn.wasm").read_bytes()


def bundle() -> str:
    """One script for ``<script type="module">`` in a page, with the WebAssembly in it.

    It defines ``globalThis.bayesbinn`` with the module's names; `load` needs no option ``wasm`` there. The text
    contains no ``</script`` and no address, so it works in a file that is opened from disk.

    >>> "globalThis.bayesbinn=" in bundle() and "</script" not in bundle()
    True
    """
    text = module()
    found = _EXPORTS.search(text)
    assert found is not None, "the module ends with its exports"
    pairs = [name.split(" as ") for name in found[1].split(",")]
    names = {outer.strip(): inner.strip() for inner, outer in (pair if len(pair) == 2 else pair * 2 for pair in pairs)}
    inner = names.pop("load")
    exported = ",".join(f"{outer}:{name}" for outer, name in names.items())
    content = b64encode(wasm()).decode("ascii")
    return (
        f"{text[: found.start()]}\n"
        f'const wasm=Uint8Array.from(atob("{content}"),(each)=>each.charCodeAt(0));\n'
        f"globalThis.bayesbinn={{{exported},load:(bytes,options)=>{inner}(bytes,{{wasm,...options}})}};\n"
    )
