"""Tables in: csv, parquet, npy, npz and built-in data, as finite numbers with named columns.

Reading runs no code from a file: arrays load without pickle.
"""

from __future__ import annotations

import csv
import itertools
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
from numpy.typing import NDArray

BUILT_IN = ("digits", "iris", "wine", "breast_cancer", "china", "flower")
PHOTOGRAPHS = ("china", "flower")
INDEX_NAMES = ("", "Unnamed: 0", "__index_level_0__")
"""What pandas calls the row numbers that it writes beside the data: no feature."""


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
    >>> from entmeans.tables import read_table
    >>> table = read_table("iris", columns=["petal length (cm)", "petal width (cm)"])
    >>> table.values.shape, table.labels.shape
    ((150, 2), (150,))
    """
    table = open_table(source)
    names = [name for name in table.numeric if name != label_column]
    left_out = [name for name in table.names if name not in {*table.numeric, label_column}]
    if columns is not None:
        names, left_out = list(columns), []
    for name in left_out:
        _refuse_spoiled(table, name)
    if label_column is not None and label_column in names:
        raise InputError(f"column {label_column!r} is the label: leave it out of the columns.")
    if not names:
        raise InputError(f"{table.name} has no numeric column to use among {listed(table.names)}.")
    values = finite_values(table, names)
    return Table(
        values=values,
        columns=names,
        named=table.named,
        name=Path(table.name).stem,
        labels=_labels(table, label_column, len(values)),
        left_out=left_out,
        image_shape=table.image_shape if names == table.names else None,
    )


@dataclass(frozen=True)
class Source:
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


def open_table(source: str | Path) -> Source:
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
        raise InputError(f"{path.name} cannot be read: {first_line(error)}") from None


def _built_in(name: str) -> Source:
    from sklearn import datasets

    if name in PHOTOGRAPHS:
        image = datasets.load_sample_image(f"{name}.jpg")
        rgb = ["red", "green", "blue"]
        return _array(name, image.reshape(-1, 3), rgb, image_shape=image.shape[:2])
    data = getattr(datasets, f"load_{name}")()
    return _array(name, data.data, [str(n) for n in data.feature_names], {"y": data.target})


def _npy(path: Path) -> Source:
    with path.open("rb") as file:
        return _array(path.name, np.load(file, allow_pickle=False))


def _npz(path: Path) -> Source:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        others = {name: arrays[name] for name in arrays.files}
    key = next(iter(others)) if len(others) == 1 else "X"
    if key not in others:
        raise InputError(
            f"{path.name} holds the arrays {listed(others)}: name the one with the points X."
        )
    return _array(path.name, others.pop(key), others=others)


def _array(
    name: str,
    array: NDArray[Any],
    names: list[str] | None = None,
    others: Mapping[str, NDArray[Any]] | None = None,
    image_shape: tuple[int, int] | None = None,
) -> Source:
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
    columns = names or numbered(array.shape[1])
    return Source(
        name=name,
        names=columns,
        numeric=columns,
        take=lambda column: matrix[:, columns.index(column)],
        named=names is not None,
        matrix=matrix,
        others=others or {},
        image_shape=image_shape,
    )


def _csv(path: Path) -> Source:
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        first = next((line for line in file if line.strip()), "")
        delimiter = max(",;\t", key=first.count)
        lines = csv.reader(itertools.chain([first], file), delimiter=delimiter)
        header, second = next(lines, []), next(lines, [])
    if not header:
        raise InputError(f"{path.name} is empty.")
    named = not _looks_like_data(header, second)
    table = pyarrow.csv.read_csv(
        path,
        # One block, because types are inferred from the first one.
        pyarrow.csv.ReadOptions(
            block_size=min(path.stat().st_size + 1, 2**31 - 1),
            column_names=None if named else numbered(len(header)),
        ),
        pyarrow.csv.ParseOptions(
            delimiter=delimiter,
            newlines_in_values=True,
            ignore_empty_lines=len(header) > 1,  # in a single column it is a missing value
        ),
        pyarrow.csv.ConvertOptions(strings_can_be_null=True),
    )
    return _frame(path.name, table, named)


def _looks_like_data(first: list[str], second: list[str]) -> bool:
    """Whether a first line holds numbers, and no text above a number, as names would be."""
    named = any(_is_number(b) and not _is_number(a) for a, b in zip(first, second, strict=False))
    return not named and any(map(_is_number, first))


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _parquet(path: Path) -> Source:
    return _frame(path.name, pyarrow.parquet.ParquetFile(path).read(), named=True)


def _frame(name: str, table: pa.Table, named: bool) -> Source:
    names = table.column_names
    if repeated := sorted({n for n in names if names.count(n) > 1}):
        raise InputError(f"{name} has several columns of one name: {listed(repeated)}.")
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
    return Source(name, names, features, take, named)


def finite_values(table: Source, names: list[str]) -> NDArray[Any]:
    """The columns of these names (N, D), all finite."""
    if unknown := [n for n in names if n not in table.names]:
        raise _unknown(table, unknown[0], table.names)
    if len(set(names)) < len(names):
        raise InputError(f"a column is asked for twice: {listed(names)}.")
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


def _feature(table: Source, name: str) -> NDArray[Any]:
    column = table.take(name)
    if column.dtype.kind not in "biuf":
        example = repr(str(column[0]))
        raise InputError(f"{table.name}: column {name!r} is not numeric: it starts with {example}.")
    return _floating(column)


def _refuse_spoiled(table: Source, name: str) -> None:
    """Reject a column of numbers that a few texts would keep out of the features unnoticed."""
    column = table.take(name)
    if column.dtype.kind not in "OU" or name in INDEX_NAMES:
        return
    texts = [str(value) for value in column[:1000]]
    bad = [row for row, text in enumerate(texts) if not _is_number(text)]
    if bad and 2 * len(bad) < len(texts):
        raise InputError(
            f"{table.name}: column {name!r} holds numbers, but {texts[bad[0]]!r} in row "
            f"{bad[0] + 1}: correct it, or name the columns to use."
        )


def _labels(table: Source, column: str | None, n_rows: int) -> NDArray[Any] | None:
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
    if any(isinstance(label, list | dict | tuple) for label in found[:1].tolist()):
        raise InputError(f"{table.name}: the labels {name!r} must be numbers or texts, not lists.")
    missing = [label is None or label != label for label in found.tolist()]
    if any(missing):
        row = missing.index(True) + 1
        raise InputError(f"{table.name}: the label in row {row}, column {name!r} is missing.")
    return found


def _floating(array: NDArray[Any]) -> NDArray[Any]:
    """In native float32 if it holds at most that many bits of a float, otherwise in float64."""
    small = array.dtype.kind == "f" and array.dtype.itemsize <= 4
    return array.astype(np.float32 if small else np.float64, copy=False)


def numbered(n: int) -> list[str]:
    """What columns without names are called."""
    return [str(j) for j in range(1, n + 1)]


def _unknown(table: Source, column: str, possible: Iterable[str]) -> InputError:
    return InputError(f"{table.name} has no column {column!r}: it has {listed(possible)}.")


def listed(names: Iterable[str]) -> str:
    """Names in quotes, at most 12 of them."""
    shown = [repr(name) for name in names]
    if not shown:
        return "nothing"
    return ", ".join(shown if len(shown) <= 12 else [*shown[:11], f"... ({len(shown)} in all)"])


def first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]
