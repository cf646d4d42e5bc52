"""One step of soft K-means: squared distances -> responsibilities(T) -> statistics -> centers.

This module is the single source of truth, in plain torch.  At T = 0 the step is Lloyd's; at any T
it never raises the free energy.  Statistics of a union are the sum of the statistics, so rows are
taken in chunks and nothing of size N x K is ever held.

Notation: points x_i (N, D) with weights w_i >= 0, centers mu_j (K, D), d_ij = ||x_i - mu_j||^2,
temperature T in units of squared distance, p_ij = mapping(-d_i / T)_j, entropy H.

operators.py makes these formulas operators of torch, whose place kernels may take; functional.py is
what users call.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from .inputs import check_temperature, ones, wide
from .mappings import Hard, Mapping, get_mapping, probabilities

CHUNK_ELEMENTS = 2**18
"""Largest number of scores (rows x centers) held at once: about the size of an L2 cache."""

CHUNK_ROWS = 2**13
"""Largest number of rows at once: torch adds so few of them up in one thread, in one order."""

DIFFERENCES = 3
"""Up to this many features all distances are computed from differences: exact, and as fast."""


# The threads of a parent do not exist in its fork: a child that waits for them waits for ever.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=functools.partial(torch.set_num_threads, 1))


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

    def parts(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """As the operator returns it: first what is differentiable, then what is not."""
        energies = torch.stack([self.free_energy, self.inertia])
        hardness = torch.stack([self.hard_mass, self.smallest_margin])
        return self.mass, self.moment, self.distortion, energies, self.removal_cost, hardness

    @classmethod
    def of(cls, parts: tuple[Tensor, ...]) -> Statistics:
        """What `parts` took apart."""
        mass, moment, distortion, energies, removal_cost, hardness = parts
        return cls(mass, moment, distortion, removal_cost, *energies.unbind(), *hardness.unbind())

    def centers(self, previous: Tensor) -> Tensor:
        """The centers moment / mass, in the dtype of ``previous``; one without mass stays there."""
        return means(self.mass, self.moment, previous)


def distances(points: Tensor, centers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """d_ij = near_i + gap_ij with gap >= 0, exactly 0 at the label: near, gaps, labels.

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


def positive(temperature: Tensor, like: Tensor) -> Tensor:
    """The temperature as a normal number of the dtype of ``like``."""
    kind = torch.finfo(like.dtype)
    return temperature.to(like.dtype).clamp(kind.tiny, kind.max)


def scaled(gaps: Tensor, temperature: Tensor) -> Tensor:
    """The scores -d/T (n, K) of a mapping, up to a constant in each row, which has no effect."""
    # A positive temperature below the range of the dtype would turn 0 / T into NaN, and gaps / T^2,
    # in the derivative, overflows at low T where every row is saturated: scores far below the top
    # stop at a floor without mass, and 1 / T is differentiated by itself.
    finite = positive(temperature, gaps)
    below = (gaps / finite.detach()).clamp_max(1e4)
    return below * -(finite.detach() / finite)


def shares(gaps: Tensor, temperature: Tensor, mapping: Mapping) -> Tensor:
    """Responsibilities (n, K), as the formulas of the mapping give them."""
    scores = -gaps if isinstance(mapping, Hard) else scaled(gaps, temperature)
    return probabilities(scores, mapping)


def margins_of(gaps: Tensor, labels: Tensor) -> Tensor:
    """The second smallest gap (n,) of each row; infinite where there is no second center."""
    return gaps.scatter(-1, labels.unsqueeze(-1), math.inf).amin(-1)


def smallest(values: Tensor) -> Tensor:
    """The minimum, infinite where there are no values."""
    return torch.cat([values, values.new_full((1,), math.inf)]).amin()


def free(near: Tensor, gaps: Tensor, p: Tensor, temperature: Tensor, mapping: Mapping) -> Tensor:
    """<p, d> - T H(p) of each row (n,); T H is 0 where H is 0, at infinite T too."""
    entropy = mapping.entropy(p)
    return near + (p * gaps).sum(-1) - torch.where(entropy == 0, 0.0, temperature * entropy)


# Over all points: what operators.py makes operators of


def squared_distances(points: Tensor, centers: Tensor) -> Tensor:
    """d_ij (N, K)."""
    shift = common_shift(centers)
    near, gaps, _ = distances(points - shift, centers - shift)
    return near.unsqueeze(-1) + gaps


def responsibilities(
    points: Tensor, centers: Tensor, temperature: Tensor, mapping: str | Mapping
) -> Tensor:
    """p_ij (N, K)."""
    shift = common_shift(centers)
    _, gaps, _ = distances(points - shift, centers - shift)
    return shares(gaps, temperature, rule_at(mapping, temperature))


