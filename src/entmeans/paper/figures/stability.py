"""Rows without a usable value or gradient, and times, by temperature and precision."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from ...plots import FAINT, INK, MUTED, PALETTE
from ..records import Record
from ..stability import DTYPES, FORMS, PARTS, seconds, shares
from .style import band, label, panels

SHADES = LinearSegmentedColormap.from_list("share", ["white", PALETTE[4], PALETTE[0], INK])
"""From no row to all of them, darker throughout."""

ROWS = {
    "NaN in the row": ("nan",),
    "subnormal numbers": ("subnormal",),
    "gradient through p: 0 or NaN": ("p zero", "p broken"),
    "gradient of free energy: 0 or NaN": ("F zero", "F broken"),
}

PART_TITLES = {"responsibilities": "p from d", "product": "p' x", "statistics": "whole pass"}

UNIT = "T / mean squared distance to the nearest center"


def draw(record: Record) -> dict[str, Figure]:
    """Shares of rows in each form and precision, and times by temperature."""
    return {"c6-stability": _stability(record), "c6-time": _time(record)}


def _stability(record: Record) -> Figure:
    figure, grid = panels(len(ROWS), len(DTYPES), 1.5, sharex=True, sharey=True)
    for i, (title, quantities) in enumerate(ROWS.items()):
        for j, dtype in enumerate(DTYPES):
            axes = grid[i][j]
            _strips(axes, record, dtype, quantities)
            axes.set_title(title if j == 0 else "", loc="left", color=INK, size=9.5)
            if i == 0:
                axes.set_title(dtype, loc="right", color=INK, size=10.5, fontweight="bold")
    for axes in grid[-1]:
        axes.set_xticks([1e-12, 1e-8, 1e-4, 1])
    figure.supxlabel(UNIT, color=MUTED, size=9)
    bar = figure.colorbar(
        grid[0][0].collections[0], ax=[row[-1] for row in grid], shrink=0.5, aspect=24
    )
    bar.set_ticks([0, 0.5, 1], labels=["0", "50 %", "100 %"])
    bar.set_label("share of rows", color=MUTED, size=9)
    bar.ax.tick_params(labelsize=8.5, colors=MUTED, length=0)
    bar.outline.set_edgecolor(FAINT)
    return figure


def _strips(axes: Axes, record: Record, dtype: str, quantities: tuple[str, ...]) -> None:
    """One strip for each form, darker where more rows are concerned."""
    t = np.log(record["temperatures"])
    half = np.diff(t).mean() / 2
    edges = np.exp(np.concatenate([t - half, t[-1:] + half]))
    values = [shares(record, dtype, form, *quantities) for form in FORMS]
    axes.pcolormesh(edges, np.arange(len(FORMS) + 1), values, cmap=SHADES, vmin=0, vmax=1)
    axes.set_xscale("log")
    axes.set_ylim(len(FORMS), 0)
    axes.set_yticks(np.arange(len(FORMS)) + 0.5, FORMS)
    axes.hlines(range(1, len(FORMS)), edges[0], edges[-1], color=FAINT, linewidth=1)
    axes.tick_params(labelsize=8.5, colors=MUTED, length=0)
    axes.minorticks_off()
    axes.spines[:].set_color(FAINT)


def _time(record: Record) -> Figure:
    figure, grid = panels(len(PARTS), len(DTYPES), 2.3, sharex=True, sharey="row")
    for row, (part, title) in zip(grid, PART_TITLES.items(), strict=True):
        for axes, dtype in zip(row, DTYPES, strict=True):
            if not seconds(record, dtype, "softmax", part):
                axes.set_axis_off()
                continue
            for mapping in ("softmax", "entmax15"):
                times = seconds(record, dtype, mapping, part)
                milliseconds = [[1e3 * t for t in column] for column in times]
                band(axes, record["timed_temperatures"], milliseconds, mapping)
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.tick_params(which="minor", length=0)
            label(axes, f"{title}, {dtype}")
    for row in grid:
        first = next(axes for axes in row if axes.axison)
        first.set_ylabel("milliseconds", color=MUTED, size=9)
        first.tick_params(labelleft=True)
        first.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        first.yaxis.set_major_formatter("{x:g}")
        first.yaxis.set_minor_formatter(NullFormatter())
    for axes in grid[1][:2]:
        axes.tick_params(labelbottom=True)
    _explain(grid[2][0], grid[0][0])
    figure.supxlabel(UNIT, color=MUTED, size=9)
    return figure


def _explain(empty: Axes, drawn: Axes) -> None:
    """The legend, and why these panels are empty."""
    handles, names = drawn.get_legend_handles_labels()
    empty.legend(handles, names, loc="upper left", frameon=False, labelcolor=INK, fontsize=9)
    empty.annotate(
        "The package computes half precision\nin float32, so nothing is timed here.",
        (0.03, 0.3),
        xycoords="axes fraction",
        color=MUTED,
        size=8.5,
    )
