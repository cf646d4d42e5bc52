"""The theory of the limit T -> 0 as functions that measure it on data."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .functional import inertia, nearest, statistics
from .inputs import (
    check_count,
    check_temperature,
    checked_weights,
    ones,
    same_kind,
    some_points,
    weights,
    wide,
)
from .mappings import Hard, Mapping, get_mapping
from .step import rows, smallest


def free_energy_bounds(
    points: Tensor,
    centers: Tensor,
    temperature: float | Tensor,
    mapping: str | Mapping = "entmax15",
    sample_weight: Tensor | None = None,
    reduction: str = "mean",
) -> tuple[Tensor, Tensor]:
    """The sandwich F_0 - T W H_max <= F_T <= F_0, from which Gamma-convergence follows.

    W is the sum of the weights, H_max the largest entropy over K centers: log K for softmax,
    4/3 (1 - K^-1/2) for entmax15, 1/2 (1 - 1/K) for sparsemax, 0 for hard.  The gap is linear in
    T and the same for all centers, so minimizers of F_T tend to minimizers of the inertia.

    Parameters
    ----------
    points, centers, temperature, mapping, sample_weight, reduction
        As in `free_energy`.

    Returns
    -------
    lower, upper : Tensor
        Bounds on ``free_energy`` of the same arguments.

    Examples
    --------
    >>> import torch, entmeans
    >>> points, centers = torch.tensor([[0.0], [1.0], [7.0]]), torch.tensor([[1.0], [5.0]])
    >>> lower, upper = entmeans.free_energy_bounds(points, centers, temperature=2.0)
    >>> lower <= entmeans.free_energy(points, centers, temperature=2.0) <= upper
    tensor(True)
    """
    points, centers = same_kind(points, centers)
    check_temperature(temperature)
    upper = inertia(points, centers, sample_weight, reduction)
    weight = ones(weights(sample_weight, points), points)
    share = {"none": weight, "sum": weight.sum(), "mean": torch.ones_like(upper)}[reduction]
    entropy = get_mapping(mapping).max_entropy(len(centers))
    gap = torch.where(share == 0, 0.0, temperature * share) * entropy
    return (upper - gap if entropy else upper), upper


def hardening_temperature(
    points: Tensor,
    centers: Tensor,
    mapping: str | Mapping = "entmax15",
    sample_weight: Tensor | None = None,
) -> Tensor:
    """T*: at every temperature up to it the responsibilities of all points are exactly one-hot.

    Half of the smallest margin for entmax15, the smallest margin for sparsemax, 0 for softmax,
    infinity for hard or for a single center.  At T <= T* the soft step *is* the Lloyd step, bit
    for bit.  A point halfway between two centers makes it 0.

    Parameters
    ----------
    points, centers, mapping, sample_weight
        As in `statistics`; points of weight 0 do not count.

    Returns
    -------
    Tensor, scalar
        In units of squared distance.

    Examples
    --------
    >>> import torch, entmeans
    >>> points, centers = torch.tensor([[0.0], [1.0], [7.0]]), torch.tensor([[1.0], [5.0]])
    >>> entmeans.hardening_temperature(points, centers)
    tensor(8.)
    """
    points, centers = same_kind(points, centers)
    margins = nearest(points, centers).margins
    return one_hot_temperature(margins, weights(sample_weight, points), get_mapping(mapping))


def one_hot_temperature(margins: Tensor, weight: Tensor | None, mapping: Mapping) -> Tensor:
    """The highest temperature at which points of these margins and weights (N,) are all one-hot."""
    present = margins if weight is None else torch.where(weight > 0, margins, math.inf)
    margin = smallest(present)
    if isinstance(mapping, Hard):
        return torch.full_like(margin, math.inf)
    return torch.where(margin.isinf(), margin, margin / mapping.one_hot_margin)


def is_fixed_point(
    points: Tensor,
    centers: Tensor,
    temperature: float | Tensor = 0.0,
    mapping: str | Mapping = "entmax15",
    sample_weight: Tensor | None = None,
    tol: float | None = None,
) -> Tensor:
    """Whether the step leaves every center where it is: the gradient of F_T vanishes there.

    Parameters
    ----------
    points, centers, temperature, mapping, sample_weight
        As in `statistics`.
    tol : float, optional
        The largest displacement of a center that counts as none, in units of the root mean
        squared distance of the points to their mean.  Default: the square root of the machine
        epsilon of the dtype.

    Returns
    -------
    Tensor, scalar bool

    Examples
    --------
    >>> import torch, entmeans
    >>> points = torch.tensor([[0.0], [1.0], [7.0]])
    >>> entmeans.is_fixed_point(points, torch.tensor([[0.5], [7.0]]))
    tensor(True)
    """
    points, centers = same_kind(points, centers)
    moved = statistics(points, centers, temperature, mapping, sample_weight).centers(centers)
    displacement = (moved - centers).square().sum(-1).amax()
    weight = weights(sample_weight, points)
    mean, total = _mean(points, weight)
    scale = inertia(points, mean.unsqueeze(0), weight) / total
    tol = torch.finfo(points.dtype).eps ** 0.5 if tol is None else tol
    return displacement <= tol**2 * scale


def critical_temperature(
    points: Tensor,
    n_clusters: int,
    mapping: str | Mapping = "entmax15",
    sample_weight: Tensor | None = None,
) -> Tensor:
    """T_c: all centers at the mean of the points are stable above it, and split below it.

    T_c = 2 K s(1/K) lambda_max, where lambda_max is the largest eigenvalue of the covariance of
    the points and s the sensitivity of the mapping: 2 lambda_max for softmax (Rose 1998),
    2 sqrt(K) lambda_max for entmax15, 2 K lambda_max for sparsemax.

    Parameters
    ----------
    points : Tensor, shape (N, D)
    n_clusters : int
        K, at least 2.
    mapping, sample_weight
        As in `statistics`.

    Returns
    -------
    Tensor, scalar
        In units of squared distance.

    References
    ----------
    Rose, "Deterministic annealing for clustering, compression, classification, regression, and
    related optimization problems", Proceedings of the IEEE 1998.

    Examples
    --------
    >>> import torch, entmeans
    >>> entmeans.critical_temperature(torch.tensor([[-1.0], [1.0]]), n_clusters=4)
    tensor(4.)
    """
    rule = get_mapping(mapping)
    if isinstance(rule, Hard) or n_clusters < 2:
        raise ValueError(
            "a critical temperature needs a soft mapping and n_clusters of 2 or more, got "
            f"mapping={rule.name!r} and n_clusters={n_clusters}."
        )
    check_count(n_clusters, "n_clusters", 2)
    points = some_points(points)
    weight = checked_weights(sample_weight, points)
    mean, total = _mean(points, weight)
    scatter = wide(torch.zeros_like(points[0]).outer(points[0]))
    for x, w in zip(*(rows(t, scatter) for t in (points, ones(weight, points))), strict=True):
        scatter = scatter + wide((x - mean).T @ (w.unsqueeze(-1) * (x - mean)))
    eigenvalue = torch.linalg.eigvalsh(scatter / total)[-1].to(points.dtype)
    uniform = eigenvalue.new_tensor(1 / n_clusters)
    return 2 * n_clusters * rule.sensitivity(uniform) * eigenvalue


def _mean(points: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """The weighted mean of the points (D,) and the sum of the weights."""
    total = statistics(points, points[:1], 0.0, "hard", weight)
    return total.centers(points[:1])[0], total.mass[0]
