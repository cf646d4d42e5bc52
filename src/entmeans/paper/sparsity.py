"""C7: the Voronoi partition, sparse assignments, the cost of the threshold, and later cost."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from operator import matmul

import numpy as np
import torch
from torch import Tensor

from ..functional import entmax15, nearest, responsibilities, statistics
from ..mappings import get_mapping
from .geometries import GEOMETRIES
from .paths import MAPPINGS, best_fixed_point, scale, start
from .records import Judgement, Record, Table, Verdict, short, spread

METHOD = (
    "Partition: at drawn centers and at fixed points of K-means on each geometry it is counted in "
    "which rows no responsibility exceeds that of the nearest center. Support: the mean number of "
    "responsibilities that are not 0, there and for many centers in 16 dimensions. Threshold: the "
    "time of entmax15 for a row of K scores, of normal scores times 10 (narrow support) and times "
    "0.3 (wide support), by sorting, by the formula of the package in plain torch, and by its "
    "entmax15, served by a kernel where there is one, beside torch's sort and softmax; the "
    "exponent of K is fitted from K = 128 on. Later "
    "cost: with 1,024 centers, at temperatures that give supports of about 1.5, 4, 16 and very "
    "many, the sums p' x and the read-out p v into 64 columns take dense responsibilities (torch) "
    "and sparse ones (SciPy's CSR, made beforehand), and the package takes whole steps with "
    "entmax15 and softmax. "
    "All in float32 on one thread; medians over seeds."
)

RULE = (
    "Needs the nearest center to lead in every row, supports below 2 at the lowest T, exponents "
    "of K below 1.5, and a read-out that gains by half at support 1.5. Then it holds, but only "
    "under a condition if a wide support loses."
)

QUICK = {
    "n_points": 100,
    "n_temperatures": 7,
    "sizes": (8, 128, 1024, 4096),
    "n_scores": 2**16,
    "n_rows": 500,
}

ENDINGS = ("narrow", "wide")
SPREADS = {"narrow": 10.0, "wide": 0.3}
ALGORITHMS = ("sort", "plain torch", "kernel", "torch.sort", "torch.softmax")
SUPPORTS = ("1.5", "4", "16", "wide")
K_MANY, D_MANY, K_LATER, READ_OUT = 256, 16, 1024, 64


def measure(
    seeds: Iterable[int],
    *,
    n_points: int = 300,
    n_clusters: int = 5,
    n_temperatures: int = 13,
    sizes: tuple[int, ...] = (8, 32, 128, 512, 2048, 8192, 16_384),
    n_scores: int = 2**19,
    n_rows: int = 4000,
) -> Record:
    """Partition and support by temperature, times by number of centers and by support.

    Parameters
    ----------
    seeds : iterable of int
    n_points, n_clusters : int
        N and K of each geometry.
    n_temperatures : int
        From 1e-4 to 100 times the mean squared distance of the points to their mean.
    sizes : tuple of int
        Numbers K of scores in a row for which the threshold is timed.
    n_scores : int
        Scores in all of its rows together.
    n_rows : int
        Points for which the later cost is timed.

    Examples
    --------
    >>> from entmeans.paper.sparsity import measure
    >>> options = {"sizes": (8, 128, 256, 512), "n_scores": 1024, "n_rows": 50}
    >>> record = measure([0], n_points=20, n_temperatures=2, **options)
    >>> {run["kept"] for run in record["partition"]}
    {1.0}
    """
    options = {name: value for name, value in locals().items() if name != "seeds"}
    options["sizes"] = list(sizes)
    relative = np.geomspace(1e-4, 100, n_temperatures).tolist()
    partition, support, threshold, later, used = [], [], [], [], []
    for seed in seeds:
        used.append(seed)
        partition += list(_partition(n_points, n_clusters, relative, seed))
        support += list(_many(n_points, relative, seed))
        with one_thread():
            threshold += list(_threshold(sizes, n_scores, seed))
            later += list(_later(n_rows, seed))
    return {
        "seeds": used,
        "options": options,
        "temperatures": relative,
        "partition": partition,
        "many": support,
        "threshold": threshold,
        "later": later,
    }


def judge(record: Record) -> Judgement:
    """Under a condition: the later cost is lower only where few of the centers share a point.

    Examples
    --------
    >>> from entmeans.paper.sparsity import judge, measure
    >>> options = {"sizes": (8, 128, 1024, 4096), "n_scores": 2**14, "n_rows": 200}
    >>> judge(measure([0], n_points=40, n_temperatures=3, **options)).verdict
    <Verdict.CONDITION: 'holds under a condition'>
    """
    kept = min(run["kept"] for run in record["partition"])
    cold = max(
        run["support"][0]
        for run in record["partition"] + record["many"]
        if run["mapping"] != "softmax"
    )
    growth = {a: exponents(record, a) for a in ALGORITHMS}
    # The claim is about the threshold, so no limit of one implementation of it may decide.
    bounded = max(float(np.median(growth[a])) for a in ("sort", "plain torch")) < 1.5
    gain = {s: gains(record, "read-out", s) for s in SUPPORTS}
    sums = {s: gains(record, "sums", s) for s in SUPPORTS}
    lower = float(np.median(gain["1.5"])) > 1.5
    everywhere = float(np.median(gain["wide"])) > 1
    if not (kept == 1 and cold < 2 and bounded and lower):
        verdict = Verdict.FAILS
    else:
        verdict = Verdict.HOLDS if everywhere else Verdict.CONDITION
    ratio = ratios(record, "sort", "kernel")
    return Judgement(
        verdict,
        f"The nearest center leads in {math.floor(100 * kept)}% of rows at every T. The threshold "
        f"costs K to the {short(float(np.median(growth['sort'])))} by sorting, "
        f"{short(float(np.median(growth['plain torch'])))} without (kernel: "
        f"{short(float(np.median(growth['kernel'])))}). A sparse read-out is "
        f"{short(float(np.median(gain['1.5'])))} times as fast at support 1.5, "
        f"{short(float(np.median(gain['wide'])))} at a wide one.",
        (
            "What it depends on: the later cost is lower where few of the centers share a point. "
            f"Of {K_LATER:,} centers, the read-out p v takes {_listed(gain)} times as long dense "
            f"as sparse at supports of 1.5, 4, 16 and wide, the sums p' x {_listed(sums)} times. "
            f"To find the nonzero entries of a dense p takes {short(_conversion(record))} times a "
            "dense read-out: it pays for several uses, or where p is never written down dense, as "
            "in the kernels of the package.",
            "O(K log K) is an upper bound. The threshold needs no sort: a fixed number of passes "
            "over the scores finds it, and in plain torch these were measured to take K to the "
            f"{spread(growth['plain torch'])}; by sorting, K to the {spread(growth['sort'])}.",
            f"The entmax15 of the package is {spread(ratio)} times faster than sorting, over all "
            f"K, and its time grows as K to the {spread(growth['kernel'])}: {_by_size(record)}.",
            "Softmax is dense at every T, but for responsibilities below the range of the dtype; "
            f"the package's steps at support 1.5 take {short(_step_ratio(record, '1.5'))} times as "
            f"long with softmax as with entmax15, at a wide one "
            f"{short(_step_ratio(record, 'wide'))} times.",
        ),
        (_support_table(record), _threshold_table(record), _later_table(record)),
    )


def entmax15_by_sorting(scores: Tensor) -> Tensor:
    """entmax15 of each row (n, K), its support found among prefixes of the sorted scores.

    The largest k for which tau of the first k scores lies below the k-th of them is the size of
    the support (Peters, Niculae and Martins 2019).

    Examples
    --------
    >>> import torch
    >>> from entmeans.paper.sparsity import entmax15_by_sorting
    >>> entmax15_by_sorting(torch.tensor([[1.0, 0.5, -3.0]]))
    tensor([[0.6740, 0.3260, 0.0000]])
    """
    x = (scores - scores.amax(-1, keepdim=True)) / 2
    ordered = x.sort(-1, descending=True).values
    size = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype)
    mean = ordered.cumsum(-1) / size
    variance = ordered.square().cumsum(-1) / size - mean.square()
    tau = mean - ((1 - size * variance) / size).clamp_min(0).sqrt()
    last = (tau <= ordered).sum(-1, keepdim=True) - 1
    return (x - tau.gather(-1, last)).clamp_min(0).square()


def exponents(record: Record, algorithm: str) -> list[float]:
    """For each seed and ending the exponent of K in the time of a row, from K = 128 on."""
    slopes = []
    for run in record["threshold"]:
        kept = [
            (k, t) for k, t in zip(run["sizes"], run["times"][algorithm], strict=True) if k >= 128
        ]
        k, t = np.log(np.array(kept)).T
        slopes.append(float(np.polyfit(k, t, 1)[0]))
    return slopes


def ratios(record: Record, slow: str, fast: str) -> list[float]:
    """Times of one algorithm over those of another, for each seed, ending and K."""
    return [
        a / b
        for run in record["threshold"]
        for a, b in zip(run["times"][slow], run["times"][fast], strict=True)
    ]


def gains(record: Record, what: str, support: str) -> list[float]:
    """Dense over sparse time, for each seed."""
    runs = [run for run in record["later"] if run["support"] == support]
    return [run["times"][f"{what}, dense"] / run["times"][f"{what}, sparse"] for run in runs]


def _by_size(record: Record) -> str:
    """How the time of the package's entmax15 for a score changes with K, with wide support."""
    runs = [run for run in record["threshold"] if run["ending"] == "wide"]
    sizes = np.array(runs[0]["sizes"])
    own, plain = (np.median([r["times"][a] for r in runs], 0) for a in ("kernel", "plain torch"))
    each = own / sizes
    best = int(each.argmin())
    return (
        f"a score costs {short(float(each[-1] / each[best]))} times as much at K = {sizes[-1]:,} "
        f"as at K = {sizes[best]:,}, and a row of {sizes[-1]:,} takes "
        f"{short(float(own[-1] / plain[-1]))} times as long as by the formula in plain torch"
    )


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch computes on one thread, as SciPy does."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _partition(
    n_points: int, n_clusters: int, relative: list[float], seed: int
) -> Iterator[Record]:
    for geometry, sample in GEOMETRIES.items():
        points = sample(n_points, seed=seed).points
        for where, centers in (
            ("draw", start(points, n_clusters, seed)),
            ("fixed point", best_fixed_point(points, n_clusters, seed, 1)),
        ):
            for mapping in MAPPINGS:
                about = {"geometry": geometry, "at": where, "mapping": mapping, "seed": seed}
                yield about | _shares(points, centers, relative, mapping)


