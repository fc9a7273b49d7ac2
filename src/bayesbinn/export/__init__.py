"""Writes a model file in forms that other programs run: ONNX, and C for anything with a C compiler.

Needs neither torch nor the model that was packed, only the model file; ONNX needs the package `onnx`.
"""

from bayesbinn.export.c import export_c
from bayesbinn.export.onnx import export_onnx

__all__ = ["export_c", "export_onnx"]
