"""C5: how fast soft centers tend to those of K-means, by mapping."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..functional import free_energy, inertia, statistics
from ..limit import hardening_temperature
from .geometries import GEOMETRIES
from .paths import MAPPINGS, best_fixed_point, distance, lloyd, rest, scale, start
from .records import Judgement, Record, Table, Verdict, quartiles, short, spread

METHOD = (
    "From a fixed point of K-means soft K-means comes to rest at each of a row of temperatures; "
    "the error is the distance to where it started (root mean square over the centers, in units "
    "of the root mean squared radius). m is the smallest margin of the fixed point. For softmax "
    "the logarithm of the error is fitted against m / T, from T = m/22 to m/8, where the law "
    "exp(-m / T) has the slope -1. For every mapping it is fitted against log T above T*, up to a "
    "tenth of the scale of the data, and the errors at T*, T*/2 and T*/10 are looked at for being "
    "exactly 0. The same for the free energy, F_0 - F_T at the fixed point. What is left where "
    "points are many is measured on a line with a smooth density and two centers: how far one "
    "soft step ends from Lloyd's. T* is measured against the number of points on the geometries. "
    "Fits are by least squares."
)

RULE = (
    "Needs a slope of softmax between -2 and -0.8 (median) and entmax15 and sparsemax that are "
    "exactly 0 from T* on. Then it holds under the condition that T is below the smallest margin "
    "(softmax) and the sample finite; else it does not."
)

QUICK = {"n_points": 100, "n_temperatures": 8, "n_starts": 2, "sizes": (50, 100, 200)}

FRACTIONS = (1.0, 0.5, 0.1)
"""Of T*, where the error must be exactly 0."""

EXPONENTIAL = (22.0, 8.0)
"""Range of m / T in which the exponential law is fitted: above rounding, below other margins."""

SMOOTH = (1e-3, 3e-2)
"""Range of T on the line of many points: far above the margins of its grid, far below its length.
"""


def measure(
    seeds: Iterable[int],
    *,
    n_points: int = 300,
    n_clusters: int = 5,
    n_temperatures: int = 16,
    n_starts: int = 5,
    n_on_line: int = 20_000,
    sizes: tuple[int, ...] = (100, 300, 1000, 3000, 10_000),
) -> Record:
    """Errors and energy gaps against T, the laws fitted to them, and where they are exactly 0.

    Parameters
    ----------
    seeds : iterable of int
    n_points, n_clusters : int
        N and K of each geometry.
    n_temperatures : int
        Of each fit.
    n_starts : int
        Runs of K-means, of which the best gives the fixed point.
    n_on_line : int
        Points of the smooth density.
    sizes : tuple of int
        Numbers of points for which T* is measured.

    Examples
    --------
    >>> from entmeans.paper.rates import measure
    >>> options = {"n_temperatures": 4, "n_starts": 1, "n_on_line": 100, "sizes": (20, 40)}
    >>> record = measure([0], n_points=40, **options)
    >>> all(run["exactly_zero"] for run in record["runs"] if run["mapping"] == "entmax15")
    True
    """
    options = {name: value for name, value in locals().items() if name != "seeds"}
    options["sizes"] = list(sizes)
    runs: list[Record] = []
    smooth: list[Record] = []
    hardening: list[Record] = []
    used = []
    for seed in seeds:
        used.append(seed)
        for geometry, sample in GEOMETRIES.items():
            points = sample(n_points, seed=seed).points
            fixed = best_fixed_point(points, n_clusters, seed, n_starts)
            for mapping in MAPPINGS:
                about = {"geometry": geometry, "mapping": mapping, "seed": seed}
                runs.append(about | _rates(points, fixed, mapping, n_temperatures))
            for n in sizes:
                more = sample(n, seed=seed).points
                end = lloyd(more, start(more, n_clusters, seed))
                t = hardening_temperature(more, end).item() / scale(more)
                hardening.append({"geometry": geometry, "seed": seed, "n_points": n, "T*": t})
        smooth += [{"seed": seed} | found for found in _smooth(seed, n_on_line, n_temperatures)]
    return {
        "seeds": used,
        "options": options,
        "runs": runs,
        "smooth": smooth,
        "hardening": hardening,
    }


def judge(record: Record) -> Judgement:
    """Under a condition: exponential below the margin, and entmax15 exactly 0 below T*.

    Examples
    --------
    >>> from entmeans.paper.rates import judge, measure
    >>> options = {"n_temperatures": 6, "n_starts": 1, "n_on_line": 2000, "sizes": (20, 40)}
    >>> judge(measure([0, 1], n_points=60, **options)).verdict
    <Verdict.CONDITION: 'holds under a condition'>
    """
    soft = [run["exponential"]["slope"] for run in record["runs"] if run["mapping"] == "softmax"]
    sparse = [run for run in record["runs"] if run["mapping"] != "softmax"]
    zero = [run["exactly_zero"] for run in sparse]
    powers = {m: _powers(record["runs"], m) for m in MAPPINGS}
    limits = {m: _powers(record["smooth"], m) for m in MAPPINGS}
    median = quartiles(soft) or [0.0]
    exponential = -2.0 < median[0] < -0.8
    margins = [r["smallest_margin"] for r in record["runs"] if r["mapping"] == "softmax"]
    shrink = _shrinking(record)
    verdict = Verdict.CONDITION if exponential and all(zero) else Verdict.FAILS
    return Judgement(
        verdict,
        f"Softmax: log error falls by {spread(-s for s in soft)} per unit of m / T where T is well "
        f"below the smallest margin m. Entmax15 and sparsemax: exactly 0 at T <= T* in {sum(zero)} "
        f"of {len(zero)} runs.",
        (
            "For softmax the exponential sets in where T is below the smallest "
            f"margin, {short(float(np.median(margins)))} of the scale of the data (median), and "
            "its rate is that margin. There entmax15 has arrived: its error is 0 from half the "
            "margin on, less than any exponential.",
            "O(T) for entmax15 is true because the error is exactly 0 below T* (for sparsemax "
            "below twice that), with the largest error over T* as its constant, which grows with "
            "N; softmax has such a bound too. Above T* a single power is no law of a finite "
            "sample: points leave one by one, with plateaus and jumps. Fitted all the same, it "
            f"is: softmax {spread(powers['softmax'])}, entmax15 {spread(powers['entmax15'])}, "
            f"sparsemax {spread(powers['sparsemax'])}. So softmax is not the faster one, as "
            "theory is said to have it: exact beats exponential.",
            "With very many points it is a power of T for softmax too: on a smooth density a soft "
            f"step misses Lloyd's by T to the {spread(limits['softmax'])} with softmax, "
            f"{spread(limits['entmax15'])} with entmax15, {spread(limits['sparsemax'])} with "
            "sparsemax. What points lose and gain on the two sides of a wall "
            "cancels to first order, which leaves T squared (docs/theory.md). The exponential "
            "and the exact 0 are properties of finite samples.",
            f"T* falls with the number of points as its power {spread(shrink)}; the "
            "smallest of N margins is expected to be of the order 1 / N.",
        ),
        (_law_table(record), _smooth_table(record), _hardening_table(record)),
    )


def _rates(points: Tensor, fixed: Tensor, mapping: str, n_temperatures: int) -> Record:
    """Errors of one fixed point in both ranges of T, and the laws."""
    size = scale(points)
    margin = 2 * hardening_temperature(points, fixed).item()
    certain = hardening_temperature(points, fixed, mapping).item()

    def error(temperature: float) -> float:
        return (distance(rest(points, fixed, temperature, mapping), fixed) / size**0.5).item()

    zeros = [error(f * certain) for f in FRACTIONS] if certain else []
    energies = [_energy_gap(points, fixed, f * certain, mapping) for f in FRACTIONS if certain]
    above = np.geomspace(1.05 * margin, max(0.1 * size, 4 * margin), n_temperatures)
    errors = [error(t) for t in above]
    found = {
        "scale": size,
        "smallest_margin": margin / size,
        "T*": certain / size,
        "temperatures": (above / size).tolist(),
        "errors": errors,
        "errors_below_T*": zeros,
        "power": _fit(np.log(above), errors),
        "energy_gaps": [_energy_gap(points, fixed, t, mapping) / size for t in above],
        "exactly_zero": bool(zeros) and not any(zeros) and not any(energies),
    }
    found["energy_power"] = _fit(np.log(above), found["energy_gaps"])
    if mapping == "softmax":
        ratios = np.linspace(*EXPONENTIAL, n_temperatures)
        below = [error(margin / r) for r in ratios]
        gaps = [_energy_gap(points, fixed, margin / r, mapping) / size for r in ratios]
        found |= {
            "margin_over_T": ratios.tolist(),
            "errors_below": below,
            "exponential": _fit(ratios, below),
            "energy_exponential": _fit(ratios, gaps),
        }
    return found


def _energy_gap(points: Tensor, centers: Tensor, temperature: float, mapping: str) -> float:
    """F_0 - F_T at these centers, as a sum of terms that are never negative."""
    hard = inertia(points, centers, reduction="none")
    terms = hard - free_energy(points, centers, temperature, mapping, reduction="none")
    return terms.mean().item()


def _fit(x: Any, values: list[float]) -> dict[str, float] | None:
    """Least squares of the logarithms of positive values: slope, its 95 % interval, r squared."""
    from scipy.stats import linregress, t

    kept = [(a, v) for a, v in zip(x, values, strict=True) if v > 0]
    if len(kept) < 3:
        return None
    a, v = np.array(kept).T
    line = linregress(a, np.log(v))
    half = float(t.ppf(0.975, len(a) - 2) * line.stderr)
    slope = float(line.slope)
    if not math.isfinite(slope + half + line.rvalue):
        return None  # as where all values are the same
    return {
        "slope": slope,
        "low": slope - half,
        "high": slope + half,
        "intercept": float(line.intercept),
        "r_squared": float(line.rvalue**2),
        "n": len(a),
    }


def _smooth(seed: int, n_points: int, n_temperatures: int) -> list[Record]:
    """One step of two centers on a line, with a smooth density that falls as the seed decides.

    Points lie symmetrically about the wall between the centers, so that the grid has no say.
    """
    generator = torch.Generator().manual_seed(seed)
    slope = 0.5 + torch.rand((), dtype=torch.float64, generator=generator).item()
    x = ((torch.arange(n_points, dtype=torch.float64) + 0.5) / n_points).unsqueeze(1)
    weight = torch.exp(-slope * x.squeeze(1))
    centers = x.new_tensor([[0.25], [0.75]])
    lloyd_step = statistics(x, centers, 0.0, "hard", weight).centers(centers)
    temperatures = np.geomspace(*SMOOTH, n_temperatures).tolist()
    records = []
    for mapping in MAPPINGS:
        moved = [statistics(x, centers, t, mapping, weight).centers(centers) for t in temperatures]
        errors = [distance(m, lloyd_step).item() for m in moved]
        records.append(
            {
                "mapping": mapping,
                "temperatures": temperatures,
                "errors": errors,
                "power": _fit(np.log(temperatures), errors),
            }
        )
    return records


def _powers(runs: list[Record], mapping: str) -> list[float]:
    return [r["power"]["slope"] for r in runs if r["mapping"] == mapping and r["power"]]


def _shrinking(record: Record) -> list[float]:
    """For each geometry and seed the power of N with which T* falls."""
    slopes = []
    for g in GEOMETRIES:
        for seed in record["seeds"]:
            runs = [r for r in record["hardening"] if (r["geometry"], r["seed"]) == (g, seed)]
            fit = _fit(np.log([r["n_points"] for r in runs]), [r["T*"] for r in runs])
            if fit:
                slopes.append(fit["slope"])
    return slopes


def _law_table(record: Record) -> Table:
    rows = []
    for g in GEOMETRIES:
        for m in MAPPINGS:
            runs = [r for r in record["runs"] if (r["geometry"], r["mapping"]) == (g, m)]
            fits = [r["power"] for r in runs if r["power"]]
            low, high = (float(np.median([f[end] for f in fits])) for end in ("low", "high"))
            exponential = "-"
            if m == "softmax":
                laws = [r["exponential"] for r in runs]
                exponential = spread(law["slope"] for law in laws)
                ends = (float(np.median([law[end] for law in laws])) for end in ("low", "high"))
                exponential += "; {} to {}".format(*map(short, ends))
            rows.append(
                (
                    g,
                    m,
                    exponential,
                    f"{spread(f['slope'] for f in fits)}; {short(low)} to {short(high)}",
                    spread(r["energy_power"]["slope"] for r in runs if r["energy_power"]),
                    f"{sum(r['exactly_zero'] for r in runs)} of {len(runs)}",
                )
            )
    return Table(
        "Laws of the error: median (quartiles) over seeds; median 95 % interval of a single fit",
        (
            "geometry",
            "mapping",
            "slope of log error by m / T",
            "power of T above T*",
            "power of the energy gap",
            "exactly 0 at T <= T*",
        ),
        tuple(rows),
    )


def _smooth_table(record: Record) -> Table:
    rows = tuple((m, spread(_powers(record["smooth"], m))) for m in MAPPINGS)
    return Table(
        "Power of T on a smooth density, one step", ("mapping", "median (quartiles)"), rows
    )


def _hardening_table(record: Record) -> Table:
    rows = []
    for n in record["options"]["sizes"]:
        each = (
            spread(r["T*"] for r in record["hardening"] if (r["n_points"], r["geometry"]) == (n, g))
            for g in GEOMETRIES
        )
        rows.append((f"{n:,}", *each))
    return Table(
        "T* of entmax15 in units of the scale of the data, by the number of points",
        ("N", *GEOMETRIES),
        tuple(rows),
    )
