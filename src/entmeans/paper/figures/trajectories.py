"""Soft and hard paths from one start."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ...plots import FAINT, INK, PALETTE
from ..geometries import GEOMETRIES
from ..paths import MAPPINGS
from ..records import Record
from ..trajectories import RULES
from .style import band, label, panels, plane

SOFT = {"0.3": (PALETTE[1], "--", "T = 0.3 scale"), "0.03": (PALETTE[0], "-.", "T = 0.03 scale")}
HARD = {"color": INK, "linestyle": "-", "label": "K-means, T = 0"}


def draw(record: Record) -> dict[str, Figure]:
    """Paths of one start in the plane, and their distance by temperature."""
    return {"c3-paths": _paths(record), "c3-distance": _distance(record)}


def _paths(record: Record) -> Figure:
    figure, grid = panels(1, 4, 3.0)
    for axes, drawn in zip(grid[0], record["drawn"], strict=True):
        plane(axes, drawn["points"], drawn["geometry"])
        for t, (color, line, name) in SOFT.items():
            _path(axes, drawn["paths"][t], color=color, linestyle=line, label=name)
        _path(axes, drawn["paths"]["0.0"], **HARD)
        first = np.array(drawn["paths"]["0.0"][0])
        x, y = first.T
        axes.scatter(x, y, s=34, facecolor="white", edgecolor=INK, linewidth=1.2, zorder=4)
    handles, names = grid[0][0].get_legend_handles_labels()
    unique = dict(zip(names, handles, strict=True))
    figure.legend(
        unique.values(),
        unique.keys(),
        loc="outside lower center",
        ncols=3,
        frameon=False,
        fontsize=9,
    )
    return figure


def _path(axes: Axes, path: list[list[list[float]]], **style: Any) -> None:
    for x, y in np.array(path).transpose(1, 2, 0):
        axes.plot(x, y, linewidth=1.6, zorder=3, **style)
        axes.scatter(x[-1:], y[-1:], s=26, color=style["color"], zorder=5)


def _distance(record: Record) -> Figure:
    figure, grid = panels(2, 4, 2.7, sharex=True, sharey=True)
    floor = 1e-17
    for row, rule in zip(grid, RULES, strict=True):
        for axes, geometry in zip(row, GEOMETRIES, strict=True):
            margins = []
            for mapping in MAPPINGS:
                runs = [
                    r
                    for r in record["runs"]
                    if (r["geometry"], r["rule"], r["mapping"]) == (geometry, rule, mapping)
                ]
                columns = zip(*(r["distances"] for r in runs), strict=True)
                values = [[max(d, floor) for d in column] for column in columns]
                band(axes, record["temperatures"], values, mapping)
                margins = [r["smallest_margin"] / 2 for r in runs]
            axes.axvspan(min(margins), max(margins), color=FAINT, alpha=0.7, linewidth=0, zorder=0)
            axes.set_xscale("log")
            axes.set_yscale("log")
            label(axes, f"{geometry}, {rule}", "T / scale" if row is grid[1] else "")
        row[0].set_ylabel("largest distance / radius", size=9)
    grid[0][0].set_yticks([floor, 1e-12, 1e-6, 1], ["0", "1e-12", "1e-6", "1"])
    handles, names = grid[0][0].get_legend_handles_labels()
    handles.append(Patch(color=FAINT))
    names.append("half the smallest margin of the path, over seeds")
    figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure
