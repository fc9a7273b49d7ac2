"""The page: a title, headline numbers and sections in one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from string import Template

from bayesbinn.report.blocks import Block, Section, escaped

TEMPLATE = "template.html"


@dataclass(frozen=True)
class Page:
    """Everything that a report shows."""

    title: str
    subtitle: str
    summary: Sequence[Block]
    sections: Sequence[Section]

    def to_html(self) -> str:
        """The whole file. A section without blocks is left out."""
        shown = [section for section in self.sections if section.blocks]
        links = "".join(f'<li><a href="#{each.anchor}">{escaped(each.title)}</a></li>' for each in shown)
        template = Template(files("bayesbinn.report").joinpath(TEMPLATE).read_text(encoding="utf-8"))
        return template.substitute(
            title=escaped(self.title),
            subtitle=escaped(self.subtitle),
            summary="\n".join(block.to_html() for block in self.summary),
            links=links,
            sections="\n".join(section.to_html() for section in shown),
        )
