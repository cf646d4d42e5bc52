"""How does the time of one step grow with N, K, D and T?

    python benchmarks/growth.py [--repeats 3] [--quick] [--json growth.json]

One factor at a time around 100,000 x 32 with K = 100 and 1.5 centers a point under entmax15 (for
each K and D at its own temperature).  Prints tables in Markdown, and the exponent with which the
time grows: the slope of log time against log size.
"""

import argparse
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from data import distinct_rows, normal
from facts import machine_facts
from support import mean_support, temperature_of_support
from timing import THREADS, Bench

import entmeans

SUPPORT = 1.5
MAPPINGS = ("hard", "entmax15", "softmax")
GRIDS = {
    "N": (10_000, 30_000, 100_000, 300_000, 1_000_000),
    "K": (10, 30, 100, 300, 1000),
    "D": (2, 8, 32, 128, 512),
}
WARMER = "T / T of 1.5 centers"
WARMTH = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)


@dataclass(frozen=True)
class Problem:
    """A size, and how much warmer than 1.5 centers a point."""

    N: int = 100_000
    K: int = 100
    D: int = 32
    warmth: float = 1.0


def measure(bench: Bench, problem: Problem) -> tuple[float, dict[str, float]]:
    """Mean support under entmax15, and median milliseconds of a step with each mapping."""
    points = normal(bench.rows(problem.N), problem.D)
    x, c = torch.from_numpy(points), torch.from_numpy(distinct_rows(points, problem.K))
    t = problem.warmth * temperature_of_support(x, c, SUPPORT)
    calls = {m: partial(entmeans.statistics, x, c, t, m) for m in MAPPINGS}
    times = bench.side_by_side(str(problem), calls)
    support = mean_support(x[:2000], c, t)
    return support, {m: float(np.median(ms)) for m, ms in times.items()}


def exponent(sizes: Iterable[float], times: Iterable[float]) -> float:
    """The slope of a straight line through log time against log size."""
    return float(np.polyfit(np.log(list(sizes)), np.log(list(times)), 1)[0])


def table(bench: Bench, factor: str, problems: dict[float, Problem]) -> list[dict[str, float]]:
    """Print and return one row for each value of the factor."""
    print(f"\n| {factor} | centers a point | {', ms | '.join(MAPPINGS)}, ms |")
    print(f"|---:|---:{'|---:' * len(MAPPINGS)}|")
    found = []
    for value, problem in problems.items():
        support, times = measure(bench, problem)
        cells = [f"{value:,.7g}", f"{support:.2f}", *(f"{ms:.3g}" for ms in times.values())]
        print(f"| {' | '.join(cells)} |", flush=True)
        found.append({factor: value, "support": support, **times})
    return found


def growth(factor: str, found: list[dict[str, float]]) -> dict[str, float]:
    """Print and return the exponent of each mapping."""
    sizes = [line[factor] for line in found]
    exponents = {m: exponent(sizes, [line[m] for line in found]) for m in MAPPINGS}
    print(f"| exponent of {factor} | | {' | '.join(f'{e:.2f}' for e in exponents.values())} |")
    return exponents


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows: does it run?")
    parser.add_argument("--json", type=Path, help="also write facts, tables and every time here")
    arguments = parser.parse_args()

    torch.set_num_threads(THREADS)
    bench, tables, exponents = Bench(arguments.repeats, arguments.quick), {}, {}
    for factor, grid in GRIDS.items():
        sizes = map(bench.rows, grid) if factor == "N" else grid
        problems = {
            size: replace(Problem(), **{factor: value})
            for size, value in zip(sizes, grid, strict=True)
        }
        tables[factor] = table(bench, factor, problems)
        exponents[factor] = growth(factor, tables[factor])
    tables[WARMER] = table(bench, WARMER, {w: Problem(warmth=w) for w in WARMTH})
    if arguments.json:
        report = {"machine": machine_facts(), "tables": tables, "exponents": exponents}
        arguments.json.write_text(json.dumps({**report, "times": bench.times}, indent=1))


if __name__ == "__main__":
    main()
