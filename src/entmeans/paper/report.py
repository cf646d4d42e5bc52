"""The report: one page that needs no network, and the same as Markdown."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape

from ..plots import FAINT, INK, MUTED, PALETTE
from .records import Record

MARKS = {"holds": "●", "holds under a condition": "◐", "does not hold": "○"}
"""Verdicts are told apart by shape and words, not by color alone."""

CLASSES = {"holds": "yes", "holds under a condition": "partly", "does not hold": "no"}

COLORS = {"ink": INK, "muted": MUTED, "faint": FAINT, "palette": PALETTE}

RELATIONS = {"&lt;=": "≤", "&gt;=": "≥"}


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
    geometries = frames["geometries"]
    return (
        _environment()
        .get_template("report.html")
        .render(
            **results,
            figures={name: _uri(svg) for name, svg in figures.items()},
            geometries=list(geometries),
            mappings=list(next(iter(geometries.values()))),
            # "<" would end the script that holds the data
            frames=Markup(json.dumps(frames, allow_nan=False).replace("<", "\\u003c")),
            colors=COLORS,
            classes=CLASSES,
        )
    )


def render_markdown(results: Record, paths: Mapping[str, str]) -> str:
    """The same text for GitHub; figures are files at these paths."""
    return _environment().get_template("report.md").render(**results, paths=paths)


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
        lines.append(f"| {' | '.join(map(plain, cells))} |")
    return "\n".join(lines)


def plain(text: str) -> str:
    """Text that Markdown shows as it is, on one line, in a cell of a table too.

    Only what could begin a mark is escaped: the T* of a sentence stays as it is.

    Examples
    --------
    >>> from entmeans.paper.report import plain
    >>> print(plain("F_0 at T <= T* is *not* <b> | 5 $"))
    F_0 at T <= T* is \\*not* \\<b> \\| 5 \\$
    """
    marks = r"[\\`|\[\]$]|<(?=[A-Za-z/!?])|(?<!\w)[*_]|\*(?=\w)"
    return re.sub(marks, r"\\\g<0>", " ".join(text.split()))


def typeset(text: str) -> Markup:
    """Text for HTML, with indices, powers of ten and relations as one writes them by hand.

    Examples
    --------
    >>> from entmeans.paper.report import typeset
    >>> print(typeset("F_0 <= 2.5e-09 & <b>"))
    F<sub>0</sub> ≤ 2.5 × 10<sup>−9</sup> &amp; &lt;b&gt;
    >>> print(typeset("1.1e-15, 1e-05"))
    1.1 × 10<sup>−15</sup>, 10<sup>−5</sup>
    """
    html = str(escape(text))
    for typed, written in RELATIONS.items():
        html = html.replace(typed, written)
    html = re.sub(r"\b([A-Z])_(\w+)", r"\1<sub>\2</sub>", html)
    return Markup(re.sub(r"(?<![\d.])\b1e([+-]\d+)\b|(?<=\d)e([+-]\d+)\b", _power, html))


def _power(match: re.Match[str]) -> str:
    alone, after = match.groups()
    exponent = str(int(alone or after)).replace("-", "−")
    return ("" if alone else " × ") + f"10<sup>{exponent}</sup>"


def badge(verdict: str) -> Markup:
    """A verdict as a label whose color, mark and fill differ from those of the others."""
    return Markup('<span class="badge {}">{} {}</span>').format(
        CLASSES[verdict], MARKS[verdict], verdict
    )


def _uri(svg: str) -> str:
    """A figure as an image of its own, so that names in it meet no others."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("entmeans.paper"),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"plain": plain, "typeset": typeset}
    environment.globals |= {"badge": badge, "marks": MARKS, "verdict_rows": verdict_rows}
    return environment
