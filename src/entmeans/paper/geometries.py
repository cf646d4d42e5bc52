"""The four geometries in the plane: blobs, two moons, a spiral and circles.

Blobs are what K-means is made for.  The others are curved: their classes are no cells.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Sample(NamedTuple):
    """Points (N, 2) in float64 and their true classes (N,)."""

    points: Tensor
    classes: Tensor


def blobs(n_points: int = 300, noise: float = 0.6, *, seed: int = 0) -> Sample:
    """Five round Gaussian clusters, their means on a circle of radius 3, turned by chance.

    Parameters
    ----------
    n_points : int
        N, in all classes together.
    noise : float
        The standard deviation of each cluster.
    seed : int
        The same seed gives the same points.

    Examples
    --------
    >>> from entmeans.paper import blobs
    >>> sample = blobs(50, seed=3)
    >>> sample.points.shape, sample.classes.unique().tolist()
    (torch.Size([50, 2]), [0, 1, 2, 3, 4])
    """
    from sklearn.datasets import make_blobs

    turn = torch.rand((), generator=torch.Generator().manual_seed(seed)).item()
    angles = (torch.arange(5) / 5 + turn) * 2 * math.pi
    means = 3 * torch.stack([angles.cos(), angles.sin()], 1)
    return _sample(
        *make_blobs(n_points, centers=means.numpy(), cluster_std=noise, random_state=seed)
    )


def two_moons(n_points: int = 300, noise: float = 0.08, *, seed: int = 0) -> Sample:
    """Two half circles of radius 1 that reach into each other; parameters as in `blobs`.

    Examples
    --------
    >>> from entmeans.paper import two_moons
    >>> two_moons(50, noise=0.0).classes.bincount().tolist()
    [25, 25]
    """
    from sklearn.datasets import make_moons

    return _sample(*make_moons(n_points, noise=noise, random_state=seed))


def spiral(n_points: int = 300, noise: float = 0.06, *, seed: int = 0) -> Sample:
    """Two arms of a spiral, one and a half turns from the middle out to radius 3.

    Parameters are those of `blobs`; points are spread evenly along each arm.

    Examples
    --------
    >>> from entmeans.paper import spiral
    >>> spiral(50, noise=0.0).points.norm(dim=1).max() <= 3
    tensor(True)
    """
    generator = torch.Generator().manual_seed(seed)
    classes = torch.arange(n_points) % 2
    share = torch.rand(n_points, dtype=torch.float64, generator=generator)
    radius = 3 * (0.02 + 0.98 * share).sqrt()  # an arm is the longer the farther out
    angle = math.pi * (radius + classes)
    arm = radius.unsqueeze(1) * torch.stack([angle.cos(), angle.sin()], 1)
    shift = torch.randn(n_points, 2, dtype=torch.float64, generator=generator)
    return Sample(arm + noise * shift, classes)


def circles(n_points: int = 300, noise: float = 0.06, *, seed: int = 0) -> Sample:
    """A circle of radius 1 and one of radius 0.4 within; parameters as in `blobs`.

    Examples
    --------
    >>> from entmeans.paper import circles
    >>> circles(50, noise=0.0).points.norm(dim=1).max().item()
    1.0
    """
    from sklearn.datasets import make_circles

    return _sample(*make_circles(n_points, noise=noise, factor=0.4, random_state=seed))


def _sample(points: object, classes: object) -> Sample:
    return Sample(torch.as_tensor(points), torch.as_tensor(classes))


GEOMETRIES: dict[str, Callable[..., Sample]] = {
    "blobs": blobs,
    "two moons": two_moons,
    "spiral": spiral,
    "circles": circles,
}
