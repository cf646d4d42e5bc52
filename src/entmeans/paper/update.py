"""C2: one gradient step on the centers is the centroid update, and in the limit Lloyd's."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor

from .. import step as formulas
from ..functional import expected_distortion, squared_distances, statistics
from ..limit import hardening_temperature
from .geometries import GEOMETRIES
from .paths import MAPPINGS, best_fixed_point, scale, start, step
from .records import Judgement, Record, Table, Verdict, quartiles, short

METHOD = (
    "For each geometry, seed and mapping, at centers as drawn and at a fixed point of K-means: a "
    "loss is differentiated by the centers by automatic differentiation of its plain formula, a "
    "step is taken with the learning rate 1 / (2 mass) of each center, and the result is compared "
    "with the centroids moment / mass. There are three losses: the free energy; the expected "
    "distortion sum p d, the smooth weighted loss, with gradients through the responsibilities p; "
    "and the same with p held constant. Then, at T*, T*/2 and T*/1000, the soft step is compared "
    "with Lloyd's bit for bit."
)

RULE = (
    "Needs steps of the free energy that agree to 1e-12, and equal bits at T <= T*. Then it holds, "
    "but only under a condition if steps of the weighted loss differ by more than 1e-6."
)

QUICK = {"n_points": 100, "n_temperatures": 4}

LOSSES = ("free energy", "distortion, p held", "distortion")

FRACTIONS = (1.0, 0.5, 1e-3)
"""Of T*, where the soft step must be Lloyd's."""


def measure(
    seeds: Iterable[int],
    *,
    n_points: int = 300,
    n_clusters: int = 5,
    n_temperatures: int = 9,
) -> Record:
    """Differences between gradient steps and centroids, and between soft steps and Lloyd's.

    Parameters
    ----------
    seeds : iterable of int
    n_points, n_clusters : int
        N and K of each geometry.
    n_temperatures : int
        From 1e-3 to 10 times the mean squared distance of the points to their mean.

    Examples
    --------
    >>> from entmeans.paper.update import measure
    >>> record = measure([0], n_points=40, n_temperatures=2)
    >>> max(run["error"] for run in record["steps"] if run["loss"] == "free energy") < 1e-12
    True
    """
    options = {name: value for name, value in locals().items() if name != "seeds"}
    relative = np.geomspace(1e-3, 10, n_temperatures).tolist()
    steps, equal, used = [], [], []
    for seed in seeds:
        used.append(seed)
        for geometry, sample in GEOMETRIES.items():
            points = sample(n_points, seed=seed).points
            size = scale(points)
            drawn = start(points, n_clusters, seed)
            for where, centers in (
                ("draw", drawn),
                ("fixed point", best_fixed_point(points, n_clusters, seed, 1)),
            ):
                for mapping in MAPPINGS:
                    about = {"geometry": geometry, "mapping": mapping, "seed": seed, "at": where}
                    equal.append(about | _against_lloyd(points, centers, mapping, size))
                    for t in relative:
                        for loss, error in _errors(points, centers, t * size, mapping).items():
                            error /= size**0.5
                            steps.append(about | {"T": t, "loss": loss, "error": error})
    return {
        "seeds": used,
        "options": options,
        "temperatures": relative,
        "steps": steps,
        "lloyd": equal,
    }


