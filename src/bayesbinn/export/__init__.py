"""Export a model file to what other programs run: a web page, ONNX, and C for anything with a C compiler.

Needs only the model file, neither torch nor the original model; ONNX needs the package `onnx`.
"""

from bayesbinn.export.c import export_c
from bayesbinn.export.html import export_html
from bayesbinn.export.onnx import export_onnx

__all__ = ["export_c", "export_html", "export_onnx"]
