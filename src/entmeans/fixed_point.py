"""Soft K-means as a differentiable function: from points to the centers where it rests."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .functional import free_energy, responsibilities, scalar, statistics
from .inputs import check_count, check_temperature, check_tensor, computed_in, wide
from .mappings import HARD, Mapping, get_mapping
from .operators import in_full_precision
from .seeding import kmeans_plusplus
from .step import common_shift, distances, means, shares, sums

GRADIENTS = ("implicit", "unroll", "last")

MAX_PRODUCTS = 1000
"""The largest number of Hessian-vector products of one backward pass."""


class FixedPoint(NamedTuple):
    """What `soft_kmeans` returns; with a leading (B,) for batches.

    Attributes
    ----------
    centers : Tensor, shape (K, D)
    responsibilities : Tensor, shape (N, K)
        0 in rows that the mask leaves out.
    free_energy : Tensor, scalar
        Mean over the points, by weight; 0 where there are none.
    iterations : Tensor of int64, scalar
    converged : Tensor of bool, scalar
        Whether the centers came to rest within ``max_iter`` steps.
    """

    centers: Tensor
    responsibilities: Tensor
    free_energy: Tensor
    iterations: Tensor
    converged: Tensor


def soft_kmeans(
    points: Tensor,
    centers: Tensor | int,
    temperature: float | Tensor,
    mapping: str | Mapping = "entmax15",
    *,
    gradient: str = "implicit",
    mask: Tensor | None = None,
    sample_weight: Tensor | None = None,
    max_iter: int = 300,
    tol: float = 1e-10,
    generator: torch.Generator | None = None,
) -> FixedPoint:
    """The centers mu = step(mu; points, T, w) at which soft K-means rests, differentiable.

    Parameters
    ----------
    points : Tensor, shape (N, D) or (B, N, D)
        One set of points, or a batch of sets that are clustered each by itself.
    centers : Tensor, shape (K, D) or (B, K, D), or int
        Where to start; K draws starts by `kmeans_plusplus`.
    temperature, mapping
        As in `statistics`.
    gradient : {"implicit", "unroll", "last"}
        Which steps gradients pass through, to points, temperature and weights; see Notes.
    mask : Tensor of bool, shape (N,) or (B, N), optional
        False for rows that are padding: whatever these hold has no influence.
    sample_weight : Tensor, shape (N,) or (B, N), optional
        Weights w_i >= 0.
    max_iter : int
        The largest number of steps, for each set.
    tol : float
        A set rests once the summed squared shift of its centers is at most ``tol`` times the mean
        variance of its features.  0 goes on until rounding is all that moves them.
    generator : torch.Generator, optional
        For draws of starts, as in `kmeans_plusplus`.

    Returns
    -------
    FixedPoint
        Centers, responsibilities, free energy, iterations, converged.  All but the last two are
        differentiable.

    Notes
    -----
    ========== ============================ ============================== =======================
    gradient   of                           backward costs                 right where
    ========== ============================ ============================== =======================
    unroll     every step, and the start    for each step a backward pass, always
                                            and a copy of the centers
    implicit   the point of rest, which no  for each iteration of          the centers rest, at a
               longer depends on the start  conjugate gradients a          minimum of the free
                                            Hessian-vector product, about  energy (else it warns)
                                            as long as a step
    last       the last step alone, from    one backward pass              the loss is the free
               centers held constant                                       energy, or T = 0; else
                                                                           a rough direction
    ========== ============================ ============================== =======================

    The free energy has the same gradient in all three, since it does not change with the centers at
    rest.  The implicit gradient solves H v = g, where H is the Hessian of F_T at rest, by conjugate
    gradients with the masses as preconditioner; neither H nor an N x K x D Jacobian is ever formed.
    It cannot be differentiated again: use "unroll" for that, and within `torch.func` (but for
    `vmap`, in whose place there are batches).

    Softmax and entmax15 have continuous first derivatives for T > 0.  Sparsemax has kinks where a
    share just vanishes: the derivative there is that of the side where it is 0.  At T = 0 labels
    count as constants, and so does which of several equally near centers has the point.  A center
    without mass stays where it started, with no gradient.

    Where all shares are one-hot, gradients say nothing about other ways to share; where it is so
    hot that centers merge, all sets look alike.  Between lies the order of `reference_temperature`.

    Where centers crawl to rest, ``tol=1e-4``, as in `anneal`, takes fewer steps, for an implicit
    gradient that is less exact.

    References
    ----------
    Bai, Kolter and Koltun, "Deep equilibrium models", NeurIPS 2019; Blondel et al., "Efficient and
    modular implicit differentiation", NeurIPS 2022.

    Examples
    --------
    >>> import torch, entmeans
    >>> sets = torch.tensor([[[0.0], [1.0], [7.0]], [[2.0], [4.0], [0.0]]], requires_grad=True)
    >>> mask = torch.tensor([[True, True, True], [True, True, False]])
    >>> starts = torch.tensor([[[0.0], [7.0]], [[2.0], [4.0]]])
    >>> found = entmeans.soft_kmeans(sets, starts, temperature=1.0, mask=mask)
    >>> found.centers.squeeze(-1), found.converged
    (tensor([[0.5000, 7.0000],
            [2.0000, 4.0000]], grad_fn=<SqueezeBackward1>), tensor([True, True]))
    >>> found.centers[0].sum().backward()
    >>> sets.grad[0].flatten()
    tensor([0.5000, 0.5000, 1.0000])
    """
    if gradient not in GRADIENTS:
        raise ValueError(f"gradient={gradient!r} is unknown: use one of {', '.join(GRADIENTS)}.")
    check_count(max_iter, "max_iter")
    if not tol >= 0:
        raise ValueError(f"tol must be a number of 0 or more, got {tol!r}.")
    number, rule = check_temperature(temperature), get_mapping(mapping)
    rule = HARD if number == 0 else rule
    t = scalar(temperature)
    points, weight = _points_and_weights(points, mask, sample_weight)
    points, given = _start(points, centers, weight, generator)
    # Where the origin is must not decide how finely centers round, and so when they rest.
    shift = _of_each(common_shift, given).unsqueeze(-2)
    points, start = points - shift, given - shift

    def step(centers: Tensor) -> Tensor:
        return means(*_sums(points, centers, weight, t, rule), centers)

    with torch.set_grad_enabled(torch.is_grad_enabled() and gradient == "unroll"):
        found, iterations, converged = _at_rest(step, points, start, weight, max_iter, tol)
    if gradient != "unroll":
        found = step(found)
    if gradient == "implicit" and found.requires_grad:
        constant = None if weight is None else weight.detach()
        held = points.detach(), found.detach(), constant, t.detach(), rule, converged
        found.register_hook(lambda g: None if g is None else _through_rest(*held, g))
    p = _of_each(responsibilities, points, found, t, rule)
    if mask is not None:
        p = p.masked_fill(~mask.unsqueeze(-1), 0.0)
    energy = _of_each(free_energy, points, found, t, rule, weight, "sum")
    total = _weights(points, weight).sum(-1)
    mean = energy / torch.where(total == 0, 1.0, total)
    found = given.detach() + (found - start.detach())  # exactly as given where nothing moved
    return FixedPoint(found, p, mean, iterations, converged)


def _of_each(function: Callable[..., Any], points: Tensor, *arguments: Any) -> Any:
    """The function of one set of points, or of each of a batch, with what belongs to it."""
    if points.ndim == 2:
        return function(points, *arguments)
    dims = (0 if isinstance(a, Tensor) and a.ndim else None for a in arguments)
    return torch.func.vmap(function, in_dims=(0, *dims))(points, *arguments)


def _sums(
    points: Tensor, centers: Tensor, weight: Tensor | None, temperature: Tensor, mapping: Mapping
) -> tuple[Tensor, Tensor]:
    """Mass (..., K) and moment (..., K, D)."""
    if points.ndim == 2:
        found = statistics(points, centers, temperature, mapping, weight)
        return found.mass, found.moment

    @in_full_precision
    def of_set(points: Tensor, centers: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        shift = common_shift(centers)
        x = points - shift
        _, gaps, _ = distances(x, centers - shift)
        return sums(weight.unsqueeze(-1) * shares(gaps, temperature, mapping), x, shift)

    # Sets are many and small: operators, which serve one after the other, would take longer.
    return torch.func.vmap(of_set)(points, centers, _weights(points, weight))


def _points_and_weights(
    points: Tensor, mask: Tensor | None, sample_weight: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Finite points, and weights of their shape (..., N) if any differ from 1."""
    if not isinstance(points, Tensor) or points.ndim not in (2, 3):
        what = tuple(points.shape) if isinstance(points, Tensor) else type(points).__name__
        raise ValueError(f"points must be a tensor (N, D) or (B, N, D), got {what}.")
    if points.is_complex() or 0 in points.shape:
        raise ValueError(
            f"points must be real and not empty, got {points.dtype} of shape {tuple(points.shape)}."
        )
    points, weight, shape = points.to(computed_in(points.dtype)), None, points.shape[:-1]
    if sample_weight is not None:
        check_tensor(sample_weight, "sample_weight")
        if sample_weight.shape not in (shape, shape[-1:]):
            raise ValueError(
                f"sample_weight must have shape {tuple(shape)}, one weight for each point, got "
                f"{tuple(sample_weight.shape)}."
            )
        weight = sample_weight.to(points).expand(shape)
        if not (weight.isfinite() & (weight >= 0)).all():
            raise ValueError("sample_weight must hold finite numbers of 0 or more.")
    if mask is not None:
        check_tensor(mask, "mask")
        if mask.dtype is not torch.bool or mask.shape != shape:
            raise ValueError(
                f"mask must be of bool and shape {tuple(shape)}, False for padding, got "
                f"{mask.dtype} of {tuple(mask.shape)}."
            )
        weight = torch.where(mask, _weights(points, weight), 0.0)
        points = torch.where(mask.unsqueeze(-1), points, 0.0)
    if not points.isfinite().all():
        raise ValueError("points hold NaN or infinity; mark padding by a mask.")
    return points, weight


