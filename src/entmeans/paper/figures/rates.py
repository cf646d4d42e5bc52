"""Laws of the error: exponential, powers, and exactly 0."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ...plots import INK
from ..geometries import GEOMETRIES
from ..paths import MAPPINGS
from ..rates import FRACTIONS, SMOOTH
from ..records import Record
from .style import LINE, MAPPING_STYLES, label, legend, panels

GEOMETRY_MARKS = dict(zip(GEOMETRIES, "oDs^", strict=True))
ZERO = 1e-17
"""Where an error of exactly 0 is drawn on a logarithmic axis."""

THIN: dict[str, Any] = {"linewidth": 0.8, "alpha": 0.5}


def draw(record: Record) -> dict[str, Figure]:
    """The laws of the error, and the errors of all runs above T*."""
    figure, grid = panels(1, 3, 3.4)
    _exponential(grid[0][0], record)
    _smooth(grid[0][1], record)
    _hardening(grid[0][2], record)
    return {"c5-laws": figure, "c5-errors": _errors(record)}


def _exponential(axes: Axes, record: Record) -> None:
    color = MAPPING_STYLES["softmax"]["color"]
    ratios = np.array([])
    for geometry, mark in GEOMETRY_MARKS.items():
        for i, run in enumerate(_runs(record["runs"], "softmax", geometry)):
            ratios = np.array(run["margin_over_T"])
            relative = np.array(run["errors_below"]) / run["errors_below"][0]
            name = geometry if i == 0 else None
            axes.plot(ratios, relative, color=color, marker=mark, markersize=4, label=name, **THIN)
    law = np.exp(ratios.max() - ratios)
    axes.plot(ratios, law, color=INK, linewidth=1.5, label="exp(−m / T)")
    axes.set_yscale("log")
    label(
        axes,
        "softmax far below the smallest margin m",
        "m / T",
        f"error / error at T = m / {ratios.max():.0f}",
    )
    legend(axes, loc="lower left")


def _smooth(axes: Axes, record: Record) -> None:
    for mapping in MAPPINGS:
        runs = [r for r in record["smooth"] if r["mapping"] == mapping]
        errors = np.median([r["errors"] for r in runs], 0)
        axes.plot(runs[0]["temperatures"], errors, **MAPPING_STYLES[mapping], **LINE)
    low, high = SMOOTH
    axes.plot([low, high], [1e-1 * low**2, 1e-1 * high**2], color=INK, linewidth=1, linestyle=":")
    axes.annotate("T²", (low, 1e-1 * low**2), (14, -2), textcoords="offset points", color=INK)
    axes.set_xscale("log")
    axes.set_yscale("log")
    label(
        axes,
        "a smooth density: T² for all mappings",
        "T / squared length",
        "distance from Lloyd's step",
    )
    legend(axes, loc="lower right")


def _errors(record: Record) -> Figure:
    """All of one seed in each geometry: the errors, the fitted laws, and where they are 0."""
    figure, grid = panels(1, len(GEOMETRIES), 3.6, sharey=True)
    for axes, geometry in zip(grid[0], GEOMETRIES, strict=True):
        for mapping in MAPPINGS:
            _error(axes, _runs(record["runs"], mapping, geometry)[0], mapping)
        axes.set_xscale("log")
        axes.set_yscale("log")
        label(axes, geometry, "T / scale")
    grid[0][0].set_ylabel("error / radius", size=9)
    grid[0][0].set_yticks([ZERO, 1e-12, 1e-8, 1e-4, 1], ["0", "1e-12", "1e-8", "1e-4", "1"])
    handles, names = grid[0][0].get_legend_handles_labels()
    handles.append(Line2D([], [], color=INK, linewidth=1))
    handles.append(Line2D([], [], color=INK, linewidth=1, linestyle=":"))
    names += ["fitted laws", "T* of entmax15"]
    figure.legend(handles, names, loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    return figure


def _error(axes: Axes, run: Record, mapping: str) -> None:
    t, errors = np.array(run["temperatures"]), np.array(run["errors"])
    power = run["power"]
    law = np.exp(power["intercept"] + power["slope"] * np.log(t * run["scale"]))
    axes.plot(t, law, color=INK, linewidth=1, zorder=3)
    if mapping == "softmax":
        ratios, below = np.array(run["margin_over_T"]), run["errors_below"]
        cold, fit = run["smallest_margin"] / ratios, run["exponential"]
        law = np.exp(fit["intercept"] + fit["slope"] * ratios)
        axes.plot(cold, law, color=INK, linewidth=1, zorder=3)
        t, errors = np.concatenate([cold, t]), np.concatenate([below, errors])
    else:
        cold = run["T*"] * np.array(FRACTIONS[::-1])
        below = run["errors_below_T*"][::-1]
        t, errors = np.concatenate([cold, t]), np.concatenate([below, errors])
    if mapping == "entmax15":
        axes.axvline(run["T*"], color=INK, linewidth=1, linestyle=":")
    axes.plot(t, np.maximum(errors, ZERO), **MAPPING_STYLES[mapping], **LINE)


def _hardening(axes: Axes, record: Record) -> None:
    sizes = record["options"]["sizes"]
    for geometry, mark in GEOMETRY_MARKS.items():
        each = [
            np.quantile(
                [r["T*"] for r in record["hardening"] if _is(r, geometry, n)], [0.25, 0.5, 0.75]
            )
            for n in sizes
        ]
        low, middle, high = np.array(each).T
        axes.errorbar(
            sizes,
            middle,
            [middle - low, high - middle],
            color=INK,
            marker=mark,
            markersize=5,
            linewidth=1,
            capsize=2,
            label=geometry,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    label(axes, "T* falls about as 1 / N", "number of points N", "T* of entmax15 / scale")
    legend(axes, loc="lower left")


def _is(run: Record, geometry: str, n_points: int) -> bool:
    return (run["geometry"], run["n_points"]) == (geometry, n_points)


def _runs(runs: list[Record], mapping: str, geometry: str) -> list[Record]:
    return [r for r in runs if (r["mapping"], r["geometry"]) == (mapping, geometry)]
