"""Sums over the processes of `torch.distributed`: in one process, what is there already."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def n_processes(group: dist.ProcessGroup | None) -> int:
    return dist.get_world_size(group) if dist.is_available() and dist.is_initialized() else 1


def averaged(values: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """The mean over the processes of the group."""
    n = n_processes(group)
    mean = values / n
    if n > 1:
        dist.all_reduce(mean, group=group)
    return mean


def gathered(points: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """The points of all processes of the group, in the order of these."""
    n = n_processes(group)
    if n == 1:
        return points
    sizes = [torch.empty(1, dtype=torch.int64, device=points.device) for _ in range(n)]
    dist.all_gather(sizes, torch.tensor([len(points)], device=points.device), group=group)
    most = int(max(sizes))
    padded = torch.cat([points, points.new_zeros(most - len(points), points.shape[1])])
    parts = [torch.empty_like(padded) for _ in range(n)]
    dist.all_gather(parts, padded, group=group)
    return torch.cat([part[: int(size)] for part, size in zip(parts, sizes, strict=True)])


def from_first(values: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """The values that the first process of the group has."""
    if n_processes(group) > 1:
        dist.broadcast(values, group=group, group_src=0)
    return values
