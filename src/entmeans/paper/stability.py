"""C6: softmax is numerically unstable at low temperature, entmax-1.5 is stable."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from ..functional import inertia, squared_distances, statistics
from ..mappings import MAPPINGS, probabilities
from .geometries import GEOMETRIES
from .paths import best_fixed_point
from .records import Judgement, Record, Table, Verdict, quartiles, short, spread

METHOD = (
    "Responsibilities at fixed points of K-means with 5 centers, rows of all geometries together, "
    "are computed in five forms: the raw ratio exp(-d/T) / sum exp(-d/T), torch.softmax and the "
    "formula of entmax15 of -d/T, and both of scores from which the nearest distance was taken "
    "before dividing by T. Distances, in units of their mean to the nearest center, are computed "
    "in float64 and cast; from there all is native to float16, bfloat16, float32 or float64 (the "
    "package's own entmax15 computes half precision in float32), and T is a plain number. Rows are "
    "counted that hold NaN, that hold subnormal numbers, whose sum misses 1 by more than K eps, "
    "and whose gradient by the distances, the part of the gradient by the centers that can fail, "
    "is zero or not finite: of sum p v with random v, through the responsibilities, and of the "
    "free energy. Time is that of one thread on normal points, one repeat for each seed."
)

RULE = (
    "Holds if a shifted softmax gives NaN and a shifted entmax15 does not; under a condition if "
    "only the raw ratio and scores that are not shifted do; else it does not."
)

QUICK = {
    "n_points": 100,
    "n_temperatures": 16,
    "n_timed": 4_000,
    "n_timed_features": 8,
    "n_timed_temperatures": 5,
}

DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}

FORMS = ("raw ratio", "softmax", "softmax, shifted", "entmax15", "entmax15, shifted")

QUANTITIES = ("nan", "subnormal", "sum", "p zero", "p broken", "p tiny", "F zero", "F broken")
"""Rows are counted that hold NaN or subnormal numbers, whose sum is off, whose gradients through
the responsibilities are all zero, not finite, or, in units of 1 / T, all below the rounding of 1,
and whose gradients of the free energy are all zero or not finite."""

Result = TypeVar("Result")

PARTS = ("responsibilities", "product", "statistics")

Form = Callable[[Tensor, float | Tensor], tuple[Tensor, Tensor]]


def measure(
    seeds: Iterable[int],
    *,
    n_points: int = 300,
    n_clusters: int = 5,
    n_temperatures: int = 31,
    n_timed: int = 20_000,
    n_timed_features: int = 16,
    n_timed_clusters: int = 64,
    n_timed_temperatures: int = 9,
) -> Record:
    """Rows without a usable value or gradient in each form, precision and temperature, and times.

    Parameters
    ----------
    seeds : iterable of int
    n_points, n_clusters : int
        N and K of each geometry.
    n_temperatures : int
        From 1e-12 to 1e3 times the mean squared distance to the nearest center.
    n_timed, n_timed_features, n_timed_clusters : int
        N, D and K of the points on which time is taken.
    n_timed_temperatures : int
        From 1e-4 to 10 times the same.

    Examples
    --------
    >>> from entmeans.paper.stability import measure
    >>> record = measure([0], n_points=20, n_temperatures=4, n_timed=50, n_timed_temperatures=2)
    >>> sum(sum(r["counts"]["nan"]) for r in record["runs"] if r["form"] == "softmax, shifted")
    0
    """
    options = {name: value for name, value in locals().items() if name != "seeds"}
    relative = np.geomspace(1e-12, 1e3, n_temperatures).tolist()
    timed = np.geomspace(1e-4, 10, n_timed_temperatures).tolist()
    runs: list[Record] = []
    hard: list[Record] = []
    times: list[Record] = []
    used = []
    with _one_thread():
        list(_times(0, 32, n_timed_features, n_timed_clusters, timed[:1]))  # compiles, warms up
        for seed in seeds:
            used.append(seed)
            distances = _distances(seed, n_points, n_clusters)
            for dtype in DTYPES:
                d = distances.to(DTYPES[dtype])
                about = {"seed": seed, "dtype": dtype}
                hard.append(about | {"counts": [_n_hard(d, t) for t in relative]})
                runs += [about | {"form": f} | _run(d, f, relative, seed) for f in FORMS]
            sizes = (n_timed, n_timed_features, n_timed_clusters)
            times += [{"seed": seed} | found for found in _times(seed, *sizes, timed)]
    return {
        "seeds": used,
        "options": options,
        "temperatures": relative,
        "timed_temperatures": timed,
        "n_rows": len(GEOMETRIES) * n_points,
        "runs": runs,
        "hard": hard,
        "times": times,
    }


def judge(record: Record) -> Judgement:
    """Holds if shifted softmax gives NaN; under a condition if only forms without shift do.

    Examples
    --------
    >>> from entmeans.paper.stability import judge, measure
    >>> options = {"n_temperatures": 16, "n_timed": 50, "n_timed_temperatures": 2}
    >>> judge(measure([0], n_points=20, **options)).verdict
    <Verdict.CONDITION: 'holds under a condition'>
    """
    total = {form: sum(_nan(record, form).values()) for form in FORMS}
    if total["entmax15, shifted"] or not total["raw ratio"]:
        verdict = Verdict.FAILS
    elif total["softmax, shifted"]:
        verdict = Verdict.HOLDS
    else:
        verdict = Verdict.CONDITION
    shown = {"raw ratio": "float32", "softmax": "float16", "entmax15": "float16"}
    worst = {form: f"{max(shares(record, d, form, 'nan')):.0%}" for form, d in shown.items()}
    return Judgement(
        verdict,
        f"NaN at the worst T: raw ratio {worst['raw ratio']} of rows in float32; not shifted, in "
        f"float16: softmax {worst['softmax']}, entmax15 {worst['entmax15']}. Shifted, all T and "
        f"dtypes: softmax {total['softmax, shifted']}, entmax15 {total['entmax15, shifted']} of "
        f"{_n_rows(record) * len(DTYPES) * len(record['temperatures']):,} rows.",
        (
            _on_shift(record),
            _on_temperature(record),
            *_on_gradients(record),
            _on_subnormals(record),
            _on_errors(record),
            *_on_time(record),
        ),
        (_nan_table(record), _row_table(record), _time_table(record)),
    )


def shares(record: Record, dtype: str, form: str, *quantities: str) -> list[float]:
    """At each temperature the share of rows of all seeds that any of the quantities counts.

    Quantities that exclude each other, as all of one gradient do.
    """
    each = [counts(record, dtype, form, quantity) for quantity in quantities]
    return [sum(column) / _n_rows(record) for column in zip(*each, strict=True)]


def counts(record: Record, dtype: str, form: str, quantity: str) -> list[int]:
    """At each temperature the number of rows of all seeds."""
    each = [r["counts"][quantity] for r in _select(record["runs"], dtype=dtype, form=form)]
    return [sum(column) for column in zip(*each, strict=True)]


def seconds(record: Record, dtype: str, mapping: str, part: str) -> list[list[float]]:
    """At each timed temperature the times of one part of a step, over seeds."""
    runs = _select(record["times"], dtype=dtype, mapping=mapping, part=part)
    return [list(column) for column in zip(*(r["seconds"] for r in runs), strict=True)]


# What is measured


def _raw(d: Tensor, temperature: float | Tensor) -> tuple[Tensor, Tensor]:
    e = torch.exp(-d / temperature)
    mass = e.sum(-1, keepdim=True)
    return e / mass, -temperature * mass.squeeze(-1).log()


def _softmax(d: Tensor, temperature: float | Tensor) -> tuple[Tensor, Tensor]:
    z = -d / temperature
    return torch.softmax(z, -1), -temperature * torch.logsumexp(z, -1)


def _entmax15(d: Tensor, temperature: float | Tensor) -> tuple[Tensor, Tensor]:
    mapping = MAPPINGS["entmax15"]
    p = probabilities(-d / temperature, mapping)
    best = p.detach()  # the optimum: its own derivative does not count
    return p, (best * d).sum(-1) - temperature * mapping.entropy(best)


def _shifted(form: Form) -> Form:
    def shifted(d: Tensor, temperature: float | Tensor) -> tuple[Tensor, Tensor]:
        near = d.amin(-1, keepdim=True)
        p, energy = form(d - near, temperature)
        return p, near.squeeze(-1) + energy

    return shifted


CALLS: dict[str, Form] = dict(
    zip(FORMS, (_raw, _softmax, _shifted(_softmax), _entmax15, _shifted(_entmax15)), strict=True)
)


def _distances(seed: int, n_points: int, n_clusters: int) -> Tensor:
    """Rows of all geometries (4 N, K), in units of the mean distance to the nearest center."""
    rows = []
    for sample in GEOMETRIES.values():
        points = sample(n_points, seed=seed).points
        centers = best_fixed_point(points, n_clusters, seed, 1)
        unit = inertia(points, centers) / n_points
        rows.append(squared_distances(points, centers) / unit)
    return torch.cat(rows)


def _n_hard(d: Tensor, temperature: float) -> int:
    """Rows whose margin, as it is stored, is so large that entmax15 is exactly one-hot."""
    two = d.double().topk(2, largest=False).values
    return int((two[:, 1] - two[:, 0] >= 2 * temperature).sum())


def _run(d: Tensor, form: str, temperatures: list[float], seed: int) -> Record:
    generator = torch.Generator().manual_seed(seed)
    v = torch.randn(d.shape, generator=generator).to(d.dtype)
    found = [_row_counts(d, v, form, t) for t in temperatures]
    return {
        "counts": {q: [counted[q] for counted, _ in found] for q in QUANTITIES},
        "error": [error for _, error in found],
        "nan_if_T_is_cast": [_n_broken(d, form, torch.tensor(t).to(d)) for t in temperatures],
    }


def _row_counts(
    d: Tensor, v: Tensor, form: str, temperature: float
) -> tuple[dict[str, int], float | None]:
    """Rows by `QUANTITIES`, and the largest error of the others' responsibilities."""
    leaf = d.clone().requires_grad_()
    p, energy = CALLS[form](leaf, temperature)
    (through_p,) = torch.autograd.grad((p * v).sum(), leaf, retain_graph=True)
    (of_energy,) = torch.autograd.grad(energy.sum(), leaf)
    p = p.detach()
    kind = torch.finfo(d.dtype)
    fine = p.isfinite().all(-1)
    size = (through_p.double() * temperature).abs().amax(-1)
    finite, zero = _kinds(through_p)
    finite_f, zero_f = _kinds(of_energy)
    found = {
        "nan": ~fine,
        "subnormal": ((p > 0) & (p < kind.tiny)).any(-1),
        "sum": fine & ((p.double().sum(-1) - 1).abs() > d.shape[1] * kind.eps),
        "p zero": zero,
        "p broken": ~finite,
        "p tiny": finite & ~zero & (size < kind.eps),
        "F zero": zero_f,
        "F broken": ~finite_f,
    }
    exact = CALLS["entmax15, shifted" if form.startswith("entmax15") else "softmax, shifted"]
    errors = (p.double() - exact(d.double(), temperature)[0]).abs()[fine]
    error = errors.max().item() if errors.numel() else None
    return {name: int(rows.sum()) for name, rows in found.items()}, error


