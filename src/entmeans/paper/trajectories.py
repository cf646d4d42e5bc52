"""C3: from the same start, soft training takes the path of K-means in the limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..functional import nearest, statistics
from ..step import Statistics
from .geometries import GEOMETRIES
from .paths import MAPPINGS, distance, scale, start
from .records import Judgement, Record, Table, Verdict, short

METHOD = (
    "From the same centers, drawn by k-means++, soft K-means at a constant temperature and Lloyd's "
    "algorithm take the same number of steps; the largest distance between the two over the path "
    "is what is measured. The same with gradient steps of one learning rate for all centers, "
    "K / (4 N), in place of centroid steps. m is the smallest margin of any point at any step of "
    "the hard path; entmax15 must take it exactly for T <= m / 2, sparsemax for T <= m. To the "
    "four geometries a lattice of integers is added, whose points tie. A run at a temperature is "
    "counted as identical (distance 0), close (every point has the same nearest center at every "
    "step), meeting again (a point crosses a boundary at another step, but the ends have the same "
    "labels) or parted."
)

RULE = (
    "Needs runs without ties that are all exact at the temperature at which they must be. Then it "
    "holds, but only under a condition if other runs tie."
)

QUICK = {"n_points": 100, "n_temperatures": 7, "n_steps": 12}

OUTCOMES = ("identical", "close", "meeting again", "parted")

RULES: dict[str, Callable[[Statistics, Tensor], Tensor]] = {
    "centroid steps": lambda found, centers: found.centers(centers),
    "gradient steps": lambda found, centers: (
        centers
        - len(centers)
        / (2 * found.mass.sum())
        * (found.mass.unsqueeze(-1) * centers - found.moment)
    ),
}


class Path(NamedTuple):
    """Centers (n_steps + 1, K, D), labels (n_steps + 1, N) and smallest margins of all but last."""

    centers: Tensor
    labels: Tensor
    margins: Tensor


def measure(
    seeds: Iterable[int],
    *,
    n_points: int = 300,
    n_clusters: int = 5,
    n_temperatures: int = 17,
    n_steps: int = 25,
) -> Record:
    """Distances between soft and hard paths, and why they part.

    Parameters
    ----------
    seeds : iterable of int
    n_points, n_clusters : int
        N and K of each geometry.
    n_temperatures : int
        From 1e-7 to 10 times the mean squared distance of the points to their mean.
    n_steps : int
        Length of each path.

    Examples
    --------
    >>> from entmeans.paper.trajectories import measure
    >>> record = measure([0], n_points=30, n_temperatures=2, n_steps=3)
    >>> {run["distances"][0] for run in record["runs"] if run["mapping"] == "entmax15"} == {0.0}
    False
    """
    options = {name: value for name, value in locals().items() if name != "seeds"}
    relative = np.geomspace(1e-7, 10, n_temperatures).tolist()
    runs, drawn, used = [], [], []
    for seed in seeds:
        used.append(seed)
        for geometry in (*GEOMETRIES, "lattice"):
            points = _points(geometry, n_points, seed)
            first, size = start(points, n_clusters, seed), scale(points)
            for rule in RULES:
                hard = path(points, first, 0.0, "hard", rule, n_steps)
                margin = hard.margins.amin().item()
                for mapping in MAPPINGS:
                    about = {"geometry": geometry, "rule": rule, "mapping": mapping, "seed": seed}
                    share = {"entmax15": 0.5, "sparsemax": 1.0}.get(mapping, 0.5)
                    temperatures = [t * size for t in relative]
                    found = [
                        _compare(path(points, first, t, mapping, rule, n_steps), hard)
                        for t in temperatures
                    ]
                    at_limit = None
                    if margin > 0:
                        limit = path(points, first, share * margin, mapping, rule, n_steps)
                        at_limit = _compare(limit, hard)[0] / size**0.5
                    runs.append(
                        about
                        | {
                            "smallest_margin": margin / size,
                            "distances": [d / size**0.5 for d, _ in found],
                            "outcomes": [outcome for _, outcome in found],
                            "at_limit": at_limit,
                        }
                    )
            if seed == used[0] and geometry in GEOMETRIES:
                drawn.append(_drawn(geometry, points, first, size, n_steps))
    return {
        "seeds": used,
        "options": options,
        "temperatures": relative,
        "runs": runs,
        "drawn": drawn,
    }


def judge(record: Record) -> Judgement:
    """Holds under a condition: exact below half the smallest margin of the path, never with a tie.

    Examples
    --------
    >>> from entmeans.paper.trajectories import judge, measure
    >>> judge(measure([0, 1], n_points=30, n_temperatures=3, n_steps=4)).verdict
    <Verdict.CONDITION: 'holds under a condition'>
    """
    free = [run for run in record["runs"] if run["smallest_margin"] > 0]
    tied = [run for run in record["runs"] if run["smallest_margin"] == 0]
    sparse = [run for run in free if run["mapping"] != "softmax"]
    exact = [run["at_limit"] == 0 for run in sparse]
    cold = [run["distances"][0] for run in free if run["mapping"] == "softmax"]
    tie_distance = [run["distances"][0] for run in tied]
    never = sum(d > 0 for d in tie_distance)
    margins = [run["smallest_margin"] for run in free if run["geometry"] != "lattice"]
    if not all(exact):
        verdict = Verdict.FAILS
    elif tied:
        verdict = Verdict.CONDITION
    else:
        verdict = Verdict.HOLDS
    rows = []
    for i, t in enumerate(record["temperatures"]):
        for m in MAPPINGS:
            outcomes = [run["outcomes"][i] for run in free if run["mapping"] == m]
            shares = (f"{outcomes.count(o) / len(outcomes):.0%}" for o in OUTCOMES)
            rows.append((short(t), m, *shares))
    table = Table(
        "What became of runs without ties, by T / scale",
        ("T / scale", "mapping", *OUTCOMES),
        tuple(rows),
    )
    counts = Table(
        "Runs by data: with a tie on the hard path, and the smallest margin m of the others",
        ("data", "runs", "with a tie", "m / scale, median", "m / scale, least"),
        tuple(_margin_row(record, g) for g in (*GEOMETRIES, "lattice")),
    )
    return Judgement(
        verdict,
        f"Without ties entmax15 takes the path of K-means exactly for T up to half the smallest "
        f"margin on it, sparsemax up to all of it: {sum(exact)} of {len(exact)} runs. With a tie "
        f"{never} of {len(tied)} runs differ at the lowest T.",
        (
            "What it depends on: no point may tie between its two nearest centers at any step of "
            "the hard path, and T must lie below a multiple of the smallest margin on it, which "
            f"is small: {short(float(np.median(margins)))} of the scale of the data (median).",
            "A tie is shared half and half at every T > 0 and goes to one center at T = 0: the "
            "limit of the paths is then another path (of Lloyd's algorithm with ties shared).",
            "With softmax paths come near but are equal by rounding alone: at the lowest T, "
            f"{short(record['temperatures'][0])} of the scale, the largest distance without ties "
            f"is {short(max(cold))}, the order of sums. Where a point crosses a boundary at "
            "another step than on the hard path, paths may end in other fixed points; the table "
            "counts it.",
        ),
        (table, counts),
    )


def path(
    points: Tensor, first: Tensor, temperature: float, mapping: str, rule: str, n_steps: int
) -> Path:
    """The path from the first centers, by one of the `RULES`."""
    centers, labels, margins = [first], [], []
    for _ in range(n_steps):
        found = statistics(points, centers[-1], temperature, mapping)
        labels.append(nearest(points, centers[-1]).labels)
        margins.append(found.smallest_margin)
        centers.append(RULES[rule](found, centers[-1]))
    labels.append(nearest(points, centers[-1]).labels)
    return Path(torch.stack(centers), torch.stack(labels), torch.stack(margins))


def _compare(soft: Path, hard: Path) -> tuple[float, str]:
    """The largest distance over the path, and which of the `OUTCOMES` that is."""
    largest = distance(soft.centers, hard.centers).amax().item()
    if largest == 0:
        return largest, "identical"
    same = (soft.labels == hard.labels).all(1)
    if same.all():
        return largest, "close"
    return largest, "meeting again" if same[-1] else "parted"


def _points(geometry: str, n_points: int, seed: int) -> Tensor:
    if geometry in GEOMETRIES:
        return GEOMETRIES[geometry](n_points, seed=seed).points
    side = torch.arange(7, dtype=torch.float64)
    return torch.cartesian_prod(side, side)


def _drawn(geometry: str, points: Tensor, first: Tensor, size: float, n_steps: int) -> Record:
    """One start, for the figure: the hard path and soft ones at some temperatures."""
    paths = {
        str(t): path(
            points, first, t * size, "entmax15", "centroid steps", n_steps
        ).centers.tolist()
        for t in (0.0, 0.03, 0.3)
    }
    return {"geometry": geometry, "points": points.tolist(), "paths": paths}


def _margin_row(record: Record, geometry: str) -> tuple[str, ...]:
    runs = [run for run in record["runs"] if run["geometry"] == geometry]
    margins = [run["smallest_margin"] for run in runs if run["smallest_margin"] > 0]
    least = (float(np.median(margins)), min(margins)) if margins else (None, None)
    ties = len(runs) - len(margins)
    return (geometry, str(len(runs)), str(ties), *map(short, least))
