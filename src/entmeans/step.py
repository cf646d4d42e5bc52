"""One step of soft K-means: squared distances -> responsibilities(T) -> statistics -> centers.

This module is the single source of truth, in plain torch.  At T = 0 the step is Lloyd's; at any T
it never raises the free energy.  Statistics of a union are the sum of the statistics, so rows are
taken in chunks and nothing of size N x K is ever held.

Notation: points x_i (N, D) with weights w_i >= 0, centers mu_j (K, D), d_ij = ||x_i - mu_j||^2,
temperature T in units of squared distance, p_ij = mapping(-d_i / T)_j, entropy H.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .inputs import check_temperature, same_kind, weights, wide
from .mappings import HARD, Hard, Mapping, get_mapping, probabilities

CHUNK_ELEMENTS = 2**18
"""Largest number of scores (rows x centers) held at once: about the size of an L2 cache."""

CHUNK_ROWS = 2**13
"""Largest number of rows at once: torch adds so few of them up in one thread, in one order."""

DIFFERENCES = 3
"""Up to this many features all distances are computed from differences: exact, and as fast."""


# The threads of a parent do not exist in its fork: a child that waits for them waits for ever.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=functools.partial(torch.set_num_threads, 1))


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
    shift = common_shift(centers)
    near, gaps, _ = _distances(points - shift, centers - shift)
    return near.unsqueeze(-1) + gaps


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
    rule, temperature = _limit(mapping, temperature)
    shift = common_shift(centers)
    _, gaps, _ = _distances(points - shift, centers - shift)
    return _shares(gaps, temperature, rule)


@dataclass(frozen=True)
class Statistics:
    """What one pass over the points leaves behind; ``a + b`` is the statistics of both sets.

    Sums are kept in float64 (float32 on devices that have no float64).

    Attributes
    ----------
    mass : Tensor, shape (K,)
        sum_i w_i p_ij.
    moment : Tensor, shape (K, D)
        sum_i w_i p_ij x_i.
    distortion : Tensor, shape (K,)
        sum_i w_i p_ij d_ij; its sum is the expected distortion.
    removal_cost : Tensor, shape (K,)
        How much the inertia would rise without that center: the sum of w_i times the margin over
        the points nearest to it.  The margin is the second smallest minus the smallest d_i.
    free_energy : Tensor, scalar
        sum_i w_i (<p_i, d_i> - T H(p_i)).
    inertia : Tensor, scalar
        sum_i w_i min_j d_ij, the K-means objective.
    hard_mass : Tensor, scalar
        The weight of the points whose responsibilities are exactly one-hot, by their margins: for
        softmax none, whatever rounds to zero.
    smallest_margin : Tensor, scalar
        Over the points with positive weight; infinite for one center or no points.
    """

    mass: Tensor
    moment: Tensor
    distortion: Tensor
    removal_cost: Tensor
    free_energy: Tensor
    inertia: Tensor
    hard_mass: Tensor
    smallest_margin: Tensor

    def __add__(self, other: Statistics) -> Statistics:
        if not isinstance(other, Statistics):
            return NotImplemented
        sums = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        sums["smallest_margin"] = torch.minimum(self.smallest_margin, other.smallest_margin)
        return Statistics(**sums)

    def centers(self, previous: Tensor) -> Tensor:
        """The centers moment / mass, in the dtype of ``previous``; one without mass stays there."""
        mass = self.mass.unsqueeze(-1)
        means = self.moment / torch.where(mass == 0, 1.0, mass)
        return torch.where(mass == 0, previous, means.to(previous.dtype))


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
    rule, temperature = _limit(mapping, temperature)
    shift = common_shift(centers)
    chunks = zip(*(rows(t, centers) for t in (points, weight)), strict=True)
    return functools.reduce(
        operator.add,
        (_chunk_statistics(x, centers, w, temperature, rule, shift) for x, w in chunks),
    )


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
    rule, temperature = _limit(mapping, temperature)
    temperature = torch.as_tensor(temperature, dtype=points.dtype, device=points.device)
    terms = _FreeEnergy.apply(points, centers, temperature, rule)  # type: ignore[no-untyped-call]
    return reduce(terms, weights(sample_weight, points), reduction)


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
    `free_energy`, and then holds all of them.  Parameters are those of `free_energy`.

    Examples
    --------
    >>> import torch, entmeans
    >>> points, centers = torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0], [2.0]])
    >>> entmeans.expected_distortion(points, centers, float("inf"), "softmax", reduction="none")
    tensor([2., 1.])
    """
    points, centers = same_kind(points, centers)
    rule, temperature = _limit(mapping, temperature)
    shift = common_shift(centers)
    terms = []
    for x in rows(points, centers):
        near, gaps, _ = _distances(x - shift, centers - shift)
        terms.append(near + (_shares(gaps, temperature, rule) * gaps).sum(-1))
    return reduce(torch.cat(terms), weights(sample_weight, points), reduction)


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
    return free_energy(points, centers, 0.0, HARD, sample_weight, reduction)


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
    shift = common_shift(centers)

    def found(x: Tensor) -> tuple[Tensor, ...]:
        near, gaps, labels = _distances(x - shift, centers - shift)
        return labels, near, _margins(gaps, labels)

    return Nearest(*joined(map(found, rows(points, centers)), len(points)))


