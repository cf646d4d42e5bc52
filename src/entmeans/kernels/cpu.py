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

from .. import mappings, step
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


class NotFinite(Exception):
    """The centers are, or their squares: the formulas know what comes out."""


@functools.cache
def compiled() -> ModuleType:
    """The module of the kernels, whose functions compile when they are first called."""
    try:
        from . import cpu_numba
    except ImportError as error:
        raise ImportError(_remedy(f"which cannot be imported ({error})")) from error
    except RuntimeError as error:  # no folder to keep what it compiles
        remedy = "set NUMBA_CACHE_DIR to a folder that can be written"
        raise ImportError(_remedy(f"which does not start ({error}): {remedy}")) from error
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


class Problem:
    """What kernels take for given: points, centers, temperature, mapping."""

    def __init__(
        self, points: Tensor, centers: Tensor, temperature: float = 0.0, mapping: str = "hard"
    ) -> None:
        self.kernels = compiled()
        self.n, self.d = points.shape
        self.k = len(centers)
        self.rows = centers.detach().contiguous().numpy()
        self.centers = self.kernels.pack_centers(self.rows, step.DIFFERENCES)
        if not self.centers.reach < np.inf:
            raise NotFinite
        self.row_work = ROW_WORK + self.k * self.d
        self.points, self.bad = flat(points), np.zeros(self.n, np.bool_)
        self.high, self.width = len(self.centers.offsets), self.centers.width
        kind = np.finfo(self.rows.dtype)
        self.dtype = kind.dtype.type
        self.kind = KINDS.index(mapping) if temperature else 0
        # A positive temperature below the range of the dtype would turn 0 / T into NaN.
        within = max(temperature, float(kind.tiny)) if temperature <= kind.max else np.inf
        margin = get_mapping(mapping).one_hot_margin * within if self.kind else 0.0
        self.temperature = self.dtype(within if self.kind else 1.0)
        self.threshold = self.dtype(margin if margin <= kind.max else np.inf)

    def weights(self, weight: Tensor | None) -> Array:
        return np.ones(self.n, self.dtype) if weight is None else flat(weight)

    def parts(self) -> list[tuple[int, int]]:
        """First and last rows of each part, where parts have sums of their own."""
        return parts(self.n, self.row_work, 8 * self.high * self.width)

    def run(
        self, ends: list[tuple[int, int]], task: Callable[[int, int, int], None]
    ) -> Tensor | None:
        """Run task(part, first row, last row); the rows that are not finite, which it left out."""
        share_out(lambda i: task(i, *ends[i]), len(ends), self.n * self.row_work)
        return torch.from_numpy(self.bad.nonzero()[0]) if self.bad.any() else None

    def by_row(
        self, kernel: Any, formula: Callable[..., Any], points: Tensor, given: Any, *out: Tensor
    ) -> None:
        """Fill ``out``, results for each row; rows that are not finite are left to the formula."""
        soft = (self.kind, self.temperature) if len(given) > 1 else ()
        fixed = (self.centers, *soft)
        arrays = [flat(o) for o in out]
        bad = self.run(
            parts(self.n, self.row_work),
            lambda _, first, last: kernel(self.points, self.bad, first, last, *fixed, *arrays),
        )
        if bad is not None:
            found = formula(points[bad], *given)
            for o, f in zip(out, [found] if isinstance(found, Tensor) else found, strict=True):
                o[bad] = f


def squared_distances(points: Tensor, centers: Tensor) -> Tensor:
    p = Problem(points, centers)
    out = points.new_empty(p.n, p.k)
    p.by_row(p.kernels.distance_rows, step.squared_distances_formula, points, (centers,), out)
    return out


def responsibilities(points: Tensor, centers: Tensor, temperature: Tensor, mapping: str) -> Tensor:
    p = Problem(points, centers, temperature.item(), mapping)
    out, given = points.new_empty(p.n, p.k), (centers, temperature, mapping)
    p.by_row(p.kernels.share_rows, step.responsibilities_formula, points, given, out)
    return out


