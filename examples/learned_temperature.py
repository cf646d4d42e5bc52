"""A temperature learned by gradient: the width of the clusters, found by maximum likelihood.

The free energy F alone always drives T up, since dF/dT is minus the entropy.  The likelihood of K
equal Gaussians of width sigma has the counterweight: with T = 2 sigma^2 and D features, the mean of
-log p(x) is F / T + D/2 log(pi T) + log K.  From 10 times too hot and too cold T ends at the truth.
"""

import math

import torch
from sklearn.datasets import make_blobs
from torch import Tensor

import entmeans

K, SIGMA = 5, 0.7


def negative_log_likelihood(layer: entmeans.nn.SoftKMeans, x: Tensor) -> Tensor:
    """Mean of -log p(x) for points (N, D) under K Gaussians of equal weight and width."""
    t = layer.temperature
    normalizer = layer.n_features / 2 * torch.log(math.pi * t) + math.log(layer.n_clusters)
    return layer.loss(x) / t + normalizer


def learn(x: Tensor, first: float, likelihood: bool = True) -> float:
    """The temperature learned from points (N, D), centers and all, from a first one."""
    layer = entmeans.nn.SoftKMeans(
        K, x.shape[1], temperature=first, mapping="softmax", learn_temperature=True
    )
    layer.reset_centers(x, generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    for _ in range(300):
        loss = negative_log_likelihood(layer, x) if likelihood else layer.loss(x)
        optimizer.zero_grad()
        loss.backward()  # to the centers (K, D) and to log T
        optimizer.step()
    return layer.temperature.item()


def main() -> dict[str, float]:
    points, _ = make_blobs(2000, n_features=2, centers=K, cluster_std=SIGMA, random_state=3)
    x = torch.tensor(points, dtype=torch.float32)  # (2000, 2)
    truth = 2 * SIGMA**2
    return {
        "truth": truth,
        "from 10 times too hot": learn(x, 10 * truth),
        "from 10 times too cold": learn(x, truth / 10),
        "free energy alone": learn(x, truth, likelihood=False),  # and it would go on
    }


if __name__ == "__main__":
    print(main())
