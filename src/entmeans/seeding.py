"""Initial centers, drawn from the points as a weighted measure.

A draw depends on where weight lies in space, not on how it is written down: neither the order of
the points nor copies in place of weights changes it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from . import operators, step
from .inputs import check_count, checked_weights, ones, some_points, wide, widest
from .kernels import run
from .step import joined, rows


class Sampler:
    """Draws points in proportion to a measure: inverse CDF along a random direction in space."""

    def __init__(self, points: Tensor, generator: torch.Generator | None) -> None:
        self.generator = generator or _fresh_generator()
        self.like = points.new_empty(0, dtype=widest(points.device))
        direction = torch.randn(points.shape[1], dtype=torch.float64, generator=self.generator)
        direction = direction.to(self.like)
        origin = points[:1]
        along = ((wide(x - origin) @ direction,) for x in rows(points, origin))
        self.order = joined(along, len(points))[0].argsort(stable=True)

    def draw(self, measure: Tensor, n: int = 1) -> Tensor:
        """Indices (n,) of points, independent draws; a point of measure 0 is never drawn."""
        cumulative = wide(measure)[self.order].cumsum(0)
        u = torch.rand(n, dtype=torch.float64, generator=self.generator).to(self.like)
        u = u * cumulative[-1]
        last = torch.searchsorted(cumulative, cumulative[-1:])
        return self.order[torch.searchsorted(cumulative, u, right=True).minimum(last)]


@torch.no_grad()
def kmeans_plusplus(
    points: Tensor,
    n_clusters: int,
    sample_weight: Tensor | None = None,
    *,
    n_local_trials: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Centers drawn from the points, each in proportion to weight times squared distance so far.

    Of several candidates for each center the one that leaves the smallest inertia is taken.

    Parameters
    ----------
    points : Tensor, shape (N, D)
    n_clusters : int
        K.  Where the points have fewer distinct locations, some centers coincide.
    sample_weight : Tensor, shape (N,), optional
        Weights w_i >= 0.
    n_local_trials : int, optional
        Candidates for each center.  Default: 4 (2 + log K), the logarithm rounded down; with four
        times the usual number one start is about as good as ten.
    generator : torch.Generator, optional
        A generator on the CPU.  Default: a new one, seeded by the operating system; the global
        one is left alone.

    Returns
    -------
    Tensor, shape (K, D)

    References
    ----------
    Arthur and Vassilvitskii, "k-means++: the advantages of careful seeding", SODA 2007.

    Examples
    --------
    >>> import torch, entmeans
    >>> points = torch.tensor([[0.0], [0.0], [9.0]])
    >>> entmeans.kmeans_plusplus(points, 2).sort(0).values
    tensor([[0.],
            [9.]])
    """
    check_count(n_clusters, "n_clusters")
    points = some_points(points)
    weight = ones(checked_weights(sample_weight, points), points)
    weight = weight / weight.amax()
    usual = 2 + int(math.log(n_clusters))
    trials = 4 * usual if n_local_trials is None else n_local_trials
    check_count(trials, "n_local_trials")
    sampler = Sampler(points, generator)
    chosen = [points[sampler.draw(weight)]]  # (1, D)
    near = nearer(points, chosen[0])
    while len(chosen) < n_clusters:
        measure = weight * near
        # Once every location holds a center, the rest of the centers repeat some.
        candidates = points[sampler.draw(torch.where(measure.amax() > 0, measure, weight), trials)]
        best = run(step.potentials, points, candidates, near, weight).argmin()
        chosen.append(candidates[best].unsqueeze(0))
        near = nearer(points, chosen[-1], near)
    return torch.cat(chosen)


@torch.no_grad()
def random_centers(
    points: Tensor,
    n_clusters: int,
    sample_weight: Tensor | None = None,
    *,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Centers at points drawn in proportion to their weight, no location twice while others last.

    Parameters and return value are those of `kmeans_plusplus`.

    Examples
    --------
    >>> import torch, entmeans
    >>> points = torch.tensor([[0.0], [0.0], [9.0]])
    >>> entmeans.random_centers(points, 2).sort(0).values
    tensor([[0.],
            [9.]])
    """
    check_count(n_clusters, "n_clusters")
    points = some_points(points)
    weight = ones(checked_weights(sample_weight, points), points)
    weight = weight / weight.amax()
    sampler = Sampler(points, generator)
    left, chosen = weight, []
    for _ in range(n_clusters):
        chosen.append(points[sampler.draw(torch.where(left.amax() > 0, left, weight))])
        left = torch.where(nearer(points, chosen[-1]) == 0, 0.0, left)
    return torch.cat(chosen)


def nearer(points: Tensor, center: Tensor, near: Tensor | None = None) -> Tensor:
    """Squared distances (N,) to the center (1, D), or ``near`` where that is smaller."""
    _, found, _ = run(operators.nearest, points, center)
    return found if near is None else torch.minimum(near, found)


def _fresh_generator() -> torch.Generator:
    generator = torch.Generator()
    generator.seed()
    return generator
