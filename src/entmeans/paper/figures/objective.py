"""The sandwich around the K-means objective, and minimizers that arrive."""

from __future__ import annotations

from matplotlib.figure import Figure

from ..geometries import GEOMETRIES
from ..objective import quartiles_on_line
from ..paths import MAPPINGS
from ..records import Record
from .style import LINE, MAPPING_STYLES, band, label, legend, panels


def draw(record: Record) -> dict[str, Figure]:
    """The gap F_0 - F_T by temperature, and the distance of true minimizers."""
    return {"c1-sandwich": _sandwich(record), "c1-minimizers": _minimizers(record)}


def _sandwich(record: Record) -> Figure:
    figure, grid = panels(1, 4, 3.2, sharex=True, sharey=True)
    temperatures = record["temperatures"]
    for axes, geometry in zip(grid[0], GEOMETRIES, strict=True):
        for mapping in MAPPINGS:
            gap = record["gaps"][geometry][mapping]
            style = MAPPING_STYLES[mapping]
            bound = [t * gap["max_entropy"] for t in temperatures]
            axes.plot(temperatures, bound, color=style["color"], linewidth=0.8, alpha=0.6)
            middle = [b * s for b, s in zip(bound, gap["median_drawn"], strict=True)]
            axes.plot(temperatures, middle, **style, **LINE)
        axes.set_xscale("log")
        axes.set_yscale("log")
        label(axes, geometry, "T / scale")
    grid[0][0].set_ylabel("F₀ − F_T, in units of the scale", size=9)
    legend(grid[0][0], loc="upper left", title="median; thin: bound", title_fontsize=8)
    return figure


def _minimizers(record: Record) -> Figure:
    figure, grid = panels(1, 2, 3.4)
    line, excess = grid[0]
    temperatures = record["temperatures"]
    floor = 1e-17
    for mapping in MAPPINGS:
        found = [max(q[0], floor) for q in quartiles_on_line(record, mapping) if q]
        line.plot(temperatures, found, **MAPPING_STYLES[mapping], **LINE)
        runs = [r for r in record["upward"] if r["mapping"] == mapping]
        by_temperature = zip(*(r["excess_share_of_bound"] for r in runs), strict=True)
        band(excess, temperatures, [list(shares) for shares in by_temperature], mapping)
    line.set_xscale("log")
    line.set_yscale("log")
    excess.set_xscale("log")
    excess.axhline(1.0, color=MAPPING_STYLES["hard"]["color"], linewidth=0.9)
    excess.annotate(
        "the bound", (temperatures[0], 1.0), (0, -10), textcoords="offset points", size=8
    )
    label(
        line,
        "One dimension: the true minimizer arrives",
        "T / scale",
        "distance from that of K-means / radius",
    )
    label(
        excess,
        "In the plane: objective of the followed minimizer",
        "T / scale",
        "excess over K-means / (T H_max)",
    )
    legend(line, loc="upper left")
    return figure
