"""Temperature schedules: from the number of a step to a multiple of the first temperature.

A schedule knows no units, so it fits data of any scale.  Any function of that form serves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Schedule = Callable[[int], float]


@dataclass(frozen=True)
class Constant:
    """Always the first temperature.

    Examples
    --------
    >>> import entmeans
    >>> entmeans.Constant()(7)
    1.0
    """

    def __call__(self, step: int) -> float:
        return 1.0


@dataclass(frozen=True)
class Geometric:
    """The powers 1, ratio, ratio^2, ... for a number of steps, then 0.

    Parameters
    ----------
    ratio : float
        Factor from one step to the next, between 0 and 1.
    steps : int
        How many steps are soft.

    Examples
    --------
    >>> import entmeans
    >>> schedule = entmeans.Geometric(ratio=0.5, steps=3)
    >>> [schedule(step) for step in range(5)]
    [1.0, 0.5, 0.25, 0.0, 0.0]
    """

    ratio: float = 0.8
    steps: int = 16

    def __post_init__(self) -> None:
        if not 0 < self.ratio < 1:
            raise ValueError(f"ratio must lie between 0 and 1, got {self.ratio}.")
        if self.steps < 0:
            raise ValueError(f"steps must be 0 or more, got {self.steps}.")

    def __call__(self, step: int) -> float:
        return self.ratio**step if step < self.steps else 0.0


@dataclass(frozen=True)
class Linear:
    """Equal steps from 1 down to 0.

    Parameters
    ----------
    steps : int
        How many steps are soft.

    Examples
    --------
    >>> import entmeans
    >>> schedule = entmeans.Linear(steps=4)
    >>> [schedule(step) for step in range(6)]
    [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    """

    steps: int = 16

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ValueError(f"steps must be 0 or more, got {self.steps}.")

    def __call__(self, step: int) -> float:
        return 1 - step / self.steps if step < self.steps else 0.0


def temperature_at(step: int, schedule: Schedule, first: float, final: float) -> float:
    """The temperature of a step that starts at the first one and never falls below the final."""
    multiple = schedule(step)
    if not multiple >= 0:
        raise ValueError(
            f"the schedule (cooling) must give 0 or more, got {multiple} for step {step}."
        )
    return max(final, first * multiple if multiple else 0.0)  # infinity times 0 is no number


SCHEDULES: dict[str, Schedule] = {"geometric": Geometric(), "linear": Linear()}


def get_schedule(schedule: str | Schedule, name: str = "schedule") -> Schedule:
    """The schedule of that name; a callable is returned as it is."""
    if isinstance(schedule, str) and schedule in SCHEDULES:
        return SCHEDULES[schedule]
    if callable(schedule):
        return schedule
    raise ValueError(
        f"{name}={schedule!r} is unknown: use one of {', '.join(sorted(SCHEDULES))}, or a "
        "function from the number of a step to a multiple of the first temperature."
    )