def _start(
    points: Tensor, centers: Tensor | int, weight: Tensor | None, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Points and first centers (..., K, D), one for each set, in one dtype."""
    if isinstance(centers, Tensor):
        *_, d = points.shape
        fits = centers.ndim > 1 and centers.shape[:-2] in ((), points.shape[:-2])
        if centers.shape[-1:] != (d,) or 0 in centers.shape or not fits:
            raise ValueError(
                f"centers {tuple(centers.shape)} do not fit points {tuple(points.shape)}: (K, D) "
                "for all sets, or (B, K, D), of the same number of features."
            )
        if not centers.isfinite().all():
            raise ValueError("centers hold NaN or infinity.")
        dtype = torch.promote_types(points.dtype, computed_in(centers.dtype))
        shape = (*points.shape[:-2], *centers.shape[-2:])
        return points.to(dtype), centers.to(dtype).expand(shape)
    check_count(centers, "centers (or their number)")
    if points.ndim == 2:
        return points, kmeans_plusplus(points.detach(), centers, weight, generator=generator)
    weights = [None] * len(points) if weight is None else weight
    if weight is not None and (weight.sum(-1) == 0).any():
        empty = int((weight.sum(-1) == 0).int().argmax())
        raise ValueError(f"set {empty} holds no points to draw centers from: leave it out.")
    drawn = [
        kmeans_plusplus(x, centers, w, generator=generator)
        for x, w in zip(points.detach(), weights, strict=True)
    ]
    return points, torch.stack(drawn)


def _at_rest(
    step: Callable[[Tensor], Tensor],
    points: Tensor,
    centers: Tensor,
    weight: Tensor | None,
    max_iter: int,
    tol: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Centers, number of steps, and whether they rest, for each set."""
    variance = _mean_variance(points.detach(), weight)
    rounding = (4 * torch.finfo(points.dtype).eps) ** 2
    iterations = torch.zeros(points.shape[:-2], dtype=torch.int64, device=points.device)
    at_rest = torch.zeros_like(iterations, dtype=torch.bool)
    for _ in range(max_iter):
        moved = step(centers)
        shift = wide(moved.detach() - centers.detach()).square().sum((-2, -1))
        centers = torch.where(at_rest[..., None, None], centers, moved)
        iterations = iterations + ~at_rest
        size = wide(centers.detach()).square().sum((-2, -1)) + centers.shape[-2:].numel() * variance
        at_rest = at_rest | (shift <= torch.maximum(tol * variance, rounding * size))
        if at_rest.all():
            break
    return centers, iterations, at_rest


def _mean_variance(points: Tensor, weight: Tensor | None) -> Tensor:
    """The mean variance of the features of each set, which makes tol free of scale."""
    w = wide(_weights(points, weight).detach()).unsqueeze(-1)
    total = w.sum(-2, keepdim=True)
    share = w / torch.where(total == 0, 1.0, total)
    x = wide(points)
    mean = (share * x).sum(-2, keepdim=True)
    return (share * (x - mean).square()).sum(-2).mean(-1)


def _weights(points: Tensor, weight: Tensor | None) -> Tensor:
    """The weights (..., N), written out where there are none."""
    return torch.ones_like(points[..., 0]) if weight is None else weight


@in_full_precision
def _through_rest(
    points: Tensor,
    centers: Tensor,
    weight: Tensor | None,
    temperature: Tensor,
    mapping: Mapping,
    at_rest: Tensor,
    gradient: Tensor,
) -> Tensor:
    """The derivative by the outcome of the last step, from that by centers at rest.

    At rest h(mu; x) = mass mu - moment is 0, half the gradient of the free energy.  Its derivative
    A by mu is symmetric, so v = A^-1 g needs no more than products of A with vectors, and
    dL/dx = -v' dh/dx is what one step passes on of mass * v.
    """
    if torch.is_grad_enabled():
        raise RuntimeError(
            "implicit gradients cannot be differentiated again, nor within torch.func: use "
            'gradient="unroll".'
        )
    with torch.enable_grad():
        centers = centers.detach().requires_grad_()
        mass, moment = _sums(points, centers, weight, temperature, mapping)
        h = mass.unsqueeze(-1) * centers - moment
    mass = mass.detach().unsqueeze(-1)
    alive = mass > 0

    def product(v: Tensor) -> Tensor:
        (found,) = torch.autograd.grad(h, centers, v, retain_graph=True)
        return torch.where(alive, wide(found), 0.0)

    def dot(a: Tensor, b: Tensor) -> Tensor:
        return (a * b).sum((-2, -1), keepdim=True)

    def scaled(r: Tensor) -> Tensor:
        return r / torch.where(alive, mass, 1.0)

    v = torch.zeros_like(h)
    residual = torch.where(alive, wide(gradient), 0.0)
    direction = scaled(residual)
    size = dot(residual, direction)
    enough = size * torch.finfo(gradient.dtype).eps ** 1.5
    for _ in range(MAX_PRODUCTS):
        if (size <= enough).all():
            break
        pushed = product(direction)
        curvature = dot(direction, pushed)
        going = (size > enough) & (curvature > 0)
        if not going.any():
            break
        length = torch.where(going, size / torch.where(going, curvature, 1.0), 0.0)
        v = v + length * direction
        residual = residual - length * pushed
        new = scaled(residual)
        before, size = size, torch.where(going, dot(residual, new), size)
        direction = new + size / torch.where(before == 0, 1.0, before) * direction
    if not (at_rest.all() & (size <= enough).all()):
        warnings.warn(
            "soft_kmeans: the implicit gradient is inexact, because the centers are not at rest at "
            'a minimum of the free energy. Raise max_iter or tol, or use gradient="unroll".',
            RuntimeWarning,
            stacklevel=2,
        )
    return (mass * v).to(gradient.dtype)
