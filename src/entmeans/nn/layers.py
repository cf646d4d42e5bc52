"""Layers: soft K-means, and the network of radial basis functions that reads it out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..fit import relocate, soft_temperature
from ..functional import free_energy, nearest, responsibilities, squared_distances, statistics
from ..inputs import check_count, check_temperature, check_tensor, computed_in, same_kind, wide
from ..mappings import Hard, Mapping, get_mapping
from ..operators import probabilities
from ..seeding import kmeans_plusplus
from ..step import positive, total
from .processes import from_first, gathered

ALL_MASS = 0.99
"""One center with this share of the mass, of several, has taken everything."""

NO_SPREAD = 1e-3
"""Points are one if their spread is below this many temperatures, or their distance from their mean
below this share of their norm; centers, if theirs is below this share of that of the points."""


class CollapseWarning(UserWarning):
    """The clusters, or the points themselves, have become one."""


@dataclass(frozen=True, eq=False)
class Usage:
    """How the centers of a layer share the points.

    Attributes
    ----------
    mass : Tensor, shape (K,)
        sum_i p_ij.
    perplexity : float
        exp of the Shannon entropy of the shares of the mass: how many centers are in use, from 1
        to K.
    spread : float
        The mean squared distance of the points to their mean.
    warning : CollapseWarning or None
        What is wrong, for ``warnings.warn``: one center has 99 % of the mass; the points are one,
        because their spread is below a thousandth of the temperature, or they differ by less than a
        thousandth of their norm; the centers are one, because they differ by less than a thousandth
        of what the points do; or there are no points, or NaN in them or in the centers.
    """

    mass: Tensor
    perplexity: float
    spread: float
    warning: CollapseWarning | None


class SoftKMeans(nn.Module):
    """Soft K-means as a layer: the responsibilities of K centers, and the free energy as a loss.

    Parameters
    ----------
    n_clusters : int
        K.
    n_features : int
        D.
    temperature : float
        T, in units of squared distance, from 0 (exact K-means) to infinity.  The scale of the data
        decides what is hot: ``reset_centers(x, set_temperature=True)`` finds one to start from.
        To change it, assign to it, or use a `TemperatureScheduler`.
    mapping : {"entmax15", "softmax", "sparsemax", "hard"} or Mapping
    learn_temperature : bool
        Make log T a parameter.  The free energy alone always drives it up, as its derivative by T
        is minus the entropy: let T learn from a loss on the responsibilities.
    centers_from_data : bool
        Draw the centers by `reset_centers` from the first batch that is seen in training mode.
        Until then they are NaN.  Before compiling, run one batch.
    device, dtype
        Of the centers, as in torch's own layers.

    Attributes
    ----------
    centers : Parameter, shape (K, D)
        Drawn from a normal distribution until data set them.  Given ones, as those of a fitted
        `EntMeans`, are copied in: ``layer.centers.data.copy_(torch.as_tensor(centers))``.
    temperature : Tensor, scalar

    Notes
    -----
    float16 and bfloat16 are computed in float32.  Results have the dtype to which points and
    centers promote, so a layer in bfloat16 hands on bfloat16, and one under autocast float32.

    Examples
    --------
    >>> import torch, entmeans
    >>> layer = entmeans.nn.SoftKMeans(n_clusters=3, n_features=2)
    >>> points = torch.randn(8, 5, 2)
    >>> layer.reset_centers(points)
    >>> layer(points).shape, layer.loss(points).shape, layer.predict(points).shape
    (torch.Size([8, 5, 3]), torch.Size([]), torch.Size([8, 5]))
    """

    fixed_temperature: Tensor

    def __init__(
        self,
        n_clusters: int,
        n_features: int,
        *,
        temperature: float = 1.0,
        mapping: str | Mapping = "entmax15",
        learn_temperature: bool = False,
        centers_from_data: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_count(n_clusters, "n_clusters")
        check_count(n_features, "n_features")
        get_mapping(mapping)
        number = check_temperature(temperature)
        if learn_temperature and not 0 < number < math.inf:
            raise ValueError(
                f"a learned temperature must start between 0 and infinity, got {number}."
            )
        self.n_clusters, self.n_features, self.mapping = n_clusters, n_features, mapping
        self.learn_temperature, self.centers_from_data = learn_temperature, centers_from_data
        kind: dict[str, Any] = {"device": device, "dtype": dtype}
        self.centers = nn.Parameter(torch.empty(n_clusters, n_features, **kind))
        if learn_temperature:
            self.log_temperature = nn.Parameter(torch.tensor(math.log(number), **kind))
        else:
            kind["dtype"] = computed_in(self.centers.dtype)
            self.register_buffer("fixed_temperature", torch.tensor(number, **kind))
        self.mass: Tensor | None = None
        """Where a `CenterSGD` moves the centers: zeros (K,) whose gradient is their mass."""
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the centers from a normal distribution; NaN where data are to set them."""
        if self.centers_from_data:
            nn.init.constant_(self.centers, math.nan)
        else:
            nn.init.normal_(self.centers)
        self._waiting = self.centers_from_data

    @property
    def temperature(self) -> Tensor:
        if self.learn_temperature:
            return exponential(self.log_temperature)
        return self.fixed_temperature

    @temperature.setter
    def temperature(self, value: float | Tensor) -> None:
        number = check_temperature(value)
        with torch.no_grad():
            if not self.learn_temperature:
                self.fixed_temperature.fill_(number)
            elif 0 < number < math.inf:
                self.log_temperature.fill_(math.log(number))
            else:
                raise ValueError(
                    f"a learned temperature must lie between 0 and infinity, got {number}."
                )

    def forward(self, x: Tensor) -> Tensor:
        """Responsibilities (..., K) of points (..., D)."""
        p = responsibilities(self._points(x), self.centers, self.temperature, self.mapping)
        return self._like(x, p)

    def loss(
        self, x: Tensor, reduction: str = "mean", sample_weight: Tensor | None = None
    ) -> Tensor:
        """The free energy of points (..., D): `entmeans.free_energy`.

        Parameters
        ----------
        x : Tensor, shape (..., D)
        reduction : {"mean", "sum", "none"}
            Of shards of different sizes, as in `DistributedDataParallel`, only sums add up to what
            one process gets; the mean of an empty one is NaN.
        sample_weight : Tensor, shape (...), optional
            Weights >= 0, such as 0 for padding, which may hold anything.
        """
        return self._energy(x, self.temperature, reduction, sample_weight)

    def quantize(self, x: Tensor, hard: bool = False) -> Tensor:
        """Each point (..., D) replaced by the mean of the centers under its responsibilities.

        Parameters
        ----------
        x : Tensor, shape (..., D)
        hard : bool
            Its nearest center instead, at any temperature.  The gradient to that center is exact;
            the one to the point is straight-through: as if the point had been left as it is.
        """
        points, centers = same_kind(self._points(x), self.centers)
        if hard:
            chosen = centers[nearest(points, centers).labels]
            return self._like(x, chosen + (points - points.detach()))
        p = responsibilities(points, centers, self.temperature, self.mapping)
        with torch.autocast(x.device.type, enabled=False):
            return self._like(x, p @ centers)

    def predict(self, x: Tensor) -> Tensor:
        """The index of the nearest center of each point (..., D): int64, of shape (...)."""
        with torch.no_grad():
            labels = nearest(self._points(x), self.centers).labels
        return labels.reshape(x.shape[:-1])

    @torch.no_grad()
    def reset_centers(
        self,
        x: Tensor,
        *,
        set_temperature: bool = False,
        generator: torch.Generator | None = None,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        """Draw the centers from points (..., D) by `kmeans_plusplus`.

        Parameters
        ----------
        x : Tensor, shape (..., D)
        set_temperature : bool
            Set the temperature too, to the `reference_temperature` of these points and centers;
            where every point has a center, to the sum of the variances of the features.
        generator : torch.Generator, optional
        process_group : ProcessGroup, optional
            Where `torch.distributed` is initialized, every process of the group (default: all)
            must call this: centers are drawn from the points of all, by the generator of the first.
        """
        points = self._finite(gathered(self._flat(x), process_group))
        centers = kmeans_plusplus(points, self.n_clusters, generator=generator)
        self.centers.copy_(from_first(centers, process_group))
        self._waiting = False
        if set_temperature:
            temperature = soft_temperature(points, self.centers, self.mapping)
            if self.learn_temperature:  # which never is 0, as where all points are equal
                temperature = max(temperature, torch.finfo(points.dtype).tiny)
            self.temperature = temperature

    @torch.no_grad()
    def revive(
        self,
        x: Tensor,
        *optimizers: torch.optim.Optimizer,
        min_share: float = 0.0,
        process_group: dist.ProcessGroup | None = None,
    ) -> Tensor:
        """Move each center without mass onto the point that is farthest from all centers.

        Parameters
        ----------
        x : Tensor, shape (..., D)
        *optimizers
            Those that move the centers: what they remember of a moved one (moments, mass) is set
            to 0.
        min_share : float
            Centers with at most this share of the mass count as without; with softmax some of it
            is nearly everywhere.
        process_group
            As in `reset_centers`: of all processes, or of none.

        Returns
        -------
        Tensor of int64
            The indices of the moved centers.
        """
        if not all(isinstance(each, torch.optim.Optimizer) for each in optimizers):
            raise TypeError("revive takes points, and then optimizers, each by itself.")
        points = self._finite(gathered(self._points(x), process_group))
        mass = statistics(points, self.centers, self.temperature, self.mapping).mass
        dead = mass <= min_share * mass.sum()
        moved = relocate(points, self.centers.to(points), dead, None)
        self.centers.copy_(from_first(moved.to(self.centers.dtype), process_group))
        for optimizer in optimizers:
            for key in [self.centers] if self.mass is None else [self.centers, self.mass]:
                for value in optimizer.state.get(key, {}).values():
                    if isinstance(value, Tensor) and value.shape[:1] == dead.shape:
                        value[dead] = 0
        return dead.nonzero().flatten()

    @torch.no_grad()
    def usage(self, x: Tensor) -> Usage:
        """How the centers share points (..., D), and whether something has collapsed.

        A layer remembers no batches: pass the points that you want to know about.
        """
        points = self._points(x)
        found = statistics(points, self.centers, self.temperature, self.mapping)
        shares = found.mass / found.mass.sum()
        perplexity = torch.special.entr(shares).sum().exp().item()
        spread, norm = spread_of(points), wide(points).square().sum(-1).mean().item()
        temperature, warning = self.temperature.item(), None
        if not math.isfinite(spread) or math.isnan(perplexity):
            warning = "There are no points, or NaN or infinity is in them or in the centers."
        elif self.n_clusters > 1 and shares.amax() >= ALL_MASS:
            warning = (
                f"Center {int(shares.argmax())} has {shares.amax():.1%} of the mass: revive the "
                "others, or raise the temperature."
            )
        elif spread <= NO_SPREAD**2 * norm:
            warning = (
                f"The points have shrunk to one: their spread is {spread:.3g}, at a mean squared "
                f"norm of {norm:.3g}. Lower the weight of the clustering loss, or add one that "
                "keeps points apart."
            )
        elif spread <= NO_SPREAD * temperature < math.inf:
            warning = (
                f"The points have shrunk to one, or it is too hot to tell them apart: their spread "
                f"is {spread:.3g}, the temperature {temperature:.3g}. Lower the weight of the "
                "clustering loss, or the temperature."
            )
        elif self.n_clusters > 1 and spread_of(self.centers) <= NO_SPREAD**2 * spread:
            warning = (
                "The centers have become one, and equal ones stay equal: lower the temperature, "
                "and call reset_centers."
            )
        about = None if warning is None else CollapseWarning(warning)
        return Usage(found.mass, perplexity, spread, about)

    def extra_repr(self) -> str:
        known = not self.centers.is_meta
        temperature = f"temperature={self.temperature.item():.6g}, " if known else ""
        return (
            f"n_clusters={self.n_clusters}, n_features={self.n_features}, "
            f"{temperature}mapping={self.mapping!r}, "
            f"learn_temperature={self.learn_temperature}"
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        before = None if self.learn_temperature else self.fixed_temperature
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if before is not None and self.fixed_temperature.dtype in (torch.float16, torch.bfloat16):
            # The range of float16 is too small for squared distances.
            self.fixed_temperature = before.to(self.fixed_temperature.device)
        return self

    def _load_from_state_dict(self, *arguments: Any, **options: Any) -> None:
        super()._load_from_state_dict(*arguments, **options)
        self._waiting = self.centers_from_data and bool(self.centers.isnan().all())

    def _energy(
        self, x: Tensor, temperature: Tensor, reduction: str, sample_weight: Tensor | None
    ) -> Tensor:
        """The free energy, which brings the mass along where a `CenterSGD` asks for it."""
        points, weight = self._weighted(x, sample_weight)
        at = points, self.centers, temperature, self.mapping, weight
        if self.mass is None or not torch.is_grad_enabled():
            energy = free_energy(*at, reduction)
            return energy.reshape(x.shape[:-1]) if reduction == "none" else energy
        if reduction not in ("mean", "sum"):
            raise ValueError(
                f'reduction={reduction!r} hides from CenterSGD how terms add up: use "mean" or '
                '"sum".'
            )
        found = statistics(*at)
        if not torch.compiler.is_compiling() and self.centers.is_leaf and self.centers.grad is None:
            self.mass.grad = None  # that of centers has been cleared by a module
        # The sum with the mass is 0.  Its gradient is not, and goes the way of all others: through
        # factors of the loss, accumulation, scaling, and zero_grad.
        energy = found.free_energy + found.mass.detach() @ self.mass.to(found.mass)
        if reduction == "mean":
            energy = energy / total(weight, points)
        return energy.to(computed_in(self._dtype(points)))

    def _weighted(self, x: Tensor, sample_weight: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Points (N, D), 0 where they have no weight, and the weights (N,)."""
        if sample_weight is None:
            return self._points(x), None
        check_tensor(sample_weight, "sample_weight")
        if sample_weight.shape != x.shape[:-1]:
            raise ValueError(
                f"sample_weight must have shape {tuple(x.shape[:-1])}, one weight for each point, "
                f"got {tuple(sample_weight.shape)}."
            )
        weight = sample_weight.reshape(-1)
        present = weight != 0
        points = self._points(x, present)
        return torch.where(present.unsqueeze(-1), points, 0.0), weight

    def _points(self, x: Tensor, present: Tensor | None = None) -> Tensor:
        """Points (N, D), once there are centers: drawn from those that are present."""
        if self._waiting and not torch.compiler.is_compiling():
            self._waiting = bool(self.centers.isnan().all())  # else they have been set by hand
        if self._waiting:
            if not self.training or torch.compiler.is_compiling():
                raise RuntimeError(
                    "the centers are to be drawn from the first batch in training mode, and there "
                    "was none: call reset_centers, or run one batch, first."
                )
            points = self._flat(x.detach())
            self.reset_centers(points if present is None else points[present])
        return self._flat(x)

    def _flat(self, x: Tensor) -> Tensor:
        if x.ndim == 0 or x.shape[-1] != self.n_features:
            raise ValueError(
                f"x must have shape (..., {self.n_features}), n_features last, got "
                f"{tuple(x.shape)}."
            )
        return x if x.ndim == 2 else x.reshape(-1, self.n_features)

    def _finite(self, points: Tensor) -> Tensor:
        if not len(points):
            raise ValueError("x is empty: it holds no points to put centers on.")
        if not points.isfinite().all():
            raise ValueError("x holds NaN or infinity: no center can be put there.")
        return points.to(computed_in(self._dtype(points)))

    def _dtype(self, x: Tensor) -> torch.dtype:
        return torch.promote_types(x.dtype, self.centers.dtype)

    def _like(self, x: Tensor, values: Tensor) -> Tensor:
        """Values, one row for each point, in the shape of x."""
        return values.reshape(*x.shape[:-1], values.shape[-1]).to(self._dtype(x))


class RBFNetwork(nn.Module):
    """A radial-basis-function network: a linear read-out of units around learned centers.

    A Gaussian unit of width sigma has the temperature T = 2 sigma^2.  Normalized, the units are the
    responsibilities of `SoftKMeans`; else they are exp(-||x - mu_j||^2 / (2 sigma_j^2)).

    Parameters
    ----------
    n_features, n_centers, n_outputs : int
        D, K, M.
    mapping : {"entmax15", "softmax", "sparsemax"} or Mapping
        Of normalized units.
    widths : {"shared", "per_center"}
        One sigma, or one for each center; learned as logarithms, so always positive.
    normalized : bool
        Whether the units of a point sum to 1.
    device, dtype
        As in torch's own layers.

    Attributes
    ----------
    clusters : SoftKMeans
        The centers and the (mean) temperature.
    readout : Linear
        From units to outputs.
    widths : Tensor, shape () or (K,)
        sigma.

    References
    ----------
    Broomhead and Lowe, "Multivariable functional interpolation and adaptive networks", Complex
    Systems 1988; Moody and Darken, "Fast learning in networks of locally-tuned processing units",
    Neural Computation 1989.

    Examples
    --------
    >>> import torch, entmeans
    >>> network = entmeans.nn.RBFNetwork(n_features=2, n_centers=16, n_outputs=3)
    >>> points = torch.randn(100, 2)
    >>> network.reset_centers(points)
    >>> network(points).shape, network.units(points).shape, network.widths.shape
    (torch.Size([100, 3]), torch.Size([100, 16]), torch.Size([]))
    """

    def __init__(
        self,
        n_features: int,
        n_centers: int,
        n_outputs: int,
        *,
        mapping: str | Mapping = "entmax15",
        widths: str = "shared",
        normalized: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if widths not in ("shared", "per_center"):
            raise ValueError(f'widths={widths!r} is unknown: use "shared" or "per_center".')
        if normalized and isinstance(get_mapping(mapping), Hard):
            raise ValueError(
                f"mapping={mapping!r} passes no gradient to centers and widths: use a soft one."
            )
        kind: dict[str, Any] = {"device": device, "dtype": dtype}
        check_count(n_outputs, "n_outputs")
        self.normalized = normalized
        self.clusters = SoftKMeans(
            n_centers, n_features, temperature=2.0, mapping=mapping, learn_temperature=True, **kind
        )
        self.log_ratios: nn.Parameter | None = None
        """The logarithm of each temperature over the shared one (K,)."""
        if widths == "per_center":
            self.log_ratios = nn.Parameter(torch.zeros(n_centers, **kind))
        self.readout = nn.Linear(n_centers, n_outputs, **kind)

    @property
    def widths(self) -> Tensor:
        return (self.temperatures / 2).sqrt()

    @property
    def temperatures(self) -> Tensor:
        """2 sigma^2, of shape () or (K,)."""
        return exponential(self._log_temperatures)

    @property
    def _log_temperatures(self) -> Tensor:
        log = self.clusters.log_temperature
        return log if self.log_ratios is None else log + self.log_ratios

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (..., M) for points (..., D)."""
        return self.readout(self.units(x).to(self.readout.weight.dtype))

    def units(self, x: Tensor) -> Tensor:
        """The activations (..., K) of the units for points (..., D)."""
        clusters = self.clusters
        if self.normalized and self.log_ratios is None:
            return clusters(x)
        d = squared_distances(clusters._points(x), clusters.centers)
        # Not d / T, whose derivative by T overflows at low T.  So far from a center, a unit is 0
        # in any case; infinity has no derivative.
        scores = -(d * exponential(-self._log_temperatures)).clamp_max(torch.finfo(d.dtype).max)
        values = (
            probabilities(scores, get_mapping(clusters.mapping))
            if self.normalized
            else scores.exp()
        )
        return clusters._like(x, values)

    def loss(
        self, x: Tensor, reduction: str = "mean", sample_weight: Tensor | None = None
    ) -> Tensor:
        """The free energy of the centers, for points (..., D), at the shared temperature.

        The widths get no gradient from it: they would grow for ever.  Parameters are those of
        `SoftKMeans.loss`.
        """
        temperature = self.clusters.temperature.detach()
        return self.clusters._energy(x, temperature, reduction, sample_weight)

    @torch.no_grad()
    def reset_centers(
        self,
        x: Tensor,
        *,
        generator: torch.Generator | None = None,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        """Draw the centers from points (..., D), and set all temperatures.

        This is `SoftKMeans.reset_centers` with ``set_temperature=True``.
        """
        self.clusters.reset_centers(
            x, set_temperature=True, generator=generator, process_group=process_group
        )
        if self.log_ratios is not None:
            self.log_ratios.zero_()

    def extra_repr(self) -> str:
        widths = "shared" if self.log_ratios is None else "per_center"
        return f"widths={widths!r}, normalized={self.normalized}"


def spread_of(points: Tensor) -> float:
    """The mean squared distance of points (N, D) to their mean."""
    values = wide(points)
    return (values - values.mean(0)).square().sum(-1).mean().item()


def exponential(log: Tensor) -> Tensor:
    """exp as a normal number, with a derivative that is never infinity times 0."""
    log = log.to(computed_in(log.dtype))  # the range of float16 is too small for the outcome
    kind = torch.finfo(log.dtype)
    return positive(log.clamp(math.log(kind.tiny), math.log(kind.max) - 1).exp(), log)
