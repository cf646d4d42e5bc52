"""C6: which ways to compute responsibilities stand low temperatures, in which dtype."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ..functional import nearest, squared_distances, statistics
from ..mappings import get_mapping
from .geometries import GEOMETRIES
from .paths import best_fixed_point, start
from .records import Judgement, Record, Table, Verdict, short

METHOD = (
    "At a fixed point of K-means on each geometry, squared distances d are computed in float64, "
    "divided by their scale (the mean distance to the nearest center) and rounded to a dtype. In "
    "that dtype, natively, responsibilities are computed in five ways: as the raw ratio of "
    "Gaussians exp(-d/T) / sum exp(-d/T); as softmax(-d/T), which subtracts the largest score "
    "after the division; as the same with the smallest distance subtracted before it; and as "
    "entmax15 in these two ways, of which the package takes the second. Rows are counted that hold "
    "NaN; that hold subnormal numbers; that sum to 1 within K units of rounding; whose gradient to "
    "the centers is lost, which is to say 0 or not finite: of a loss that reads the "
    "responsibilities, and of the free energy, whose derivative by a distance is the "
    "responsibility itself. Times are of one thread: torch's softmax and the sums p' x in every "
    "dtype, and the step of the package, at temperatures at which more or fewer responsibilities "
    "are subnormal."
)

QUICK = {"n_points": 100, "n_temperatures": 16, "n_timed": 2000}

DTYPES = ("float16", "bfloat16", "float32", "float64")
WAYS = ("raw ratio", "softmax", "softmax, shifted", "entmax15", "entmax15, shifted")
QUANTITIES = ("nan", "subnormal", "sums to 1", "gradient lost", "free energy gradient lost")

COLDEST, HOTTEST = 1e-12, 1e3
"""Temperatures, in units of the mean squared distance to the nearest center."""

TIMED_T = tuple(np.geomspace(1e-3, 10, 9).tolist())
TIMED_D, TIMED_K = 16, 64


def measure(
    seeds: Iterable[int],
    *,
    n_points: int = 300,
    n_clusters: int = 5,
    n_temperatures: int = 31,
    n_timed: int = 10_000,
) -> Record:
    """Shares of rows that go wrong, by way, dtype and temperature, and times of a step.

    Parameters
    ----------
    seeds : iterable of int
    n_points, n_clusters : int
        N and K of each geometry; the rows of all four are counted together.
    n_temperatures : int
    n_timed : int
        Points of the problem that is timed.

    Examples
    --------
    >>> from entmeans.paper.stability import measure
    >>> record = measure([0], n_points=20, n_temperatures=3, n_timed=50)
    >>> max(record["shares"]["float32"]["softmax"]["nan"])
    0.0
    """
    options = {name: value for name, value in locals().items() if name != "seeds"}
    temperatures = np.geomspace(COLDEST, HOTTEST, n_temperatures).tolist()
    found: dict[str, dict[str, list[list[dict[str, float]]]]]
    found = {dtype: {way: [] for way in WAYS} for dtype in DTYPES}
    times, used = [], []
    for seed in seeds:
        used.append(seed)
        d = _distances(n_points, n_clusters, seed)
        generator = torch.Generator().manual_seed(seed)
        read = torch.randn(d.shape, dtype=torch.float64, generator=generator)
        for dtype in DTYPES:
            rounded, to = d.to(getattr(torch, dtype)), read.to(getattr(torch, dtype))
            for way in WAYS:
                rows = [_counts(*_computed(way, rounded, to, t)) for t in temperatures]
                found[dtype][way].append(rows)
        times.append(_times(n_timed, seed))
    shares = {
        dtype: {
            way: {
                q: np.mean([[row[q] for row in rows] for rows in found[dtype][way]], 0).tolist()
                for q in QUANTITIES
            }
            for way in WAYS
        }
        for dtype in DTYPES
    }
    return {
        "seeds": used,
        "options": options,
        "temperatures": temperatures,
        "shares": shares,
        "timed_temperatures": list(TIMED_T),
        "times": times,
    }


def judge(record: Record) -> Judgement:
    """Holds if the shifted softmax fails; under a condition if only the raw ratio does.

    Examples
    --------
    >>> from entmeans.paper.stability import judge, measure
    >>> judge(measure([0], n_points=20, n_temperatures=6, n_timed=50)).verdict
    <Verdict.CONDITION: 'holds under a condition'>
    """
    raw, softmax, shifted, entmax, best = (
        {d: max(record["shares"][d][way]["nan"]) for d in DTYPES} for way in WAYS
    )
    stable = max(best.values()) == 0
    if not stable or max(raw.values()) == 0:
        verdict = Verdict.FAILS
    elif max(shifted.values()) > 0:
        verdict = Verdict.HOLDS
    else:
        verdict = Verdict.CONDITION
    bad = [d for d in DTYPES if softmax[d] > 0]
    same = [d for d in DTYPES if entmax[d] > 0]
    unshifted = (
        f"Divided first, -d/T overflows in {', '.join(bad)}: then softmax gives NaN in up to "
        f"{max(softmax.values()):.0%} of the rows, and entmax15 in "
        + (f"{', '.join(same)} in up to {max(entmax.values()):.0%}" if same else "none")
        + " of them. What protects is the shift before the division, not the mapping."
        if bad
        else "Dividing first does no harm to softmax in any dtype."
    )
    subnormal = {w: max(max(record["shares"][d][w]["subnormal"]) for d in DTYPES) for w in WAYS}
    lost = {w: record["shares"]["float32"][w]["gradient lost"][0] for w in WAYS}
    alive = {w: record["shares"]["float32"][w]["free energy gradient lost"][0] for w in WAYS}
    slow = _slowdowns(record)
    return Judgement(
        verdict,
        f"The raw ratio is NaN in up to {max(raw.values()):.0%} of rows in every dtype; a softmax "
        f"whose scores are shifted first never is ({max(shifted.values()):.0%}), nor is entmax15 "
        f"({max(best.values()):.0%}).",
        (
            "Said plainly: a softmax that is computed as every library does, with the largest "
            "score subtracted, produces no NaN in "
            f"{', '.join(d for d in DTYPES if d not in bad)} at any temperature. The claim is "
            "true of the formula exp(-d/T) / sum exp(-d/T) as it is written, which no one needs to "
            "compute.",
            unshifted,
            "What softmax does have is subnormal responsibilities, in up to "
            f"{subnormal['softmax, shifted']:.0%} of the rows (entmax15: "
            f"{subnormal['entmax15, shifted']:.0%}), and it never becomes exactly hard. A product "
            f"p' x takes up to {short(slow['float32'])} times as long in float32 and "
            f"{short(slow['float64'])} times in float64 as at the temperature where it is fastest. "
            "The package sets subnormal responsibilities to 0.",
            "The gradient through the responsibilities is lost with both mappings: at the lowest T "
            f"in {lost['softmax, shifted']:.0%} of the rows with softmax and "
            f"{lost['entmax15, shifted']:.0%} with entmax15 (float32), because rows that are hard "
            "do not change. The gradient of the free energy is never lost with either "
            f"({alive['softmax, shifted']:.0%} and {alive['entmax15, shifted']:.0%} of the rows).",
        ),
        (_share_table(record), _time_table(record)),
    )


def responsibilities(way: str, d: Tensor, temperature: float) -> Tensor:
    """p (N, K) of squared distances (N, K), in their dtype, by one of the `WAYS`."""
    if way == "raw ratio":
        e = torch.exp(-d / temperature)
        return e / e.sum(-1, keepdim=True)
    shift = d.detach().amin(-1, keepdim=True) if way.endswith("shifted") else 0
    scores = -(d - shift) / temperature
    if way.startswith("softmax"):
        return torch.softmax(scores, -1)
    return get_mapping("entmax15").probabilities(scores)


def _distances(n_points: int, n_clusters: int, seed: int) -> Tensor:
    """d (4 N, K) of all geometries, each divided by its scale, at fixed points of K-means."""
    rows = []
    for sample in GEOMETRIES.values():
        points = sample(n_points, seed=seed).points
        centers = best_fixed_point(points, n_clusters, seed, 1)
        scale = nearest(points, centers).distances.mean()
        rows.append(squared_distances(points, centers) / scale)
    return torch.cat(rows)


def _computed(way: str, d: Tensor, read: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Responsibilities, and the gradient by the distances of a loss sum_j p_ij v_ij."""
    if way.startswith("entmax15"):  # its own derivative: automatic ones would follow the search
        p = responsibilities(way, d, temperature)
        return p, -get_mapping("entmax15").vjp(p, read) / temperature
    leaf = d.clone().requires_grad_()
    p = responsibilities(way, leaf, temperature)
    (gradient,) = torch.autograd.grad(p, leaf, read)
    return p.detach(), gradient


