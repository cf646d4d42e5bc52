"""The operators on the CPU: tensors to arrays, rows to threads, sums over parts to tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .. import operators, step
from ..inputs import check_temperature
from ..mappings import get_mapping
from .threads import parts, share_out

Array = NDArray[Any]

KINDS = ("hard", "softmax", "entmax15", "sparsemax")
SENSITIVITY = ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))
"""The factors of p, sqrt(p) and 1 in the sensitivity of each."""

ROW_WORK = 2**11
"""What a row costs beside its products, in their number."""

MAP_WORK, MAP_VJP_WORK = 96, 24
"""What a score costs, in products, in a mapping and in its derivative."""


FEW = 2**9
"""Products of a row with all centers that take no longer than a look at what is known of it."""


class NotServed(Exception):
    """What the kernels leave to the formulas: see `implementation`."""


@functools.cache
def compiled() -> ModuleType:
    """The module of the kernels, whose functions compile when they are first called."""
    try:
        from numba import config

        if vars(config)["DISABLE_JIT"]:
            raise ImportError("NUMBA_DISABLE_JIT is set")
        from . import cpu_numba
    except ImportError as error:
        raise ImportError(_remedy(f"which cannot be imported ({error})")) from error
    return cpu_numba


def _remedy(what: str) -> str:
    return (
        f"entmeans computes on the CPU with Numba, {what}. pip install --upgrade numba, or set "
        "ENTMEANS_IMPLEMENTATION=reference for slower calls in plain torch."
    )


def flat(tensor: Tensor) -> Array:
    """The numbers of a tensor, row by row, without a copy where none is needed."""
    # By NumPy: a copy by torch would wake its threads, which then wait for more in a busy loop.
    return np.ascontiguousarray(tensor.detach().numpy()).reshape(-1)


def _check(points: Tensor, centers: Tensor) -> None:
    """Kernels read memory as it is: what the public functions see to must hold here as well."""
    fit = points.ndim == centers.ndim == 2 and points.shape[1] == centers.shape[1]
    if not (fit and 0 not in centers.shape):
        shapes = tuple(points.shape), tuple(centers.shape)
        raise ValueError(f"points {shapes[0]} and centers {shapes[1]} do not fit.")
    if not (points.dtype == centers.dtype and points.dtype in (torch.float32, torch.float64)):
        raise TypeError(
            "points and centers must both be of float32 or of float64, got "
            f"{points.dtype} and {centers.dtype}."
        )


class Problem:
    """What kernels take for given: points, centers, temperature, mapping."""

    def __init__(
        self, points: Tensor, centers: Tensor, temperature: float = 0.0, mapping: str = "hard"
    ) -> None:
        _check(points, centers)
        self.kernels = compiled()
        self.n, self.d = points.shape
        self.k = len(centers)
        self.rows = centers.detach().contiguous().numpy()
        self.centers = self.kernels.pack_centers(self.rows, step.DIFFERENCES)
        if not self.centers.reach < np.inf:
            raise NotServed
        self.row_work = ROW_WORK + self.k * self.d
        self.points, self.bad = flat(points), np.zeros(self.n, np.bool_)
        self.high, self.width = len(self.centers.offsets), self.centers.width
        kind = np.finfo(self.rows.dtype)
        self.dtype = kind.dtype.type
        self.kind = KINDS.index(mapping) if temperature else 0
        # A positive temperature below the range of the dtype would turn 0 / T into NaN.
        largest = float(kind.max)
        within = max(temperature, float(kind.tiny)) if temperature <= largest else np.inf
        margin = get_mapping(mapping).one_hot_margin * within if self.kind else 0.0
        self.temperature = self.dtype(within if self.kind else 1.0)
        self.threshold = self.dtype(margin if margin <= largest else np.inf)

    def weights(self, weight: Tensor | None) -> Array:
        w = np.ones(self.n, self.dtype) if weight is None else flat(weight)
        if w.shape != (self.n,) or w.dtype != self.dtype:
            raise ValueError(
                f"weight must be of {self.n} numbers of {np.dtype(self.dtype)}, one for each "
                f"point, got {w.shape} of {w.dtype}."
            )
        return w

    def parts(self, bytes_of_sums: int = 0) -> list[tuple[int, int]]:
        """First and last rows of each part."""
        return parts(self.n, self.row_work, bytes_of_sums)

    def sums(self) -> tuple[list[tuple[int, int]], Array, Array]:
        """Parts for sums over points, with a mass (high,) and a moment (high * width,) for each."""
        size = self.high * self.width
        ends = self.parts(8 * size)
        return ends, np.zeros((len(ends), self.high)), np.zeros((len(ends), size))

    def run(self, kernel: Any, ends: list[tuple[int, int]], given: Any, *sums: Array) -> Any:
        """Run the kernel on each part, with its row of each of the sums.

        Returns which rows it left out, because they are not finite, if there are any.
        """

        def task(i: int) -> None:
            kernel(self.points, self.bad, *ends[i], self.centers, *given, *(s[i] for s in sums))

        share_out(task, len(ends), self.n * self.row_work)
        return torch.from_numpy(self.bad.nonzero()[0]) if self.bad.any() else None


def squared_distances(points: Tensor, centers: Tensor) -> Tensor:
    p = Problem(points, centers)
    out = points.new_empty(p.n, p.k)
    bad = p.run(p.kernels.distance_rows, p.parts(), (flat(out),))
    if bad is not None:
        out[bad] = step.squared_distances(points[bad], centers)
    return out


def responsibilities(points: Tensor, centers: Tensor, temperature: Tensor, mapping: str) -> Tensor:
    p = Problem(points, centers, check_temperature(temperature), mapping)
    out = points.new_empty(p.n, p.k)
    bad = p.run(p.kernels.share_rows, p.parts(), (p.kind, p.temperature, flat(out)))
    if bad is not None:
        out[bad] = step.responsibilities(points[bad], centers, temperature, mapping)
    return out


def nearest(points: Tensor, centers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    p = Problem(points, centers)
    labels = points.new_empty(p.n, dtype=torch.int64)
    out = labels, points.new_empty(p.n), points.new_empty(p.n)
    bad = p.run(p.kernels.nearest_rows, p.parts(), tuple(map(flat, out)))
    if bad is not None:
        for values, mended in zip(out, step.nearest(points[bad], centers), strict=True):
            values[bad] = mended
    return out


def free_energy(
    points: Tensor, centers: Tensor, weight: Tensor | None, temperature: Tensor, mapping: str
) -> tuple[Tensor, Tensor]:
    p = Problem(points, centers, check_temperature(temperature), mapping)
    w, ends, terms = p.weights(weight), p.parts(), points.new_empty(p.n)
    sums = np.zeros((len(ends), 1))
    given = w, p.kind, p.temperature, flat(terms)
    bad = p.run(p.kernels.free_energy_rows, ends, given, sums)
    total = torch.tensor(added(sums)[0], dtype=torch.float64)
    if bad is not None:
        rest = points[bad], centers, torch.from_numpy(w)[bad], temperature, mapping
        terms[bad], more = step.free_energy(*rest)
        total = total + more
    return terms, total


def statistics(
    points: Tensor, centers: Tensor, weight: Tensor | None, temperature: Tensor, mapping: str
) -> tuple[Tensor, ...]:
    p = Problem(points, centers, check_temperature(temperature), mapping)
    w, (ends, mass, moment) = p.weights(weight), p.sums()
    n = len(ends)
    distortion, cost, totals = np.zeros((n, p.k)), np.zeros((n, p.k)), np.zeros((n, 4))
    totals[:, 3] = np.inf
    given = w, p.kind, p.temperature, p.threshold
    sums = mass, moment, distortion, cost, totals
    bad = p.run(p.kernels.statistics_rows, ends, given, *sums)
    energies = added(totals)
    energies[3] = totals[:, 3].min()
    arrays = (
        *p.kernels.add_parts(mass, moment, p.d, p.width, p.centers.shift, p.k),
        added(distortion),
        energies[:2],
        added(cost),
        energies[2:].copy(),
    )
    found = tuple(torch.from_numpy(a) for a in arrays)
    if bad is None:
        return found
    rest = points[bad], centers, torch.from_numpy(w)[bad], temperature, mapping
    more = step.statistics(*rest)
    return (step.Statistics.of(found) + step.Statistics.of(more)).parts()


def hard_statistics(
    points: Tensor, centers: Tensor, weight: Tensor | None, known: step.Known
) -> tuple[Tensor, Tensor, Tensor]:
    if centers.numel() <= FEW or len(centers) == 1:
        zero = torch.zeros((), dtype=torch.float64)
        of_all = statistics(points, centers, weight, zero, "hard")
        return of_all[0], of_all[1], of_all[3][1]
    p = Problem(points, centers)
    w, (ends, mass, moment) = p.weights(weight), p.sums()
    inertia = np.zeros((len(ends), 1))
    if known.centers is None:
        known.labels = torch.full((p.n,), -1, dtype=torch.int32)
        known.near, known.bounds = points.new_zeros(p.n), points.new_zeros(p.n, dtype=torch.float64)
    before = p.centers.raw if known.centers is None else flat(known.centers)
    given = w, before, *map(flat, (known.labels, known.near, known.bounds))
    bad = p.run(p.kernels.hard_rows, ends, given, mass, moment, inertia)
    known.centers = centers
    arrays = *p.kernels.add_parts(mass, moment, p.d, p.width, p.centers.shift, p.k), added(inertia)
    found = tuple(map(torch.from_numpy, arrays))
    if bad is not None:
        more = step.hard_statistics(points[bad], centers, torch.from_numpy(w)[bad], known)
        found = tuple(a + b for a, b in zip(found, more, strict=True))
    return found[0], found[1], found[2].squeeze()


def statistics_vjp(
    points: Tensor,
    centers: Tensor,
    weight: Tensor | None,
    temperature: Tensor,
    mapping: str,
    to_mass: Tensor | None,
    to_moment: Tensor | None,
    to_distortion: Tensor | None,
    to_energies: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    p = Problem(points, centers, check_temperature(temperature), mapping)
    by_distortion, cotangent, through = np.zeros(p.high, p.dtype), p.centers, False
    if to_mass is not None and to_moment is not None and to_distortion is not None:
        through = True
        by_moment = to_moment.detach().to(points.dtype).contiguous().numpy()
        none = np.zeros(p.d, p.dtype)
        cotangent = p.kernels.pack(by_moment, none, none, p.dtype(1), False)
        cotangent.offsets[: p.k] = flat(to_mass) + by_moment @ p.centers.origin
        by_distortion[: p.k] = flat(to_distortion)
    powers = np.array(SENSITIVITY[p.kind], p.dtype)
    energies = flat(to_energies.to(points.dtype))
    w, (ends, mass, moment) = p.weights(weight), p.sums()
    totals = np.zeros((len(ends), 1))
    to_points, to_weight = points.new_empty(p.n, p.d), points.new_empty(p.n)
    known = w, p.kind, p.temperature, powers, through, cotangent, by_distortion, *energies
    given = *known, flat(to_points), flat(to_weight)
    bad = p.run(p.kernels.pullback_rows, ends, given, mass, moment, totals)
    about = p.centers.shift  # where moments cancel no digits of the centers
    added_up = p.kernels.add_parts(mass, moment, p.d, p.width, 0 * about, p.k)
    masses, moments = map(torch.from_numpy, added_up)
    by_center = 2 * (masses.unsqueeze(-1) * torch.from_numpy(p.rows - about) - moments)
    to_centers = by_center.to(centers.dtype)
    to_temperature = temperature.detach().new_tensor(added(totals)[0])
    if bad is not None:
        rest = points[bad], centers, torch.from_numpy(w)[bad], temperature, mapping
        more = step.statistics_vjp(*rest, to_mass, to_moment, to_distortion, to_energies)
        to_points[bad], to_weight[bad] = more[0], more[2]
        to_centers, to_temperature = to_centers + more[1], to_temperature + more[3]
    return to_points, to_centers, to_weight, to_temperature


def added(of_parts: Array) -> Array:
    """The sum over parts, in their order."""
    return of_parts[0] if len(of_parts) == 1 else of_parts.sum(0)


def potentials(points: Tensor, candidates: Tensor, near: Tensor, weight: Tensor) -> Tensor:
    p = Problem(points, candidates)
    ends = p.parts()
    sums = np.zeros((len(ends), p.k))
    bad = p.run(p.kernels.potential_rows, ends, (flat(weight), flat(near)), sums)
    found = torch.from_numpy(added(sums))
    if bad is None:
        return found
    return found + step.potentials(points[bad], candidates, near[bad], weight[bad])


def moved(mass: Tensor, moment: Tensor, start: Tensor, previous: Tensor) -> tuple[Tensor, Tensor]:
    arrays = (t.contiguous().numpy() for t in (mass, moment, start, previous))
    centers, numbers = compiled().moved(*arrays)
    return torch.from_numpy(centers), torch.from_numpy(numbers)


def map_scores(scores: Tensor, mapping: str) -> Tensor:
    kernels, n = compiled(), scores.shape[-1]
    out = torch.empty(scores.shape, dtype=scores.dtype)
    x, y = flat(scores), flat(out)
    ends = parts(scores.numel() // max(n, 1), MAP_WORK * n)
    kind = KINDS.index(mapping)
    share_out(lambda i: kernels.map_rows(x, n, *ends[i], kind, y), len(ends), MAP_WORK * len(x))
    return out


def map_scores_vjp(p: Tensor, gradient: Tensor, mapping: str) -> Tensor:
    kernels, n = compiled(), p.shape[-1]
    out = torch.empty(p.shape, dtype=p.dtype)
    x, g, y = flat(p), flat(gradient), flat(out)
    ends = parts(p.numel() // max(n, 1), MAP_VJP_WORK * n)
    powers = np.array(SENSITIVITY[KINDS.index(mapping)], x.dtype)
    share_out(
        lambda i: kernels.map_vjp_rows(x, g, n, *ends[i], powers, y),
        len(ends),
        MAP_VJP_WORK * len(x),
    )
    return out


KERNELS: dict[Any, Callable[..., Any]] = {
    operators.map_scores: map_scores,
    operators.map_scores_vjp: map_scores_vjp,
    operators.squared_distances: squared_distances,
    operators.responsibilities: responsibilities,
    operators.nearest: nearest,
    operators.free_energy: free_energy,
    operators.statistics: statistics,
    operators.statistics_vjp: statistics_vjp,
}


DIRECT: dict[Any, Callable[..., Any]] = {}
"""What serves each operator, without the dispatcher."""


def register(fast: Callable[[], bool]) -> None:
    """Let the kernels serve the operators on the CPU whenever ``fast`` says so."""

    def either(kernel: Callable[..., Any], formula: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            if not fast():
                return formula(*arguments)
            compile_error = compiled().NumbaError
            try:
                return kernel(*arguments)
            except NotServed:
                return formula(*arguments)
            except compile_error as error:
                raise RuntimeError(_remedy("which could not compile a kernel")) from error

        return run

    for operator, kernel in KERNELS.items():
        DIRECT[operator] = either(kernel, operators.FORMULAS[operator])
        operator.register_kernel("cpu")(DIRECT[operator])
    for kernel in (hard_statistics, moved, potentials):
        formula = getattr(step, kernel.__name__)
        DIRECT[formula] = either(kernel, formula)
