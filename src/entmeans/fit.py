"""The only solver loop: a schedule sets the temperature, a step moves the centers, until rest."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import torch
from torch import Tensor

from . import operators, step
from .functional import statistics
from .inputs import check_count, check_temperature, checked_weights, same_kind, some_points, weights
from .kernels import run
from .limit import one_hot_temperature
from .mappings import HARD, Hard, Mapping, get_mapping
from .operators import serving
from .schedules import Schedule, get_schedule, temperature_at
from .seeding import nearer
from .step import reduce

FIRST_TEMPERATURE = {"entmax15": 1.5, "softmax": 0.5, "sparsemax": 1.5, "hard": 0.0}
"""The default first temperature, in mean squared distances to the initial centers."""


LOOK_AHEAD = 1000
"""A schedule that stays where it is for so many steps has ended."""


class StopReason(StrEnum):
    """Why a fit ended, and what to do about it."""

    CONVERGED = "converged: the centers moved by no more than tol"
    MAX_ITER = "max_iter reached before the centers came to rest: raise max_iter, or tol"
    NOT_FINITE = "a center became infinite or NaN: scale the data down, or use float64"


class Step(NamedTuple):
    """The record of one step.  All but the shift describe the centers before it
    (where empty ones were relocated: after that).

    ``free_energy`` and ``inertia`` are sums over the points, ``shift`` is the largest distance
    that a center moved, ``hard_share`` the share of the weight whose responsibilities are exactly
    one-hot, by their margins.
    """

    temperature: float
    free_energy: float
    inertia: float
    shift: float
    hard_share: float


@dataclass(frozen=True)
class FitResult:
    """What `anneal` returns.

    Attributes
    ----------
    centers : Tensor, shape (K, D)
    labels : Tensor, shape (N,)
        The index of the nearest center of each point.
    inertia : float
        The K-means objective of the centers: sum_i w_i min_j d_ij.
    free_energy : float
        F_T of the centers at the temperature of the last step, summed over the points.
    hardening_temperature : float
        T* of the centers: up to it the soft network and K-means are the same map on these points.
    history : list of Step
    stop_reason : StopReason
    """

    centers: Tensor
    labels: Tensor
    inertia: float
    free_energy: float
    hardening_temperature: float
    history: list[Step]
    stop_reason: StopReason


@torch.no_grad()
def anneal(
    points: Tensor,
    centers: Tensor,
    schedule: str | Schedule = "geometric",
    mapping: str | Mapping = "entmax15",
    *,
    sample_weight: Tensor | None = None,
    temperature: float | None = None,
    final_temperature: float = 0.0,
    max_iter: int = 300,
    tol: float = 1e-4,
    on_step: Callable[[Step], None] | None = None,
) -> FitResult:
    """Run soft K-means while the temperature falls, then to rest at the final temperature.

    Step i runs at ``max(final_temperature, temperature * schedule(i))``.  With ``temperature=0``
    this is Lloyd's algorithm.

    Parameters
    ----------
    points : Tensor, shape (N, D)
    centers : Tensor, shape (K, D)
        Where to start.
    schedule : {"geometric", "linear"} or callable
        From the number of a step to a multiple of ``temperature``.
    mapping : {"entmax15", "softmax", "sparsemax", "hard"} or Mapping
    sample_weight : Tensor, shape (N,), optional
        Weights w_i >= 0; a weight of k equals k copies of the point.
    temperature : float, optional
        The first temperature, in units of squared distance.  Default: `reference_temperature`.
    final_temperature : float
        Where cooling ends.
    max_iter : int
        The largest number of steps.
    tol : float
        Stop once the summed squared shift of the centers is at most ``tol`` times the mean
        variance of the features, at the final temperature.  0 stops when nothing changes.
    on_step : callable, optional
        Called with the record of each step.

    Returns
    -------
    FitResult

    Examples
    --------
    >>> import torch, entmeans
    >>> points = torch.tensor([[0.0], [1.0], [7.0], [8.0]])
    >>> result = entmeans.anneal(points, points[:2])
    >>> result.centers.flatten().tolist(), result.labels.tolist(), result.inertia
    ([0.5, 7.5], [0, 0, 1, 1], 1.0)
    """
    points, centers = same_kind(some_points(points), centers)
    weight = checked_weights(sample_weight, points)
    rule, factor = get_mapping(mapping), get_schedule(schedule)
    check_temperature(final_temperature, "final_temperature")
    if temperature is None:
        temperature = reference_temperature(points, centers, rule, weight)
        if not math.isfinite(temperature):
            raise ValueError(
                "points and centers must be finite, and so must be their squared distances: the "
                f"mean of these is {temperature}."
            )
    check_temperature(temperature)
    check_count(max_iter, "max_iter", 0)
    if not tol >= 0:
        raise ValueError(f"tol must be a number of 0 or more, got {tol!r}.")
    variance = mean_variance(points, weight)
    rounding = (4 * torch.finfo(points.dtype).eps) ** 2

    def at(i: int) -> float:
        return temperature_at(i, factor, temperature, final_temperature)

    known, history = step.Known(), list[Step]()
    stop_reason = StopReason.MAX_ITER
    for i in range(max_iter):
        t = at(i)
        moved, now = _step(points, centers, centers, weight, t, rule, known)
        if now.least_mass == 0 and (t == 0 or isinstance(rule, Hard)):
            empty = statistics(points, centers, t, rule, weight).mass == 0
            start = relocate(points, centers, empty, weight)
            moved, now = _step(points, start, centers, weight, t, rule, known)
        shift, record = now.shift, now.record(t)
        history.append(record)
        if on_step is not None:
            on_step(record)
        if not math.isfinite(shift):
            stop_reason = StopReason.NOT_FINITE
            break
        centers = moved
        # Rounding goes on moving the centers for ever by less than this.
        still = rounding * (now.size + centers.numel() * variance)
        cooled = (at(later) == t for later in range(i + 1, i + 1 + LOOK_AHEAD))
        if shift <= max(tol * variance, still) and (temperature == 0 or all(cooled)):
            stop_reason = StopReason.CONVERGED
            break
    return _result(
        points,
        centers,
        history[-1].temperature if history else at(0),
        rule,
        weight,
        history,
        stop_reason,
    )


class _Now(NamedTuple):
    """What a step says about itself, as numbers; squares of shifts, and of the moved centers."""

    free_energy: float
    inertia: float
    hard_mass: float
    mass: float
    least_mass: float
    largest_shift: float
    shift: float
    size: float

    def record(self, temperature: float) -> Step:
        largest, share = math.sqrt(self.largest_shift), self.hard_mass / self.mass
        return Step(temperature, self.free_energy, self.inertia, largest, share)


def _step(
    points: Tensor,
    start: Tensor,
    previous: Tensor,
    weight: Tensor | None,
    temperature: float,
    mapping: Mapping,
    known: step.Known,
) -> tuple[Tensor, _Now]:
    """The centers after a step from ``start``, and how far they are from the previous ones."""
    if temperature == 0 or type(mapping) is Hard:
        mass, moment, inertia = run(step.hard_statistics, points, start, weight, known)
        energy = cost = inertia.item()
        hard_mass = math.inf
    else:
        t = torch.tensor(temperature, dtype=torch.float64)
        statistics, name = serving(operators.statistics, mapping)
        mass, moment, _, energies, _, hardness = run(statistics, points, start, weight, t, name)
        (energy, cost), hard_mass = energies.tolist(), hardness[0].item()
    moved, numbers = run(step.moved, mass, moment, start, previous)
    total, *others = numbers.tolist()
    return moved, _Now(energy, cost, min(hard_mass, total), total, *others)


def free_energy(
    points: Tensor, centers: Tensor, weight: Tensor | None, temperature: float, mapping: Mapping
) -> Tensor:
    """F_T summed over the points."""
    energy, name = serving(operators.free_energy, mapping)
    t = torch.tensor(temperature, dtype=torch.float64)
    return run(energy, points, centers, weight, t, name)[1].to(points.dtype)


def reference_temperature(
    points: Tensor,
    centers: Tensor,
    mapping: str | Mapping = "entmax15",
    sample_weight: Tensor | None = None,
) -> float:
    """The default first temperature: a multiple of the mean squared distance to the centers."""
    points, centers = same_kind(points, centers)
    factor = FIRST_TEMPERATURE.get(get_mapping(mapping).name, 1.0)
    _, near, _ = run(operators.nearest, points, centers)
    return factor * reduce(near, weights(sample_weight, points), "mean").item()


def soft_temperature(
    points: Tensor,
    centers: Tensor,
    mapping: str | Mapping = "entmax15",
    sample_weight: Tensor | None = None,
) -> float:
    """`reference_temperature`; the sum of the variances where that is 0, as each has a center."""
    reference = reference_temperature(points, centers, mapping, sample_weight)
    return reference or points.shape[1] * mean_variance(points, sample_weight)


def relocate(points: Tensor, centers: Tensor, empty: Tensor, weight: Tensor | None) -> Tensor:
    """Centers with each empty one moved onto the point that is then farthest from all of them."""
    centers = centers.clone()
    _, near, _ = run(operators.nearest, points, centers)
    for j in empty.nonzero():
        candidates = near if weight is None else torch.where(weight > 0, near, -1.0)
        farthest = candidates.argmax().unsqueeze(0)
        centers[j] = points[farthest]
        near = nearer(points, points[farthest], near)
    return centers


def mean_variance(points: Tensor, weight: Tensor | None) -> float:
    """The mean variance of the features, which makes tol free of scale."""
    known = step.Known()
    mean, _ = _step(points, points[:1], points[:1], weight, 0.0, HARD, known)
    _, about = _step(points, mean, mean, weight, 0.0, HARD, known)
    return about.inertia / about.mass / points.shape[1]


def _result(
    points: Tensor,
    centers: Tensor,
    temperature: float,
    mapping: Mapping,
    weight: Tensor | None,
    history: list[Step],
    stop_reason: StopReason,
) -> FitResult:
    labels, near, margins = run(operators.nearest, points, centers)
    total = reduce(near, weight, "sum")
    energy = free_energy(points, centers, weight, temperature, mapping) if temperature else total
    return FitResult(
        centers=centers,
        labels=labels,
        inertia=total.item(),
        free_energy=energy.item(),
        hardening_temperature=one_hot_temperature(margins, weight, mapping).item(),
        history=history,
        stop_reason=stop_reason,
    )
