"""Temperatures that mean the same on any data: by how many centers share a point."""

import math

import torch
from torch import Tensor

import entmeans

SAMPLE = 2000


def mean_support(points: Tensor, centers: Tensor, temperature: float) -> float:
    """The mean number of centers with a positive share in a point, under entmax15."""
    p = entmeans.responsibilities(points, centers, temperature, "entmax15")
    return p.gt(0).sum(1).double().mean().item()


@torch.no_grad()
def temperature_of_support(points: Tensor, centers: Tensor, support: float) -> float:
    """The temperature at which a point has so many centers on average, by bisection of log T.

    A sample of the points is enough: the support grows steadily with T.
    """
    order = torch.randperm(len(points), generator=torch.Generator().manual_seed(0))
    sample = points[order[:SAMPLE]]
    middle = math.log(entmeans.inertia(sample, centers, reduction="mean").item())
    low, high = middle - 15, middle + 15
    for _ in range(25):
        middle = (low + high) / 2
        if mean_support(sample, centers, math.exp(middle)) < support:
            low = middle
        else:
            high = middle
    return math.exp(high)
