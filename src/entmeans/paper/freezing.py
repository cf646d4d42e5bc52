"""C4: soft centers collapse onto fixed points of K-means as the temperature falls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from ..functional import nearest
from ..limit import hardening_temperature, is_fixed_point
from .geometries import GEOMETRIES
from .paths import MAPPINGS, cooling, distance, follow, lloyd, scale, turning
from .records import Judgement, Record, Table, Verdict, short, spread

METHOD = (
    "For each geometry, seed and mapping soft K-means comes to rest at each of a row of "
    "temperatures, from just below the critical one down, each time from where it rested before, "
    "nudged by a thousandth of the radius so that merged centers can part; Lloyd's algorithm goes "
    "on from the last one to a fixed point of K-means. The distance to that point (root mean "
    "square over the centers, in units of the root mean squared radius of the data) should never "
    "rise as T falls, and be 0 from T* on. The same is done upward from the fixed point. Each rise "
    "is counted under the first of these causes that applies: the centers are not all apart before "
    "or after it; a point changes its nearest center; or neither, so that pulls of shared points "
    "in different directions, which canceled, no longer do. How rough a path is, its total turning "
    "angle says."
)

RULE = (
    "It claims two things. Holds if every path arrives (a soft distance below 1e-3 of the radius "
    "at the lowest T, and exactly 0 at T* with entmax15 and sparsemax) and no distance rises by "
    "more than 1e-5 of the radius, neither there nor for five points on a line; else it does not."
)

QUICK = {"n_points": 100, "n_temperatures": 20}

CAUSES = ("centers merged", "a point changes side", "no point changes side")

EXAMPLE = (0.0, 0.0, 2.0, 4.0, 8.0)
"""Points on a line, two centers: the distance rises though no point changes its nearest center."""

RISE = 1e-5
"""A distance that grows by more than this, in units of the radius, has risen: centers come to rest
within 1e-6 of it."""

APART = 1e-2
"""Centers nearer than this to each other, in units of the radius, count as one."""


def measure(
    seeds: Iterable[int],
    *,
    n_points: int = 300,
    n_clusters: int = 5,
    n_temperatures: int = 32,
) -> Record:
    """Distances to the fixed point of K-means as T falls, where they rise, and why.

    Parameters
    ----------
    seeds : iterable of int
    n_points, n_clusters : int
        N and K of each geometry.
    n_temperatures : int
        From 0.9 times the critical temperature down to 1e-5 of the scale of the data, the mean
        squared distance of the points to their mean, in equal ratios.

    Examples
    --------
    >>> from entmeans.paper.freezing import measure
    >>> record = measure([0], n_points=40, n_temperatures=4)
    >>> all(run["rests"] for run in record["runs"])
    True
    """
    options = {name: value for name, value in locals().items() if name != "seeds"}
    runs, drawn, used = [], [], []
    for seed in seeds:
        used.append(seed)
        for geometry in GEOMETRIES:
            for mapping in MAPPINGS:
                points, relative, down, end = cooling(
                    geometry, n_points, n_clusters, n_temperatures, mapping, seed
                )
                size = scale(points)
                upward = [t * size for t in reversed(relative)]
                up = follow(points, end, upward, mapping, tol=1e-14).flip(0)
                hardening = hardening_temperature(points, end, mapping).item()
                about = {"geometry": geometry, "mapping": mapping, "seed": seed}
                runs.append(
                    about
                    | {
                        "temperatures": list(relative),
                        "T*": hardening / size,
                        "rests": bool(is_fixed_point(points, end)),
                        "at_hardening": _beside(points, end, hardening, mapping, size),
                        "down": _course(points, down, end, size),
                        "up": _course(points, up, end, size),
                        "turning": turning(down, size**0.5).mean().item(),
                    }
                )
                if seed == used[0]:
                    drawn.append(
                        about
                        | {
                            "points": points.tolist(),
                            "temperatures": list(relative),
                            "path": torch.cat([down, end.unsqueeze(0)]).tolist(),
                        }
                    )
    return {
        "seeds": used,
        "options": options,
        "runs": runs,
        "drawn": drawn,
        "example": _example(),
    }


def judge(record: Record) -> Judgement:
    """Does not hold if distances rise; holds if all paths arrive without a rise.

    Examples
    --------
    >>> from entmeans.paper.freezing import judge, measure
    >>> judge(measure([0, 1], n_points=60, n_temperatures=16)).verdict
    <Verdict.FAILS: 'does not hold'>
    """
    runs = record["runs"]
    arrived = [r["rests"] and r["down"]["distances"][-1] < 1e-3 for r in runs]
    frozen = [r["at_hardening"] == 0 for r in runs if r["mapping"] != "softmax"]
    rises = [rise for r in runs for rise in r["down"]["rises"]]
    n_steps = sum(len(r["temperatures"]) - 1 for r in runs)
    monotone = sum(not r["down"]["rises"] for r in runs)
    sizes = [rise["size"] for rise in rises]
    steps_apart = sum(r["down"]["steps_apart"] for r in runs)
    upward = sum(len(r["up"]["rises"]) for r in runs)
    example = record["example"]
    first, top = example["distances"][0], max(example["distances"])
    rising = bool(rises) or top > first + RISE
    verdict = Verdict.FAILS if rising or not all(arrived + frozen) else Verdict.HOLDS
    causes = Counter(rise["cause"] for rise in rises)
    named = ", ".join(f"{cause}: {causes[cause]}" for cause in CAUSES)
    return Judgement(
        verdict,
        f"Collapse: {sum(arrived)} of {len(runs)} paths end on a fixed point of K-means. Monotone: "
        f"{monotone} of {len(runs)} paths; the distance rises in {len(rises) / n_steps:.1%} of "
        f"{n_steps:,} steps" + (f", by up to {short(max(sizes))} of the radius." if sizes else "."),
        (
            f"With entmax15 and sparsemax the distance is exactly 0 at T*, in {sum(frozen)} of "
            f"{len(frozen)} runs; with softmax it is never 0 at any T > 0, but for rounding.",
            f"Of the rises the median is {short(float(np.median(sizes)) if sizes else None)} of "
            f"the radius. If only larger ones than 1e-3 count, {_monotone(runs, 1e-3)} of "
            f"{len(runs)} paths are monotone, from 1e-2 on {_monotone(runs, 1e-2)}.",
            f"Causes of the {len(rises)} rises: {named}. While all centers are apart, the "
            f"distance rises in {len(rises) - causes[CAUSES[0]]} of {steps_apart:,} steps.",
            f"Followed upward from the fixed point, and read as T falls, there are {upward} rises "
            f"in the same number of steps.",
            "Each center is pulled away from its place by the points that it shares. Their pulls "
            "point in different directions and end at different temperatures (half the margin of "
            "each point, for entmax15): where two of them cancel, the distance rises when the "
            "first ends.",
            f"Five points on a line are enough: with 0, 0, 2, 4 and 8 and two centers the distance "
            f"is {short(first)} at T = {short(example['temperatures'][0])} and rises to "
            f"{short(top)} as T falls, before it is 0 at T* = "
            f"{short(example['temperatures'][-1])}"
            + (", while no point changes its nearest center." if example["same_sides"] else "."),
        ),
        (_rise_table(record), _turning_table(record)),
    )


def _example() -> Record:
    """Five points on a line, entmax15, upward from their fixed point; given as T falls."""
    points = torch.tensor(EXAMPLE, dtype=torch.float64).unsqueeze(1)
    end = lloyd(points, points.new_tensor([[0.0], [6.0]]))
    hardening = hardening_temperature(points, end).item()
    temperatures = [hardening * factor for factor in (1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0)]
    path = follow(points, end, temperatures, "entmax15", tol=1e-16)
    labels = nearest(points, end).labels
    return {
        "points": list(EXAMPLE),
        "temperatures": temperatures[::-1],
        "distances": distance(path, end).flip(0).tolist(),
        "same_sides": all(torch.equal(nearest(points, c).labels, labels) for c in path),
    }


def _monotone(runs: list[Record], size: float) -> int:
    return sum(all(rise["size"] <= size for rise in run["down"]["rises"]) for run in runs)


def _course(points: Tensor, path: Tensor, end: Tensor, size: float) -> Record:
    """Distances to the end along a path from hot to cold, and the rises among them."""
    far = (distance(path, end) / size**0.5).tolist()
    labels = [nearest(points, centers).labels for centers in path]
    apart = [bool(torch.pdist(c).amin() > APART * size**0.5) for c in path]
    rises = []
    for i in range(len(path) - 1):
        if far[i + 1] > far[i] + RISE:
            if not (apart[i] and apart[i + 1]):
                cause = CAUSES[0]
            else:
                cause = CAUSES[2 if torch.equal(labels[i], labels[i + 1]) else 1]
            rises.append({"step": i, "size": far[i + 1] - far[i], "cause": cause})
    both = sum(a and b for a, b in pairwise(apart))
    return {"distances": far, "rises": rises, "steps_apart": both}


def _beside(
    points: Tensor, end: Tensor, hardening: float, mapping: str, size: float
) -> float | None:
    """How far from a fixed point of K-means soft K-means rests at T*; None where T* is 0."""
    if hardening == 0:
        return None
    (found,) = follow(points, end, [hardening], mapping)
    return distance(found, end).item() / size**0.5


def _rise_table(record: Record) -> Table:
    rows = []
    for g in GEOMETRIES:
        for m in MAPPINGS:
            runs = [r for r in record["runs"] if (r["geometry"], r["mapping"]) == (g, m)]
            rises = [rise for r in runs for rise in r["down"]["rises"]]
            n_steps = sum(len(r["temperatures"]) - 1 for r in runs)
            rows.append(
                (
                    g,
                    m,
                    f"{sum(not r['down']['rises'] for r in runs)} of {len(runs)}",
                    f"{len(rises) / n_steps:.1%}",
                    *(str(sum(rise["cause"] == c for rise in rises)) for c in CAUSES),
                    short(max((rise["size"] for rise in rises), default=0.0)),
                    str(sum(len(r["up"]["rises"]) for r in runs)),
                )
            )
    return Table(
        "Rises of the distance as T falls",
        (
            "geometry",
            "mapping",
            "monotone paths",
            "steps that rise",
            *CAUSES,
            "largest rise / radius",
            "rises on the way up from K-means",
        ),
        tuple(rows),
    )


def _turning_table(record: Record) -> Table:
    rows = []
    for g in GEOMETRIES:
        each = (
            spread(r["turning"] for r in record["runs"] if (r["geometry"], r["mapping"]) == (g, m))
            for m in MAPPINGS
        )
        rows.append((g, *each))
    return Table(
        "Total turning angle of the path of a center as T falls, in radians: median (quartiles)",
        ("geometry", *MAPPINGS),
        tuple(rows),
    )
