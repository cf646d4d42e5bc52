"""Support by temperature, the threshold by number of centers, later cost by support."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...plots import INK, MUTED, PALETTE
from ..paths import MAPPINGS
from ..records import Record
from ..sparsity import ALGORITHMS, ENDINGS, K_LATER, K_MANY, SUPPORTS
from .style import LINE, MAPPING_STYLES, band, label, legend, panels

ALGORITHM_STYLES: dict[str, dict[str, Any]] = {
    "sort": {"color": PALETTE[5], "linestyle": "-", "marker": "v", "label": "entmax15 by sorting"},
    "plain torch": {"color": PALETTE[4], "linestyle": "-", "marker": "s", "label": "plain torch"},
    "kernel": {"color": PALETTE[0], "linestyle": "-", "marker": "D", "label": "kernel"},
    "torch.sort": {"color": MUTED, "linestyle": ":", "marker": "", "label": "torch.sort alone"},
    "torch.softmax": {**MAPPING_STYLES["softmax"], "label": "torch.softmax"},
}


def draw(record: Record) -> dict[str, Figure]:
    """What is sparse, what the threshold costs, and what sparsity saves."""
    return {"c7-support": _support(record), "c7-cost": _cost(record)}


def _support(record: Record) -> Figure:
    figure, grid = panels(1, 2, 3.3)
    few = record["options"]["n_clusters"]
    for axes, runs, k in ((grid[0][0], "partition", few), (grid[0][1], "many", K_MANY)):
        for mapping in MAPPINGS:
            found = [r["support"] for r in record[runs] if r["mapping"] == mapping]
            band(axes, record["temperatures"], list(zip(*found, strict=True)), mapping)
        axes.set_xscale("log")
        axes.set_yscale("log")
        ticks = [t for t in (1, 2, 5, 10, 50, 256) if t <= k]
        axes.set_yticks(ticks, [str(t) for t in ticks])
        axes.minorticks_off()
        where = "in the plane" if k == few else "in 16 dimensions"
        label(axes, f"{k} centers {where}", "T / scale", "centers that share a point, mean")
    legend(grid[0][0], loc="upper left")
    return figure


def _cost(record: Record) -> Figure:
    figure, grid = panels(1, 3, 3.5)
    for axes, ending in zip(grid[0], ENDINGS, strict=False):
        _threshold(axes, record, ending)
    legend(grid[0][0], loc="upper left")
    _later(grid[0][2], record)
    return figure


def _threshold(axes: Axes, record: Record, ending: str) -> None:
    runs = [r for r in record["threshold"] if r["ending"] == ending]
    sizes = runs[0]["sizes"]
    for name in ALGORITHMS:
        times = np.median([r["times"][name] for r in runs], 0)
        axes.plot(sizes, times, **ALGORITHM_STYLES[name], **LINE)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    label(axes, f"the threshold, {ending} support", "scores in a row, K", "µs for a row")


def _later(axes: Axes, record: Record) -> None:
    """Dense over sparse time: above 1 sparsity saves."""
    runs = [[r for r in record["later"] if r["support"] == s] for s in SUPPORTS]
    support = [np.median([r["measured_support"] for r in each]) for each in runs]
    for what, mark, line in (("read-out", "o", "-"), ("sums", "s", "--")):
        gain = [
            np.median([r["times"][f"{what}, dense"] / r["times"][f"{what}, sparse"] for r in each])
            for each in runs
        ]
        name = "read-out p v" if what == "read-out" else "sums p' x"
        style: dict[str, Any] = {
            "color": PALETTE[0],
            "marker": mark,
            "linestyle": line,
            "label": name,
        }
        axes.plot(support, gain, **style, **LINE)
    step = [
        np.median([r["times"]["step, softmax"] / r["times"]["step, entmax15"] for r in each])
        for each in runs
    ]
    style = {
        "color": PALETTE[1],
        "marker": "^",
        "linestyle": "-.",
        "label": "softmax / entmax15 step",
    }
    axes.plot(support, step, **style, **LINE)
    axes.axhline(1.0, color=INK, linewidth=0.9)
    axes.set_xscale("log")
    axes.set_yscale("log")
    legend(axes, loc="upper right")
    label(axes, f"later cost, K = {K_LATER:,}", "centers that share a point", "dense / sparse time")
