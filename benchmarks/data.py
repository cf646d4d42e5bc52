"""The data sets of the benchmarks: most of them ship with scikit-learn or are synthetic."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from sklearn import datasets
from sklearn.preprocessing import StandardScaler


def china() -> np.ndarray:
    """The 273,280 pixels (red, green, blue from 0 to 255) of scikit-learn's photograph."""
    return datasets.load_sample_image("china.jpg").reshape(-1, 3).astype(np.float64)


def fashion_mnist() -> np.ndarray | None:
    """The first 10,000 images (10,000, 784), from 0 to 255; None where the file is not there.

    The file is ``fashion-mnist.npz`` with an array ``X``, in the folder ``ENTMEANS_DATA``.
    """
    path = Path(os.environ.get("ENTMEANS_DATA", "")) / "fashion-mnist.npz"
    if not path.is_file():
        return None
    with np.load(path) as arrays:
        return arrays["X"][:10_000].astype(np.float64)


def normal(n_points: int, n_features: int) -> np.ndarray:
    """Points without clusters (n_points, n_features), float32."""
    return np.random.default_rng(0).standard_normal((n_points, n_features), np.float32)


def distinct_rows(points: np.ndarray, n: int) -> np.ndarray:
    """Random rows, no two alike: equal centers leave clusters empty, which is another benchmark."""
    drawn = points[np.random.default_rng(1).permutation(len(points))[: 8 * n]]
    _, first = np.unique(drawn, axis=0, return_index=True)
    return drawn[np.sort(first)[:n]]


def small_sets() -> Iterator[tuple[str, np.ndarray, int]]:
    """Name, points and number of clusters of each set on which minima are compared."""
    rng = np.random.default_rng(0)
    digits = datasets.load_digits().data
    yield "digits, K = 10", digits, 10
    yield "digits, K = 30", digits, 30
    cancer = StandardScaler().fit_transform(datasets.load_breast_cancer().data)
    yield "breast_cancer, standardized, K = 10", cancer, 10
    yield "china, 20,000 pixels, K = 32", rng.permutation(china())[:20_000], 32
    blobs, _ = datasets.make_blobs(2_500, 5, centers=25, random_state=0)
    yield "25 blobs in 5-D, K = 25", blobs, 25
    grid = np.stack(np.meshgrid(np.arange(7.0), np.arange(7.0)), -1).reshape(-1, 2)
    noise = rng.normal(scale=0.15, size=(49 * 50, 2))
    yield "7 x 7 grid of blobs, K = 49", np.repeat(grid, 50, axis=0) + noise, 49