def _counts(p: Tensor, gradient: Tensor) -> dict[str, float]:
    """Shares of the rows."""
    kind = torch.finfo(p.dtype)
    wide = p.double()
    sums = (wide.sum(-1) - 1).abs() <= p.shape[-1] * kind.eps

    def share(rows: Tensor) -> float:
        return rows.double().mean().item()

    return {
        "nan": share(p.isnan().any(-1)),
        "subnormal": share(((wide > 0) & (wide < kind.tiny)).any(-1)),
        "sums to 1": share(sums),
        "gradient lost": share(_lost(gradient)),
        "free energy gradient lost": share(_lost(p)),
    }


def _lost(gradient: Tensor) -> Tensor:
    return (gradient == 0).all(-1) | ~gradient.isfinite().all(-1)


def _times(n_points: int, seed: int) -> Record:
    """Milliseconds at each of the timed temperatures, on one thread."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n_points, TIMED_D, dtype=torch.float64, generator=generator)
    centers = start(x, TIMED_K, seed)
    d = squared_distances(x, centers)
    scale = d.amin(-1).mean().item()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found: Record = {}
        for name in DTYPES:
            dtype = getattr(torch, name)
            points, near = x.to(dtype), (d / scale).to(dtype)
            soft = partial(responsibilities, "softmax, shifted", near)
            found[f"torch softmax, {name}"] = [_milliseconds(partial(soft, t)) for t in TIMED_T]
            found[f"p' x of softmax, {name}"] = [
                _milliseconds(partial(torch.matmul, soft(t).T, points)) for t in TIMED_T
            ]
        for mapping in ("softmax", "entmax15"):
            for name in ("float32", "float64"):
                pair = x.to(getattr(torch, name)), centers.to(getattr(torch, name))
                step = partial(statistics, *pair, mapping=mapping)
                found[f"entmeans step, {mapping}, {name}"] = [
                    _milliseconds(partial(step, temperature=t * scale)) for t in TIMED_T
                ]
    finally:
        torch.set_num_threads(threads)
    return found


def _milliseconds(call: Callable[[], object]) -> float:
    """The median of three."""
    elapsed = []
    for _ in range(3):
        begin = time.perf_counter()
        call()
        elapsed.append(1e3 * (time.perf_counter() - begin))
    return float(np.median(elapsed))


def medians_of_times(record: Record) -> dict[str, list[float]]:
    """Over seeds, for each thing that was timed."""
    return {
        name: np.median([run[name] for run in record["times"]], 0).tolist()
        for name in record["times"][0]
    }


def _slowdowns(record: Record) -> dict[str, float]:
    """By dtype: the slowest product p' x over the fastest."""
    times = medians_of_times(record)
    return {d: max(t) / min(t) for d in DTYPES for t in [times[f"p' x of softmax, {d}"]]}


def _share_table(record: Record) -> Table:
    rows = []
    for dtype in DTYPES:
        for way in WAYS:
            shares = record["shares"][dtype][way]
            each = (max(shares[q]) for q in QUANTITIES if q != "sums to 1")
            rows.append(
                (dtype, way, *(f"{v:.1%}" for v in each), f"{min(shares['sums to 1']):.1%}")
            )
    columns = ("dtype", "way", *(q for q in QUANTITIES if q != "sums to 1"), "sums to 1 (least)")
    return Table("Rows, in the worst case over all temperatures", columns, tuple(rows))


def _time_table(record: Record) -> Table:
    rows = [
        (name, short(float(np.median(times))), short(max(times) / min(times)))
        for name, times in medians_of_times(record).items()
    ]
    n = record["options"]["n_timed"]
    return Table(
        f"Milliseconds on one thread, {n:,} x {TIMED_D}, K = {TIMED_K}: median over temperatures, "
        "and the slowest temperature over the fastest",
        ("what", "ms", "slowest / fastest"),
        tuple(rows),
    )
