"""Data sets as whole tensors in memory."""

from bayesbinn.data.arrays import Split
from bayesbinn.data.digits import load_digits

__all__ = ["Split", "load_digits"]
