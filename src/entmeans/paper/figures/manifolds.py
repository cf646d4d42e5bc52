"""Agreement with the true classes, and how much paths turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...plots import INK, MUTED, PALETTE
from ..geometries import GEOMETRIES
from ..manifolds import METHODS
from ..paths import MAPPINGS
from ..records import Record
from .style import MAPPING_STYLES, label, legend, panels

METHOD_STYLES: dict[str, dict[str, Any]] = {
    "K-means": {"color": INK, "marker": "s"},
    "soft K-means": {"color": PALETTE[0], "marker": "D"},
    "encoder": {"color": PALETTE[3], "marker": "P"},
    "single linkage": {"color": MUTED, "marker": "x"},
}

NAMES = {"soft K-means": "soft K-means, best T"}


def draw(record: Record) -> dict[str, Figure]:
    """Every seed a mark, the median a bar."""
    figure, grid = panels(1, 2, 3.6)
    for i, method in enumerate(METHODS):
        values = [
            [r[method] for r in record["agreement"] if r["geometry"] == g] for g in GEOMETRIES
        ]
        name = NAMES.get(method, method)
        _marks(grid[0][0], values, (i - 1.5) / 5, name, METHOD_STYLES[method])
    for i, mapping in enumerate(MAPPINGS):
        values = [
            [
                r["turning"]
                for r in record["roughness"]
                if (r["geometry"], r["mapping"]) == (g, mapping)
            ]
            for g in GEOMETRIES
        ]
        style = {key: MAPPING_STYLES[mapping][key] for key in ("color", "marker")}
        _marks(grid[0][1], values, (i - 1) / 5, mapping, style)
    label(grid[0][0], "Agreement with the classes", "", "adjusted Rand index (1: the same)")
    label(grid[0][1], "How much paths turn as T falls", "", "total angle of a center, radians")
    grid[0][1].set_ylim(bottom=0)
    for axes in grid[0]:
        axes.set_xticks(range(len(GEOMETRIES)), list(GEOMETRIES))
        axes.grid(visible=False, axis="x")
    grid[0][0].set_ylim(-0.1, 1.35)
    grid[0][0].set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1])
    legend(grid[0][0], loc="upper left", ncols=2, columnspacing=1.0, handletextpad=0.2)
    legend(grid[0][1], loc="upper left")
    return {"c9-manifolds": figure}


def _marks(
    axes: Axes, values: Sequence[Sequence[float]], shift: float, name: str, style: dict[str, Any]
) -> None:
    for i, each in enumerate(values):
        place = np.full(len(each), i + shift)
        axes.scatter(place, each, s=13, alpha=0.6, label=name if i == 0 else None, **style)
        middle = float(np.median(each))
        ends = [i + shift - 0.08, i + shift + 0.08]
        axes.plot(ends, [middle, middle], color=style["color"], linewidth=2.5)
