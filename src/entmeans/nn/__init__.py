"""Clustering as part of a network: layers, a temperature scheduler, and an optimizer for centers.

Thin shells over the functions; what a layer knows is its centers and its temperature.
"""

from .layers import CollapseWarning, RBFNetwork, SoftKMeans, Usage
from .training import CenterSGD, TemperatureScheduler

__all__ = [
    "CenterSGD",
    "CollapseWarning",
    "RBFNetwork",
    "SoftKMeans",
    "TemperatureScheduler",
    "Usage",
]
