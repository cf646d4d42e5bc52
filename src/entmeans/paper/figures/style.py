"""Colors, markers and order of all figures: the same everywhere, and legible without color."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...plots import FAINT, INK, MUTED, PALETTE, dress, new_figure

WIDTH = 10.0
"""Of every figure, in inches."""

MAPPING_STYLES: dict[str, dict[str, Any]] = {
    "hard": {"color": INK, "linestyle": "-", "marker": "s", "label": "K-means"},
    "softmax": {"color": PALETTE[1], "linestyle": "--", "marker": "o", "label": "softmax"},
    "entmax15": {"color": PALETTE[0], "linestyle": "-", "marker": "D", "label": "entmax15"},
    "sparsemax": {"color": PALETTE[2], "linestyle": "-.", "marker": "^", "label": "sparsemax"},
}
"""Keywords of `Axes.plot` for what is drawn once for each mapping, in this order."""

LINE: dict[str, Any] = {"linewidth": 1.6, "markersize": 4.0, "markeredgewidth": 0.0}


def panels(
    rows: int, columns: int, row_height: float, **keywords: Any
) -> tuple[Figure, list[list[Axes]]]:
    """A figure of equal panels that make room for their labels."""
    figure = new_figure(WIDTH, row_height * rows)
    figure.set_layout_engine("constrained")
    grid = figure.subplots(rows, columns, squeeze=False, **keywords)
    return figure, [list(row) for row in grid]


def label(axes: Axes, title: str, x: str = "", y: str = "") -> None:
    """Title and names of the axes, with units, in the house style."""
    dress(axes, title)
    axes.set_xlabel(x, color=MUTED, size=9)
    axes.set_ylabel(y, color=MUTED, size=9)


def legend(axes: Axes, **keywords: Any) -> None:
    axes.legend(frameon=False, labelcolor=INK, fontsize=8.5, **keywords)


def band(axes: Axes, x: Sequence[float], values: Sequence[Sequence[float]], mapping: str) -> None:
    """The median of the values at each x, and their quartiles as a band."""
    style = MAPPING_STYLES[mapping]
    low, middle, high = np.quantile(np.array(values), [0.25, 0.5, 0.75], axis=1)
    axes.fill_between(x, low, high, color=style["color"], alpha=0.16, linewidth=0)
    axes.plot(x, middle, **style, **LINE)


def plane(axes: Axes, points: Sequence[Sequence[float]], title: str) -> None:
    """The points of a geometry, with equal axes and no ticks."""
    x, y = np.array(points).T
    dots: dict[str, Any] = {"color": MUTED, "alpha": 0.45, "linewidths": 0, "rasterized": True}
    axes.scatter(x, y, s=5, zorder=1, **dots)  # as pixels: a path for each would fill the page
    axes.set_aspect("equal")
    axes.set_title(title, loc="left", color=INK, size=10.5)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_color(FAINT)
