"""The step as functions of tensors: checked, on any device, differentiable.

    squared_distances -> responsibilities(T) -> statistics -> centers

The formulas are in step.py; operators run them, or a kernel where there is one.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from . import operators
from .inputs import check_scalar, check_temperature, computed_in, same_kind, weights
from .kernels import implementation
from .mappings import HARD, MAPPINGS, Mapping, get_mapping
from .operators import differentiated, probabilities, serving
from .step import Statistics, reduce, rows, total


def squared_distances(points: Tensor, centers: Tensor) -> Tensor:
    """Squared Euclidean distances d_ij = ||x_i - mu_j||^2.

    Parameters
    ----------
    points : Tensor, shape (N, D)
    centers : Tensor, shape (K, D)

    Returns
    -------
    Tensor, shape (N, K)
        Never negative.  Computed from differences for up to 3 features.  For more, only the
        distance to the nearest center is; the others are that plus a gap from one matrix product,
        with an absolute error of a few units of rounding of ||x_i - c|| ||mu_j - c||, c being
        close to the mean of the centers.

    Examples
    --------
    >>> import torch, entmeans
    >>> entmeans.squared_distances(torch.tensor([[0.0], [3.0]]), torch.tensor([[1.0], [3.0]]))
    tensor([[1., 9.],
            [4., 0.]])
    """
    points, centers = same_kind(points, centers)
    _check_served(points, HARD)
    return differentiated(operators.squared_distances)(points, centers)


def responsibilities(
    points: Tensor,
    centers: Tensor,
    temperature: float | Tensor,
    mapping: str | Mapping = "entmax15",
) -> Tensor:
    """The share of each center in each point: p_i = argmax_p <p, -d_i/T> + H(p) over the simplex.

    Parameters
    ----------
    points : Tensor, shape (N, D)
    centers : Tensor, shape (K, D)
    temperature : float or 0-d Tensor
        From 0 (one-hot at the nearest center, ties to the lowest index) to infinity (1/K), in
        units of squared distance.
    mapping : {"entmax15", "softmax", "sparsemax", "hard"} or Mapping

    Returns
    -------
    Tensor, shape (N, K)
        Rows sum to 1.  Differentiable in points, centers and temperature.

    Examples
    --------
    >>> import torch, entmeans
    >>> points, centers = torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0], [2.0]])
    >>> entmeans.responsibilities(points, centers, temperature=4.0)
    tensor([[0.8307, 0.1693],
            [0.5000, 0.5000]])
    >>> entmeans.responsibilities(points, centers, temperature=2.0)
    tensor([[1.0000, 0.0000],
            [0.5000, 0.5000]])
    """
    points, centers = same_kind(points, centers)
    rule, t = _limit(points, mapping, temperature), scalar(temperature)
    shares, name = serving(operators.responsibilities, rule)
    return differentiated(shares)(points, centers, t, name)


def statistics(
    points: Tensor,
    centers: Tensor,
    temperature: float | Tensor,
    mapping: str | Mapping = "entmax15",
    sample_weight: Tensor | None = None,
) -> Statistics:
    """All that a step needs to know about the points.

    Parameters
    ----------
    points : Tensor, shape (N, D)
    centers : Tensor, shape (K, D)
    temperature, mapping
        As in `responsibilities`.
    sample_weight : Tensor, shape (N,), optional
        Weights w_i >= 0; a weight of k equals k copies of the point.

    Returns
    -------
    Statistics

    Examples
    --------
    >>> import torch, entmeans
    >>> points, centers = torch.tensor([[0.0], [1.0], [7.0]]), torch.tensor([[1.0], [5.0]])
    >>> entmeans.statistics(points, centers, temperature=0.0).centers(centers)
    tensor([[0.5000],
            [7.0000]])
    """
    points, centers = same_kind(points, centers)
    weight = weights(sample_weight, points)
    rule, t = _limit(points, mapping, temperature), scalar(temperature)
    found, name = serving(operators.statistics, rule)
    return Statistics.of(differentiated(found)(points, centers, weight, t, name))


def free_energy(
    points: Tensor,
    centers: Tensor,
    temperature: float | Tensor,
    mapping: str | Mapping = "entmax15",
    sample_weight: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """F_T = sum_i w_i min_p [<p, d_i> - T H(p)]: the smooth K-means objective, as a loss.

    For softmax this is -T sum_i w_i logsumexp(-d_i/T).  It lies below the inertia by at most
    T * sum(w) * max H, and is the inertia at T = 0.

    Parameters
    ----------
    points, centers, temperature, mapping, sample_weight
        As in `statistics`.
    reduction : {"mean", "sum", "none"}
        ``"mean"`` divides by the sum of the weights; ``"none"`` gives w_i times each term, (N,).

    Returns
    -------
    Tensor
        Differentiable in points, centers, temperature and weights.  The gradients are closed
        forms, because p is at its optimum: 2 (mass_j mu_j - moment_j) for a center,
        2 w_i (x_i - sum_j p_ij mu_j) for a point, -sum_i w_i H(p_i) for the temperature.  Forward
        and backward hold O(N + K D) beyond the inputs.

    Examples
    --------
    >>> import torch, entmeans
    >>> points = torch.tensor([[0.0], [1.0], [7.0]])
    >>> centers = torch.tensor([[1.0], [5.0]], requires_grad=True)
    >>> loss = entmeans.free_energy(points, centers, temperature=0.0, reduction="sum")
    >>> loss.backward()
    >>> loss.item(), centers.grad.flatten().tolist()
    (5.0, [2.0, -4.0])
    """
    points, centers = same_kind(points, centers)
    weight = weights(sample_weight, points)
    rule, t = _limit(points, mapping, temperature), scalar(temperature)
    energy, name = serving(operators.free_energy, rule)
    terms, sum_ = differentiated(energy)(points, centers, weight, t, name)
    return _reduced(terms, sum_, weight, reduction)


def expected_distortion(
    points: Tensor,
    centers: Tensor,
    temperature: float | Tensor,
    mapping: str | Mapping = "entmax15",
    sample_weight: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """E_T = sum_ij w_i p_ij d_ij: the mean squared distance to a center drawn from p_i.

    Never below the inertia.  Differentiable through the responsibilities too, unlike
    `free_energy`.  Parameters are those of `free_energy`.

    Examples
    --------
    >>> import torch, entmeans
    >>> points, centers = torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0], [2.0]])
    >>> entmeans.expected_distortion(points, centers, float("inf"), "softmax", reduction="none")
    tensor([2., 1.])
    """
    points, centers = same_kind(points, centers)
    weight = weights(sample_weight, points)
    if reduction != "none":
        found = statistics(points, centers, temperature, mapping, weight)
        return _reduced(points[:, 0], found.distortion.sum(), weight, reduction)
    terms = []
    for x in rows(points, centers):
        d = squared_distances(x, centers)
        near = d.amin(-1)  # added on its own: the shares sum to 1 up to rounding only
        gaps = d - near.unsqueeze(-1)
        terms.append(near + (responsibilities(x, centers, temperature, mapping) * gaps).sum(-1))
    return reduce(torch.cat(terms), weight, reduction)


def inertia(
    points: Tensor,
    centers: Tensor,
    sample_weight: Tensor | None = None,
    reduction: str = "sum",
) -> Tensor:
    """F_0 = sum_i w_i min_j d_ij: the K-means objective, computed from differences.

    Parameters are those of `free_energy`; the default reduction is the sum, as everywhere else.

    Examples
    --------
    >>> import torch, entmeans
    >>> entmeans.inertia(torch.tensor([[0.0], [1.0], [7.0]]), torch.tensor([[1.0], [5.0]]))
    tensor(5.)
    """
    points, centers = same_kind(points, centers)
    weight = weights(sample_weight, points)
    _, near, _ = differentiated(operators.nearest)(points, centers)
    return reduce(near, weight, reduction)


class Nearest(NamedTuple):
    """The nearest center of each point: its index, squared distance, and lead over the second."""

    labels: Tensor
    distances: Tensor
    margins: Tensor


def nearest(points: Tensor, centers: Tensor) -> Nearest:
    """The nearest center of each point, ties to the lowest index.

    Parameters
    ----------
    points : Tensor, shape (N, D)
    centers : Tensor, shape (K, D)

    Returns
    -------
    labels : Tensor of int64, shape (N,)
    distances : Tensor, shape (N,)
        Squared distance to that center.
    margins : Tensor, shape (N,)
        How much larger the squared distance to the second nearest center is; infinite if K = 1.

    Examples
    --------
    >>> import torch, entmeans
    >>> found = entmeans.nearest(torch.tensor([[0.0], [3.0], [7.0]]), torch.tensor([[1.0], [5.0]]))
    >>> found.labels, found.distances, found.margins
    (tensor([0, 0, 1]), tensor([1., 4., 4.]), tensor([24.,  0., 32.]))
    """
    points, centers = same_kind(points, centers)
    _check_served(points, HARD)
    return Nearest(*differentiated(operators.nearest)(points, centers))


def entmax15(x: Tensor, dim: int = -1) -> Tensor:
    """Solve max_p <p, x> + 4/3 sum_j (p_j - p_j^1.5) over the probability simplex, along ``dim``.

    A sparse softmax: scores far enough below the top get exactly 0, and a top that leads by 2 or
    more gets exactly 1.

    Parameters
    ----------
    x : Tensor
        Scores of any shape.  float16 and bfloat16 are computed in float32.
    dim : int
        The dimension that sums to 1.

    Returns
    -------
    Tensor
        Probabilities of the shape and dtype of ``x``.  A slice that holds NaN or +inf, or nothing
        but -inf, is NaN; no other slice is touched.

    References
    ----------
    Peters, Niculae and Martins, "Sparse sequence-to-sequence models", ACL 2019.

    Examples
    --------
    >>> import torch, entmeans
    >>> entmeans.entmax15(torch.tensor([1.0, 0.5, -3.0]))
    tensor([0.6740, 0.3260, 0.0000])
    """
    return _along(x, dim, MAPPINGS["entmax15"])


def sparsemax(x: Tensor, dim: int = -1) -> Tensor:
    """Solve max_p <p, x> + 1/2 sum_j (p_j - p_j^2) over the probability simplex, along ``dim``.

    The Euclidean projection of ``x`` onto the simplex.  A top that leads by 1 or more gets
    exactly 1.  Parameters, return value and treatment of NaN are those of `entmax15`.

    References
    ----------
    Martins and Astudillo, "From softmax to sparsemax", ICML 2016.

    Examples
    --------
    >>> import torch, entmeans
    >>> entmeans.sparsemax(torch.tensor([1.0, 0.5, -3.0]))
    tensor([0.7500, 0.2500, 0.0000])
    """
    return _along(x, dim, MAPPINGS["sparsemax"])


def _along(x: Tensor, dim: int, mapping: Mapping) -> Tensor:
    if not (isinstance(x, Tensor) and x.is_floating_point()):
        kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(f"x must be a floating-point tensor, got {kind}.")
    if x.ndim and not -x.ndim <= dim < x.ndim:
        raise IndexError(f"dim={dim} is out of range for x of shape {tuple(x.shape)}.")
    if x.ndim == 0 or x.shape[dim] == 0:
        raise ValueError(f"x must hold at least one score along dim={dim}, got {tuple(x.shape)}.")
    wide = x.to(computed_in(x.dtype))
    return probabilities(wide.movedim(dim, -1), mapping).movedim(-1, dim).to(x.dtype)


def _reduced(terms: Tensor, sum_: Tensor, weight: Tensor | None, reduction: str) -> Tensor:
    """`reduce`, for terms whose weighted sum is known."""
    if reduction in ("sum", "mean"):
        mean = reduction == "mean"
        return (sum_ / total(weight, terms) if mean else sum_).to(terms.dtype)
    return reduce(terms, weight, reduction)


def _limit(points: Tensor, mapping: str | Mapping, temperature: float | Tensor) -> Mapping:
    """The mapping to compute with: at T = 0 each is the hard one.

    What a tensor holds is for the operator to see: it may be on another device, traced, or one of a
    batch.
    """
    rule = get_mapping(mapping)
    _check_served(points, rule)
    if isinstance(temperature, Tensor):
        check_scalar(temperature)
        return rule
    return HARD if check_temperature(temperature) == 0 else rule


def _check_served(points: Tensor, mapping: Mapping) -> None:
    """An error where an implementation was asked for by name that cannot serve the call."""
    if not torch.compiler.is_compiling():
        implementation(points, mapping)


def scalar(temperature: float | Tensor) -> Tensor:
    """As an operator takes it."""
    if isinstance(temperature, Tensor):
        return temperature
    return torch.tensor(temperature, dtype=torch.float64)
