"""`EntMeans`: a thin shell over the solver."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from numbers import Integral, Real
from typing import Any, Literal, Self

import numpy as np
import torch
from sklearn.base import (
    ClassNamePrefixFeaturesOutMixin,
    ClusterMixin,
    TransformerMixin,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from .. import operators
from ..fit import Step, StopReason, anneal, free_energy
from ..functional import inertia, responsibilities, squared_distances
from ..inputs import same_kind
from ..kernels import run
from ..mappings import Mapping, get_mapping
from ..schedules import Schedule, get_schedule
from ..seeding import kmeans_plusplus, random_centers
from .arrays import (
    PointsEstimator,
    all_or_nothing,
    check_rules,
    given_centers,
    is_auto,
    is_number,
    like,
    random_state_of,
    tensor,
    weights_of,
)

SEEDING = {"k-means++": kmeans_plusplus, "random": random_centers}


class EntMeans(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, PointsEstimator):  # type: ignore[misc]
    """K-means by annealing: clusters start soft and freeze into exact K-means clusters.

    Minimizes the inertia sum_i w_i min_j ||x_i - mu_j||^2 by minimizing the free energy at a
    falling temperature, then running Lloyd's algorithm to rest.  A drop-in for scikit-learn's
    ``KMeans``: parameters and attributes of the same name mean the same.

    Parameters
    ----------
    n_clusters : int
        K, the number of clusters.
    mapping : {"entmax15", "softmax", "sparsemax", "hard"} or Mapping
        From scores -d/T to responsibilities.
    temperature : "auto" or float
        The first temperature, in units of squared distance.  "auto" is `reference_temperature` of
        the initial centers; 0 is plain Lloyd.
    final_temperature : float
        Where cooling ends.  Above 0 the centers minimize the free energy at that temperature.
    cooling : {"geometric", "linear"} or callable
        From the number of a step to a multiple of ``temperature``: see `Geometric`, `Linear`.
    init : {"k-means++", "random"}, array of shape (n_clusters, n_features) or callable
        Where to start; a callable is called as ``init(X, n_clusters, random_state=...)``.
    n_init : "auto" or int
        How many starts; the one with the lowest free energy at ``final_temperature`` (the lowest
        inertia at 0) is kept.  "auto" is 1, and 10 for ``init="random"`` or a callable.
    max_iter : int
        The largest number of steps of one start, soft ones included.
    tol : float
        Stop once the summed squared shift of the centers is at most ``tol`` times the mean
        variance of the features, at the final temperature.  0 stops when nothing changes.
    random_state : int, RandomState or None
        Seeds the draws of the initial centers.
    verbose : int
        Above 0: print a line for each step.

    Attributes
    ----------
    cluster_centers_ : array of shape (n_clusters, n_features)
    labels_ : array of shape (n_samples,)
        The nearest center of each sample: ``predict`` of the training data.
    inertia_ : float
        Sum of squared distances to the nearest center, weighted: minus ``score``.
    n_iter_ : int
        Steps run, soft ones included.
    hardening_temperature_ : float
        T*: up to this temperature the soft network and K-means are the same map on the training
        data.
    stop_reason_ : StopReason
    history_ : list of Step
        Temperature, free energy, inertia, shift and share of hard rows at each step.
    n_features_in_ : int
    feature_names_in_ : array of shape (n_features_in_,)
        Only where ``X`` names its features.

    Notes
    -----
    ``X`` may be a NumPy array, a pandas or polars frame, or a torch tensor; results are arrays for
    the first and tensors on the same device for the last.  Floating-point dtypes are kept
    (tensors of float16 and bfloat16 become float32), all else becomes float64.

    Examples
    --------
    >>> import numpy as np
    >>> from entmeans import EntMeans
    >>> X = np.array([[1.0, 2.0], [1.0, 4.0], [10.0, 2.0], [10.0, 4.0]])
    >>> model = EntMeans(n_clusters=2, random_state=0).fit(X)
    >>> sorted(model.cluster_centers_.tolist())
    [[1.0, 3.0], [10.0, 3.0]]
    >>> model.inertia_, model.hardening_temperature_
    (4.0, 40.5)
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        mapping: str | Mapping = "entmax15",
        temperature: Literal["auto"] | float = "auto",
        final_temperature: float = 0.0,
        cooling: str | Schedule = "geometric",
        init: Any = "k-means++",
        n_init: Literal["auto"] | int = "auto",
        max_iter: int = 300,
        tol: float = 1e-4,
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_clusters = n_clusters
        self.mapping = mapping
        self.temperature = temperature
        self.final_temperature = final_temperature
        self.cooling = cooling
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.verbose = verbose

    @classmethod
    def from_centers(cls, centers: Any, **parameters: Any) -> Self:
        """A fitted model with these centers (K, D), for predict, transform and score.

        Examples
        --------
        >>> from entmeans import EntMeans
        >>> EntMeans.from_centers([[0.0], [4.0]]).predict([[1.0], [3.0]])
        array([0, 1])
        """
        model = cls(**parameters)
        points = model._points(centers, "centers", reset=True)
        if parameters.get("n_clusters", len(points)) != len(points):
            raise ValueError(
                f"n_clusters={model.n_clusters} does not fit the {len(points)} centers given."
            )
        model.n_clusters = len(points)
        model._check_parameters()
        model.cluster_centers_ = like(centers, points.clone())
        return model

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Find the centers.

        Parameters
        ----------
        X : array, frame or tensor of shape (n_samples, n_features)
        y : ignored
        sample_weight : array of shape (n_samples,), optional
            Weights >= 0, used in the dtype of ``X``.  A weight of k equals k copies of the
            sample; 0 leaves it out.

        Returns
        -------
        self
        """
        return self._fit(X, sample_weight)

    @all_or_nothing
    @torch.no_grad()
    def _fit(
        self, X: Any, sample_weight: Any = None, on_step: Callable[[Step], None] | None = None
    ) -> Self:
        self._check_parameters()
        points = self._points(X, "X", reset=True)
        if len(points) < self.n_clusters:
            raise ValueError(
                f"n_samples={len(points)} should be >= n_clusters={self.n_clusters}: pass more "
                "samples or ask for fewer clusters."
            )
        weight = weights_of(sample_weight, points)
        if on_step is None and self.verbose:
            on_step = print_step
        best, lowest = None, math.inf
        for centers in self._starts(X, points, weight):
            result = anneal(
                points,
                centers,
                self.cooling,
                self.mapping,
                sample_weight=weight,
                temperature=None if isinstance(self.temperature, str) else self.temperature,
                final_temperature=self.final_temperature,
                max_iter=self.max_iter,
                tol=self.tol,
                on_step=on_step,
            )
            energy = result.inertia
            if self.final_temperature > 0:
                at = weight, self.final_temperature, get_mapping(self.mapping)
                energy = free_energy(points, result.centers, *at).item()
            if best is None or not lowest <= energy:
                best, lowest = result, energy
        assert best is not None
        if best.stop_reason is StopReason.NOT_FINITE:
            raise ValueError(f"The fit ended because {best.stop_reason}.")
        self.cluster_centers_ = like(X, best.centers)
        self.labels_ = like(X, best.labels)
        self.inertia_ = best.inertia
        self.n_iter_ = len(best.history)
        self.hardening_temperature_ = best.hardening_temperature
        self.stop_reason_ = best.stop_reason
        self.history_ = best.history
        found = len(best.labels.unique())
        if found < self.n_clusters:
            reason = (
                "centers that merged at a high final_temperature"
                if self.final_temperature
                else "duplicate points in X"
            )
            warnings.warn(
                f"Number of distinct clusters ({found}) found smaller than n_clusters "
                f"({self.n_clusters}). Possibly due to {reason}.",
                ConvergenceWarning,
                stacklevel=5,
            )
        return self

    def fit_predict(self, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        """Fit, then the label of each sample: ``labels_``."""
        return self._fit(X, sample_weight).labels_

    def fit_transform(self, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        """Fit, then the distance of each sample to each center."""
        return self._fit(X, sample_weight).transform(X)

    @torch.no_grad()
    def predict(self, X: Any) -> Any:
        """The index of the nearest center of each sample, (n_samples,)."""
        points, centers = self._fitted(X)
        return like(X, run(operators.nearest, *same_kind(points, centers))[0])

    @torch.no_grad()
    def predict_proba(self, X: Any, temperature: float | None = None) -> Any:
        """The responsibilities of the centers for each sample, (n_samples, n_clusters).

        Parameters
        ----------
        X : array, frame or tensor of shape (n_samples, n_features)
        temperature : float, optional
            In units of squared distance.  Default: ``final_temperature``; at 0 rows are one-hot.
        """
        points, centers = self._fitted(X)
        temperature = self.final_temperature if temperature is None else temperature
        return like(X, responsibilities(points, centers, temperature, self.mapping))

    @torch.no_grad()
    def transform(self, X: Any) -> Any:
        """The Euclidean distance of each sample to each center, (n_samples, n_clusters)."""
        points, centers = self._fitted(X)
        return like(X, squared_distances(points, centers).sqrt_())

    @torch.no_grad()
    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Minus the inertia of ``X``: the larger the better."""
        points, centers = self._fitted(X)
        return -inertia(points, centers, weights_of(sample_weight, points)).item()

    def _starts(self, X: Any, points: Tensor, weight: Tensor | None) -> Iterator[Tensor]:
        """The initial centers of each start."""
        random_state = random_state_of(self.random_state)
        draws = SEEDING.get(self.init) if isinstance(self.init, str) else None
        if draws is None and not callable(self.init):
            if not is_auto(self.n_init) and self.n_init != 1:
                warnings.warn(
                    f"init gives the initial centers: n_init={self.n_init} is not used, there is "
                    "one start.",
                    RuntimeWarning,
                    stacklevel=6,
                )
            yield given_centers(self.init, "n_clusters", self.n_clusters, points)
            return
        few = self.init == "k-means++"
        for _ in range((1 if few else 10) if isinstance(self.n_init, str) else self.n_init):
            if draws is None:
                given = self.init(X, self.n_clusters, random_state=random_state)
                yield given_centers(given, "n_clusters", self.n_clusters, points)
            else:
                seed = int(random_state.randint(2**31 - 1))
                generator = torch.Generator().manual_seed(seed)
                yield draws(points, self.n_clusters, weight, generator=generator)

    def _fitted(self, X: Any) -> tuple[Tensor, Tensor]:
        """The points of ``X`` and the centers on the same device."""
        check_is_fitted(self, "cluster_centers_")
        points = self._points(X, "X", reset=False)
        return points, tensor(self.cluster_centers_, "cluster_centers_").to(points.device)

    def _check_parameters(self) -> None:
        rules: list[tuple[str, bool, str]] = [
            ("n_clusters", is_number(self.n_clusters, Integral, 1), "an integer of 1 or more"),
            (
                "temperature",
                is_auto(self.temperature) or is_number(self.temperature, Real, 0),
                '"auto" or a number of 0 or more, in units of squared distance',
            ),
            (
                "final_temperature",
                is_number(self.final_temperature, Real, 0),
                "a number of 0 or more",
            ),
            (
                "n_init",
                is_auto(self.n_init) or is_number(self.n_init, Integral, 1),
                '"auto" or 1, 2, ...',
            ),
            ("max_iter", is_number(self.max_iter, Integral, 1), "an integer of 1 or more"),
            ("tol", is_number(self.tol, Real, 0), "a number of 0 or more"),
            (
                "init",
                self.init in SEEDING if isinstance(self.init, str) else self.init is not None,
                f"one of {', '.join(SEEDING)}, an array of centers, or a callable",
            ),
        ]
        check_rules(self, rules)
        get_mapping(self.mapping)
        get_schedule(self.cooling, "cooling")

    @property
    def _n_features_out(self) -> int:
        return len(self.cluster_centers_)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def print_step(step: Step) -> None:
    """The line that ``verbose`` prints for a step."""
    print(  # noqa: T201
        f"temperature {step.temperature:.4g}  free energy {step.free_energy:.6g}  inertia "
        f"{step.inertia:.6g}  shift {step.shift:.3g}  hard {step.hard_share:.1%}"
    )
