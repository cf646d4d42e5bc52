"""At temperature 0 EntMeans is Lloyd's algorithm: the trajectory of scikit-learn's KMeans."""

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from sklearn import datasets
from sklearn.cluster import KMeans

from entmeans import EntMeans


def china(n: int) -> np.ndarray:
    pixels = datasets.load_sample_image("china.jpg").reshape(-1, 3) / 255.0
    return pixels[np.random.default_rng(0).permutation(len(pixels))[:n]]


DATA = {
    "digits": (lambda: datasets.load_digits().data, 10),
    "iris": (lambda: datasets.load_iris().data, 3),
    "wine": (lambda: datasets.load_wine().data, 3),
    "breast_cancer": (lambda: datasets.load_breast_cancer().data, 10),
    "china": (lambda: china(20_000), 8),
}


def problem(name: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Points, and centers near K distinct rows of them.

    These data lie on grids of integers or tenths, so that rows are often equally far from two
    centers taken from the rows themselves, and who wins is a matter of rounding.  Centers a little
    off the grid have no ties.
    """
    load, k = DATA[name]
    points = load()
    rng = np.random.default_rng(seed)
    centers = rng.permutation(np.unique(points, axis=0))[:k]
    return points, centers + 0.05 * points.std() * rng.standard_normal(centers.shape)


def lloyd(points: np.ndarray, centers: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Lloyd by definition: labels, centers, and the closest call over all rows and steps."""
    closest, previous = np.inf, None
    while True:
        distances = cdist(points, centers, "sqeuclidean")
        labels = distances.argmin(1)
        best, second = np.partition(distances, 1, axis=1)[:, :2].T
        closest = min(closest, ((second - best) / (second + best)).min())
        if np.array_equal(labels, previous):
            return labels, centers, closest
        assert np.bincount(labels, minlength=len(centers)).all(), "an empty cluster"
        centers = np.stack([points[labels == j].mean(0) for j in range(len(centers))])
        previous = labels


@pytest.mark.parametrize("name", DATA)
def test_at_temperature_0_labels_and_centers_are_those_of_kmeans(name):
    points, init = problem(name)
    labels, centers, closest = lloyd(points, init)
    assert closest > 1e-9  # no row is tied, or close enough for rounding to decide
    peer = KMeans(len(init), init=init, n_init=1, tol=0, max_iter=1000).fit(points)
    ours = EntMeans(len(init), temperature=0, init=init, tol=0, max_iter=1000).fit(points)
    np.testing.assert_array_equal(ours.labels_, peer.labels_)
    np.testing.assert_array_equal(ours.labels_, labels)
    np.testing.assert_allclose(ours.cluster_centers_, peer.cluster_centers_, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(ours.cluster_centers_, centers, rtol=1e-12, atol=1e-12)
    assert ours.inertia_ == pytest.approx(peer.inertia_, rel=1e-6)


@pytest.mark.parametrize("name", DATA)
def test_the_default_tol_stops_at_the_same_step_as_kmeans(name):
    points, init = problem(name, seed=1)
    peer = KMeans(len(init), init=init, n_init=1).fit(points)
    ours = EntMeans(len(init), temperature=0, init=init).fit(points)
    assert ours.n_iter_ == peer.n_iter_
    np.testing.assert_array_equal(ours.labels_, peer.labels_)
    np.testing.assert_allclose(ours.cluster_centers_, peer.cluster_centers_, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("max_iter", [1, 2, 3, 7])
def test_the_trajectory_is_that_of_kmeans_step_by_step(max_iter):
    points, init = problem("digits", seed=2)
    arguments = {"init": init, "n_init": 1, "tol": 0, "max_iter": max_iter}
    peer = KMeans(10, **arguments).fit(points)
    ours = EntMeans(10, temperature=0, **arguments).fit(points)
    np.testing.assert_array_equal(ours.labels_, peer.labels_)
    np.testing.assert_allclose(ours.cluster_centers_, peer.cluster_centers_, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("mapping", ["softmax", "entmax15", "sparsemax", "hard"])
def test_temperature_0_is_lloyd_with_every_mapping(mapping):
    points, init = problem("iris")
    peer = KMeans(3, init=init, n_init=1, tol=0).fit(points)
    ours = EntMeans(3, mapping=mapping, temperature=0, init=init, tol=0).fit(points)
    np.testing.assert_array_equal(ours.labels_, peer.labels_)
    np.testing.assert_allclose(ours.cluster_centers_, peer.cluster_centers_, rtol=1e-6)


def test_weights_act_as_in_kmeans():
    points, init = problem("wine")
    weight = np.random.default_rng(3).uniform(0.1, 5, len(points))
    peer = KMeans(3, init=init, n_init=1, tol=0).fit(points, sample_weight=weight)
    ours = EntMeans(3, temperature=0, init=init, tol=0).fit(points, sample_weight=weight)
    np.testing.assert_array_equal(ours.labels_, peer.labels_)
    np.testing.assert_allclose(ours.cluster_centers_, peer.cluster_centers_, rtol=1e-6)
    assert ours.inertia_ == pytest.approx(peer.inertia_, rel=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_below_the_hardening_temperature_the_soft_fit_is_the_lloyd_fit_bit_for_bit(dtype):
    points, init = problem("iris")
    points, init = points.astype(dtype), init.astype(dtype)
    hard = EntMeans(3, temperature=0, init=init, tol=0).fit(points)
    soft = EntMeans(3, init=hard.cluster_centers_, tol=0, cooling=lambda step: 1.0)
    assert hard.hardening_temperature_ > 0
    soft.set_params(
        temperature=hard.hardening_temperature_, final_temperature=hard.hardening_temperature_
    ).fit(points)
    assert torch.equal(
        torch.from_numpy(soft.cluster_centers_), torch.from_numpy(hard.cluster_centers_)
    )
    np.testing.assert_array_equal(soft.labels_, hard.labels_)
    assert [step.hard_share for step in soft.history_] == [1.0] * soft.n_iter_
