"""What experiments return and what is concluded from it: plain values, as they go into JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

Record = dict[str, Any]
"""What an experiment measured: numbers, strings, lists and dicts of them, no NaN (None instead).

Under "seeds" stand the seeds, under "options" the parameters."""


class Verdict(StrEnum):
    """What measurements say of a claim."""

    HOLDS = "holds"
    CONDITION = "holds under a condition"
    FAILS = "does not hold"


@dataclass(frozen=True)
class Table:
    """Numbers of a report, each already text."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Judgement:
    """A verdict and what it rests on.

    Attributes
    ----------
    verdict : Verdict
    measured : str
        One sentence with the decisive numbers.
    findings : tuple of str
        What else came out, a sentence or a few each.
    tables : tuple of Table
    """

    verdict: Verdict
    measured: str
    findings: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()


def quartiles(values: Iterable[float | None]) -> list[float] | None:
    """Median, first and third quartile of the finite values; None where there are none.

    Examples
    --------
    >>> from entmeans.paper.records import quartiles
    >>> quartiles([4.0, 1.0, 2.0, None])
    [2.0, 1.5, 3.0]
    """
    finite = [v for v in values if v is not None and math.isfinite(v)]
    return np.quantile(finite, [0.5, 0.25, 0.75]).tolist() if finite else None


def spread(values: Iterable[float | None]) -> str:
    """The median of the finite values with its quartiles, as text.

    Examples
    --------
    >>> from entmeans.paper.records import spread
    >>> spread([4.0, 1.0, 2.0, None])
    '2 (1.5 to 3)'
    """
    found = quartiles(values)
    if found is None:
        return "none"
    return "{} ({} to {})".format(*map(short, found))


def short(value: float | None) -> str:
    """A number with three significant digits.

    Examples
    --------
    >>> from entmeans.paper.records import short
    >>> short(0.1234), short(1.5e-9), short(12345.0), short(None)
    ('0.123', '1.5e-09', '12,300', 'none')
    """
    from ..plots import three_digits

    return "none" if value is None else three_digits(value)
