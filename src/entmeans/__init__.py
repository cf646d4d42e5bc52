"""K-means you can backpropagate through.

Soft clusters at temperature T > 0, exactly K-means as T falls to 0: the same objective, the same
update, the same trajectory.  Start with `EntMeans` (scikit-learn) or `anneal` and `free_energy`
(torch).
"""

from typing import TYPE_CHECKING, Any

from . import nn
from .fit import FitResult, Step, StopReason, anneal, reference_temperature
from .fixed_point import FixedPoint, soft_kmeans
from .functional import (
    Nearest,
    entmax15,
    expected_distortion,
    free_energy,
    inertia,
    nearest,
    responsibilities,
    sparsemax,
    squared_distances,
    statistics,
)
from .kernels import implementation, use_implementation
from .limit import (
    critical_temperature,
    free_energy_bounds,
    hardening_temperature,
    is_fixed_point,
)
from .mappings import MAPPINGS, Mapping
from .schedules import Constant, Geometric, Linear
from .seeding import kmeans_plusplus, random_centers
from .step import Statistics

if TYPE_CHECKING:
    from .estimators import EntMeans, RBFNetworkClassifier, RBFNetworkRegressor

__version__ = "0.1.0"

__all__ = [
    "MAPPINGS",
    "Constant",
    "EntMeans",
    "FitResult",
    "FixedPoint",
    "Geometric",
    "Linear",
    "Mapping",
    "Nearest",
    "RBFNetworkClassifier",
    "RBFNetworkRegressor",
    "Statistics",
    "Step",
    "StopReason",
    "anneal",
    "critical_temperature",
    "entmax15",
    "expected_distortion",
    "free_energy",
    "free_energy_bounds",
    "hardening_temperature",
    "implementation",
    "inertia",
    "is_fixed_point",
    "kmeans_plusplus",
    "nearest",
    "nn",
    "random_centers",
    "reference_temperature",
    "responsibilities",
    "soft_kmeans",
    "sparsemax",
    "squared_distances",
    "statistics",
    "use_implementation",
]

ESTIMATORS = ("EntMeans", "RBFNetworkClassifier", "RBFNetworkRegressor")


def __getattr__(name: str) -> Any:
    if name in ESTIMATORS:  # scikit-learn takes longer to import than everything else here
        from . import estimators

        return getattr(estimators, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *ESTIMATORS]
