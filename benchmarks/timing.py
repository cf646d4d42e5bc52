"""Calls timed side by side, and the lines that come of it: ratio, bound, verdict."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

THREADS = 2
LEAST = 50.0  # ms: shorter calls are repeated within one reading
MOST_LOOPS = 200
REST = 0.02  # s: the threads of the call before wait in a busy loop before they sleep


@dataclass
class Bench:
    """How often to measure, at which size, and every time measured so far."""

    repeats: int
    quick: bool = False
    times: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def rows(self, n: int) -> int:
        """The number of rows to use where n are meant."""
        return n // 10 if self.quick else n

    def side_by_side(
        self, group: str, calls: dict[str, Callable[[], object]], at_most: int | None = None
    ) -> dict[str, list[float]]:
        """Milliseconds of each call, once in each repeat, in turn: noise hits all of them.

        ``at_most`` bounds the number of repeats, for calls that are slow.
        """
        loops = {name: _loops(call) for name, call in calls.items()}
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(min(self.repeats, at_most or self.repeats)):
            for name, call in calls.items():
                times[name].append(_milliseconds(call, loops[name]))
        self.times.setdefault(group, {}).update(times)
        return times


def _loops(call: Callable[[], object]) -> int:
    """How many calls make a reading that a clock can be trusted with; also warms up."""
    first = _milliseconds(call, 1)
    second = first if first > 10 * LEAST else _milliseconds(call, 1)
    return min(MOST_LOOPS, max(1, math.ceil(LEAST / second)))


def _milliseconds(call: Callable[[], object], loops: int) -> float:
    time.sleep(REST)
    start = time.perf_counter()
    for _ in range(loops):
        call()
    return 1e3 * (time.perf_counter() - start) / loops


def per_iteration(short: list[float], long: list[float], steps: int) -> list[float]:
    """Time of one iteration, from fits that differ by so many steps: what else they do cancels."""
    return [(b - a) / steps for a, b in zip(short, long, strict=True)]


@dataclass(frozen=True)
class Line:
    """One measurement: what, where, ours and the peer's readings, and what is asked of them.

    The ratio is ours over the peer's, or the peer's over ours where a speedup is asked; without a
    peer the median of ours is what is judged.  ``at`` is a detail that a table may sum up,
    ``difference`` how far the two results are apart, ``shown`` whether a table has the line
    although nothing is asked of it.
    """

    block: str
    what: str
    where: str
    ours: list[float] = field(default_factory=list)
    peer: str = ""
    theirs: list[float] = field(default_factory=list)
    unit: str = "ms"
    asked: float | None = None
    speedup: bool = False
    at: str = ""
    difference: float | None = None
    allowed: float = 0.0
    note: str = ""
    shown: bool = False

    @property
    def measured(self) -> bool:
        """Whether there is a ratio: noise may hide the difference between two fits."""
        if not self.peer:
            return bool(self.ours)
        return all(len(side) and np.median(side) > 0 for side in (self.ours, self.theirs))

    @property
    def value(self) -> float:
        """The ratio of the medians, or the median of ours."""
        if not self.peer:
            return float(np.median(self.ours))
        ratio = float(np.median(self.ours) / np.median(self.theirs))
        return 1 / ratio if self.speedup else ratio

    @property
    def spread(self) -> tuple[float, float]:
        """Quartiles of the ratio over the repeats, each with its own pair of readings."""
        if not self.peer:
            low, high = np.quantile(self.ours, [0.25, 0.75])
            return float(low), float(high)
        pairs = np.array(self.ours) / np.array(self.theirs)
        low, high = np.quantile(1 / pairs if self.speedup else pairs, [0.25, 0.75])
        return float(low), float(high)

    @property
    def share(self) -> float:
        """How much of the bound is used up: above 1 the line is short."""
        if self.asked is None or not self.measured:
            return 0.0
        return self.asked / self.value if self.speedup else self.value / self.asked

    @property
    def verdict(self) -> str:
        if self.asked is None:
            return ""
        if not self.measured:
            return "not measured"
        return "pass" if self.share <= 1 and not self.differs else "short"

    @property
    def differs(self) -> bool:
        """Whether the two results are too far apart, or one of them is NaN."""
        return self.difference is not None and not self.difference <= self.allowed

    def cells(self) -> list[str]:
        """What a reader sees, from the place to the verdict."""
        return [
            self.what,
            f"{self.where}, {self.at}" if self.at else self.where,
            self.peer,
            _reading(self.ours, self.unit),
            _reading(self.theirs, self.unit),
            self._ratio(),
            self._bound(),
            self.verdict,
        ]

    def remarks(self) -> str:
        parts = [self.note]
        if self.difference is not None:
            parts.append(f"results differ by {self.difference:.1e} (allowed {self.allowed:.0e})")
        return "; ".join(filter(None, parts))

    def _ratio(self) -> str:
        if not self.measured:
            return ""
        low, high = self.spread
        if not self.peer:
            return f"({low:.3g} to {high:.3g})" if len(self.ours) > 1 else ""
        return f"{self.value:.3g}{' times faster' * self.speedup} ({low:.3g} to {high:.3g})"

    def _bound(self) -> str:
        if self.asked is None:
            return ""
        if self.speedup:
            return f"at least {self.asked:g} times faster"
        return f"at most {self.asked:g}{f' {self.unit}' * (not self.peer)}"


def _reading(values: list[float], unit: str) -> str:
    if not values:
        return ""
    median = float(np.median(values))
    digits = max(0, 2 - math.floor(math.log10(abs(median)))) if median else 0
    return f"{median:,.{min(digits, 3)}f}" + (f" {unit}" if unit != "ms" else "")
