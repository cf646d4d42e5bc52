"""The data sets of the benchmarks: real ones that scikit-learn ships, and two synthetic ones."""

from collections.abc import Iterator

import numpy as np
from sklearn import datasets
from sklearn.preprocessing import StandardScaler


def china() -> np.ndarray:
    """The 273,280 pixels (red, green, blue from 0 to 255) of scikit-learn's photograph."""
    return datasets.load_sample_image("china.jpg").reshape(-1, 3).astype(np.float64)


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