def nearest(points: Tensor, centers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    p = Problem(points, centers)
    labels = points.new_empty(p.n, dtype=torch.int64)
    near, margins = points.new_empty(p.n), points.new_empty(p.n)
    out = labels, near, margins
    p.by_row(p.kernels.nearest_rows, step.nearest_formula, points, (centers,), *out)
    return out


def free_energy(
    points: Tensor, centers: Tensor, weight: Tensor | None, temperature: Tensor, mapping: str
) -> tuple[Tensor, Tensor]:
    p = Problem(points, centers, temperature.item(), mapping)
    w, ends = p.weights(weight), parts(p.n, p.row_work)
    terms, sums = points.new_empty(p.n), np.zeros((len(ends), 1))
    out = flat(terms)

    def task(i: int, first: int, last: int) -> None:
        p.kernels.free_energy_rows(
            p.points,
            p.bad,
            w,
            first,
            last,
            p.centers,
            p.kind,
            p.temperature,
            out,
            sums[i],
        )

    bad = p.run(ends, task)
    total = torch.tensor(added(sums)[0], dtype=torch.float64)
    if bad is not None:
        given = centers, torch.from_numpy(w)[bad], temperature, mapping
        terms[bad], rest = step.free_energy_formula(points[bad], *given)
        total = total + rest
    return terms, total


def statistics(
    points: Tensor, centers: Tensor, weight: Tensor | None, temperature: Tensor, mapping: str
) -> tuple[Tensor, ...]:
    p = Problem(points, centers, temperature.item(), mapping)
    w, ends = p.weights(weight), p.parts()
    n = len(ends)
    mass, moment = np.zeros((n, p.high)), np.zeros((n, p.high * p.width))
    distortion, cost, totals = np.zeros((n, p.k)), np.zeros((n, p.k)), np.zeros((n, 4))
    totals[:, 3] = np.inf

    def task(i: int, first: int, last: int) -> None:
        p.kernels.statistics_rows(
            p.points,
            p.bad,
            w,
            first,
            last,
            p.centers,
            p.kind,
            p.temperature,
            p.threshold,
            mass[i],
            moment[i],
            distortion[i],
            cost[i],
            totals[i],
        )

    bad = p.run(ends, task)
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
    given = centers, torch.from_numpy(w)[bad], temperature, mapping
    rest = step.statistics_formula(points[bad], *given)
    return (step.Statistics.of(found) + step.Statistics.of(rest)).parts()


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
    p = Problem(points, centers, temperature.item(), mapping)
    by_distortion, cotangent, through = np.zeros(p.high, p.dtype), p.centers, False
    if to_mass is not None and to_moment is not None and to_distortion is not None:
        through = True
        by_moment = to_moment.detach().to(points.dtype).contiguous().numpy()
        none = np.zeros(p.d, p.dtype)
        cotangent = p.kernels.pack(by_moment, none, none, p.dtype(1), False)
        cotangent.offsets[: p.k] = flat(to_mass) + by_moment @ p.centers.origin
        by_distortion[: p.k] = flat(to_distortion)
    to_free, to_inertia = flat(to_energies.to(points.dtype))
    powers = np.array(SENSITIVITY[p.kind], p.dtype)
    w, ends = p.weights(weight), p.parts()
    n = len(ends)
    mass, moment = np.zeros((n, p.high)), np.zeros((n, p.high * p.width))
    totals = np.zeros((n, 1))
    to_points, to_weight = points.new_empty(p.n, p.d), points.new_empty(p.n)
    out = flat(to_points), flat(to_weight)

    def task(i: int, first: int, last: int) -> None:
        p.kernels.pullback_rows(
            p.points,
            p.bad,
            w,
            first,
            last,
            p.centers,
            p.kind,
            p.temperature,
            powers,
            through,
            cotangent,
            by_distortion,
            to_free,
            to_inertia,
            mass[i],
            moment[i],
            *out,
            totals[i],
        )

    bad = p.run(ends, task)
    about = p.centers.shift  # where moments cancel no digits of the centers
    masses, moments = p.kernels.add_parts(mass, moment, p.d, p.width, 0 * about, p.k)
    by_center = 2 * (masses[:, None] * (p.rows - about) - moments)
    to_centers = torch.from_numpy(by_center).to(centers.dtype)
    to_temperature = temperature.detach().new_tensor(added(totals)[0])
    if bad is not None:
        known = points[bad], centers, torch.from_numpy(w)[bad], temperature, mapping
        rest = step.statistics_vjp_formula(*known, to_mass, to_moment, to_distortion, to_energies)
        to_points[bad], to_weight[bad] = rest[0], rest[2]
        to_centers, to_temperature = to_centers + rest[1], to_temperature + rest[3]
    return to_points, to_centers, to_weight, to_temperature


def added(of_parts: Array) -> Array:
    """The sum over parts, in their order."""
    return of_parts[0] if len(of_parts) == 1 else of_parts.sum(0)


def potentials(points: Tensor, candidates: Tensor, near: Tensor, weight: Tensor) -> Tensor:
    p = Problem(points, candidates)
    ends = p.parts()
    w, n, sums = flat(weight), flat(near), np.zeros((len(ends), p.k))

    def task(i: int, first: int, last: int) -> None:
        given = p.centers, n, sums[i]
        p.kernels.potential_rows(p.points, p.bad, w, first, last, *given)

    bad = p.run(ends, task)
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


KERNELS: dict[Any, tuple[Callable[..., Any], Callable[..., Any]]] = {
    mappings.map_scores: (map_scores, mappings.map_scores_formula),
    mappings.map_scores_vjp: (map_scores_vjp, mappings.map_scores_vjp_formula),
    step.squared_distances: (squared_distances, step.squared_distances_formula),
    step.responsibilities: (responsibilities, step.responsibilities_formula),
    step.nearest: (nearest, step.nearest_formula),
    step.free_energy: (free_energy, step.free_energy_formula),
    step.statistics: (statistics, step.statistics_formula),
    step.statistics_vjp: (statistics_vjp, step.statistics_vjp_formula),
}


DIRECT: dict[Any, Callable[..., Any]] = {}
"""What serves each operator, without the dispatcher."""


def register(fast: Callable[[], bool]) -> None:
    """Let the kernels serve the operators on the CPU whenever ``fast`` says so."""

    def either(kernel: Callable[..., Any], formula: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            if not fast():
                return formula(*arguments)
            try:
                return kernel(*arguments)
            except NotFinite:
                return formula(*arguments)
            except compiled().NumbaError as error:
                raise RuntimeError(_remedy("which could not compile a kernel")) from error

        return run

    for operator, (kernel, formula) in KERNELS.items():
        DIRECT[operator] = either(kernel, formula)
        operator.register_kernel("cpu")(DIRECT[operator])
    for kernel, formula in ((moved, step.moved), (potentials, step.potentials)):
        DIRECT[formula] = either(kernel, formula)