def _kinds(gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Rows that are finite, and of these the ones that are zero."""
    return gradient.isfinite().all(-1), (gradient == 0).all(-1)


def _n_broken(d: Tensor, form: str, temperature: Tensor) -> int:
    p, _ = CALLS[form](d, temperature)
    return int((~p.isfinite().all(-1)).sum())


def _times(
    seed: int, n_points: int, n_features: int, n_clusters: int, temperatures: list[float]
) -> Iterator[Record]:
    """Seconds of responsibilities from distances, of p' x, and of the package's whole pass."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(n_points, n_features, dtype=torch.float64, generator=generator)
    centers = torch.randn(n_clusters, n_features, dtype=torch.float64, generator=generator)
    distances = squared_distances(points, centers)
    unit = distances.amin(1).mean()
    for dtype, mapping in product(DTYPES, ("softmax", "entmax15")):
        d, x, c = (t.to(DTYPES[dtype]) for t in (distances / unit, points, centers))
        found: dict[str, list[float]] = {part: [] for part in PARTS}
        subnormal = []
        for t in temperatures:
            p, elapsed = _timed(_shared, d, t, mapping)
            subnormal.append(((p > 0) & (p < torch.finfo(p.dtype).tiny)).double().mean().item())
            found["responsibilities"].append(elapsed)
            found["product"].append(_timed(torch.matmul, p.T, x)[1])
            if dtype in ("float32", "float64"):
                elapsed = _timed(statistics, x, c, t * unit.item(), mapping)[1]
                found["statistics"].append(elapsed)
        about = {"dtype": dtype, "mapping": mapping, "subnormal_share": subnormal}
        for part, elapsed_at in found.items():
            if elapsed_at:
                yield about | {"part": part, "seconds": elapsed_at}


def _shared(d: Tensor, temperature: float, mapping: str) -> Tensor:
    z = -(d - d.amin(-1, keepdim=True)) / temperature
    return torch.softmax(z, -1) if mapping == "softmax" else MAPPINGS[mapping].probabilities(z)


def _timed(work: Callable[..., Result], *arguments: Any) -> tuple[Result, float]:
    start = time.perf_counter()
    result = work(*arguments)
    return result, time.perf_counter() - start


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# What is said of it


def _on_shift(record: Record) -> str:
    nan = {form: _nan(record, form) for form in FORMS}
    total = {form: sum(by_dtype.values()) for form, by_dtype in nan.items()}
    dtypes = [d for d in DTYPES if nan["softmax"][d] or nan["entmax15"][d]]
    others = [d for d in DTYPES if d not in dtypes]
    overflow = "without it neither gave NaN here"
    if dtypes:
        overflow = (
            "without it -d / T overflows and rows become NaN in "
            f"{' and '.join(dtypes)}, {sum(nan['softmax'].values()):,} of softmax and "
            f"{sum(nan['entmax15'].values()):,} of entmax15"
        )
        overflow += f" (none in {', '.join(others)}, whose range is wide enough)" if others else ""
    highest = _highest_broken(record, "raw ratio").items()
    each = ", ".join(f"{short(t)} in {d}" for d, t in highest if t is not None)
    return (
        "What it depends on: it is the shift of the scores that matters, not the mapping. With the "
        "nearest distance taken off before dividing by T softmax gave NaN in "
        f"{total['softmax, shifted']} rows and entmax15 in {total['entmax15, shifted']}; "
        f"{overflow}. The raw ratio becomes 0 / 0: the highest T with a NaN, in units of the mean "
        f"squared distance, is {each or 'none'}."
    )


def _highest_broken(record: Record, form: str) -> dict[str, float | None]:
    found = {}
    for dtype in DTYPES:
        nan = counts(record, dtype, form, "nan")
        broken = [t for t, n in zip(record["temperatures"], nan, strict=True) if n]
        found[dtype] = max(broken, default=None)
    return found


def _on_temperature(record: Record) -> str:
    each = []
    for form in ("softmax, shifted", "entmax15, shifted"):
        runs = _select(record["runs"], form=form, dtype="float16")
        columns = zip(*(r["nan_if_T_is_cast"] for r in runs), strict=True)
        each.append(max(sum(column) for column in columns) / _n_rows(record))
    return (
        "The shift is not enough where T itself is kept in float16: below 3e-8 it rounds to 0, and "
        f"0 / 0 then made NaN of {each[0]:.0%} of rows with shifted softmax and {each[1]:.0%} with "
        "shifted entmax15. The package computes half precision in float32 and raises a positive T "
        "to the least normal number."
    )


def _on_gradients(record: Record) -> tuple[str, str]:
    at = _closest(record, 0.1)

    def share(dtype: str, form: str, quantity: str) -> str:
        return f"{shares(record, dtype, form, quantity)[at]:.1%}"

    lost = {
        form: sum(sum(counts(record, d, form, q)) for d in DTYPES for q in ("F zero", "F broken"))
        for form in ("softmax, shifted", "entmax15, shifted")
    }
    return (
        "Through the responsibilities entmax15 does not rescue the gradient, which vanishes at a "
        f"higher T: at T = {short(record['temperatures'][at])} it is zero in "
        f"{share('float32', 'entmax15, shifted', 'p zero')} of rows (float32), and rightly so: "
        f"{_hard_shares(record, 'float32')[at]:.1%} have a margin of 2 T or more, are exactly "
        "one-hot and have that derivative. With shifted softmax it is zero by underflow in "
        f"{share('float32', 'softmax, shifted', 'p zero')} (float64: "
        f"{share('float64', 'softmax, shifted', 'p zero')}) and below eps / T, of no use, in "
        f"another {share('float32', 'softmax, shifted', 'p tiny')} (float64: "
        f"{share('float64', 'softmax, shifted', 'p tiny')}).",
        "The gradient of the free energy, which is the responsibilities themselves, is lost in "
        f"{lost['softmax, shifted']} rows with shifted softmax and in "
        f"{lost['entmax15, shifted']} with shifted entmax15, at any T and in any dtype.",
    )


def _on_subnormals(record: Record) -> str:
    each = {
        form: ", ".join(f"{max(shares(record, d, form, 'subnormal')):.1%} in {d}" for d in DTYPES)
        for form in ("softmax, shifted", "entmax15, shifted")
    }
    off = max(max(shares(record, d, form, "sum")) for d in DTYPES for form in FORMS)
    return (
        "Rows with subnormal numbers, at the temperature with the most of them: shifted softmax "
        f"{each['softmax, shifted']}; shifted entmax15 {each['entmax15, shifted']}. Sums that miss "
        f"1 by more than K eps, in rows without NaN of any form: {off:.1%} at most."
    )


def _on_errors(record: Record) -> str:
    def worst(dtype: str, form: str) -> str:
        runs = _select(record["runs"], dtype=dtype, form=form)
        return short(max((e for r in runs for e in r["error"] if e is not None), default=None))

    each = "; ".join(
        f"{d}: softmax {worst(d, 'softmax')} and {worst(d, 'softmax, shifted')}, entmax15 "
        f"{worst(d, 'entmax15')} and {worst(d, 'entmax15, shifted')}"
        for d in ("float16", "bfloat16", "float32")
    )
    return (
        "The shift makes responsibilities more exact too, for either mapping. Largest error "
        f"against float64 on the same stored distances, without and with it: {each}."
    )


def _on_time(record: Record) -> tuple[str, str]:
    slow = []
    for dtype in DTYPES:
        products = np.median(seconds(record, dtype, "softmax", "product"), 1)
        runs = _select(record["times"], dtype=dtype, mapping="softmax", part="product")
        subnormal = np.mean([r["subnormal_share"] for r in runs], 0)
        most = int(subnormal.argmax())
        ratio = short(float(products[most] / products[-1]))
        slow.append(f"{ratio} in {dtype} ({subnormal[most]:.1%} of numbers subnormal)")
    formula = _entmax15_to_softmax(record, "responsibilities")
    package = _entmax15_to_softmax(record, "statistics")
    return (
        "Time of p' x with shifted softmax at the temperature with the most subnormal numbers, as "
        f"a multiple of that at the highest: {', '.join(slow)}. Processors differ in how they "
        "treat such numbers, so elsewhere this can be otherwise.",
        "In float32, by temperature, the plain formula of entmax15 takes "
        f"{short(min(formula))} to {short(max(formula))} times as long as torch.softmax, one fused "
        "call; a whole pass of the package (statistics) with entmax15 takes "
        f"{short(min(package))} to {short(max(package))} times as long as with softmax.",
    )


def _entmax15_to_softmax(record: Record, part: str) -> list[float]:
    entmax15, softmax = (
        np.median(seconds(record, "float32", m, part), 1) for m in ("entmax15", "softmax")
    )
    return [float(ratio) for ratio in entmax15 / softmax]


def _nan(record: Record, form: str) -> dict[str, int]:
    """The number of rows with NaN in each dtype, over all temperatures."""
    return {dtype: sum(counts(record, dtype, form, "nan")) for dtype in DTYPES}


def _n_rows(record: Record) -> int:
    """Rows of all seeds."""
    return len(record["seeds"]) * int(record["n_rows"])


def _closest(record: Record, temperature: float) -> int:
    return int(np.abs(np.log(np.array(record["temperatures"]) / temperature)).argmin())


def _hard_shares(record: Record, dtype: str) -> list[float]:
    each = [h["counts"] for h in _select(record["hard"], dtype=dtype)]
    return [sum(column) / _n_rows(record) for column in zip(*each, strict=True)]


def _nan_table(record: Record) -> Table:
    rows = []
    for form in FORMS:
        highest = _highest_broken(record, form)
        cells = []
        for dtype in DTYPES:
            broken = sum(counts(record, dtype, form, "nan"))
            worst = max(shares(record, dtype, form, "nan"))
            cells.append(f"{worst:.0%}, T <= {short(highest[dtype])}" if broken else "none")
        rows.append((form, *cells))
    return Table(
        "Rows that are NaN: the share at the worst temperature, and the highest temperature, in "
        "units of the mean squared distance to the nearest center, at which there is one",
        ("form", *DTYPES),
        tuple(rows),
    )


def _row_table(record: Record) -> Table:
    columns = {
        "NaN": ("nan",),
        "subnormal": ("subnormal",),
        "gradient through p zero": ("p zero",),
        "not finite": ("p broken",),
        "below eps / T": ("p tiny",),
        "gradient of F lost": ("F zero", "F broken"),
    }
    chosen = sorted({_closest(record, t) for t in (1e-9, 1e-5, 1e-3, 1e-1, 10)})
    rows = []
    for dtype in ("float16", "float32"):
        for form in ("raw ratio", "softmax, shifted", "entmax15, shifted"):
            each = [shares(record, dtype, form, *names) for names in columns.values()]
            for i in chosen:
                cells = (f"{share[i]:.1%}" for share in each)
                rows.append((dtype, form, short(record["temperatures"][i]), *cells))
    return Table(
        "Share of rows, T in units of the mean squared distance to the nearest center",
        ("dtype", "form", "T", *columns),
        tuple(rows),
    )


def _time_table(record: Record) -> Table:
    rows = []
    for dtype, mapping, part in product(DTYPES, ("softmax", "entmax15"), PARTS):
        times = seconds(record, dtype, mapping, part)
        if times:
            medians = [1e3 * quartiles(t)[0] for t in times]  # type: ignore[index]
            pooled = spread(1e3 * t for column in times for t in column)
            rows.append((dtype, mapping, part, short(min(medians)), pooled, short(max(medians))))
    return Table(
        "Milliseconds, one thread: at the fastest temperature, median (quartiles) over all, at the "
        "slowest",
        ("dtype", "mapping", "part", "fastest T", "all T", "slowest T"),
        tuple(rows),
    )


def _select(runs: list[Record], **wanted: str) -> list[Record]:
    return [r for r in runs if all(r[name] == value for name, value in wanted.items())]
