"""Joint training against two stages, seed by seed."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ...plots import INK, MUTED, PALETTE
from ..joint import MODELS
from ..records import Record
from .style import label, panels

BETTER: dict[str, Any] = {"color": PALETTE[0], "linestyle": "-", "label": "joint is better"}
NO_BETTER: dict[str, Any] = {"color": PALETTE[5], "linestyle": "--", "label": "joint is no better"}


def draw(record: Record) -> dict[str, Figure]:
    """A line for each seed from two stages to joint, and the perceptron beside it."""
    names = record["options"]["data"]
    figure, grid = panels(1, len(names), 3.6)
    for axes, name in zip(grid[0], names, strict=True):
        runs = [run["scores"] for run in record["runs"] if run["data"] == name]
        _scores(axes, np.array([[scores[m] for m in MODELS] for scores in runs]))
        measure = "held-out R²" if name == "diabetes" else "held-out accuracy"
        label(axes, name, "", "" if axes is not grid[0][0] and name != "diabetes" else measure)
    handles = [Line2D([], [], linewidth=1.2, **style) for style in (BETTER, NO_BETTER)]
    handles.append(Line2D([], [], color=INK, linewidth=2.5, label="median over seeds"))
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=3,
        frameon=False,
        labelcolor=INK,
        fontsize=9,
    )
    return {"c8-joint": figure}


def _scores(axes: Axes, scores: np.ndarray[Any, Any]) -> None:
    """Of each seed (n_seeds, 3), and their medians."""
    for two, joint, _ in scores:
        style = BETTER if joint > two else NO_BETTER
        axes.plot([0, 1], [two, joint], linewidth=1, alpha=0.6, **style)
    for i, (mark, color) in enumerate(zip("soD", (INK, PALETTE[0], MUTED), strict=True)):
        place = np.full(len(scores), i)
        axes.scatter(place, scores[:, i], s=20, marker=mark, color=color, zorder=3)
        middle = np.median(scores[:, i])
        axes.plot([i - 0.25, i + 0.25], [middle, middle], color=color, linewidth=2.5)
    axes.set_xticks(range(3), ["two\nstages", "joint", "per-\nceptron"])
    axes.set_xlim(-0.5, 2.5)
    axes.yaxis.set_major_formatter("{x:.2f}")
    axes.locator_params(axis="y", nbins=6)