def nearest(points: Tensor, centers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Labels, squared distances to them, margins: (N,) each."""
    shift = common_shift(centers)

    def found(x: Tensor) -> tuple[Tensor, ...]:
        near, gaps, labels = distances(x - shift, centers - shift)
        return labels, near, margins_of(gaps, labels)

    labels, near, margins = joined(map(found, rows(points, centers)), len(points))
    return labels, near, margins


def free_energy(
    points: Tensor,
    centers: Tensor,
    weight: Tensor | None,
    temperature: Tensor,
    mapping: str | Mapping,
) -> tuple[Tensor, Tensor]:
    """min_p <p, d_i> - T H(p) of each point (N,), and their weighted sum."""
    rule, shift = rule_at(mapping, temperature), common_shift(centers)

    def term(x: Tensor) -> tuple[Tensor]:
        near, gaps, _ = distances(x - shift, centers - shift)
        return (free(near, gaps, shares(gaps, temperature, rule), temperature, rule),)

    terms = joined(map(term, rows(points, centers)), len(points))[0]
    return terms, wide(weighted_sum(terms, weight))


def statistics(
    points: Tensor,
    centers: Tensor,
    weight: Tensor | None,
    temperature: Tensor,
    mapping: str | Mapping,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Mass, moment, distortion, energies (free, inertia), removal cost, hardness (mass, margin)."""
    rule, shift = rule_at(mapping, temperature), common_shift(centers)
    chunks = zip(*(rows(t, centers) for t in (points, ones(weight, points))), strict=True)
    parts = (chunk_statistics(x, centers, w, temperature, rule, shift) for x, w in chunks)
    return functools.reduce(operator.add, parts).parts()


class Known:
    """What a hard step leaves for the next one, on the same points; nothing before the first.

    For each point the label, -1 where none is known, the squared distance to that center, and a
    lower bound of that to any other one, all for the centers of that step.  From how far these have
    moved since, a kernel may see that the label is what it was (Hamerly, 2010).
    """

    centers: Tensor | None = None
    labels: Tensor
    near: Tensor
    bounds: Tensor


def hard_statistics(
    points: Tensor, centers: Tensor, weight: Tensor | None, known: Known
) -> tuple[Tensor, Tensor, Tensor]:
    """Mass, moment and inertia at T = 0."""
    found = statistics(points, centers, weight, wide(points.new_zeros(())), "hard")
    mass, moment, _, energies, _, _ = found
    return mass, moment, energies[1]


def chunk_statistics(
    points: Tensor,
    centers: Tensor,
    weight: Tensor,
    temperature: Tensor,
    mapping: Mapping,
    shift: Tensor,
) -> Statistics:
    x, c = points - shift, centers - shift
    near, gaps, labels = distances(x, c)
    p = shares(gaps, temperature, mapping)  # (n, K)
    wp = weight.unsqueeze(-1) * p
    mass, moment = sums(wp, x, shift)
    margin = margins_of(gaps, labels)
    present = weight > 0
    cost = torch.where(present, weight * margin, 0.0)
    hard = margin >= (0.0 if isinstance(mapping, Hard) else mapping.one_hot_margin * temperature)
    terms = free(near, gaps, p, temperature, mapping)
    return Statistics(
        mass=mass,
        moment=moment,
        distortion=wide(wp.T @ near + (wp * gaps).sum(0)),
        free_energy=weighted_sum(terms, weight),
        inertia=weighted_sum(near, weight),
        removal_cost=torch.zeros_like(mass).index_add(0, labels, wide(cost)),
        hard_mass=wide(torch.where(hard, weight, 0.0)).sum(),
        smallest_margin=smallest(torch.where(present, margin, math.inf)),
    )


def sums(wp: Tensor, x: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """Mass (K,) and moment (K, D) from weighted responsibilities (n, K) of points x + shift."""
    mass = wide(wp.sum(0))
    return mass, wide(wp.T @ x) + mass.unsqueeze(-1) * wide(shift)


def potentials(points: Tensor, candidates: Tensor, near: Tensor, weight: Tensor) -> Tensor:
    """The inertia (L,) that each candidate would leave if it came to those that leave ``near``."""
    total = wide(candidates.new_zeros(len(candidates)))
    for x, n, w in zip(*(rows(t, candidates) for t in (points, near, weight)), strict=True):
        d = squared_distances(x, candidates)
        total = total + wide(w) @ wide(torch.minimum(n.unsqueeze(-1), d))
    return total


def means(mass: Tensor, moment: Tensor, previous: Tensor) -> Tensor:
    """The centers moment / mass; one without mass stays where it was."""
    mass = mass.unsqueeze(-1)
    centers = moment / torch.where(mass == 0, 1.0, mass)
    return torch.where(mass == 0, previous, centers.to(previous.dtype))


def moved(mass: Tensor, moment: Tensor, start: Tensor, previous: Tensor) -> tuple[Tensor, Tensor]:
    """The centers after a step, and numbers about it.

    Those are the sum and the least of the masses, the largest and the sum of the squared shifts
    from the previous centers, and the sum of the squared centers.
    """
    centers = means(mass, moment, start)
    shifts, size = wide(centers - previous).square().sum(-1), wide(centers).square().sum()
    return centers, torch.stack([mass.sum(), mass.amin(), shifts.amax(), shifts.sum(), size])


def statistics_vjp(
    points: Tensor,
    centers: Tensor,
    weight: Tensor | None,
    temperature: Tensor,
    mapping: str | Mapping,
    to_mass: Tensor | None,
    to_moment: Tensor | None,
    to_distortion: Tensor | None,
    to_energies: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Derivatives by points, centers, weights and temperature from those by the statistics.

    All of them follow from c_ij, the derivative by the squared distance d_ij:
    2 (sum_j c_ij x_i - sum_j c_ij mu_j) for a point, 2 (sum_i c_ij mu_j - sum_i c_ij x_i) for a
    center.  Without derivatives by mass, moment and distortion p is at its optimum and
    c_ij = w_i p_ij; with them, its own derivative comes in.
    """
    rule, shift = rule_at(mapping, temperature), common_shift(centers)
    c = centers - shift
    through = [t.to(points.dtype) for t in (to_mass, to_moment, to_distortion) if t is not None]
    to_free, to_inertia = to_energies.to(points.dtype).unbind()
    mass, moment = torch.zeros_like(wide(centers[:, 0])), torch.zeros_like(wide(centers))
    to_temperature = torch.zeros_like(wide(centers[0, 0]))

    def pulled(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal mass, moment, to_temperature
        x = x - shift
        near, gaps, labels = distances(x, c)
        p = shares(gaps, temperature, rule)
        at_label = torch.zeros_like(p).scatter(-1, labels.unsqueeze(-1), 1.0)
        by_distance = to_free * p + to_inertia * at_label
        energy = torch.where(to_free == 0, 0.0, to_free * free(near, gaps, p, temperature, rule))
        by_weight = energy + to_inertia * near
        by_temperature = -to_free * rule.entropy(p)
        by_point = torch.zeros_like(x)
        if through:
            mass_, moment_, distortion_ = through
            value = mass_ + (x + shift) @ moment_.T + (near.unsqueeze(-1) + gaps) * distortion_
            drift = rule.vjp(p, value) / positive(temperature, x)
            by_distance = by_distance + p * distortion_ - drift
            by_weight = by_weight + (p * value).sum(-1)
            slope = torch.where(drift == 0, 0.0, drift * gaps / temperature)
            by_temperature = by_temperature + slope.sum(-1)
            by_point = p @ moment_
        by_distance = w.unsqueeze(-1) * by_distance
        mass = mass + wide(by_distance.sum(0))
        moment = moment + wide(by_distance.T @ x)
        to_temperature = to_temperature + wide(w * by_temperature).sum()
        pull = by_distance.sum(-1, keepdim=True) * x - by_distance @ c
        return 2 * pull + w.unsqueeze(-1) * by_point, by_weight

    chunks = map(pulled, rows(points, centers), rows(ones(weight, points), centers))
    to_points, to_weight = joined(chunks, len(points))
    to_centers = 2 * (mass.unsqueeze(-1) * wide(c) - moment)
    return (
        to_points,
        to_centers.to(centers.dtype).contiguous(),
        to_weight,
        to_temperature.to(temperature.dtype),
    )


def rule_at(mapping: str | Mapping, temperature: Tensor) -> Mapping:
    """The mapping to compute with: at T = 0 each is the hard one."""
    return get_mapping("hard" if check_temperature(temperature) == 0 else mapping)


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
    if torch.is_grad_enabled():
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
    # A grid finer than the rounding of the mean has the mean on it.
    coarse = grid > mean.abs() * torch.finfo(mean.dtype).eps
    return torch.where(coarse, (mean / torch.where(coarse, grid, 1.0)).round() * grid, mean)


def weighted(terms: Tensor, weight: Tensor | None) -> Tensor:
    """w_i times each term (N,)."""
    if weight is None:
        return terms
    # At infinite temperature a term may be -inf, which must not count where the weight is 0.
    return torch.where((weight == 0) & terms.isinf(), 0.0, weight * terms)


def weighted_sum(terms: Tensor, weight: Tensor | None) -> Tensor:
    """sum_i w_i times each term, in an order that does not depend on the number of threads."""
    weights = itertools.repeat(None) if weight is None else weight.split(CHUNK_ROWS)
    parts = zip(terms.split(CHUNK_ROWS), weights, strict=False)
    return torch.stack(
        [weighted(wide(t), None if w is None else wide(w)).sum() for t, w in parts]
    ).sum()


def total(weight: Tensor | None, points: Tensor) -> Tensor | int:
    """The sum of the weights."""
    return points.shape[0] if weight is None else weighted_sum(weight, None)


def reduce(terms: Tensor, weight: Tensor | None, reduction: str) -> Tensor:
    """Weighted terms (N,) as they are, their sum, or their mean, in the dtype of the terms."""
    if reduction == "none":
        return weighted(terms, weight)
    if reduction == "sum":
        return weighted_sum(terms, weight).to(terms.dtype)
    if reduction == "mean":
        return (weighted_sum(terms, weight) / total(weight, terms)).to(terms.dtype)
    raise ValueError(f'reduction={reduction!r} is unknown: use "mean", "sum" or "none".')
