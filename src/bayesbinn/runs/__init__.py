"""An experiment in a folder of its own, resumable at any moment."""

from bayesbinn.runs.single import Run

__all__ = ["Run"]
