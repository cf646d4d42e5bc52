"""Tables in (csv, parquet, npy, npz, built-in data); models, labels and histories out.

Reading runs no code from a file: arrays load without pickle, models are safetensors plus JSON.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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

BUILT_IN = ("digits", "iris", "wine", "breast_cancer", "china", "flower")
PHOTOGRAPHS = ("china", "flower")
INDEX_NAMES = ("", "Unnamed: 0", "__index_level_0__")
"""What pandas calls the row numbers that it writes beside the data: no feature."""

MODEL_FILE = "model.safetensors"
FORMAT_VERSION = 1


class InputError(ValueError):
    """A file that cannot be used; the message says in one line what it holds and what to do."""


@dataclass(frozen=True)
class Table:
    """What `read_table` returns.

    Attributes
    ----------
    values : ndarray, shape (N, D)
        float64, or float32 where an array file holds that.  All finite.
    columns : list of str
        The names of the D features, or their numbers, counted from 1, where there are no names.
    named : bool
        Whether those are names.
    name : str
        The name of the file without its suffix, or the built-in name.
    labels : ndarray, shape (N,), optional
        The true classes, of any dtype.
    left_out : list of str
        Columns that are not used because they are not numeric, or only number the rows.
    image_shape : (int, int), optional
        Height and width of the photograph whose pixels the rows are.
    """

    values: NDArray[Any]
    columns: list[str]
    named: bool
    name: str
    labels: NDArray[Any] | None = None
    left_out: Sequence[str] = ()
    image_shape: tuple[int, int] | None = None


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
        >>> from entmeans.io import Model, read_table
        >>> iris = read_table("iris")
        >>> estimator = entmeans.EntMeans(3, random_state=0).fit(iris.values)
        >>> Model(estimator, iris.columns).read("iris").shape
        (150, 4)
        """
        table = _open(source)
        values = _values(table, self._columns_in(table))
        return self.scaling.apply(values) if self.scaling else values

    def _columns_in(self, table: _Source) -> list[str]:
        by_name = table.named and self.named
        if not by_name and len(table.numeric) == len(self.columns):
            return table.numeric
        missing = [name for name in self.columns if name not in table.names]
        chosen = self.columns != _numbers(len(self.columns))
        if table.named == self.named and not missing and (self.named or chosen):
            return self.columns
        has = f"it has no {_listed(missing)}" if by_name else f"it has {len(table.numeric)}"
        raise InputError(
            f"{table.name} does not fit the model, which needs {len(self.columns)} numeric "
            f"columns: {has}."
        )


