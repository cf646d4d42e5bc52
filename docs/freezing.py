"""The first picture of the README: soft clusters in the plane freezing into K-means cells.

python docs/freezing.py
"""

import math
from pathlib import Path

import torch

import entmeans
from entmeans.plots import plot_freezing

SPREADS = (0.5, 0.6, 0.55, 0.5, 0.65, 0.45, 0.5)


def main() -> None:
    generator = torch.Generator().manual_seed(8)
    angles = torch.arange(6) * math.pi / 3 + 0.35
    radii = 2.6 * (1 + 0.12 * torch.randn(6, 1, generator=generator))
    ring = torch.stack([angles.cos(), angles.sin()], 1) * radii
    means = torch.cat([ring, torch.tensor([[0.15, -0.1]])])
    blobs = [
        mean + spread * torch.randn(60, 2, generator=generator)
        for mean, spread in zip(means, SPREADS, strict=True)
    ]
    points = torch.cat(blobs).double()
    centers = entmeans.anneal(points, means.double(), temperature=0.0).centers
    plot_freezing(Path(__file__).with_name("freezing.png"), points, centers)


if __name__ == "__main__":
    main()
