"""Clustering inside a network: which features matter, learned through the centers of many sets.

Each set has three groups of its own, apart in 2 of its 8 features and lost in the noise of the
other 6.  A scale for each feature is trained so that soft K-means of a set finds the groups it
should; gradients pass through the point where the centers rest (`soft_kmeans`), not its steps.
"""

import torch
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

import entmeans

K, N, D = 3, 60, 8


def draw(n_sets: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Sets (B, N, D) of 30 to 60 points, their groups (B, N), and a mask (B, N) of real rows."""
    groups = torch.randint(K, (n_sets, N), generator=generator)
    angles = 2 * torch.pi * (torch.rand(n_sets, 1, generator=generator) + groups / K)
    points = torch.randn(n_sets, N, D, generator=generator)
    points[..., 2:] *= 3  # noise
    points[..., :2] += 4 * torch.stack([angles.cos(), angles.sin()], dim=-1)
    sizes = torch.randint(N // 2, N + 1, (n_sets, 1), generator=generator)
    return points, groups, torch.arange(N) < sizes


def agreement(scale: Tensor, points: Tensor, groups: Tensor, mask: Tensor) -> float:
    """Mean adjusted Rand index of clusters and groups."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        found = entmeans.soft_kmeans(points * scale, K, 1.0, mask=mask, generator=generator)
    labels = found.responsibilities.argmax(-1)  # (B, N)
    scores = [
        adjusted_rand_score(g[m], own[m]) for g, own, m in zip(groups, labels, mask, strict=True)
    ]
    return sum(scores) / len(scores)


def main() -> dict[str, float]:
    generator = torch.Generator().manual_seed(0)
    test = draw(50, generator)
    # Warm: at scale 1 shares are one-hot already, and say little about what else they could be.
    log_scale = torch.full((D,), -1.0, requires_grad=True)
    before = agreement(log_scale.exp(), *test)

    optimizer = torch.optim.Adam([log_scale], lr=0.1)
    for _ in range(60):
        points, groups, mask = draw(16, generator)
        found = entmeans.soft_kmeans(
            points * log_scale.exp(), K, temperature=1.0, mask=mask, generator=generator
        )
        p = found.responsibilities  # (B, N, K), 0 where masked
        together = p @ p.mT  # (B, N, N), whether two points share a cluster
        same = (groups.unsqueeze(-1) == groups.unsqueeze(-2)).to(p)
        pairs = mask.unsqueeze(-1) & mask.unsqueeze(-2)
        loss = (together - same)[pairs].square().mean()
        optimizer.zero_grad()
        loss.backward()  # through the centers at rest
        optimizer.step()

    scale = log_scale.detach().exp()
    return {
        "agreement before": before,
        "agreement after": agreement(scale, *test),
        "scale of groups": scale[:2].mean().item(),
        "scale of noise": scale[2:].mean().item(),
    }


if __name__ == "__main__":
    print(main())