def _many(n_points: int, relative: list[float], seed: int) -> Iterator[Record]:
    """Support among many centers."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(10 * n_points, D_MANY, dtype=torch.float64, generator=generator)
    centers = start(points, K_MANY, seed)
    for mapping in MAPPINGS:
        yield {"mapping": mapping, "seed": seed} | _shares(points, centers, relative, mapping)


def _shares(points: Tensor, centers: Tensor, relative: list[float], mapping: str) -> Record:
    """How many rows lead at the nearest center, and mean supports by temperature."""
    labels, size = nearest(points, centers).labels.unsqueeze(1), scale(points)
    kept, support = [], []
    for t in relative:
        p = responsibilities(points, centers, t * size, mapping)
        kept.append((p.gather(1, labels).squeeze(1) == p.amax(1)).double().mean().item())
        support.append((p > 0).sum(1).double().mean().item())
    return {"kept": min(kept), "support": support}


def _threshold(sizes: tuple[int, ...], n_scores: int, seed: int) -> Iterator[Record]:
    """Microseconds of a row by number of scores, for each algorithm."""
    rule = get_mapping("entmax15")
    calls: dict[str, Callable[[Tensor], object]] = {
        "sort": entmax15_by_sorting,
        "plain torch": rule.probabilities,
        "kernel": entmax15,
        "torch.sort": lambda z: z.sort(-1, descending=True),
        "torch.softmax": lambda z: z.softmax(-1),
    }
    for ending, factor in SPREADS.items():
        times: dict[str, list[float]] = {name: [] for name in ALGORITHMS}
        for k in sizes:
            generator = torch.Generator().manual_seed(seed)
            rows = max(n_scores // k, 1)
            z = factor * torch.randn(rows, k, generator=generator)
            for name, call in calls.items():
                times[name].append(1e3 * milliseconds(partial(call, z)) / rows)
        yield {"ending": ending, "seed": seed, "sizes": list(sizes), "times": times}


def _later(n_rows: int, seed: int) -> Iterator[Record]:
    """Milliseconds of what is done with responsibilities, by their support."""
    from scipy.sparse import csr_array

    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(n_rows, D_MANY, generator=generator)
    centers = torch.randn(K_LATER, D_MANY, generator=generator)
    values = torch.randn(K_LATER, READ_OUT, generator=generator)
    for support in SUPPORTS:
        target = K_LATER / 2 if support == "wide" else float(support)
        t = temperature_of_support(points[:200], centers, target)
        p = responsibilities(points, centers, t)
        sparse = csr_array(p.numpy())
        transposed = sparse.T.tocsr()
        step = partial(statistics, points, centers, t)
        yield {
            "support": support,
            "measured_support": (p > 0).sum(1).double().mean().item(),
            "seed": seed,
            "times": {
                "read-out, dense": milliseconds(partial(matmul, p, values)),
                "read-out, sparse": milliseconds(partial(matmul, sparse, values.numpy())),
                "sums, dense": milliseconds(partial(matmul, p.T, points)),
                "sums, sparse": milliseconds(partial(matmul, transposed, points.numpy())),
                "to sparse": milliseconds(partial(csr_array, p.numpy())),
                "step, entmax15": milliseconds(partial(step, "entmax15")),
                "step, softmax": milliseconds(partial(step, "softmax")),
            },
        }


def temperature_of_support(points: Tensor, centers: Tensor, target: float) -> float:
    """The temperature at which entmax15 gives points a mean support of the target, by bisection."""
    low, high = 1e-3, 1e3
    for _ in range(24):
        middle = (low * high) ** 0.5
        support = (responsibilities(points, centers, middle) > 0).sum(1).double().mean().item()
        low, high = (middle, high) if support < target else (low, middle)
    return (low * high) ** 0.5


def milliseconds(call: Callable[[], object]) -> float:
    """The median of three, after one to warm up."""
    call()
    elapsed = []
    for _ in range(3):
        begin = time.perf_counter()
        call()
        elapsed.append(1e3 * (time.perf_counter() - begin))
    return float(np.median(elapsed))


def _step_ratio(record: Record, support: str) -> float:
    runs = [run["times"] for run in record["later"] if run["support"] == support]
    return float(np.median([t["step, softmax"] / t["step, entmax15"] for t in runs]))


def _conversion(record: Record) -> float:
    runs = [run["times"] for run in record["later"] if run["support"] == "1.5"]
    return float(np.median([t["to sparse"] / t["read-out, dense"] for t in runs]))


def _listed(gain: dict[str, list[float]]) -> str:
    return ", ".join(short(float(np.median(gain[s]))) for s in SUPPORTS)


def _support_table(record: Record) -> Table:
    rows = []
    for i, t in enumerate(record["temperatures"]):
        cells = []
        for runs in (record["partition"], record["many"]):
            for m in MAPPINGS:
                values = [run["support"][i] for run in runs if run["mapping"] == m]
                cells.append(short(float(np.median(values))))
        rows.append((short(t), *cells))
    columns = [f"{m}, K = {k}" for k in (record["options"]["n_clusters"], K_MANY) for m in MAPPINGS]
    return Table("Mean support, median over runs", ("T / scale", *columns), tuple(rows))


def _threshold_table(record: Record) -> Table:
    rows = []
    for ending in ENDINGS:
        runs = [run for run in record["threshold"] if run["ending"] == ending]
        for a in ALGORITHMS:
            times = np.median([run["times"][a] for run in runs], 0)
            slopes = exponents({"threshold": runs}, a)
            rows.append((ending, a, *(short(float(t)) for t in times), spread(slopes)))
    sizes = (f"K = {k:,}" for k in record["options"]["sizes"])
    columns = ("support", "algorithm", *sizes, "exponent of K from 128 on")
    return Table("Microseconds for a row of K scores", columns, tuple(rows))


def _later_table(record: Record) -> Table:
    rows = []
    for s in SUPPORTS:
        runs = [run for run in record["later"] if run["support"] == s]
        support = short(float(np.median([run["measured_support"] for run in runs])))
        names = runs[0]["times"]
        each = (short(float(np.median([run["times"][n] for run in runs]))) for n in names)
        rows.append((support, *each))
    n = record["options"]["n_rows"]
    return Table(
        f"Milliseconds for {n:,} points and {K_LATER:,} centers",
        ("mean support", *record["later"][0]["times"]),
        tuple(rows),
    )
