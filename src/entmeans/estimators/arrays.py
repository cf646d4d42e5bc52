"""What the estimators share: arrays, frames and tensors in, the same kind out, and clear errors."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import validate_data
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from ..inputs import checked_weights, computed_in

Fit = TypeVar("Fit", bound=Callable[..., Any])


def all_or_nothing(fit: Fit) -> Fit:
    """The method of an estimator; where it fails, the estimator stays as it was."""

    @functools.wraps(fit)
    def run(self: Any, *arguments: Any, **options: Any) -> Any:
        before = dict(vars(self))
        try:
            return fit(self, *arguments, **options)
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            raise

    return run  # type: ignore[return-value]


class TakesPoints:
    """An estimator whose samples may be an array, a frame, or a tensor."""

    n_features_in_: int

    def _points(self, X: Any, name: str, *, reset: bool) -> Tensor:
        """Samples as a finite tensor (n_samples, n_features) of float32 or float64."""
        if isinstance(X, Tensor):
            self._check_tensor(X, reset)
            points = X.detach().to(computed_in(X.dtype)).contiguous()
        else:
            X = native(X)
            kept = [np.float64, np.float32]
            points = from_dlpack(
                validate_data(self, X, reset=reset, dtype=kept, order="C", ensure_all_finite=False)
            )
        check_values(points, name, small=reset)
        return points

    def _check_tensor(self, X: Tensor, reset: bool) -> None:
        """What `validate_data` checks of an array."""
        if X.layout is not torch.strided:
            raise TypeError("Sparse data was passed, but dense data is required: use X.to_dense().")
        if X.is_complex():
            raise ValueError(f"Complex data not supported: X is a tensor of {X.dtype}.")
        if X.ndim != 2:
            raise ValueError(
                f"Expected a 2D tensor, got one of shape {tuple(X.shape)}. Reshape your data with "
                "X.reshape(-1, 1) if it has a single feature, or X.reshape(1, -1) if it is a "
                "single sample."
            )
        if 0 in X.shape:
            raise ValueError(
                f"X of shape {tuple(X.shape)} is empty: at least 1 sample and 1 feature are needed."
            )
        if reset:
            self.n_features_in_ = X.shape[1]
            self.__dict__.pop("feature_names_in_", None)
        elif X.shape[1] != getattr(self, "n_features_in_", X.shape[1]):
            raise ValueError(
                f"X has {X.shape[1]} features, but {type(self).__name__} is expecting "
                f"{self.n_features_in_} features as input."
            )


class PointsEstimator(TakesPoints, BaseEstimator):  # type: ignore[misc]
    """One whose mixins all come before it, as scikit-learn asks."""


def random_state_of(seed: Any) -> np.random.RandomState:
    """The generator of ``random_state``."""
    try:
        return check_random_state(seed)
    except ValueError as error:
        raise ValueError(
            f"random_state={seed!r} is not valid: it must be None, an integer from 0 to 2**32 - 1, "
            "or a RandomState."
        ) from error


def check_rules(estimator: Any, rules: list[tuple[str, bool, str]]) -> None:
    """Reject the first parameter, given by its name, whose rule does not hold."""
    for name, holds, rule in rules:
        if not holds:
            value = getattr(estimator, name)
            raise ValueError(f"{name}={value!r} is not valid: it must be {rule}.")


def is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == "auto"


def is_number(value: Any, kind: type, lowest: float) -> bool:
    """Whether value is a number of that kind, not a bool, not NaN, and at least the lowest."""
    return isinstance(value, kind) and not isinstance(value, bool) and bool(value >= lowest)  # type: ignore[operator]


def is_flag(value: Any) -> bool:
    return isinstance(value, bool | np.bool_)


def native(values: Any) -> Any:
    """Values; an array in foreign byte order, which torch cannot hold, in that of this machine."""
    if isinstance(values, np.ndarray) and not values.dtype.isnative:
        return values.astype(values.dtype.newbyteorder("="))
    return values


def tensor(values: Any, name: str) -> Tensor:
    """A floating-point tensor of anything array-like, without a copy where none is needed."""
    if isinstance(values, Tensor):
        return values.detach().to(computed_in(values.dtype))
    try:
        array = native(np.asarray(values))
        if array.dtype not in (np.float64, np.float32):
            array = array.astype(
                np.float64, casting="unsafe" if array.dtype == object else "same_kind"
            )
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must hold real numbers: {error}.") from None
    return from_dlpack(np.asarray(array, order="C"))


def array_of(values: Any) -> NDArray[Any]:
    """A NumPy array of an array, a frame, a list or a tensor, which may be on any device."""
    if not isinstance(values, Tensor):
        return native(np.asarray(values))
    half = values.dtype in (torch.float16, torch.bfloat16)
    return (values.float() if half else values).numpy(force=True)


def given_centers(values: Any, name: str, n: int, points: Tensor) -> Tensor:
    """Initial centers from the user, n by name, in the dtype and on the device of the points."""
    given = tensor(values, "init").to(points, copy=True)
    shape = (n, points.shape[1])
    if tuple(given.shape) != shape:
        raise ValueError(
            f"init must have shape ({name}, n_features) = {shape}, got {tuple(given.shape)}."
        )
    check_values(given, "init", small=False)
    return given


def like(X: Any, values: Tensor) -> Any:
    """Values in the kind of ``X``: a tensor for a tensor, else a NumPy array."""
    return values if isinstance(X, Tensor) else values.numpy(force=True)


def weights_of(sample_weight: Any, points: Tensor) -> Tensor | None:
    """Finite weights >= 0 (n_samples,) in the dtype and on the device of the points."""
    if sample_weight is None:
        return None
    weight = tensor(sample_weight, "sample_weight").to(points)
    return checked_weights(weight.expand(len(points)) if weight.ndim == 0 else weight, points)


def check_values(points: Tensor, name: str, small: bool = True) -> None:
    """Reject NaN, infinity, and values whose squared distances would overflow or all underflow.

    Where only large values matter, not ``small``.
    """
    kind = torch.finfo(points.dtype)
    largest = largest_of(points)
    wider = "" if points.dtype == torch.float64 else ", or use float64"
    if small and 0 < largest < math.sqrt(kind.tiny / kind.eps):
        raise ValueError(
            f"{name} holds no value above {largest:.3g}, so that squared distances underflow "
            f"{points.dtype}: scale it up{wider}."
        )
    limit = math.sqrt(kind.max / points[0].numel()) / 4
    if largest <= limit:
        return
    bad = ~points.isfinite()
    if not bad.any():
        raise ValueError(
            f"{name} holds values up to {largest:.3g}, whose squared distances overflow "
            f"{points.dtype}: scale them to below {limit:.3g}{wider}."
        )
    row = int(bad.any(-1).int().argmax())
    column = int(bad[row].int().argmax())
    raise ValueError(
        f"Input {name} contains NaN or infinity: the first is {points[row, column].item()} in row "
        f"{row}, column {column} (counting from 0). Drop or impute such rows."
    )


def largest_of(points: Tensor) -> float:
    """The largest absolute value; NaN if there is one."""
    if points.device.type != "cpu":
        return points.abs().amax().item()
    array = points.numpy()  # torch would wake threads that then wait for more in a busy loop
    return max(float(array.max()), -float(array.min()), key=lambda v: math.inf if v != v else v)
