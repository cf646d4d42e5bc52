"""Models, labels and histories out, models in: safetensors plus JSON, so loading runs no code."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from . import __version__
from .estimators import EntMeans
from .fit import Step
from .mappings import MAPPINGS, get_mapping
from .tables import InputError, Source, finite_values, first_line, listed, numbered, open_table

MODEL_FILE = "model.safetensors"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class Scaling:
    """Standardization: (x - mean) / scale has mean 0 and variance 1 in every feature.

    Attributes
    ----------
    mean, scale : ndarray of float64, shape (D,)
        A constant feature has scale 1.
    """

    mean: NDArray[np.float64]
    scale: NDArray[np.float64]

    @classmethod
    def of(cls, values: NDArray[Any]) -> Scaling:
        """The scaling that standardizes these values (N, D)."""
        deviation = values.std(0, dtype=np.float64)
        constant = values.min(0) == values.max(0)
        return cls(values.mean(0, dtype=np.float64), np.where(constant, 1.0, deviation))

    def apply(self, values: NDArray[Any]) -> NDArray[Any]:
        """Standardized values, in the dtype of the values."""
        return ((values - self.mean) / self.scale).astype(values.dtype, copy=False)

    def undo(self, values: NDArray[Any]) -> NDArray[Any]:
        """Standardized values back in the units of the data."""
        return values * self.scale + self.mean


@dataclass(frozen=True)
class Model:
    """A fitted estimator and how to prepare data for it.

    Attributes
    ----------
    estimator : EntMeans
    columns : list of str
        The names, or the numbers from 1, of the columns that it was fitted on.
    named : bool
        Whether those are names.
    scaling : Scaling, optional
        Applied to the data before the estimator sees them.
    """

    estimator: EntMeans
    columns: list[str]
    named: bool = True
    scaling: Scaling | None = None

    def read(self, source: str | Path) -> NDArray[Any]:
        """The points (N, D) of a table as the estimator wants them.

        Columns are taken by name where the model and the table have names, otherwise by number.

        Raises
        ------
        InputError
            If the table cannot be read, or does not have the columns of the model.

        Examples
        --------
        >>> import entmeans
        >>> from entmeans.io import Model
        >>> from entmeans.tables import read_table
        >>> iris = read_table("iris")
        >>> estimator = entmeans.EntMeans(3, random_state=0).fit(iris.values)
        >>> Model(estimator, iris.columns).read("iris").shape
        (150, 4)
        """
        table = open_table(source)
        values = finite_values(table, self._columns_in(table))
        return self.scaling.apply(values) if self.scaling else values

    def _columns_in(self, table: Source) -> list[str]:
        by_name = table.named and self.named
        if not by_name and len(table.numeric) == len(self.columns):
            return table.numeric
        missing = [name for name in self.columns if name not in table.names]
        chosen = self.columns != numbered(len(self.columns))
        if table.named == self.named and not missing and (self.named or chosen):
            return self.columns
        has = f"it has no {listed(missing)}" if by_name else f"it has {len(table.numeric)}"
        raise InputError(
            f"{table.name} does not fit the model, which needs {len(self.columns)} numeric "
            f"columns: {has}."
        )


def save_model(where: str | Path, model: Model) -> Path:
    """Write a fitted model: centers and scaling as safetensors, the rest as JSON in its header.

    Parameters
    ----------
    where : str or Path
        A folder, which gets ``model.safetensors``, or the file.
    model : Model

    Returns
    -------
    Path
        The file written.

    Raises
    ------
    InputError
        If the mapping is none of the built-in ones.

    Examples
    --------
    >>> import tempfile, entmeans
    >>> from entmeans.io import Model, load_model, save_model
    >>> estimator = entmeans.EntMeans(2, random_state=0).fit([[0.0], [1.0], [7.0], [8.0]])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = save_model(folder, Model(estimator, ["size"]))
    ...     loaded = load_model(folder)
    >>> sorted(loaded.estimator.cluster_centers_.ravel().tolist()), loaded.columns
    ([0.5, 7.5], ['size'])
    """
    estimator = model.estimator
    mapping = get_mapping(estimator.mapping)
    if type(mapping) is not type(MAPPINGS.get(mapping.name)):
        raise InputError(f"a model file can hold only the mappings {listed(MAPPINGS)}.")
    centers = torch.as_tensor(estimator.cluster_centers_).cpu().contiguous()
    tensors = {"centers": centers}
    if model.scaling is not None:
        tensors["mean"] = torch.from_numpy(model.scaling.mean)
        tensors["scale"] = torch.from_numpy(model.scaling.scale)
    about = {
        "format_version": FORMAT_VERSION,
        "entmeans_version": __version__,
        "n_clusters": len(centers),
        "mapping": mapping.name,
        "temperature": _to_json(estimator.temperature),
        "final_temperature": _to_json(estimator.final_temperature),
        "hardening_temperature": _to_json(estimator.hardening_temperature_),
        "inertia": _to_json(estimator.inertia_),
        "columns": model.columns,
        "named": model.named,
    }
    path = _model_path(where)
    path.write_bytes(save(tensors, {"entmeans": json.dumps(about)}))
    return path


def load_model(where: str | Path) -> Model:
    """Read what `save_model` wrote.  Runs no code from the file.

    Parameters
    ----------
    where : str or Path
        The folder or the file.

    Returns
    -------
    Model
        Its estimator is ready to predict, and knows ``inertia_`` and ``hardening_temperature_``.

    Raises
    ------
    InputError
        If there is no model, or the file is damaged, of another program or of a newer format.
    """
    path = _model_path(where)
    if not path.is_file():
        raise InputError(f"there is no model: {str(path)!r} is no file.")
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {}).get("entmeans", "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, json.JSONDecodeError, OSError) as error:
        raise InputError(f"{path} is damaged, or no model: {first_line(error)}") from None
    if not isinstance(about, dict) or not isinstance(about.get("format_version"), int):
        raise InputError(f"{path} is no model written by entmeans.")
    if about["format_version"] > FORMAT_VERSION:
        raise InputError(
            f"{path} has format {about['format_version']}, from entmeans "
            f"{about.get('entmeans_version')}; this entmeans {__version__} reads formats up to "
            f"{FORMAT_VERSION}: upgrade it."
        )
    try:
        return _model(about, tensors)
    except (KeyError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise InputError(f"{path} is damaged: {reason}") from None


def write_labels(
    path: str | Path, labels: NDArray[Any], responsibilities: NDArray[Any] | None = None
) -> None:
    """Write a parquet file with the column ``label`` (N,) and, where given, ``p0`` to ``pK-1``."""
    columns = {"label": labels}
    if responsibilities is not None:
        columns |= {f"p{j}": column for j, column in enumerate(responsibilities.T)}
    pyarrow.parquet.write_table(pa.table(columns), path)


def write_history(path: str | Path, history: Iterable[Step]) -> None:
    """Write a csv file with a row for each step: its number from 1, then the fields of `Step`."""
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["step", *Step._fields])
        writer.writerows([i, *step] for i, step in enumerate(history, start=1))


def _model_path(where: str | Path) -> Path:
    return Path(where) / MODEL_FILE if Path(where).is_dir() else Path(where)


def _to_json(value: str | float) -> str | float:
    """JSON has no infinity."""
    return value if isinstance(value, str) or math.isfinite(value) else str(value)


def _model(about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Model:
    centers, temperature = tensors["centers"].numpy(), about["temperature"]
    columns = [str(name) for name in about["columns"]]
    if centers.shape != (about["n_clusters"], len(columns)):
        raise ValueError(f"centers of shape {centers.shape} do not fit the header")
    estimator = EntMeans.from_centers(
        centers,
        mapping=get_mapping(about["mapping"]).name,
        temperature=temperature if temperature == "auto" else float(temperature),
        final_temperature=float(about["final_temperature"]),
    )
    estimator.hardening_temperature_ = float(about["hardening_temperature"])
    estimator.inertia_ = float(about["inertia"])
    if "mean" not in tensors:
        return Model(estimator, columns, bool(about["named"]))
    scaling = Scaling(tensors["mean"].numpy(), tensors["scale"].numpy())
    usable = np.isfinite(scaling.mean).all() and (scaling.scale > 0).all()
    if not usable or {scaling.mean.shape, scaling.scale.shape} != {centers.shape[1:]}:
        raise ValueError("impossible mean or scale")
    return Model(estimator, columns, bool(about["named"]), scaling)
