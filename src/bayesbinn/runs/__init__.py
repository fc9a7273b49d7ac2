"""An experiment in its own folder, resumable at any time."""

from bayesbinn.runs.single import Run

__all__ = ["Run"]
