"""Kernels: faster implementations of the operators.

Which one serves a call is never a matter of luck: `implementation` says it, and
`use_implementation` decides it.  Numba, which compiles the kernels, is imported by the first call
that needs them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor

from ..mappings import Mapping, get_mapping
from ..operators import built_in
from . import cpu

CHOICES = ("auto", "numba", "reference")
VARIABLE = "ENTMEANS_IMPLEMENTATION"

_chosen: ContextVar[str | None] = ContextVar("entmeans_implementation", default=None)


@contextmanager
def use_implementation(name: str) -> Iterator[None]:
    """Within the context, which implementation serves calls of this thread.

    Parameters
    ----------
    name : {"auto", "numba", "reference"}
        "reference" is plain torch, on every device; "numba" the kernels, and an error where they
        cannot serve; "auto" the kernels where they can.  The environment variable
        ``ENTMEANS_IMPLEMENTATION`` sets the same for a whole process.

    Examples
    --------
    >>> import torch, entmeans
    >>> points = torch.tensor([[0.0], [1.0], [7.0]])
    >>> with entmeans.use_implementation("reference"):
    ...     entmeans.implementation(points), entmeans.nearest(points, points[1:]).labels
    ('reference', tensor([0, 0, 1]))
    """
    token = _chosen.set(_checked(name, "name"))
    try:
        yield
    finally:
        _chosen.reset(token)


def implementation(points: Tensor, mapping: str | Mapping = "entmax15") -> str:
    """Which implementation serves calls with such points (or scores) and mapping.

    Returns
    -------
    str
        "numba" for tensors on the CPU and built-in mappings, else "reference".  Points that hold
        infinity or NaN, or whose squared distances might overflow, go to the reference in any
        case.

    Examples
    --------
    >>> import torch, entmeans
    >>> with entmeans.use_implementation("auto"):
    ...     entmeans.implementation(torch.zeros(10, 2))
    'numba'
    """
    why = _why_not(points, mapping)
    chosen = _choice()
    if chosen == "numba" and why:
        raise RuntimeError(f"The implementation asked for, numba, cannot serve: {why}.")
    return "reference" if why or chosen == "reference" else "numba"


def run(operator: Any, *arguments: Any) -> Any:
    """An operator without gradients, past the dispatcher: that takes as long as a small step."""
    if arguments[0].device.type == "cpu":
        return cpu.DIRECT.get(operator, operator)(*arguments)
    return operator(*arguments)


def _why_not(points: Tensor, mapping: str | Mapping) -> str:
    """Why the kernels cannot serve; nothing if they can."""
    if points.device.type != "cpu":
        return f"the tensors are on {points.device}, and it runs on the CPU"
    if not built_in(get_mapping(mapping)):
        return f"{get_mapping(mapping)} is not one of the built-in mappings"
    return ""


def _choice() -> str:
    return _chosen.get() or _checked(os.environ.get(VARIABLE) or "auto", VARIABLE)


def _checked(value: str, name: str) -> str:
    if value not in CHOICES:
        raise ValueError(f"{name}={value!r} is unknown: use one of {', '.join(CHOICES)}.")
    return value


cpu.register(lambda: _choice() != "reference")