def read_table(
    source: str | Path,
    columns: Sequence[str] | None = None,
    label_column: str | None = None,
) -> Table:
    """Read points, and labels where they are known, from a file or a built-in data set.

    Parameters
    ----------
    source : str or Path
        A .csv, .parquet, .npy or .npz file, or one of the names digits, iris, wine,
        breast_cancer, china, flower (the pixels of two photographs).  An .npz file holds the
        points as ``X``, or as its only array, and labels, if any, as ``y``.
    columns : sequence of str, optional
        The features to use, by name; by number, counted from 1, where there are no names.
        Default: every numeric column that is not the label.
    label_column : str, optional
        The column that holds the true classes, or the array of an .npz file.

    Returns
    -------
    Table

    Raises
    ------
    InputError
        If the source, its format or a column is unknown; if a column asked for is not numeric; if
        a value is missing or infinite: the message names the first such row and its column.

    Examples
    --------
    >>> from entmeans.io import read_table
    >>> table = read_table("iris", columns=["petal length (cm)", "petal width (cm)"])
    >>> table.values.shape, table.labels.shape
    ((150, 2), (150,))
    """
    table = _open(source)
    names = [name for name in table.numeric if name != label_column]
    left_out = [name for name in table.names if name not in {*table.numeric, label_column}]
    if columns is not None:
        names, left_out = list(columns), []
    if label_column is not None and label_column in names:
        raise InputError(f"column {label_column!r} is the label: leave it out of the columns.")
    if not names:
        raise InputError(f"{table.name} has no numeric column to use among {_listed(table.names)}.")
    values = _values(table, names)
    return Table(
        values=values,
        columns=names,
        named=table.named,
        name=Path(table.name).stem,
        labels=_labels(table, label_column, len(values)),
        left_out=left_out,
        image_shape=table.image_shape if names == table.names else None,
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
    if mapping not in MAPPINGS.values():
        raise InputError(f"a model file can hold only the mappings {_listed(MAPPINGS)}.")
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
        raise InputError(f"{path} is damaged, or no model: {_first_line(error)}") from None
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
        reason = f"{type(error).__name__}: {_first_line(error)}"
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


@dataclass(frozen=True)
class _Source:
    """An open table, before columns are chosen.

    ``take`` gives a column as it is stored, ``matrix`` all of them where they are one array of
    floats.  ``others`` are arrays beside the table; ``y`` is its labels.
    """

    name: str
    names: list[str]
    numeric: list[str]
    take: Callable[[str], NDArray[Any]]
    named: bool = True
    matrix: NDArray[Any] | None = None
    others: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    image_shape: tuple[int, int] | None = None


def _open(source: str | Path) -> _Source:
    if str(source) in BUILT_IN:
        return _built_in(str(source))
    path = Path(source)
    readers = {".csv": _csv, ".parquet": _parquet, ".npy": _npy, ".npz": _npz}
    if not path.is_file():
        raise InputError(
            f"{str(source)!r} is neither a file nor built-in data: give a file "
            f"({', '.join(readers)}) or a name ({', '.join(BUILT_IN)})."
        )
    if path.suffix.lower() not in readers:
        raise InputError(
            f"{path.name} has the unknown format {path.suffix!r}: use one of {', '.join(readers)}."
        )
    try:
        return readers[path.suffix.lower()](path)
    except InputError:
        raise
    except (
        pa.ArrowException,
        csv.Error,
        zipfile.BadZipFile,
        ValueError,
        EOFError,
        OSError,
    ) as error:
        raise InputError(f"{path.name} cannot be read: {_first_line(error)}") from None


def _built_in(name: str) -> _Source:
    from sklearn import datasets

    if name in PHOTOGRAPHS:
        image = datasets.load_sample_image(f"{name}.jpg")
        rgb = ["red", "green", "blue"]
        return _array(name, image.reshape(-1, 3), rgb, image_shape=image.shape[:2])
    data = getattr(datasets, f"load_{name}")()
    return _array(name, data.data, [str(n) for n in data.feature_names], {"y": data.target})


def _npy(path: Path) -> _Source:
    with path.open("rb") as file:
        return _array(path.name, np.load(file, allow_pickle=False))


def _npz(path: Path) -> _Source:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        others = {name: arrays[name] for name in arrays.files}
    key = next(iter(others)) if len(others) == 1 else "X"
    if key not in others:
        raise InputError(
            f"{path.name} holds the arrays {_listed(others)}: name the one with the points X."
        )
    return _array(path.name, others.pop(key), others=others)


def _array(
    name: str,
    array: NDArray[Any],
    names: list[str] | None = None,
    others: Mapping[str, NDArray[Any]] | None = None,
    image_shape: tuple[int, int] | None = None,
) -> _Source:
    if array.ndim != 2:
        remedy = "(-1, 1) for one feature" if array.ndim == 1 else "(len(array), -1)"
        raise InputError(
            f"{name} holds an array of shape {array.shape}, points need (rows, columns): save "
            f"array.reshape{remedy}."
        )
    if array.dtype.kind not in "biuf":
        raise InputError(f"{name} holds {array.dtype} values: save the points as numbers.")
    if not len(array):
        raise InputError(f"{name} has no rows.")
    matrix = _floating(array)
    columns = names or _numbers(array.shape[1])
    return _Source(
        name=name,
        names=columns,
        numeric=columns,
        take=lambda column: matrix[:, columns.index(column)],
        named=names is not None,
        matrix=matrix,
        others=others or {},
        image_shape=image_shape,
    )


def _csv(path: Path) -> _Source:
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        first = next((line for line in file if line.strip()), "")
        delimiter = max(",;\t", key=first.count)
        header = next(csv.reader(itertools.chain([first], file), delimiter=delimiter), [])
    if not header:
        raise InputError(f"{path.name} is empty.")
    named = not _looks_like_data(header)
    table = pyarrow.csv.read_csv(
        path,
        # One block, because types are inferred from the first one.
        pyarrow.csv.ReadOptions(
            block_size=min(path.stat().st_size + 1, 2**31 - 1),
            column_names=None if named else _numbers(len(header)),
        ),
        pyarrow.csv.ParseOptions(
            delimiter=delimiter,
            newlines_in_values=True,
            ignore_empty_lines=len(header) > 1,  # in a single column it is a missing value
        ),
        pyarrow.csv.ConvertOptions(strings_can_be_null=True),
    )
    return _frame(path.name, table, named)


def _looks_like_data(header: list[str]) -> bool:
    """Whether a first line cannot be names: it holds 5.1 or -3, or whole numbers that repeat."""
    if all(name.isdigit() for name in header):
        return len(set(header)) < len(header)
    return any(_is_number(name) and not name.isdigit() for name in header)


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _parquet(path: Path) -> _Source:
    return _frame(path.name, pyarrow.parquet.ParquetFile(path).read(), named=True)


def _frame(name: str, table: pa.Table, named: bool) -> _Source:
    names = table.column_names
    if repeated := sorted({n for n in names if names.count(n) > 1}):
        raise InputError(f"{name} has several columns of one name: {_listed(repeated)}.")
    if not len(table):
        raise InputError(f"{name} has no rows.")

    def numeric(kind: pa.DataType) -> bool:
        is_a = pa.types
        return bool(is_a.is_integer(kind) or is_a.is_floating(kind) or is_a.is_decimal(kind))

    def take(column: str) -> NDArray[Any]:
        stored, kind = table[column], table[column].type
        no_counterpart = pa.types.is_decimal(kind) or pa.types.is_null(kind)
        return np.asarray((stored.cast(pa.float64()) if no_counterpart else stored).to_numpy())

    features = [f.name for f in table.schema if numeric(f.type) and f.name not in INDEX_NAMES]
    return _Source(name, names, features, take, named)


def _values(table: _Source, names: list[str]) -> NDArray[Any]:
    """The columns of these names (N, D), all finite."""
    if unknown := [n for n in names if n not in table.names]:
        raise _unknown(table, unknown[0], table.names)
    if len(set(names)) < len(names):
        raise InputError(f"a column is asked for twice: {_listed(names)}.")
    if table.matrix is not None and names == table.names:
        values = table.matrix
    else:
        values = np.column_stack([_feature(table, name) for name in names])
    finite = np.isfinite(values)
    if not finite.all():
        row = int(finite.all(1).argmin())
        column = int(finite[row].argmin())
        fault = "missing" if np.isnan(values[row, column]) else "infinite"
        raise InputError(
            f"{table.name}: the value in row {row + 1}, column {names[column]!r} is {fault}: "
            "correct it, or drop the row."
        )
    return values


def _feature(table: _Source, name: str) -> NDArray[Any]:
    column = table.take(name)
    if column.dtype.kind not in "biuf":
        example = repr(str(column[0]))
        raise InputError(f"{table.name}: column {name!r} is not numeric: it starts with {example}.")
    return _floating(column)


def _labels(table: _Source, column: str | None, n_rows: int) -> NDArray[Any] | None:
    if column is None and "y" not in table.others:
        return None
    name = "y" if column is None else column
    if name in table.others:
        found = table.others[name]
    elif name in table.names:
        found = table.take(name)
    else:
        raise _unknown(table, name, [*table.names, *table.others])
    if found.shape != (n_rows,):
        raise InputError(
            f"{table.name}: the labels {name!r} must have shape ({n_rows},), got {found.shape}."
        )
    missing = [label is None or label != label for label in found.tolist()]
    if any(missing):
        row = missing.index(True) + 1
        raise InputError(f"{table.name}: the label in row {row}, column {name!r} is missing.")
    return found


def _floating(array: NDArray[Any]) -> NDArray[Any]:
    """In native float32 if it holds at most that many bits of a float, otherwise in float64."""
    small = array.dtype.kind == "f" and array.dtype.itemsize <= 4
    return array.astype(np.float32 if small else np.float64, copy=False)


def _numbers(n: int) -> list[str]:
    """What columns without names are called."""
    return [str(j) for j in range(1, n + 1)]


def _unknown(table: _Source, column: str, possible: Iterable[str]) -> InputError:
    return InputError(f"{table.name} has no column {column!r}: it has {_listed(possible)}.")


def _listed(names: Iterable[str]) -> str:
    """Names in quotes, at most 12 of them."""
    shown = [repr(name) for name in names]
    return ", ".join(shown if len(shown) <= 12 else [*shown[:11], f"... ({len(shown)} in all)"])


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]
