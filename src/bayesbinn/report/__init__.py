"""A run, a stream, a sweep or a model file as one HTML page to look at, or as a model card."""

from bayesbinn.report.sources import write_card, write_report

__all__ = ["write_card", "write_report"]