def _scores(points: Tensor, centers: Tensor) -> tuple[Tensor, Tensor]:
    """d_ij (n, K) up to a constant in each row, and their rounding errors (n, K)."""
    if points.shape[1] <= DIFFERENCES:
        axes = zip(points.unbind(-1), centers.unbind(-1), strict=True)
        squares = [(x.unsqueeze(-1) - c).square() for x, c in axes]
        scores = functools.reduce(operator.add, squares)
        return scores, scores.new_zeros(1, 1).expand_as(scores)
    size, reach = points.detach().norm(dim=-1, keepdim=True), centers.detach().norm(dim=-1)
    rounding = 2 * torch.finfo(points.dtype).eps * points.shape[1] ** 0.5
    scores = torch.addmm(centers.square().sum(-1), points, centers.T, alpha=-2)
    return scores, rounding * torch.addcmul(reach.square(), size, reach)


def _distances(points: Tensor, centers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """d_ij = near_i + gap_ij with gap >= 0, exactly 0 at the label.

    Differences give near_i, which would cancel to nothing in an expanded square; the scores give
    the gaps, in which ||x_i||^2 cancels before it is ever added.  Scores within rounding of the
    lowest are a tie: equal centers get equal gaps, whatever the order in which a product is summed.
    """
    scores, rounding = _scores(points, centers)
    lowest = scores.argmin(-1, keepdim=True)
    lead = (scores - scores.gather(-1, lowest)).detach()
    tied = lead <= rounding + rounding.gather(-1, lowest)
    labels = tied.byte().argmax(-1)
    gaps = scores - scores.gather(-1, labels.unsqueeze(-1))  # (n, K)
    gaps = gaps - torch.where(tied, gaps.detach(), 0.0)  # 0 in value, not in its derivative
    near = (points - centers[labels]).square().sum(-1)  # (n,)
    return near, gaps, labels


def _margins(gaps: Tensor, labels: Tensor) -> Tensor:
    """The second smallest gap (n,) of each row; infinite where there is no second center."""
    return gaps.scatter(-1, labels.unsqueeze(-1), math.inf).amin(-1)


def _shares(gaps: Tensor, temperature: float | Tensor, mapping: Mapping) -> Tensor:
    """Responsibilities (n, K).  Only gaps matter: a constant in a row of scores has no effect."""
    if isinstance(mapping, Hard):
        return probabilities(-gaps, HARD)
    # A positive temperature below the range of the dtype would turn 0 / T into NaN.
    tiny = torch.finfo(gaps.dtype).tiny
    if isinstance(temperature, Tensor):
        # gaps / T^2, in the derivative, overflows at low T where every row is saturated: scores
        # far below the top stop at a floor without mass, and 1 / T is differentiated by itself.
        finite = temperature.clamp(tiny, torch.finfo(gaps.dtype).max)
        below = (gaps / finite.detach()).clamp_max(1e4)
        return probabilities(below * -(finite.detach() / finite), mapping)
    # A tensor, because some devices divide by a number as if it were 1 / T, and T* would not hold.
    return probabilities(gaps / gaps.new_tensor(-max(temperature, tiny)), mapping)


def _chunk_statistics(
    points: Tensor,
    centers: Tensor,
    weight: Tensor,
    temperature: float | Tensor,
    mapping: Mapping,
    shift: Tensor,
) -> Statistics:
    x, c = points - shift, centers - shift
    near, gaps, labels = _distances(x, c)
    p = _shares(gaps, temperature, mapping)  # (n, K)
    wp = weight.unsqueeze(-1) * p
    mass = wide(wp.sum(0))
    margin = _margins(gaps, labels)
    present = weight > 0
    cost = torch.where(present, weight * margin, 0.0)
    hard = margin >= mapping.one_hot_margin * (0.0 if isinstance(mapping, Hard) else temperature)
    free = _free(near, gaps, p, temperature, mapping)
    return Statistics(
        mass=mass,
        moment=wide(wp.T @ x) + mass.unsqueeze(-1) * wide(shift),
        distortion=wide(wp.T @ near + (wp * gaps).sum(0)),
        removal_cost=torch.zeros_like(mass).index_add(0, labels, wide(cost)),
        free_energy=reduce(wide(free), wide(weight), "sum"),
        inertia=reduce(wide(near), wide(weight), "sum"),
        hard_mass=wide(torch.where(hard, weight, 0.0)).sum(),
        smallest_margin=smallest(torch.where(present, margin, math.inf)),
    )


def smallest(values: Tensor) -> Tensor:
    """The minimum, infinite where there are no values."""
    return torch.cat([values, values.new_full((1,), math.inf)]).amin()


def _free(
    near: Tensor, gaps: Tensor, p: Tensor, temperature: float | Tensor, mapping: Mapping
) -> Tensor:
    """<p, d> - T H(p) of each row (n,); T H is 0 where H is 0, at infinite T too."""
    entropy = mapping.entropy(p)
    return near + (p * gaps).sum(-1) - torch.where(entropy == 0, 0.0, temperature * entropy)


class _FreeEnergy(torch.autograd.Function):
    """min_p <p, d_i> - T H(p) for each point, with gradients that recompute p chunk by chunk."""

    @staticmethod
    def forward(points: Tensor, centers: Tensor, temperature: Tensor, mapping: Mapping) -> Tensor:
        shift = common_shift(centers)

        def term(x: Tensor) -> tuple[Tensor]:
            near, gaps, _ = _distances(x - shift, centers - shift)
            p = _shares(gaps, temperature, mapping)
            return (_free(near, gaps, p, temperature, mapping),)

        return joined(map(term, rows(points, centers)), len(points))[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.mapping = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        points, centers, temperature = ctx.saved_tensors
        shift = common_shift(centers)
        c = centers - shift
        to_centers = torch.zeros_like(wide(centers))
        to_temperature = torch.zeros_like(wide(temperature))

        def to_points(x: Tensor, g: Tensor) -> tuple[Tensor]:
            nonlocal to_centers, to_temperature
            x = x - shift
            _, gaps, _ = _distances(x, c)
            p = _shares(gaps, temperature, ctx.mapping)
            gp = g.unsqueeze(-1) * p
            to_centers = to_centers + 2 * (wide(gp.sum(0)).unsqueeze(-1) * c - wide(gp.T @ x))
            to_temperature = to_temperature - wide(g * ctx.mapping.entropy(p)).sum()
            return (2 * g.unsqueeze(-1) * (x - p @ c),)

        chunks = map(to_points, rows(points, centers), rows(gradient, centers))
        return (
            joined(chunks, len(points))[0],
            to_centers.to(centers.dtype),
            to_temperature.to(temperature.dtype),
            None,
        )


def rows(values: Tensor, centers: Tensor) -> Iterator[Tensor]:
    """Consecutive chunks of rows, as many as keep rows x centers and rows x features in cache."""
    return iter(values.split(max(1, min(CHUNK_ROWS, CHUNK_ELEMENTS // max(centers.shape)))))


def joined(chunks: Iterable[tuple[Tensor, ...]], n: int) -> tuple[Tensor, ...]:
    """The results of consecutive chunks as tensors of n rows.

    Each is copied into place as it comes: small results that stay between large temporaries would
    keep the memory of those from being used again.
    """
    chunks = iter(chunks)
    first = next(chunks)
    if any(part.requires_grad for part in first):
        return tuple(torch.cat(parts) for parts in zip(first, *chunks, strict=True))
    whole = tuple(part.new_empty(n, *part.shape[1:]) for part in first)
    start = 0
    for chunk in itertools.chain([first], chunks):
        for out, part in zip(whole, chunk, strict=True):
            out[start : start + len(part)] = part
        start += len(chunk[0])
    return whole


def common_shift(centers: Tensor) -> Tensor:
    """A vector (D,) near the mean of the centers, to subtract from points and centers alike.

    Distances of data far from the origin would cancel in the matrix product.  The shift is a
    multiple of a power of two as large as the spread of the centers, so that subtracting it from
    typical data is exact and ties stay ties.
    """
    centers = centers.detach()
    mean = centers.mean(0)
    spread = (centers - mean).abs().amax()
    grid = torch.exp2(torch.ceil(torch.log2(spread)))
    return torch.where(grid > 0, (mean / grid).round() * grid, mean)


def total(values: Tensor) -> Tensor:
    """The sum of values (N,), in an order that does not depend on the number of threads."""
    return torch.stack([wide(part).sum() for part in values.split(CHUNK_ROWS)]).sum()


def reduce(terms: Tensor, weight: Tensor, reduction: str) -> Tensor:
    """Weighted terms (N,) as they are, their sum, or their mean, in the dtype of the terms."""
    # At infinite temperature a term may be -inf, which must not count where the weight is 0.
    weighted = torch.where((weight == 0) & terms.isinf(), 0.0, weight * terms)
    if reduction == "none":
        return weighted
    if reduction == "sum":
        return total(weighted).to(terms.dtype)
    if reduction == "mean":
        return (total(weighted) / total(weight)).to(terms.dtype)
    raise ValueError(f'reduction={reduction!r} is unknown: use "mean", "sum" or "none".')


def _limit(mapping: str | Mapping, temperature: float | Tensor) -> tuple[Mapping, float | Tensor]:
    """The mapping and temperature to compute with: at T = 0 every mapping is the hard one."""
    rule = get_mapping(mapping)
    return (HARD if check_temperature(temperature) == 0 else rule), temperature
