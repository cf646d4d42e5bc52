"""Joint training against two stages, seed by seed."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from ...plots import INK, MUTED, PALETTE
from ..joint import MODELS
from ..records import Record
from .style import label, panels


def draw(record: Record) -> dict[str, Figure]:
    """A line for each seed from two stages to joint, and the perceptron beside it."""
    names = record["options"]["data"]
    figure, grid = panels(1, len(names), 3.3)
    for axes, name in zip(grid[0], names, strict=True):
        scores = np.array(
            [[r["scores"][m] for m in MODELS] for r in record["runs"] if r["data"] == name]
        )
        for two, joint, _ in scores:
            color, line = (PALETTE[0], "-") if joint > two else (PALETTE[5], "--")
            axes.plot([0, 1], [two, joint], color=color, linestyle=line, linewidth=1, alpha=0.6)
        for i, (mark, color) in enumerate(zip("soD", (INK, PALETTE[0], MUTED), strict=True)):
            place = np.full(len(scores), i)
            axes.scatter(place, scores[:, i], s=20, marker=mark, color=color, zorder=3)
            middle = np.median(scores[:, i])
            axes.plot([i - 0.25, i + 0.25], [middle, middle], color=color, linewidth=2.5)
        axes.set_xticks(range(3), ["two\nstages", "joint", "per-\nceptron"])
        axes.set_xlim(-0.5, 2.5)
        label(axes, name, "", "held-out R²" if name == "diabetes" else "held-out accuracy")
        if axes is not grid[0][0] and name != "diabetes":
            axes.set_ylabel("")
    return {"c8-joint": figure}
