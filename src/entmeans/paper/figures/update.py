"""Gradient steps against centroids."""

from __future__ import annotations

from matplotlib.figure import Figure

from ..paths import MAPPINGS
from ..records import Record
from ..update import LOSSES
from .style import MAPPING_STYLES, band, label, legend, panels

TITLES = {
    "free energy": "Free energy",
    "distortion, p held": "Σ p d, p held constant",
    "distortion": "Σ p d, through p",
}


def draw(record: Record) -> dict[str, Figure]:
    """How far a gradient step ends from the centroids, for three losses."""
    figure, grid = panels(1, 3, 3.2, sharey=True)
    for axes, loss in zip(grid[0], LOSSES, strict=True):
        for mapping in MAPPINGS:
            errors = [
                [
                    max(r["error"], 1e-17)
                    for r in record["steps"]
                    if (r["loss"], r["mapping"], r["T"]) == (loss, mapping, t)
                ]
                for t in record["temperatures"]
            ]
            band(axes, record["temperatures"], errors, mapping)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.axhline(1e-12, color=MAPPING_STYLES["hard"]["color"], linewidth=0.8, linestyle=":")
        label(axes, TITLES[loss], "T / scale")
    grid[0][0].set_ylabel("distance from the centroids / radius", size=9)
    legend(grid[0][0], loc="upper left")
    grid[0][2].annotate(
        "1e-12: the same but for rounding",
        (record["temperatures"][0], 1e-12),
        (0, 4),
        textcoords="offset points",
        size=8,
    )
    return {"c2-update": figure}