def judge(record: Record) -> Judgement:
    """Holds under a condition if the free energy passes and the distortion does not.

    Examples
    --------
    >>> from entmeans.paper.update import judge, measure
    >>> judge(measure([0], n_points=40, n_temperatures=3)).verdict
    <Verdict.CONDITION: 'holds under a condition'>
    """
    worst = {
        loss: max(run["error"] for run in record["steps"] if run["loss"] == loss) for loss in LOSSES
    }
    sparse = [run for run in record["lloyd"] if run["mapping"] != "softmax"]
    n_equal, n = sum(sum(run["equal"]) for run in sparse), len(FRACTIONS) * len(sparse)
    soft = [run for run in record["lloyd"] if run["mapping"] == "softmax"]
    exact = worst["free energy"] <= 1e-12 and n_equal == n
    if not exact:
        verdict = Verdict.FAILS
    elif worst["distortion"] > 1e-6:
        verdict = Verdict.CONDITION
    else:
        verdict = Verdict.HOLDS
    rows = []
    for loss in LOSSES:
        for m in MAPPINGS:
            errors = [
                max(r["error"] for r in record["steps"] if (r["loss"], r["mapping"], r["T"]) == x)
                for x in ((loss, m, t) for t in record["temperatures"])
            ]
            rows.append((loss, m, *map(short, errors)))
    table = Table(
        "Largest difference between the gradient step and the centroids, in units of the root mean "
        "squared radius, by T / scale",
        ("loss", "mapping", *(short(t) for t in record["temperatures"])),
        tuple(rows),
    )
    return Judgement(
        verdict,
        f"A step of the free energy misses the centroids by {short(worst['free energy'])} of the "
        f"radius, one of the weighted loss by up to {short(worst['distortion'])}. At T <= T* "
        f"entmax15 and sparsemax equal Lloyd's step bit for bit in {n_equal} of {n} cases.",
        (
            "What it depends on: it is the free energy whose gradient, times 1 / (2 mass), leads "
            "to the centroids, or the weighted loss with its responsibilities held constant "
            f"(error {short(worst['distortion, p held'])}). Differentiated through the "
            "responsibilities, the weighted loss has another gradient, and its step misses the "
            f"centroids by up to {short(worst['distortion'])} of the radius of the data. A center "
            "without mass does not move.",
            "At the T* of entmax15 softmax misses Lloyd's step by "
            f"{short(max(run['difference'][0] for run in soft))} of the radius at most; at T*, "
            f"T*/2 and T*/1000 it has the same bits in {sum(sum(run['equal']) for run in soft)} "
            f"of {len(FRACTIONS) * len(soft)} cases. Where its shares have rounded to one-hot, "
            "what is left is the order of its sums, some 1e-16; equal bits say that one branch of "
            "the code serves, as the exact shares allow.",
        ),
        (table,),
    )


def _errors(points: Tensor, centers: Tensor, temperature: float, mapping: str) -> dict[str, float]:
    """For each loss the largest distance of a center after a gradient step from its centroid."""
    found = statistics(points, centers, temperature, mapping)
    alive = found.mass > 0
    centroids = found.centers(centers)
    t = torch.tensor(temperature, dtype=points.dtype)

    def energy(c: Tensor) -> Tensor:
        return formulas.free_energy(points, c, None, t, mapping)[1]

    def distortion(c: Tensor) -> Tensor:
        return expected_distortion(points, c, t, mapping, reduction="none").sum()

    def held(c: Tensor) -> Tensor:
        with torch.no_grad():
            p = formulas.responsibilities(points, c, t, mapping)
        return (p * squared_distances(points, c)).sum()

    def error(loss: Callable[[Tensor], Tensor]) -> float:
        leaf = centers.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(leaf), leaf)
        moved = centers - gradient / (2 * found.mass.unsqueeze(-1))
        return (moved - centroids)[alive].norm(dim=-1).amax().item()

    return dict(zip(LOSSES, map(error, (energy, held, distortion)), strict=True))


def _against_lloyd(points: Tensor, centers: Tensor, mapping: str, size: float) -> Record:
    """At fractions of the T* of entmax15 (for sparsemax its own): equal bits, and how far off."""
    rule = "entmax15" if mapping == "softmax" else mapping
    hardening = hardening_temperature(points, centers, rule).item()
    lloyd = step(points, centers, 0.0, mapping)
    moved = [step(points, centers, f * hardening, mapping) for f in FRACTIONS]
    return {
        "hardening_temperature": hardening / size,
        "equal": [torch.equal(m, lloyd) for m in moved],
        "difference": [((m - lloyd).norm(dim=-1).amax() / size**0.5).item() for m in moved],
    }


def quartiles_of(record: Record, loss: str, mapping: str) -> list[list[float] | None]:
    """Errors at each temperature: median and quartiles over geometries, seeds and centers."""
    return [
        quartiles(
            r["error"]
            for r in record["steps"]
            if (r["loss"], r["mapping"], r["T"]) == (loss, mapping, t)
        )
        for t in record["temperatures"]
    ]
