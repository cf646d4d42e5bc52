"""Where soft K-means rests, and the path of that place as the temperature falls."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ..fit import anneal
from ..schedules import Constant

MAPPINGS = ("softmax", "entmax15", "sparsemax")
"""The soft mappings, in the order of every table and figure."""

MAX_STEPS = 2000


def rest(points: Tensor, centers: Tensor, temperature: float, mapping: str) -> Tensor:
    """The centers (K, D) where soft K-means rests at this temperature, to rounding.

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
        tol=0.0,
        max_iter=MAX_STEPS,
    )
    return result.centers


def follow(points: Tensor, centers: Tensor, temperatures: Iterable[float], mapping: str) -> Tensor:
    """Centers (n_temperatures, K, D) at rest at each temperature, each from where the last rests.

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
        centers = rest(points, centers, temperature, mapping)
        path.append(centers)
    return torch.stack(path)
