"""How fast?  This library and its peers side by side: same data, centers, dtype and threads.

    python benchmarks/speed.py [--json benchmarks/speed.json] [--repeats 7] [--quick]
                               [--only mapping,iteration,fit,free_energy,layer,memory,linear,start]

Prints a line for each comparison, with the bound asked of it and ``pass`` or ``short``; lines
without a bound are there to inform.  ``pip install ".[bench]"`` brings the peers.  Linux only.
`table.py` makes the table of the README from the JSON.
"""

import argparse
import json
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import entmax
import fresh
import numpy as np
import peers
import torch
from data import china, distinct_rows, fashion_mnist, normal
from facts import machine_facts
from sklearn.base import ClusterMixin
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import pairwise_distances_argmin_min
from support import temperature_of_support
from timing import THREADS, Bench, Line, per_iteration
from torch import Tensor

import entmeans
from entmeans import EntMeans, operators

STEPS = 10  # iterations between the short and the long fit whose difference is measured
SLOW = 1.0  # s for one iteration, from which on these are enough:
SLOW_STEPS, SLOW_REPEATS = 2, 3
MANY = 100  # clusters of the fit at which a table shows the peers without a bound too
SHARP, SOFT = 1.5, 4.0  # mean number of centers that share a point
COLD_TO_WARM = (0.01, 0.1, 1.0, 10.0)  # T in mean squared distances to the nearest center
LLOYD = "scikit-learn KMeans"


def mapping(bench: Bench) -> Iterator[Line]:
    """entmax15 on dense scores, forward and backward with a fixed cotangent."""
    for k, scale, asked in (
        (10, 1, 1.0),
        (100, 1, 15.0),
        (100, 10, 15.0),
        (1000, 1, 15.0),
        (1000, 10, 15.0),
    ):
        scores = torch.from_numpy(scale * normal(bench.rows(10_000), k)).requires_grad_()
        cotangent = torch.randn(scores.shape, generator=torch.Generator().manual_seed(0))
        rules = {"ours": entmeans.entmax15, "entmax": entmax.entmax15, "softmax": torch.softmax}
        calls = {n: partial(_forward_backward, r, scores, cotangent) for n, r in rules.items()}
        where = f"{len(scores):,} x {k:,}"
        times = bench.side_by_side(f"mapping, {where}, scale {scale}", calls)
        line = Line("mapping", "entmax15", where, times["ours"], at=f"scale {scale}")
        yield replace(
            line,
            peer="entmax",
            theirs=times["entmax"],
            asked=asked,
            speedup=asked > 1,
            difference=_farthest(calls["ours"](), calls["entmax"]()),
            allowed=1e-5,
        )
        asked_of_softmax = 4.0 if k > 10 else None
        yield replace(line, peer="torch.softmax", theirs=times["softmax"], asked=asked_of_softmax)


def _forward_backward(
    rule: Callable[[Tensor, int], Tensor], scores: Tensor, cotangent: Tensor
) -> Tensor:
    scores.grad = None
    p = rule(scores, -1)
    p.backward(cotangent)
    return p.detach()


def _farthest(a: Tensor, b: Tensor) -> float:
    return (a - b).abs().max().item()


