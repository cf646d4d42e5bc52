"""The figures of the report, each drawn from the record of an experiment."""

from . import freezing, objective, rates, trajectories, update

__all__ = ["freezing", "objective", "rates", "trajectories", "update"]
