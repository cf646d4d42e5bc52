"""The figures of the report, each drawn from the record of an experiment."""

from . import (
    freezing,
    joint,
    manifolds,
    objective,
    rates,
    sparsity,
    stability,
    trajectories,
    update,
)

__all__ = [
    "freezing",
    "joint",
    "manifolds",
    "objective",
    "rates",
    "sparsity",
    "stability",
    "trajectories",
    "update",
]