def iteration(bench: Bench) -> Iterator[Line]:
    """One iteration from the same centers, hard and at several temperatures."""
    pixels = china().astype(np.float32)
    for points, n_clusters in (
        (normal(bench.rows(100_000), 64), 100),
        (normal(bench.rows(100_000), 16), 256),
        (normal(bench.rows(20_000), 128), 1024),
        (pixels[:: len(pixels) // bench.rows(len(pixels))], 64),
    ):
        kind = "china" if points.shape[1] == 3 else "normal"
        yield from _iteration(bench, kind, points, distinct_rows(points, n_clusters))


def _iteration(bench: Bench, kind: str, points: np.ndarray, centers: np.ndarray) -> Iterator[Line]:
    where = f"{kind} {_sizes(points, centers)}"
    x, c = torch.from_numpy(points), torch.from_numpy(centers)
    at = {support: temperature_of_support(x, c, support) for support in (SHARP, SOFT)}
    distortion = entmeans.inertia(x, c, reduction="mean").item()
    scales = [factor * distortion for factor in COLD_TO_WARM]
    hard_fits, hard_steps = _short_and_long(partial(_hard, points, centers))
    lloyd_fits, lloyd_steps = _short_and_long(partial(_lloyd, points, centers))
    times = bench.side_by_side(
        f"iteration, {where}",
        {
            "product": partial(torch.mm, x, c.T, out=torch.empty(len(x), len(c))),
            "hard step": partial(_step, x, c, 0.0, "hard"),
            **{f"support {s}": partial(_step, x, c, t, "entmax15") for s, t in at.items()},
            **{f"entmax15 {t}": partial(_step, x, c, t, "entmax15") for t in scales},
            **{f"softmax {t}": partial(_step, x, c, t, "softmax") for t in scales},
            **{f"EntMeans {name}": call for name, call in hard_fits.items()},
            **{f"KMeans {name}": call for name, call in lloyd_fits.items()},
        },
    )
    lloyd = per_iteration(times["KMeans short"], times["KMeans long"], lloyd_steps)
    hard = per_iteration(times["EntMeans short"], times["EntMeans long"], hard_steps)
    against = partial(Line, "iteration", where=where, peer=LLOYD, theirs=lloyd)
    for (support, t), asked in zip(at.items(), (1.0, 2.0), strict=True):
        what, ours = f"entmax15, {support:g} centers a point", times[f"support {support}"]
        yield against(what, ours=ours, asked=asked, note=f"T = {t:.3g}")
        if support == SHARP:
            bare = Line("iteration", what, where, ours, "torch.mm alone", times["product"])
            yield replace(bare, asked=3.0 if (points.shape[1], len(c)) == (64, 100) else None)
    note = f"fits of 1 and {1 + hard_steps} iterations; scikit-learn's of 1 and {1 + lloyd_steps}"
    yield against("hard, within a fit", ours=hard, asked=0.7, note=note)
    yield against("hard, one step", ours=times["hard step"])
    yield from _softmax(where, times, scales)


def _softmax(where: str, times: dict[str, list[float]], scales: list[float]) -> Iterator[Line]:
    """Softmax against entmax15 at the same temperatures, and against itself: subnormal numbers."""
    for factor, t in zip(COLD_TO_WARM, scales, strict=True):
        entmax15, softmax = times[f"entmax15 {t}"], times[f"softmax {t}"]
        at = f"T = {factor:g} distortions"
        yield Line(
            "iteration", "softmax", where, softmax, "our entmax15", entmax15, asked=2.0, at=at
        )
    by_time = sorted((times[f"softmax {t}"] for t in scales), key=np.median)
    yield Line(
        "iteration",
        "softmax, slowest T",
        where,
        by_time[-1],
        "softmax, fastest T",
        by_time[0],
        asked=2.0,
        note="subnormal numbers would show here",
    )


def _step(points: Tensor, centers: Tensor, temperature: float, mapping: str) -> Tensor:
    return entmeans.statistics(points, centers, temperature, mapping).centers(centers)


def _hard(points: np.ndarray, centers: np.ndarray, max_iter: int) -> int:
    return _ours(points, centers, tol=0, max_iter=max_iter).n_iter_


def _lloyd(points: np.ndarray, centers: np.ndarray, max_iter: int) -> int:
    return peers.lloyd(points, centers, tol=0, max_iter=max_iter).n_iter_


def _ours(points: np.ndarray, centers: np.ndarray, **limits: float) -> EntMeans:
    return EntMeans(len(centers), temperature=0, init=centers, n_init=1, **limits).fit(points)


def _short_and_long(run: Callable[[int], int]) -> tuple[dict[str, Callable[[], int]], int]:
    """A fit of one iteration and one of many, and by how many they really differ."""
    steps = max(1, run(1 + STEPS) - 1)
    return {"short": partial(run, 1), "long": partial(run, 1 + steps)}, steps


def fit(bench: Bench) -> Iterator[Line]:
    """Whole hard fits from the same centers to each one's default tolerance."""
    pixels, images = china(), fashion_mnist()
    yield from _fits(bench, "digits", load_digits().data, 10)
    yield from _fits(bench, "china", pixels[:: len(pixels) // bench.rows(len(pixels))], 64)
    for n_clusters in (10, MANY):
        if images is None:
            where = f"fashion-mnist, K = {n_clusters}"
            note = "fashion-mnist.npz is not in ENTMEANS_DATA; fetch_openml would be needed"
            yield Line("fit", "hard fit", where, peer=LLOYD, asked=0.8, note=note)
        else:
            yield from _fits(bench, "fashion-mnist", images[: bench.rows(10_000)], n_clusters)


def _fits(bench: Bench, name: str, points: np.ndarray, n_clusters: int) -> Iterator[Line]:
    points = np.ascontiguousarray(points, dtype=np.float32)
    centers = distinct_rows(points, n_clusters)
    where = f"{name} {_sizes(points, centers)}"
    ours = _ours(points, centers)
    times = bench.side_by_side(
        f"fit, {where}",
        {
            "ours": partial(_ours, points, centers),
            "lloyd": partial(peers.lloyd, points, centers),
            "elkan": partial(peers.elkan, points, centers),
            "mini batch": partial(peers.mini_batch, points, centers),
            "faiss": partial(peers.faiss_fit, points, centers, ours.n_iter_),
        },
    )
    line = Line("fit", "hard fit", where, times["ours"], shown=n_clusters == MANY)
    yield replace(line, peer=LLOYD, theirs=times["lloyd"], asked=0.8, **_same(points, ours))
    yield replace(line, peer=f"{LLOYD}, elkan", theirs=times["elkan"])
    worse = _apart(points, peers.mini_batch(points, centers), peers.lloyd(points, centers))
    note = f"its inertia is {worse:+.2%} of lloyd's"
    yield replace(line, peer="MiniBatchKMeans", theirs=times["mini batch"], note=note, shown=False)
    note = f"{ours.n_iter_} iterations"
    yield replace(line, peer="faiss.Kmeans", theirs=times["faiss"], note=note)
    yield from _torch_peers(bench, where, points, centers)


def _same(points: np.ndarray, ours: EntMeans) -> dict[str, Any]:
    """How far ours is from scikit-learn's fit, and how far that is from itself in float64.

    Where points tie, as pixels do, one rounding sends a fit elsewhere.
    """
    lloyd = peers.lloyd(points, ours.init)
    wide = peers.lloyd(points.astype(np.float64), ours.init.astype(np.float64))
    note = f"iterations: ours {ours.n_iter_}, scikit-learn's {lloyd.n_iter_}"
    in_float64 = f"inertia of scikit-learn's in float64: {_apart(points, wide, lloyd):+.1e}"
    apart = _apart(points, ours, lloyd)
    return {
        "difference": abs(apart),
        "allowed": 1e-5,
        "note": f"{note}; inertia of ours: {apart:+.1e}; {in_float64}",
    }


def _apart(points: np.ndarray, a: ClusterMixin, b: ClusterMixin) -> float:
    """The inertia of one fit relative to that of another, minus 1."""
    return _inertia(points, a.cluster_centers_) / _inertia(points, b.cluster_centers_) - 1


def _inertia(points: np.ndarray, centers: np.ndarray) -> float:
    """In float64 by scikit-learn, for all alike: float32 sums differ by more than the fits do."""
    x, c = points.astype(np.float64), centers.astype(np.float64)
    return float(pairwise_distances_argmin_min(x, c, metric="sqeuclidean")[1].sum())


def _torch_peers(
    bench: Bench, where: str, points: np.ndarray, centers: np.ndarray
) -> Iterator[Line]:
    """One iteration of the peers in torch, by two fits again: tolerances differ in meaning."""
    x, c = torch.from_numpy(points), torch.from_numpy(centers)
    compare = partial(_torch_peer, bench, where)
    yield compare("fast_pytorch_kmeans", "hard iteration", _hard_fit, peers.fast_pytorch_fit, x, c)
    yield compare("torch_kmeans KMeans", "hard iteration", _hard_fit, peers.torch_kmeans_fit, x, c)
    unit = [torch.nn.functional.normalize(t, dim=1) for t in (x, c)]
    soft = "softmax iteration, unit vectors"
    line = compare("torch_kmeans SoftKMeans", soft, _soft_fit, peers.torch_soft_fit, *unit)
    yield replace(line, note=line.note or "its weights are exp(5 cos)")


def _torch_peer(
    bench: Bench,
    where: str,
    peer: str,
    what: str,
    our_fit: Callable[[Tensor, Tensor, int], object],
    their_fit: Callable[[Tensor, Tensor, int], Tensor],
    points: Tensor,
    centers: Tensor,
) -> Line:
    start = time.perf_counter()
    found, failure = peers.attempted(partial(their_fit, points, centers, 1))
    slow = time.perf_counter() - start > SLOW
    line = Line("fit", what, where, peer=peer, note=failure, shown=len(centers) == MANY)
    if found is None:
        return line
    if (lost := int((found == 0).all(1).sum())) > 1:
        line = replace(line, note=f"{lost} of its centers become 0")
    steps, at_most = (SLOW_STEPS, SLOW_REPEATS) if slow else (STEPS, None)
    calls = {
        f"{side} {length}": partial(call, points, centers, n)
        for side, call in (("our", our_fit), ("their", their_fit))
        for length, n in (("short", 1), ("long", 1 + steps))
    }
    times = bench.side_by_side(f"{what}, {where}, {peer}", calls, at_most)
    ours = per_iteration(times["our short"], times["our long"], steps)
    theirs = per_iteration(times["their short"], times["their long"], steps)
    return replace(line, ours=ours, theirs=theirs)


def _hard_fit(points: Tensor, centers: Tensor, steps: int) -> object:
    return entmeans.anneal(points, centers, temperature=0.0, tol=0, max_iter=steps)


def _soft_fit(points: Tensor, centers: Tensor, steps: int) -> object:
    """At the temperature, constant, that SoftKMeans has with its defaults."""
    t = peers.UNIT_TEMPERATURE
    limits = {"temperature": t, "final_temperature": t, "tol": 0, "max_iter": steps}
    return entmeans.anneal(points, centers, entmeans.Constant(), "softmax", **limits)


def free_energy(bench: Bench) -> Iterator[Line]:
    """The loss, forward and backward to points and centers, against autograd over N x K."""
    points = normal(bench.rows(100_000), 64)
    centers = distinct_rows(points, 100)
    where = f"normal {_sizes(points, centers)}"
    x, c = torch.from_numpy(points), torch.from_numpy(centers)
    t = temperature_of_support(x, c, SHARP)
    x, c = x.requires_grad_(), c.requires_grad_()
    for rule, naive, peer, asked in (
        ("softmax", peers.naive_free_energy, "cdist, logsumexp", 5.0),
        ("entmax15", peers.entmax_free_energy, "cdist, entmax", 15.0),
    ):
        ours = partial(_loss_and_gradients, partial(entmeans.free_energy, mapping=rule), x, c, t)
        theirs = partial(_loss_and_gradients, naive, x, c, t)
        times = bench.side_by_side(f"free_energy, {rule}", {"ours": ours, "theirs": theirs})
        yield Line(
            "free_energy",
            rule,
            where,
            times["ours"],
            peer,
            times["theirs"],
            asked=asked,
            speedup=True,
            difference=abs(ours() / theirs() - 1),
            allowed=1e-5,
            note=f"T = {t:.3g}",
        )


def _loss_and_gradients(
    loss: Callable[[Tensor, Tensor, float], Tensor], points: Tensor, centers: Tensor, t: float
) -> float:
    points.grad = centers.grad = None
    value = loss(points, centers, t)
    value.backward()
    return value.item()


def layer(bench: Bench) -> Iterator[Line]:
    """A layer's loss, forward and backward, and the operator that it wraps."""
    for n, d, k in ((32, 16, 10), (256, 64, 100), (4096, 64, 100)):
        x = torch.from_numpy(normal(bench.rows(n), d)).requires_grad_()
        module = entmeans.nn.SoftKMeans(k, d)
        module.reset_centers(x.detach(), generator=torch.Generator().manual_seed(0))
        module.temperature = entmeans.reference_temperature(x.detach(), module.centers)
        rest = None, module.fixed_temperature, "entmax15"

        def of_operator(x: Tensor = x, centers: Tensor = module.centers, rest: Any = rest) -> None:
            x.grad = centers.grad = None
            (operators.free_energy(x, centers, *rest)[1] / len(x)).backward()

        def of_layer(x: Tensor = x, module: entmeans.nn.SoftKMeans = module) -> None:
            x.grad = module.centers.grad = None
            module.loss(x).backward()

        where = f"{n:,} x {d}, K = {k:,}"
        calls = {"ours": of_layer, "operator": of_operator}
        of_layer()  # imports and compiles, which would be taken for a slow call
        times = bench.side_by_side(f"layer, {where}", calls)
        yield Line(
            *("layer", "SoftKMeans.loss, entmax15", where, times["ours"]),
            peer="free_energy operator",
            theirs=times["operator"],
            asked=1.2,
        )


def memory(bench: Bench) -> Iterator[Line]:
    """Peak memory of free_energy, forward and backward, beyond inputs and gradients."""
    n_points = bench.rows(1_000_000)
    where = f"{n_points:,} x {fresh.N_FEATURES}, K = {fresh.N_CLUSTERS:,}"
    for rule in ("entmax15", "softmax"):
        peak = fresh.measured("memory", rule, str(n_points))
        what = f"free_energy, {rule}, extra memory"
        yield Line("memory", what, where, [peak], unit="MB", asked=100.0)


def linear(bench: Bench) -> Iterator[Line]:
    """Time of the statistics for a point, as there are more of them: memory traffic shows here."""
    sizes = [bench.rows(n) for n in (10_000, 100_000, 1_000_000)]
    x = torch.from_numpy(normal(sizes[-1], 32))
    c = torch.from_numpy(distinct_rows(x[: sizes[0]].numpy(), 100))
    t = temperature_of_support(x[: sizes[0]], c, SHARP)
    calls = {str(n): partial(entmeans.statistics, x[:n], c, t) for n in sizes}
    times = bench.side_by_side("linear", calls)
    for small, large in ((0, 1), (1, 2), (0, 2)):
        n, m = sizes[small], sizes[large]
        yield Line(
            "linear",
            f"time for {n:,} points of {m:,}",
            f"D = 32, K = {len(c)}",
            [ms * n / m for ms in times[str(m)]],
            f"{n:,} points alone",
            times[str(n)],
            asked=1.15,
        )


def start(bench: Bench) -> Iterator[Line]:
    """What a new process pays: the import, and the first fit."""
    runs = 2 if bench.quick else 5
    imports = [
        fresh.import_seconds("torch, entmeans") - fresh.import_seconds("torch") for _ in range(runs)
    ]
    yield Line("start", "import beyond torch", "new process", imports, unit="s", asked=0.3)
    fresh.measured("fit")  # fills the cache of kernels
    warm = [_first_beyond_later(fresh.measured("fit")) for _ in range(runs)]
    what = "first fit beyond the next"
    yield Line("start", what, "digits, kernels cached", warm, unit="s", asked=1.0)
    with tempfile.TemporaryDirectory() as empty:
        cold = _first_beyond_later(fresh.measured("fit", NUMBA_CACHE_DIR=empty))
    yield Line("start", what, "digits, kernels not cached", [cold], unit="s", shown=True)


def _first_beyond_later(seconds: list[float]) -> float:
    return seconds[0] - float(np.median(seconds[1:]))


BLOCKS = {
    f.__name__: f for f in (mapping, iteration, fit, free_energy, layer, memory, linear, start)
}


def _sizes(points: np.ndarray, centers: np.ndarray) -> str:
    return f"{len(points):,} x {points.shape[1]}, K = {len(centers):,}"


def show(line: Line) -> None:
    parts = [*line.cells(), line.remarks()]
    print(" | ".join(part for part in parts if part), flush=True)


def blocks(names: str) -> list[str]:
    """The names in a list with commas, all of them known."""
    chosen = names.split(",")
    if unknown := set(chosen) - set(BLOCKS):
        raise argparse.ArgumentTypeError(
            f"{', '.join(sorted(unknown))}: choose from {', '.join(BLOCKS)}"
        )
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write facts, lines and every time here")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows: does it run?")
    parser.add_argument("--only", type=blocks, default=list(BLOCKS), help="blocks, with commas")
    arguments = parser.parse_args()

    warnings.filterwarnings("ignore", category=ConvergenceWarning)
    peers.limit_threads()
    facts, bench, lines = machine_facts(), Bench(arguments.repeats, arguments.quick), []
    print(f"{facts['processor']}, {THREADS} threads, {facts['date']}; times in ms unless said")
    for name in arguments.only:
        print(f"\n{name}: {BLOCKS[name].__doc__}")
        for line in BLOCKS[name](bench):
            show(line)
            lines.append(line)
        if arguments.json:  # after each block: an interrupted run leaves what it has
            report = {
                "machine": facts,
                "repeats": arguments.repeats,
                "quick": arguments.quick,
                "lines": [asdict(line) for line in lines],
                "times": bench.times,
            }
            arguments.json.write_text(json.dumps(report, indent=1))
    verdicts = [line.verdict for line in lines if line.verdict]
    print("\n" + ", ".join(f"{verdicts.count(v)} {v}" for v in sorted(set(verdicts))))


if __name__ == "__main__":
    main()
