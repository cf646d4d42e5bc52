"""Where soft K-means rests, and the path of that place as the temperature falls."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..fit import anneal
from ..functional import inertia, statistics
from ..limit import critical_temperature
from ..schedules import Constant
from ..seeding import kmeans_plusplus
from .geometries import GEOMETRIES

MAPPINGS = ("softmax", "entmax15", "sparsemax")
"""The soft mappings, in the order of every table and figure."""

MAX_STEPS = 2000

COLDEST = 1e-5
"""Where cooling ends, in units of the scale of the data."""

NUDGE = 1e-3
"""Of the root mean squared radius of the points: how far centers are moved to part them."""


def rest(
    points: Tensor, centers: Tensor, temperature: float, mapping: str, tol: float = 0.0
) -> Tensor:
    """The centers (K, D) where soft K-means rests at this temperature, as `anneal` decides it.

    Examples
    --------
    >>> import torch
    >>> from entmeans.paper.paths import rest
    >>> points = torch.tensor([[0.0], [1.0], [7.0]])
    >>> rest(points, points[1:], 0.0, "entmax15").flatten()
    tensor([0.5000, 7.0000])
    """
    result = anneal(
        points,
        centers,
        Constant(),
        mapping,
        temperature=temperature,
        final_temperature=temperature,
        tol=tol,
        max_iter=MAX_STEPS,
    )
    return result.centers


def follow(
    points: Tensor,
    centers: Tensor,
    temperatures: Iterable[float],
    mapping: str,
    tol: float = 0.0,
) -> Tensor:
    """Centers (n_temperatures, K, D) at rest at each temperature, each from where the last rests.

    Those that have merged stay together: see `cool`.

    Examples
    --------
    >>> import torch
    >>> from entmeans.paper.paths import follow
    >>> points = torch.tensor([[0.0], [1.0], [7.0]])
    >>> follow(points, points[1:], [20.0, 1.0], "entmax15").squeeze(-1)
    tensor([[0.4960, 6.9056],
            [0.5000, 7.0000]])
    """
    path = []
    for temperature in temperatures:
        centers = rest(points, centers, temperature, mapping, tol)
        path.append(centers)
    return torch.stack(path)


def cool(
    points: Tensor, centers: Tensor, temperatures: Iterable[float], mapping: str, seed: int
) -> Tensor:
    """`follow`, with centers nudged by a thousandth of the radius of the data before each rest.

    Equal centers stay equal at every temperature, and above the temperature where they split they
    become equal to rounding; without a nudge they would never part (Rose 1998).
    """
    generator = torch.Generator().manual_seed(seed)
    size = NUDGE * scale(points) ** 0.5
    path = []
    for temperature in temperatures:
        nudge = torch.randn(centers.shape, dtype=centers.dtype, generator=generator)
        centers = rest(points, centers + size * nudge, temperature, mapping, tol=1e-12)
        path.append(centers)
    return torch.stack(path)


class Cooling(NamedTuple):
    """A sample, and the path of its centers as the temperature falls.

    Temperatures are in units of the scale of the points; the path is (n_temperatures, K, D), and
    its end (K, D) the fixed point of K-means to which it leads.  Several claims share
    one: not to be written to.
    """

    points: Tensor
    temperatures: tuple[float, ...]
    path: Tensor
    end: Tensor


@functools.cache  # several claims look at the same paths
def cooling(
    geometry: str, n_points: int, n_clusters: int, n_temperatures: int, mapping: str, seed: int
) -> Cooling:
    """The path from 0.9 times the critical temperature down to 1e-5 of the scale of the data."""
    points = GEOMETRIES[geometry](n_points, seed=seed).points
    size = scale(points)
    hottest = 0.9 * critical_temperature(points, n_clusters, mapping).item() / size
    relative = tuple(np.geomspace(hottest, COLDEST, n_temperatures).tolist())
    first = start(points, n_clusters, seed)
    path = cool(points, first, [t * size for t in relative], mapping, seed)
    return Cooling(points, relative, path, lloyd(points, path[-1]))


def start(points: Tensor, n_clusters: int, seed: int) -> Tensor:
    """One draw by k-means++ as it is usually done, with one candidate for each center."""
    generator = torch.Generator().manual_seed(seed)
    return kmeans_plusplus(points, n_clusters, n_local_trials=1, generator=generator)


def lloyd(points: Tensor, centers: Tensor) -> Tensor:
    """The fixed point of K-means that Lloyd's algorithm finds: another step changes no bit.

    Examples
    --------
    >>> import torch
    >>> from entmeans.paper.paths import lloyd
    >>> points = torch.tensor([[0.0], [1.0], [7.0]])
    >>> lloyd(points, points[:2]).flatten()
    tensor([0.5000, 7.0000])
    """
    centers = rest(points, centers, 0.0, "hard")
    while not torch.equal(centers, after := step(points, centers, 0.0, "hard")):
        centers = after
    return centers


def best_fixed_point(points: Tensor, n_clusters: int, seed: int, n_starts: int) -> Tensor:
    """The best of several runs of Lloyd's algorithm, each from a draw of `start`."""
    seeds = range(seed * n_starts, (seed + 1) * n_starts)
    found = [lloyd(points, start(points, n_clusters, s)) for s in seeds]
    return min(found, key=lambda centers: inertia(points, centers).item())


def step(points: Tensor, centers: Tensor, temperature: float, mapping: str) -> Tensor:
    """One step of soft K-means; a center without mass stays."""
    return statistics(points, centers, temperature, mapping).centers(centers)


def scale(points: Tensor) -> float:
    """The mean squared distance of the points to their mean: the unit of temperatures."""
    return (inertia(points, points.mean(0, keepdim=True)) / len(points)).item()


def distance(a: Tensor, b: Tensor) -> Tensor:
    """The root mean squared distance between the centers (..., K, D) of the same index."""
    return (a - b).square().sum(-1).mean(-1).sqrt()


def turning(path: Tensor, unit: float) -> Tensor:
    """The total angle in radians (K,) by which the path (n, K, D) of each center turns.

    Points of the path less than a hundredth of the unit from the one before are passed over, so
    that neither rounding nor the number of temperatures decides.

    Examples
    --------
    >>> import torch
    >>> from entmeans.paper.paths import turning
    >>> corner = torch.tensor([[[0.0, 0.0]], [[1.0, 0.0]], [[1.0, 1.0]]])
    >>> turning(corner, unit=1.0)
    tensor([1.5708])
    """
    return torch.stack([_turning(one, 0.01 * unit) for one in path.unbind(1)])


def _turning(path: Tensor, shortest: float) -> Tensor:
    kept = [path[0]]
    for place in path[1:]:
        if (place - kept[-1]).norm() >= shortest:
            kept.append(place)
    if len(kept) < 3:
        return path.new_zeros(())
    ahead = torch.nn.functional.normalize(torch.stack(kept).diff(dim=0))
    before, after = ahead[:-1], ahead[1:]
    half = torch.atan2((after - before).norm(dim=-1), (after + before).norm(dim=-1))
    return 2 * half.sum()  # exact for small angles too, unlike arcs of cosines
