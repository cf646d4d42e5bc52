"""What functions ask of their inputs, checked once at the door, and the dtypes to compute in."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor


def computed_in(dtype: torch.dtype) -> torch.dtype:
    """float32 for half precision, float64 for integers, and any other dtype itself."""
    if dtype in (torch.float16, torch.bfloat16):
        return torch.float32
    return dtype if dtype.is_floating_point else torch.float64


def check_tensor(value: Any, name: str) -> None:
    """Reject arrays, lists and numbers."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch tensor, got {type(value).__name__}.")


def same_kind(points: Tensor, centers: Tensor) -> tuple[Tensor, Tensor]:
    """Points and centers in one dtype: integers in float64, half precision in float32."""
    for name, value in (("points", points), ("centers", centers)):
        check_tensor(value, name)
        if value.ndim != 2:
            raise ValueError(f"{name} must have shape (n, n_features), got {tuple(value.shape)}.")
        if value.is_complex():
            raise TypeError(f"{name} must be real, got {value.dtype}.")
    if points.shape[1] != centers.shape[1] or 0 in centers.shape:
        raise ValueError(
            f"points {tuple(points.shape)} and centers {tuple(centers.shape)} do not fit: both "
            "need the same number of features, and there must be at least one center."
        )
    dtype = torch.promote_types(points.dtype, centers.dtype)
    dtype = computed_in(dtype)
    return points.to(dtype), centers.to(dtype)


def some_points(points: Tensor) -> Tensor:
    """At least one point, in the dtype to compute in."""
    if isinstance(points, Tensor) and points.ndim == 2 and 0 in points.shape:
        shape = tuple(points.shape)
        raise ValueError(
            f"points {shape} are empty: one point and one feature at least are needed."
        )
    return same_kind(points, points[:1] if isinstance(points, Tensor) else points)[0]


def check_count(value: Any, name: str, lowest: int = 1) -> None:
    """Reject what is not a whole number of at least the lowest."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < lowest:
        raise ValueError(f"{name} must be an integer of {lowest} or more, got {value!r}.")


def weights(sample_weight: Tensor | None, points: Tensor) -> Tensor | None:
    """Weights (N,) in the dtype of the points; None, where none are given, is 1 for all."""
    if sample_weight is None:
        return None
    check_tensor(sample_weight, "sample_weight")
    if sample_weight.shape != points.shape[:1]:
        raise ValueError(
            f"sample_weight must have shape ({len(points)},), one weight for each point, "
            f"got {tuple(sample_weight.shape)}."
        )
    return sample_weight.to(points.dtype)


def checked_weights(sample_weight: Tensor | None, points: Tensor) -> Tensor | None:
    """`weights` whose values are looked at too: finite, not negative, not all zero."""
    weight = weights(sample_weight, points)
    if weight is None:
        return None
    low, high = (v.item() for v in weight.aminmax())
    if not (low >= 0 and 0 < high * len(points) < torch.finfo(weight.dtype).max):
        raise ValueError(
            "sample_weight must hold finite numbers of 0 or more, not all zero, whose sum does not "
            f"overflow {weight.dtype}: its smallest is {low}, its largest {high}."
        )
    return weight


def ones(weight: Tensor | None, points: Tensor) -> Tensor:
    """The weights, written out where there are none."""
    return points.new_ones(points.shape[0]) if weight is None else weight


def check_scalar(value: Tensor, name: str = "temperature") -> None:
    """Reject a tensor of more than one number, or of none."""
    if value.ndim:
        raise TypeError(f"{name} must be one number, got a tensor of shape {tuple(value.shape)}.")


def check_temperature(value: Any, name: str = "temperature") -> float:
    """The number, if it is a temperature."""
    if isinstance(value, Tensor):
        check_scalar(value, name)
        value = value.detach().item()
    if not isinstance(value, Real):
        raise TypeError(f"{name} must be one number, got {value!r}.")
    number = float(value)
    if not number >= 0:
        raise ValueError(f"{name} must be 0 or more, in units of squared distance, got {number}.")
    return number


def wide(values: Tensor) -> Tensor:
    """In the dtype that sums over many points are kept in."""
    return values.to(widest(values.device))


def widest(device: torch.device) -> torch.dtype:
    """float64, or float32 on a device that has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64
