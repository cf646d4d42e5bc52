"""Paths of the centers as the temperature falls, and their distance from K-means."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ...functional import nearest
from ...plots import FAINT, INK, MUTED, cluster_colors
from ..freezing import CAUSES
from ..geometries import GEOMETRIES
from ..paths import MAPPINGS
from ..records import Record
from .style import MAPPING_STYLES, label, panels, plane

ZERO = 1e-17
"""Where a distance of exactly 0 is drawn on a logarithmic axis."""

CELLS = 240
"""Pixels of a side on which the final cells are found."""

RISE_MARKS = dict(zip(CAUSES, ("o", "X", "P"), strict=True))


def draw(record: Record) -> dict[str, Figure]:
    """Paths of one seed in the plane, and the distances of all."""
    return {"c4-paths": _paths(record), "c4-distance": _distance(record)}


def _paths(record: Record) -> Figure:
    figure, grid = panels(len(MAPPINGS), len(GEOMETRIES), 2.5)
    found = {(d["geometry"], d["mapping"]): d for d in record["drawn"]}
    for row, mapping in zip(grid, MAPPINGS, strict=True):
        for axes, geometry in zip(row, GEOMETRIES, strict=True):
            drawn = found[geometry, mapping]
            path = np.array(drawn["path"])  # (n_temperatures + 1, K, 2)
            plane(axes, drawn["points"], f"{geometry}, {mapping}")
            _cells(axes, path[-1])
            for j, color in enumerate(cluster_colors(path.shape[1])):
                x, y = path[:, j].T
                axes.plot(x, y, color=color, linewidth=1.8, zorder=3)
                axes.plot(x[:-1], y[:-1], ".", markersize=3, color=color, zorder=4)
                axes.scatter(x[:1], y[:1], s=26, facecolor="white", edgecolor=INK, zorder=5)
                ring: dict[str, Any] = {"edgecolor": "white", "linewidth": 1.2, "zorder": 6}
                axes.scatter(x[-1:], y[-1:], s=48, color=color, **ring)
    handles = [
        Line2D([], [], marker="o", linestyle="", markerfacecolor="white", markeredgecolor=INK),
        Line2D([], [], marker="o", linestyle="", color=MUTED, markersize=7),
        Line2D([], [], color=FAINT, linewidth=1.5),
    ]
    names = "just below the critical temperature", "at T = 0: K-means", "walls of its cells"
    figure.legend(handles, names, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure


def _cells(axes: Axes, centers: Any) -> None:
    """The walls of the Voronoi cells, behind the points."""
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    x, y = np.linspace(left, right, CELLS), np.linspace(low, high, CELLS)
    places = torch.from_numpy(np.stack(np.meshgrid(x, y), -1).reshape(-1, 2))
    labels = nearest(places, torch.from_numpy(centers)).labels.reshape(CELLS, CELLS).numpy()
    for j in range(len(centers)):
        axes.contour(x, y, labels == j, [0.5], colors=[FAINT], linewidths=1.2, zorder=0)


def _distance(record: Record) -> Figure:
    figure, grid = panels(len(MAPPINGS), len(GEOMETRIES), 2.4, sharex=True, sharey=True)
    for row, mapping in zip(grid, MAPPINGS, strict=True):
        for axes, geometry in zip(row, GEOMETRIES, strict=True):
            runs = [
                r for r in record["runs"] if (r["geometry"], r["mapping"]) == (geometry, mapping)
            ]
            for run in runs:
                _run(axes, run, mapping, first=run is runs[0])
            axes.set_xscale("log")
            axes.set_yscale("log")
            label(axes, f"{geometry}, {mapping}", "T / scale" if row is grid[-1] else "")
        row[0].set_ylabel("distance / radius", size=9)
    grid[0][0].set_yticks([ZERO, 1e-12, 1e-8, 1e-4, 1], ["0", "1e-12", "1e-8", "1e-4", "1"])
    handles = [
        Line2D([], [], color=INK, linestyle=":", linewidth=1),
        *(
            Line2D([], [], marker=mark, linestyle="", color=INK, markersize=5)
            for mark in RISE_MARKS.values()
        ),
    ]
    names = ["T* of the first seed", *(f"rise: {cause}" for cause in CAUSES)]
    figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False, fontsize=8.5)
    return figure


def _run(axes: Axes, run: Record, mapping: str, first: bool) -> None:
    temperatures = run["temperatures"]
    far = [max(d, ZERO) for d in run["down"]["distances"]]
    style = MAPPING_STYLES[mapping]
    line: dict[str, Any] = {"color": style["color"], "linestyle": style["linestyle"]}
    axes.plot(temperatures, far, linewidth=2 if first else 0.9, alpha=1 if first else 0.45, **line)
    for rise in run["down"]["rises"]:
        i = rise["step"] + 1
        mark: dict[str, Any] = {"marker": RISE_MARKS[rise["cause"]], "linestyle": ""}
        axes.plot(temperatures[i], far[i], color=INK, markersize=3.5, zorder=5, **mark)
    if first and run["T*"] > 0:
        axes.axvline(run["T*"], color=INK, linewidth=1, linestyle=":")
