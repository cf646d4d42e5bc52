"""Awkward inputs, shared by all tests of the core, by name.

Values are drawn once in float64 from a seed of the case's own; `Case.tensors` gives them in a dtype
and in the memory layout of the case.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import oracle
import torch
from hypothesis import settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike
from torch import Tensor

SOFT = ("softmax", "entmax15", "sparsemax")
MAPPINGS = (*SOFT, "hard")
DTYPES = (torch.float64, torch.float32)

# The same examples in every run: a failure in CI is a failure everywhere.
stable = settings(derandomize=True, deadline=None, database=None, max_examples=40)


def contiguous(values: Tensor) -> Tensor:
    return values.contiguous()


def transposed(values: Tensor) -> Tensor:
    """Fortran order."""
    return values.T.contiguous().T


def strided(values: Tensor) -> Tensor:
    """Every second row and every third column of something larger."""
    out = values.new_full([2 * values.shape[0], 3 * values.shape[1]], torch.nan)[::2, ::3]
    return out.copy_(values)


def offset_view(values: Tensor) -> Tensor:
    """Columns out of the middle of something wider, which starts at an odd address."""
    out = values.new_full([values.shape[0], values.shape[1] + 5], torch.nan)[:, 3:-2]
    return out.copy_(values)


@dataclass(frozen=True)
class Case:
    """``exact``: small integers, on which no dtype rounds, so ties must stay ties."""

    points: Tensor
    centers: Tensor
    sample_weight: Tensor | None = None
    layout: Callable[[Tensor], Tensor] = contiguous
    exact: bool = False

    def tensors(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor | None]:
        weight = None if self.sample_weight is None else self.sample_weight.to(dtype)
        points, centers = (self.layout(t.to(dtype)).detach() for t in (self.points, self.centers))
        return points, centers, weight

    def weights(self, dtype: torch.dtype) -> Tensor:
        weight = self.tensors(dtype)[2]
        return torch.ones(len(self.points), dtype=dtype) if weight is None else weight

    @cached_property
    def scale(self) -> float:
        return oracle.scale(self.points, self.weights(torch.float64)) or 1.0


def _normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _integers(*shape: int, high: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-high, high + 1, shape, generator=generator).double()


def _gaussian(n: int, k: int, d: int, seed: int, **options) -> Case:
    return Case(_normal(n, d, seed=seed), _normal(k, d, seed=seed + 1000), **options)


def _affine(case: Case, scale: float = 1.0, offset: float = 0.0) -> Case:
    return Case(scale * case.points + offset, scale * case.centers + offset, case.sample_weight)


def _with_empty_center(empty: int) -> Case:
    """Three centers: most points near 1, a few near another, one far away from all points."""
    centers = torch.tensor([[0.0, 0.0], [4.0, 0.0]], dtype=torch.float64)
    points = torch.cat(
        [centers[:1] + 0.3 * _normal(20, 2, seed=5), centers[1:] + _normal(5, 2, seed=6)]
    )
    far = torch.tensor([[30.0, 30.0]], dtype=torch.float64)
    return Case(points, torch.cat([centers[:empty], far, centers[empty:]]))


def _weighted(sample_weight: Tensor) -> Case:
    return _gaussian(len(sample_weight), 5, 3, seed=11, sample_weight=sample_weight)


CASES: dict[str, Case] = {
    "plain": _gaussian(24, 4, 2, seed=1),
    "odd sizes": _gaussian(23, 7, 17, seed=2),
    "D=1": _gaussian(19, 3, 1, seed=3),
    "D=33": _gaussian(9, 5, 33, seed=4),
    "N=1": _gaussian(1, 3, 2, seed=5),
    "K=1": _gaussian(13, 1, 3, seed=6),
    "K=N, each point a center": Case(_normal(9, 3, seed=7), _normal(9, 3, seed=7)),
    "K>N": _gaussian(5, 11, 2, seed=8),
    "K > distinct rows": Case(
        _integers(3, 2, high=4, seed=9).repeat(6, 1), _integers(7, 2, high=4, seed=10), exact=True
    ),
    "all points equal": Case(
        torch.full((6, 2), 3.0).double(),
        torch.tensor([[3.0, 3.0], [1.0, 2.0]]).double(),
        exact=True,
    ),
    "integers": Case(
        _integers(29, 3, high=5, seed=12), _integers(6, 3, high=5, seed=13), exact=True
    ),
    "exact ties": Case(
        torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0], [5.0, 5.0], [-1.0, 1.0]]).double(),
        torch.tensor([[1.0, 1.0], [-1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]]).double(),
        exact=True,
    ),
    "centers twice": Case(
        _integers(17, 2, high=3, seed=14), _integers(3, 2, high=3, seed=15).repeat(2, 1), exact=True
    ),
    "all centers equal": Case(
        _integers(8, 2, high=3, seed=16), torch.full((3, 2), 2.0).double(), exact=True
    ),
    "zero weights": _weighted(torch.tensor([0.0, 1.0, 0.0, 2.0] * 5, dtype=torch.float64)),
    "fractional weights": _weighted(_normal(21, seed=17).abs()),
    "weights of all sizes": _weighted(torch.logspace(-8, 8, 21, dtype=torch.float64)),
    "empty center first": _with_empty_center(0),
    "empty center last": _with_empty_center(2),
    "transposed": _gaussian(21, 5, 3, seed=18, layout=transposed),
    "strided": _gaussian(21, 5, 3, seed=19, layout=strided),
    "offset view": _gaussian(21, 5, 3, seed=20, layout=offset_view),
    "offset 1e3": _affine(_gaussian(21, 4, 3, seed=21), offset=1e3),
    "offset 1e6": _affine(_gaussian(21, 4, 3, seed=22), offset=1e6),
    "scale 1e-8": _affine(_gaussian(21, 4, 3, seed=23), scale=1e-8),
    "scale 1e8": _affine(_gaussian(21, 4, 3, seed=24), scale=1e8),
}


@dataclass(frozen=True)
class Expected:
    """What the definitions give for a case, and how far rounding may take a dtype from it."""

    points: oracle.Array  # (N, D)
    centers: oracle.Array  # (K, D)
    weight: oracle.Array  # (N,)
    distances: oracle.Array  # (N, K)
    error: oracle.Array  # (N,), of the distances
    p: oracle.Array  # (N, K)
    p_error: oracle.Array  # (N, K)
    temperature: float
    mapping: str
    eps: float

    @cached_property
    def statistics(self) -> oracle.Statistics:
        return oracle.statistics(
            self.points, self.weight, self.distances, self.p, self.temperature, self.mapping
        )

    @property
    def rounding(self) -> float:
        """The relative error of a sum over points, centers or features in the dtype."""
        return 2 * (sum(self.distances.shape) + self.points.shape[1]) * self.eps

    @cached_property
    def radius(self) -> float:
        """The largest distance of a point or center to the mean of the centers, at least."""
        values = np.concatenate([self.points, self.centers]) - self.centers.mean(0)
        return float(np.sqrt((values**2).sum(-1)).max())

    @cached_property
    def free_energy_error(self) -> oracle.Array:
        """(N,).  Errors of p have no effect of first order, as p minimizes; T H rounds."""
        entropy = oracle.MAX_ENTROPY[self.mapping](self.p.shape[1])
        size = self.distances.min(-1) + (self.temperature * entropy if entropy > 0 else 0)
        return self.error + self.rounding * np.where(np.isinf(size), 0, size)

    def assert_within(self, actual: Tensor, reference: ArrayLike, tolerance: ArrayLike) -> None:
        assert_within(actual, reference, tolerance, f"{self.mapping} at T={self.temperature:g}")


def assert_within(
    actual: Tensor, reference: ArrayLike, tolerance: ArrayLike, where: str = ""
) -> None:
    """|actual - reference| <= tolerance everywhere; infinities must match exactly."""
    found, wanted = actual.detach().double().numpy(), oracle.array(reference)
    assert found.shape == wanted.shape, f"shape {found.shape}, expected {wanted.shape} {where}"
    with np.errstate(invalid="ignore"):
        near = np.isfinite(wanted) & (np.abs(found - wanted) <= tolerance)
    fits = near | (found == wanted)
    assert fits.all(), f"{where}\n{found}\nexpected\n{wanted}\nwithin\n{tolerance}"


@cache
def distances_of(name: str, dtype: torch.dtype) -> tuple[oracle.Array, oracle.Array]:
    """The squared distances of a case, and the error that a dtype may make in them."""
    points, centers, _ = CASES[name].tensors(dtype)
    eps = torch.finfo(dtype).eps
    error = oracle.distance_error(points, centers, 0.0 if CASES[name].exact else eps)
    return oracle.squared_distances(points, centers), error


@cache
def expected(name: str, dtype: torch.dtype, mapping: str, temperature: float) -> Expected:
    points, centers, _ = map(oracle.array, CASES[name].tensors(dtype))
    weight = oracle.array(CASES[name].weights(dtype))
    eps = torch.finfo(dtype).eps
    distances, error = distances_of(name, dtype)
    p = oracle.responsibilities(distances, temperature, mapping)
    low, high = oracle.responsibility_bounds(distances, error, temperature, mapping)
    # The mappings themselves round in sums of K terms and, for softmax, in z e^-z < 1.
    one_hot = temperature == 0 or mapping == "hard"
    p_error = high - low + (0 if one_hot else 4 * (p.shape[1] + 4) * eps)
    return Expected(
        points, centers, weight, distances, error, p, p_error, temperature, mapping, eps
    )


def at_all_temperatures(name: str, dtype: torch.dtype, mapping: str) -> Iterator[Expected]:
    """At 0, so small that all rows are one-hot, cold, at the scale of the data, and infinite."""
    scale = CASES[name].scale
    soft = (0.0, 1e-30, 1e-3 * scale, scale, math.inf)
    for temperature in (0.0, scale, math.inf) if mapping == "hard" else soft:
        yield expected(name, dtype, mapping, temperature)


@st.composite
def problems(draw, max_weight: int = 3, whole: bool = False):
    """Points, centers, weights and a temperature; with ``whole`` numbers all ties are exact."""
    n, k, d = draw(st.integers(1, 12)), draw(st.integers(1, 6)), draw(st.integers(1, 4))
    value = st.integers(-6, 6) if whole else st.floats(-6, 6, width=32, allow_subnormal=False)

    def matrix(rows: int) -> Tensor:
        flat = draw(st.lists(value, min_size=rows * d, max_size=rows * d))
        return torch.tensor(flat, dtype=torch.float64).reshape(rows, d)

    points, centers = matrix(n), matrix(k)
    weight = draw(st.lists(st.integers(0, max_weight), min_size=n, max_size=n).filter(any))
    temperature = 10 ** draw(st.floats(-3, 3))
    return points, centers, torch.tensor(weight, dtype=torch.float64), temperature
