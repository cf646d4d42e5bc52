"""The report: one page that needs no network, and the same as Markdown."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from ..plots import FAINT, INK, MUTED, PALETTE
from .records import Record

MARKS = {"holds": "●", "holds under a condition": "◐", "does not hold": "○"}
"""Verdicts are told apart by shape and words, not by color alone."""

CLASSES = {"holds": "yes", "holds under a condition": "partly", "does not hold": "no"}


def render_html(results: Record, figures: Mapping[str, str], frames: Record) -> str:
    """One self-contained page.

    Parameters
    ----------
    results : dict
        What results.json holds.
    figures : mapping of str to str
        The SVG text of each figure.
    frames : dict
        Of `entmeans.paper.frames.all_frames`.
    """
    uris = {
        name: "data:image/svg+xml;base64," + base64.b64encode(text.encode()).decode()
        for name, text in figures.items()
    }
    # "<" would end the script that holds the data.
    data = Markup(json.dumps(frames, allow_nan=False).replace("<", "\\u003c"))
    page = _environment().get_template("report.html")
    colors = {"ink": INK, "muted": MUTED, "faint": FAINT, "palette": PALETTE}
    return page.render(
        **results, figures=uris, frames=data, marks=MARKS, classes=CLASSES, colors=colors
    )


def render_markdown(results: Record, paths: Mapping[str, str]) -> str:
    """The same text for GitHub; figures are files at these paths."""
    return _environment().get_template("report.md").render(**results, paths=paths, marks=MARKS)


def verdict_rows(results: Record) -> str:
    """The first table of the report in Markdown.

    Examples
    --------
    >>> from entmeans.paper.report import verdict_rows
    >>> claim = {"id": "C1", "title": "T", "measured": "1 | 2", "verdict": "holds"}
    >>> print(verdict_rows({"claims": [claim]}))
    | claim | measured | verdict |
    |---|---|---|
    | C1 T | 1 \\| 2 | ● holds |
    """
    lines = ["| claim | measured | verdict |", "|---|---|---|"]
    for claim in results["claims"]:
        verdict = f"{MARKS[claim['verdict']]} {claim['verdict']}"
        cells = f"{claim['id']} {claim['title']}", claim["measured"], verdict
        lines.append(f"| {' | '.join(map(_cell, cells))} |")
    return "\n".join(lines)


def _cell(text: str) -> str:
    """Text that does not end a cell of a table in Markdown."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("entmeans.paper"),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["cell"] = _cell
    environment.globals["verdict_rows"] = verdict_rows
    return environment
