"""What users of neighboring tools ran into, row by row: the kinds of fault, with the right value.

The row numbers are those of the list of cases that the library was designed against.  Rows about
memory, threads and processes are in test_processes.py; rows about torch layers have no place yet.
"""

import itertools
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.spatial.distance import cdist
from sklearn.datasets import load_digits, load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score

import entmeans
from entmeans import EntMeans, StopReason

MAPPINGS = ["softmax", "entmax15", "sparsemax", "hard"]
SOFT = MAPPINGS[:3]
SPARSE = {"entmax15": entmeans.entmax15, "sparsemax": entmeans.sparsemax}
DTYPES = [np.float32, np.float64]

few_rows = pytest.mark.filterwarnings(
    "ignore:Number of distinct clusters:sklearn.exceptions.ConvergenceWarning"
)
each_mapping = pytest.mark.parametrize("mapping", MAPPINGS)
each_soft_mapping = pytest.mark.parametrize("mapping", SOFT)
each_sparse = pytest.mark.parametrize("sparse", SPARSE.values(), ids=SPARSE)
each_dtype = pytest.mark.parametrize("dtype", DTYPES)


def blobs(n=300, k=4, d=5, seed=0, spread=0.1):
    """Points around k centers at pairwise distances of several spreads, and their blob."""
    rng = np.random.default_rng(seed)
    centers = np.eye(k, d) if k <= d else rng.permutation(k)[:, None] * np.ones(d)
    blob = np.arange(n) % k
    return centers[blob] + spread * rng.standard_normal((n, d)), blob


def column(*values, dtype=float):
    return np.array(values, dtype=dtype).reshape(-1, 1)


def brute_inertia(X, centers, weight=None):
    """The K-means objective by definition, in float64."""
    near = cdist(np.asarray(X, float), np.asarray(centers, float), "sqeuclidean").min(1)
    return float(near @ (np.ones(len(near)) if weight is None else weight))


def assert_consistent(model, X, rtol=1e-10):
    """Centers are finite, labels are the nearest centers, the inertia is theirs."""
    assert np.isfinite(model.cluster_centers_).all()
    distances = cdist(np.asarray(X, float), model.cluster_centers_, "sqeuclidean")
    own = distances[np.arange(len(X)), model.labels_]
    noise = rtol * float(distances.max())
    np.testing.assert_allclose(own, distances.min(1), rtol=0, atol=noise)
    assert model.inertia_ == pytest.approx(own.sum(), rel=0, abs=noise * len(X))


# Empty clusters, duplicates, K too large


@each_mapping
@pytest.mark.parametrize("temperature", [0.0, "auto", 1.0])
def test_row_1_a_center_without_points_is_put_to_use(mapping, temperature):
    X, _ = blobs(k=3)
    init = np.vstack([X[:3], np.full((1, 5), 1e3)])
    model = EntMeans(4, mapping=mapping, temperature=temperature, init=init).fit(X)
    assert_consistent(model, X)
    assert set(model.labels_) == {0, 1, 2, 3}


def test_row_1_several_centers_without_points_are_put_to_use():
    X, _ = blobs(k=3)
    init = np.vstack([X[:1], np.full((5, 5), 1e3)])
    model = EntMeans(6, temperature=0, init=init).fit(X)
    assert_consistent(model, X)
    assert len(set(model.labels_)) == 6


def test_row_1_a_soft_center_without_mass_stays_where_it_is():
    points, centers = torch.tensor([[0.0], [1.0]]), torch.tensor([[0.5], [1e3]])
    moved = entmeans.statistics(points, centers, temperature=1.0).centers(centers)
    assert moved.tolist() == [[0.5], [1e3]]


def test_row_2_the_default_number_of_steps_is_finite():
    assert EntMeans().max_iter == 300


@each_mapping
def test_row_2_a_step_that_is_not_finite_stops_the_loop_and_says_so(mapping):
    points = torch.tensor([[0.0], [1.0], [float("nan")]])
    result = entmeans.anneal(points, points[:2], mapping=mapping, temperature=1.0)
    assert result.stop_reason is StopReason.NOT_FINITE
    assert len(result.history) == 1
    assert "scale the data down" in str(result.stop_reason)


@each_mapping
def test_row_3_integer_gray_values_with_many_duplicates_are_found_exactly(mapping):
    grays = np.array([0, 7, 128, 200, 255], dtype=np.uint8)
    X = np.random.default_rng(0).choice(grays, 5_000)[:, None]
    with pytest.warns(ConvergenceWarning, match=r"\(5\) found smaller than n_clusters \(8\)"):
        model = EntMeans(8, mapping=mapping, random_state=0).fit(X)
    assert model.inertia_ == 0
    assert set(model.cluster_centers_[:, 0]) == set(grays.astype(float))
    np.testing.assert_array_equal(model.cluster_centers_[model.labels_], X)


@few_rows
@each_mapping
@pytest.mark.parametrize("seed", range(3))
def test_row_4_17_points_of_which_9_are_distinct_with_10_clusters(mapping, seed):
    rng = np.random.default_rng(seed)
    distinct = rng.standard_normal((9, 2))
    X = rng.permutation(np.vstack([distinct, distinct[:8]]))
    model = EntMeans(10, mapping=mapping, random_state=seed).fit(X)
    assert model.inertia_ == 0
    assert len(set(model.labels_)) == 9


@each_mapping
@pytest.mark.parametrize("init", ["k-means++", "random"])
def test_row_4_both_values_of_249_copies_are_found(mapping, init):
    X = np.repeat([[0.3, 1.0], [0.3, 1.1]], [248, 1], axis=0)
    for seed in range(5):
        model = EntMeans(2, mapping=mapping, init=init, n_init=1, random_state=seed).fit(X)
        assert model.inertia_ == pytest.approx(0, abs=1e-28)
        assert sorted(np.bincount(model.labels_)) == [1, 248]


@pytest.mark.parametrize("draw", [entmeans.kmeans_plusplus, entmeans.random_centers])
def test_row_4_both_values_of_249_copies_are_drawn(draw):
    points = torch.tensor([[0.3, 1.0]] * 248 + [[0.3, 1.1]])
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        assert len(draw(points, 2, generator=generator).unique(dim=0)) == 2


@few_rows
@each_mapping
def test_row_4_centers_on_all_points_stop_at_inertia_0_in_spite_of_a_duplicate(mapping):
    X = np.array([[0.0, 0], [1, 0], [0, 1], [1, 1], [5, 5], [5, 5]])
    model = EntMeans(6, mapping=mapping, init=X).fit(X)
    assert model.inertia_ == 0
    assert model.stop_reason_ is StopReason.CONVERGED
    assert model.n_iter_ <= 2


@few_rows
@each_mapping
@pytest.mark.parametrize("init", ["k-means++", "random", column(5, 7, 6), column(5, 7, 0)])
def test_row_5_an_unused_center_lies_on_the_data_and_not_at_the_origin(mapping, init):
    X = column(5, 5, 7, 7)
    model = EntMeans(3, mapping=mapping, init=init, random_state=0).fit(X)
    assert model.inertia_ == 0
    assert set(model.cluster_centers_[:, 0]) == {5.0, 7.0}


def test_row_6_nothing_is_stale_after_an_empty_center_was_moved():
    model = EntMeans(3, temperature=0, init=column(4, 0, 1), tol=0).fit(column(1, 2, 3))
    assert model.cluster_centers_.tolist() == [[3.0], [2.0], [1.0]]
    assert model.labels_.tolist() == [2, 1, 0]
    assert model.inertia_ == 0


@few_rows
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_row_6_the_order_of_the_centers_does_not_change_the_answer(order):
    X, init = np.array([[0.0, 0], [5, 5], [5, 5]]), np.array([[9.0, 9], [5, 5], [0, 0]])
    model = EntMeans(3, temperature=0, init=init[list(order)], max_iter=1).fit(X)
    assert model.inertia_ == 0
    assert model.labels_[0] != model.labels_[1] == model.labels_[2]
    assert sorted(model.cluster_centers_.tolist()) == [[0, 0], [0, 0], [5, 5]]


@each_mapping
def test_row_7_as_many_clusters_as_points(mapping):
    X = np.random.default_rng(0).standard_normal((12, 2))
    model = EntMeans(12, mapping=mapping, random_state=0).fit(X)
    assert model.inertia_ == 0
    assert sorted(model.labels_) == list(range(12))


@each_mapping
@pytest.mark.parametrize("temperature", ["auto", 0.0, 1.0, np.inf])
def test_row_7_one_cluster_is_the_mean(mapping, temperature):
    X, _ = blobs()
    model = EntMeans(1, mapping=mapping, temperature=temperature).fit(X)
    np.testing.assert_allclose(model.cluster_centers_, X.mean(0, keepdims=True), rtol=1e-14)
    assert model.inertia_ == pytest.approx(X.var(0).sum() * len(X), rel=1e-13)
    assert set(model.labels_) == {0}


def test_row_7_fewer_points_than_clusters_is_one_line_with_both_numbers():
    with pytest.raises(ValueError, match=r"n_samples=3 .* n_clusters=5") as error:
        EntMeans(5).fit(np.zeros((3, 2)))
    assert "\n" not in str(error.value)


@each_mapping
@pytest.mark.parametrize("k", range(7, 17))
def test_row_8_small_batches_get_all_their_clusters(mapping, k):
    X = np.random.default_rng(k).standard_normal((16, 2))  # a warning would fail this test
    model = EntMeans(k, mapping=mapping, random_state=k).fit(X)
    assert len(set(model.labels_)) == k


# Numbers


def widened(X, d):
    """The same distances in d features: the others are constant."""
    return np.hstack([X, np.full((len(X), d - X.shape[1]), 0.5, X.dtype)])


# Distances come from differences in few dimensions, from a matrix product in many.
each_width = pytest.mark.parametrize("d", [1, 3, 4, 30])


@each_width
def test_row_9_close_values_far_from_the_origin_have_their_distance(d):
    X = widened(column(512804, dtype=np.float32), d)
    model = EntMeans.from_centers(widened(column(512695, 0, dtype=np.float32), d))
    assert model.transform(X)[0, 0] == 109
    assert model.score(X) == -(109.0**2)
    points, centers = torch.from_numpy(X), torch.from_numpy(model.cluster_centers_)
    assert entmeans.squared_distances(points, centers)[0, 0] == 109**2


@each_mapping
@each_width
def test_row_9_the_inertia_of_close_values_does_not_cancel(mapping, d):
    X = widened(column(1.0001, 0.9999, -1.0001, -0.9999, dtype=np.float32), d)
    model = EntMeans(2, mapping=mapping, random_state=0).fit(X)
    assert model.inertia_ == pytest.approx(4.0e-8, rel=1e-3)  # 1.0001 itself is off by 5e-8
    assert model.inertia_ == pytest.approx(brute_inertia(X, model.cluster_centers_), rel=1e-5)


@pytest.mark.parametrize("d", [1, 3])
def test_row_9_close_values_each_get_their_cluster(d):
    X = widened(column(1.0001, 0.9999, -1.0001, -0.9999, dtype=np.float32), d)
    model = EntMeans(4, random_state=0).fit(X)
    assert model.inertia_ == 0
    assert sorted(model.labels_) == [0, 1, 2, 3]


@each_mapping
@pytest.mark.parametrize("offset", [0.0, 1e4, -1e4])
@pytest.mark.parametrize("d", [2, 5])
def test_row_10_two_blobs_far_from_the_origin_separate_in_float32(mapping, offset, d):
    rng = np.random.default_rng(0)
    blob = np.arange(400) % 2
    X = rng.normal(0, 0.05, (400, d))
    X[:, 0] += blob
    X = (X + offset).astype(np.float32)
    model = EntMeans(2, mapping=mapping, random_state=0).fit(X)
    assert adjusted_rand_score(model.labels_, blob) == 1.0
    assert adjusted_rand_score(model.predict(X), blob) == 1.0
    assert model.inertia_ == pytest.approx(brute_inertia(X, model.cluster_centers_), rel=1e-4)


@each_dtype
@pytest.mark.parametrize("offset", [0, 1e3, 1e6])
def test_row_11_distances_of_points_to_themselves_are_zero_and_none_is_nan(dtype, offset):
    X = (np.random.default_rng(0).standard_normal((50, 7)) + offset).astype(dtype)
    X[1] = X[0]
    distances = EntMeans.from_centers(X).transform(X)
    assert (distances >= 0).all()
    nearest = entmeans.nearest(torch.from_numpy(X), torch.from_numpy(X))
    assert (nearest.distances == 0).all()
    exact = cdist(X.astype(float), X.astype(float))
    tolerance = 4 * np.finfo(dtype).eps ** 0.5  # the root of a rounding error
    np.testing.assert_allclose(distances, exact, atol=tolerance * exact.max())


@each_mapping
@pytest.mark.parametrize("temperature", [0.0, 1e-30, 1.0, 1e30])
def test_row_11_gradients_at_coincident_points_and_centers_are_finite(mapping, temperature):
    points = torch.tensor([[1.0, 2.0], [1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    centers = torch.tensor([[1.0, 2.0], [1.0, 2.0]], requires_grad=True)
    for loss in (entmeans.free_energy, entmeans.expected_distortion):
        gradients = torch.autograd.grad(
            loss(points, centers, temperature, mapping), (points, centers)
        )
        assert all(g.isfinite().all() for g in gradients)
    roots = entmeans.squared_distances(points, centers)
    assert all(g.isfinite().all() for g in torch.autograd.grad(roots.sum(), (points, centers)))


def test_row_12_half_precision_sums_neither_overflow_nor_drift():
    for dtype in (torch.float16, torch.bfloat16):
        points = torch.full((5_000, 2), 100.0, dtype=dtype)
        points[::2] += 1
        model = EntMeans(1).fit(points)
        assert model.cluster_centers_.dtype == torch.float32
        assert model.cluster_centers_.tolist() == [[100.5, 100.5]]
        assert model.inertia_ == 5_000 * 2 * 0.25


def test_row_12_half_precision_arrays_are_computed_in_float32_or_more():
    X = np.full((5_000, 2), 300, dtype=np.float16)
    X[::2] += 2
    model = EntMeans(1).fit(X)
    assert model.cluster_centers_.tolist() == [[301.0, 301.0]]
    assert model.inertia_ == 10_000.0


def test_row_12_counts_go_on_beyond_2_to_the_24():
    n = 2**24 + 1
    points = torch.zeros(1, 1).expand(n, 1)
    found = entmeans.statistics(points, torch.zeros(1, 1), 0.0)
    assert found.mass.item() == n
    assert found.hard_mass.item() == n


@each_sparse
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_row_13_scores_near_minus_1000_are_finite_in_every_precision(sparse, dtype):
    scores = torch.tensor([[-1000.0, -1008.0, -1016.0], [-1000.0, -1000.0, -1008.0]], dtype=dtype)
    assert sparse(scores).dtype == dtype
    one_hot, even = sparse(scores).tolist()
    assert one_hot == [1, 0, 0]
    assert even == pytest.approx([0.5, 0.5, 0], rel=4 * torch.finfo(dtype).eps, abs=0)


@each_sparse
@pytest.mark.parametrize(
    "bad",
    [[-np.inf] * 3, [0.0, np.nan, 1.0], [0.0, np.inf, 1.0]],
    ids=["all -inf", "NaN", "+inf"],
)
def test_row_13_a_bad_row_is_nan_and_touches_no_other(sparse, bad):
    good = torch.tensor([[1.0, 0.5, -3.0], [0.1, 0.2, -np.inf]])
    mixed = torch.stack([good[0], torch.tensor(bad), good[1]])
    p = sparse(mixed)
    assert p[1].isnan().all()
    assert torch.equal(p[[0, 2]], sparse(good))
    assert p[2, 2] == 0


@each_sparse
def test_row_13_scores_far_apart_give_the_exact_one_hot(sparse):
    generator = torch.Generator().manual_seed(0)
    scores = 1000 * torch.randn(200, 50, generator=generator)
    first, second = scores.topk(2).values.T
    clear = first - second >= 2
    one_hot = torch.nn.functional.one_hot(scores.argmax(-1), 50).float()
    assert clear.sum() > 150
    assert torch.equal(sparse(scores)[clear], one_hot[clear])


@each_sparse
def test_row_14_any_dimension_and_axes_of_size_1(sparse):
    x = torch.randn(1, 5, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = sparse(x[0, :, 0])
    assert torch.equal(sparse(x, dim=-2)[0, :, 0], expected)
    assert torch.equal(sparse(x, dim=1)[0, :, 0], expected)
    assert torch.equal(sparse(x, dim=0), torch.ones_like(x))


@each_sparse
def test_row_14_vmap_and_jacrev_agree_with_plain_calls(sparse):
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert torch.equal(torch.func.vmap(sparse)(x), sparse(x))
    jacobians = torch.func.vmap(torch.func.jacrev(sparse))(x)
    plain = torch.stack([torch.autograd.functional.jacobian(sparse, row) for row in x])
    torch.testing.assert_close(jacobians, plain, rtol=1e-12, atol=1e-14)


@each_sparse
def test_row_14_first_and_second_derivatives_are_right(sparse):
    x = torch.tensor([[0.3, 0.1, -0.2, -5.0]], dtype=torch.float64, requires_grad=True)
    assert (sparse(x) == 0).any()  # zeros included
    assert torch.autograd.gradcheck(sparse, x)
    assert torch.autograd.gradgradcheck(sparse, x)


BAD_TEMPERATURES = [-1.0, -1e-30, float("nan"), -np.inf]


@pytest.mark.parametrize("bad", BAD_TEMPERATURES)
@pytest.mark.parametrize(
    "function",
    [
        entmeans.responsibilities,
        entmeans.statistics,
        entmeans.free_energy,
        entmeans.expected_distortion,
        entmeans.free_energy_bounds,
        entmeans.is_fixed_point,
    ],
)
def test_row_15_a_temperature_out_of_range_is_an_error(function, bad):
    points = torch.tensor([[0.0], [1.0]])
    for temperature in (bad, torch.tensor(bad)):
        with pytest.raises(ValueError, match="temperature must be 0 or more"):
            function(points, points, temperature)


@pytest.mark.parametrize("bad", BAD_TEMPERATURES)
@pytest.mark.parametrize("name", ["temperature", "final_temperature"])
def test_row_15_anneal_refuses_a_temperature_out_of_range(name, bad):
    points = torch.tensor([[0.0], [1.0], [5.0]])
    with pytest.raises(ValueError, match=name):
        entmeans.anneal(points, points[:2], **{name: bad})


@pytest.mark.parametrize("bad", BAD_TEMPERATURES)
def test_row_15_the_estimator_refuses_a_temperature_out_of_range(bad):
    X = column(0, 1, 5)
    with pytest.raises(ValueError, match="temperature"):
        EntMeans(2, temperature=bad).fit(X)
    with pytest.raises(ValueError, match="final_temperature"):
        EntMeans(2, final_temperature=bad).fit(X)
    with pytest.raises(ValueError, match="temperature must be 0 or more"):
        EntMeans.from_centers(X).predict_proba(X, temperature=bad)


@each_mapping
@each_dtype
@pytest.mark.parametrize("temperature", [0.0, 1e-320, 1e-45, 1e-30, 1e-6, 1.0, 1e30, np.inf])
def test_row_16_at_extreme_temperatures_nothing_is_nan(mapping, dtype, temperature):
    X, _ = blobs(60)
    X = X.astype(dtype)
    points, centers = torch.from_numpy(X), torch.from_numpy(X[:4])
    p = entmeans.responsibilities(points, centers, temperature, mapping)
    eps = float(np.finfo(dtype).eps)
    torch.testing.assert_close(p.sum(-1), torch.ones_like(p[:, 0]), rtol=8 * eps, atol=0)
    if temperature < np.inf:  # the bounds of an infinite temperature say nothing
        energy = entmeans.free_energy(points, centers, temperature, mapping, reduction="sum")
        lower, upper = entmeans.free_energy_bounds(
            points, centers, temperature, mapping, reduction="sum"
        )
        slack = 1e3 * eps * (upper.abs() + lower.abs())
        assert lower - slack <= energy <= upper + slack
    model = EntMeans(4, mapping=mapping, temperature=temperature, random_state=0).fit(X)
    assert_consistent(model, X, rtol=100 * eps)


@each_mapping
@pytest.mark.parametrize("temperature", [0.0, 1e-30, 1e-6])
def test_row_17_a_point_on_a_center_belongs_to_it(mapping, temperature):
    centers = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    model = EntMeans.from_centers(centers, mapping=mapping)
    p = model.predict_proba(centers, temperature)
    np.testing.assert_array_equal(p, np.eye(3))
    assert model.transform(centers).diagonal().tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("scale", [3e4, 1e9, 1e15])
@pytest.mark.parametrize("init", ["k-means++", "random"])
def test_row_18_seeding_large_float32_values_draws_distinct_points(init, scale):
    X = scale * np.random.default_rng(0).standard_normal((500, 3)).astype(np.float32)
    assert (X**2).sum(1).max() > 1e9
    model = EntMeans(20, init=init, n_init=1, random_state=0).fit(X)
    assert np.isfinite(model.cluster_centers_).all()
    assert len(set(model.labels_)) == 20
    draw = entmeans.kmeans_plusplus if init == "k-means++" else entmeans.random_centers
    centers = draw(torch.from_numpy(X), 20, generator=torch.Generator().manual_seed(0))
    assert len(centers.unique(dim=0)) == 20
    assert (cdist(centers, X).min(1) == 0).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy, pd.DataFrame])
@pytest.mark.parametrize("method", ["fit", "predict", "transform", "predict_proba", "score"])
def test_row_19_nan_and_infinity_are_reported_with_row_and_column(method, kind, bad):
    X, _ = blobs(20)
    model = EntMeans.from_centers(X[:2])
    X[13, 2] = bad
    X[17, 0] = bad
    with pytest.raises(ValueError, match=r"NaN or infinity.*row 13, column 2"):
        getattr(model, method)(kind(X))


# Layout, dtype, device


def memory_mapped(X, folder):
    np.save(folder / "X.npy", X)
    return np.load(folder / "X.npy", mmap_mode="r")


def read_only(X):
    X = X.copy()
    X.flags.writeable = False
    return X


LAYOUTS = {
    "transposed": lambda X, folder: np.ascontiguousarray(X.T).T,
    "Fortran": lambda X, folder: np.asfortranarray(X),
    "strided rows": lambda X, folder: np.repeat(X, 2, axis=0)[::2],
    "strided columns": lambda X, folder: np.repeat(X, 3, axis=1)[:, ::3],
    "negative strides": lambda X, folder: X[::-1, ::-1].copy()[::-1, ::-1],
    "read-only": lambda X, folder: read_only(X),
    "memory-mapped": memory_mapped,
    "byte-swapped": lambda X, folder: X.astype(X.dtype.newbyteorder()),
    "unaligned": lambda X, folder: np.frombuffer(b"\0" + X.tobytes(), X.dtype, offset=1).reshape(
        X.shape
    ),
    "torch transposed": lambda X, folder: torch.from_numpy(X).T.contiguous().T,
    "torch strided": lambda X, folder: torch.from_numpy(X).repeat_interleave(2, 1)[:, ::2],
    "list": lambda X, folder: X.tolist(),
}


@each_dtype
@pytest.mark.parametrize("layout", LAYOUTS)
def test_row_20_the_layout_of_the_data_does_not_matter(layout, dtype, tmp_path):
    X = np.random.default_rng(0).standard_normal((101, 5)).astype(dtype)
    if layout == "list" and dtype is np.float32:
        dtype = np.float64  # Python floats
        X = X.astype(dtype)
    other = LAYOUTS[layout](X, tmp_path)
    expected = EntMeans(7, random_state=0).fit(X)
    model = EntMeans(7, random_state=0).fit(other)
    np.testing.assert_array_equal(np.asarray(model.labels_), expected.labels_)
    np.testing.assert_array_equal(np.asarray(model.cluster_centers_), expected.cluster_centers_)
    assert np.asarray(model.cluster_centers_).dtype == dtype
    for method in ("predict", "transform", "predict_proba"):
        np.testing.assert_array_equal(
            np.asarray(getattr(model, method)(other)), getattr(expected, method)(X)
        )
    assert model.score(other) == expected.score(X)


@pytest.mark.parametrize("layout", ["strided columns", "read-only", "negative strides"])
def test_row_20_the_layout_of_weights_and_centers_does_not_matter(layout, tmp_path):
    X, _ = blobs()
    weight = np.random.default_rng(1).uniform(0, 2, (len(X), 1))
    expected = EntMeans(4, init=X[:4]).fit(X, sample_weight=weight[:, 0])
    other = LAYOUTS[layout](X, tmp_path)
    model = EntMeans(4, init=other[:4])
    model.fit(other, sample_weight=LAYOUTS[layout](weight, tmp_path)[:, 0])
    np.testing.assert_array_equal(model.labels_, expected.labels_)
    np.testing.assert_array_equal(model.cluster_centers_, expected.cluster_centers_)


def test_row_20_the_data_are_not_changed():
    X, _ = blobs()
    weight, init = np.linspace(0, 1, len(X)), X[:4] + 0.01
    kept = [a.copy() for a in (X, weight, init)]
    EntMeans(4, init=init).fit(X, sample_weight=weight)
    for now, before in zip((X, weight, init), kept, strict=True):
        np.testing.assert_array_equal(now, before)


def test_row_20_anneal_changes_no_tensor_even_where_it_moves_an_empty_center():
    points, centers = torch.tensor([[0.0], [1.0], [7.0]]), torch.tensor([[0.0], [-50.0]])
    result = entmeans.anneal(points, centers, temperature=0.0)
    assert sorted(result.centers.flatten().tolist()) == [0.5, 7.0]
    assert centers.tolist() == [[0.0], [-50.0]]
    assert points.tolist() == [[0.0], [1.0], [7.0]]


@pytest.mark.parametrize("d", [1, 2, 17, 33, 513])
@pytest.mark.parametrize("k", [1, 2, 3, 7, 33, 100])
def test_row_21_odd_sizes_end_at_nearest_centers_and_cluster_means(d, k):
    X = np.random.default_rng(d * k).standard_normal((131, d))
    model = EntMeans(k, random_state=0, tol=0).fit(X)
    assert_consistent(model, X)
    means = np.stack([X[model.labels_ == j].mean(0) for j in range(k)])
    np.testing.assert_allclose(model.cluster_centers_, means, rtol=1e-10, atol=1e-12)


@each_dtype
@pytest.mark.parametrize(("n", "d", "k"), [(1, 1, 1), (1031, 3, 257), (700, 5, 513)])
def test_row_21_more_rows_or_centers_than_one_chunk_holds(n, d, k, dtype, monkeypatch):
    monkeypatch.setattr("entmeans.step.CHUNK_ELEMENTS", 10_000)
    rng = np.random.default_rng(0)
    X, centers = (rng.standard_normal((m, d)).astype(dtype) for m in (n, k))
    model = EntMeans.from_centers(centers)
    exact = cdist(X.astype(float), centers.astype(float))
    eps = float(np.finfo(dtype).eps)
    np.testing.assert_array_equal(model.predict(X), exact.argmin(1))
    np.testing.assert_allclose(model.transform(X) ** 2, exact**2, rtol=1e-5, atol=1e2 * eps)
    assert model.predict_proba(X, temperature=1.0).shape == (n, k)
    assert -model.score(X) == pytest.approx((exact.min(1) ** 2).sum(), rel=1e2 * eps)


INTEGERS = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64]


@pytest.mark.parametrize("dtype", [*INTEGERS, bool, np.longdouble, np.float16, object])
def test_row_22_other_dtypes_give_the_labels_of_float64(dtype):
    X = np.random.default_rng(0).integers(0, 2 if dtype is bool else 100, (200, 9)).astype(dtype)
    expected = EntMeans(5, random_state=0).fit(X.astype(float))
    model = EntMeans(5, random_state=0).fit(X)
    np.testing.assert_array_equal(model.labels_, expected.labels_)
    np.testing.assert_array_equal(model.predict(X), expected.labels_)
    np.testing.assert_allclose(model.cluster_centers_, expected.cluster_centers_, rtol=1e-6)


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.int32, torch.int64, torch.bool, torch.float16, torch.bfloat16]
)
def test_row_22_other_tensor_dtypes_give_the_labels_of_float64(dtype):
    high = 2 if dtype is torch.bool else 100
    X = torch.randint(0, high, (200, 9), generator=torch.Generator().manual_seed(0)).to(dtype)
    expected = EntMeans(5, random_state=0).fit(X.double())
    model = EntMeans(5, random_state=0).fit(X)
    assert torch.equal(model.labels_, expected.labels_)
    assert torch.equal(model.predict(X), expected.labels_)
    half = dtype in (torch.float16, torch.bfloat16)
    assert model.cluster_centers_.dtype == (torch.float32 if half else torch.float64)


@pytest.mark.parametrize(("fit", "predict"), list(itertools.permutations(DTYPES)))
def test_row_22_fit_in_one_precision_and_predict_in_the_other(fit, predict):
    X, blob = blobs()
    model = EntMeans(3, random_state=0).fit(X[blob < 3].astype(fit))
    labels = model.predict(X[blob < 3].astype(predict))
    np.testing.assert_array_equal(labels, model.labels_)
    assert model.transform(X.astype(predict)).shape == (300, 3)


@each_dtype
def test_row_22_floating_point_dtypes_are_kept(dtype):
    X = blobs()[0].astype(dtype)
    model = EntMeans(3, random_state=0).fit(X)
    results = (model.cluster_centers_, model.transform(X), model.predict_proba(X))
    assert [r.dtype for r in results] == [dtype] * 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_row_23_tensors_in_tensors_out(dtype):
    X = torch.from_numpy(blobs()[0]).to(dtype)
    model = EntMeans(3, random_state=0)
    assert model.fit(X) is model
    results = {
        "cluster_centers_": model.cluster_centers_,
        "transform": model.transform(X),
        "predict_proba": model.predict_proba(X, 0.1),
        "fit_transform": model.fit_transform(X),
    }
    assert {k: type(v) for k, v in results.items()} == dict.fromkeys(results, torch.Tensor)
    assert {v.dtype for v in results.values()} == {dtype}
    labels = (model.labels_, model.predict(X), EntMeans(3, random_state=0).fit_predict(X))
    assert all(torch.equal(found, labels[0]) for found in labels)
    assert labels[0].dtype == torch.int64
    assert isinstance(model.score(X), float)
    assert isinstance(model.inertia_, float)


def test_row_23_tensors_and_arrays_give_the_same_fit():
    X, _ = blobs()
    weight = np.linspace(0, 1, len(X))
    arrays = EntMeans(3, random_state=0).fit(X, sample_weight=weight)
    tensors = EntMeans(3, random_state=0).fit(torch.from_numpy(X), sample_weight=weight)
    mixed = EntMeans(3, random_state=0).fit(X, sample_weight=torch.from_numpy(weight))
    for other in (tensors, mixed):
        np.testing.assert_array_equal(np.asarray(other.cluster_centers_), arrays.cluster_centers_)
        assert other.inertia_ == arrays.inertia_
    assert isinstance(arrays.predict(torch.from_numpy(X)), torch.Tensor)
    assert isinstance(tensors.predict(X), np.ndarray)


def test_row_23_tensors_that_require_gradients_are_accepted():
    X = torch.from_numpy(blobs()[0]).requires_grad_()
    model = EntMeans(3, random_state=0).fit(X)
    assert not model.cluster_centers_.requires_grad
    assert not model.transform(X).requires_grad


@each_mapping
@each_dtype
def test_row_23_the_label_of_a_row_does_not_depend_on_its_company(mapping, dtype):
    X = np.random.default_rng(0).standard_normal((157, 6)).astype(dtype)
    model = EntMeans(9, mapping=mapping, random_state=0).fit(X)
    together = model.predict(X)
    np.testing.assert_array_equal([model.predict(x[None])[0] for x in X], together)
    halves = np.concatenate([model.predict(X[:60]), model.predict(X[60:])])
    np.testing.assert_array_equal(halves, together)
    proba = model.predict_proba(X, temperature=0.5)
    alone = np.concatenate([model.predict_proba(x[None], temperature=0.5) for x in X])
    np.testing.assert_allclose(alone, proba, atol=50 * np.finfo(dtype).eps)


def test_row_23_fit_predict_labels_every_row():
    X, blob = blobs(100_003, k=3)  # more than one chunk
    labels = EntMeans(3, random_state=0).fit_predict(X)
    assert labels.shape == (100_003,)
    assert adjusted_rand_score(labels, blob) > 0.99


# Convergence, weights, side effects


@each_mapping
def test_row_25_tol_0_stops_when_nothing_changes(mapping):
    X, _ = blobs()
    model = EntMeans(5, mapping=mapping, tol=0, max_iter=1_000, random_state=0).fit(X)
    assert model.stop_reason_ is StopReason.CONVERGED
    assert model.n_iter_ < 100
    assert model.history_[-1].shift == 0
    means = np.stack([X[model.labels_ == j].mean(0) for j in range(5)])
    np.testing.assert_allclose(model.cluster_centers_, means, rtol=1e-12, atol=1e-14)


@each_mapping
@pytest.mark.parametrize("scale", [1e-6, 1e3])
def test_row_25_tol_has_no_scale(mapping, scale):
    X, _ = blobs(spread=0.4)
    plain = EntMeans(5, mapping=mapping, tol=1e-2, random_state=0).fit(X)
    scaled = EntMeans(5, mapping=mapping, tol=1e-2, random_state=0).fit(X * scale)
    assert scaled.n_iter_ == plain.n_iter_


@each_mapping
def test_row_25_a_larger_tol_stops_earlier(mapping):
    X = load_digits().data
    steps = [
        EntMeans(10, mapping=mapping, tol=tol, random_state=0).fit(X).n_iter_
        for tol in (0, 1e-2, 1.0)
    ]
    assert steps == sorted(steps, reverse=True)
    assert steps[0] > steps[-1]


@each_mapping
@pytest.mark.parametrize("max_iter", [1, 2, 5])
def test_row_25_max_iter_is_the_number_of_steps_and_the_reason(mapping, max_iter):
    X = load_digits().data
    model = EntMeans(10, mapping=mapping, max_iter=max_iter, tol=0, random_state=0).fit(X)
    assert model.n_iter_ == len(model.history_) == max_iter
    assert model.stop_reason_ is StopReason.MAX_ITER
    assert "raise max_iter" in str(model.stop_reason_)


@each_mapping
@each_dtype
@pytest.mark.parametrize("max_iter", [1, 300])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
def test_row_26_inertia_and_labels_are_exactly_those_of_score_and_predict(
    mapping, dtype, max_iter, weighted, kind
):
    rng = np.random.default_rng(0)
    X = kind(rng.standard_normal((1_000, 4)).astype(dtype) + 5)
    weight = rng.uniform(0, 3, 1_000) if weighted else None
    model = EntMeans(8, mapping=mapping, max_iter=max_iter, tol=0, random_state=0)
    model.fit(X, sample_weight=weight)
    assert model.inertia_ == -model.score(X, sample_weight=weight)
    assert bool((model.labels_ == model.predict(X)).all())


@pytest.mark.parametrize("final_temperature", [0.3, np.inf])
def test_row_26_also_when_the_clusters_stay_soft(final_temperature):
    X, _ = blobs(k=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = EntMeans(3, final_temperature=final_temperature, random_state=0).fit(X)
    assert model.inertia_ == -model.score(X)
    np.testing.assert_array_equal(model.labels_, model.predict(X))


@each_mapping
@pytest.mark.parametrize("init", ["k-means++", "random"])
@pytest.mark.parametrize("copies", [1, 50])
def test_row_27_seeding_respects_weights(mapping, init, copies):
    X = np.repeat(column(1, 5, 100), copies, axis=0)
    weight = np.repeat([1e8, 1e8, 1e-8], copies)
    for seed in range(3):
        model = EntMeans(2, mapping=mapping, init=init, n_init=1, random_state=seed)
        model.fit(X, sample_weight=weight)
        np.testing.assert_allclose(sorted(model.cluster_centers_[:, 0]), [1, 5], rtol=1e-12)
    for draw in (entmeans.kmeans_plusplus, entmeans.random_centers):
        for seed in range(20):
            generator = torch.Generator().manual_seed(seed)
            centers = draw(torch.from_numpy(X), 2, torch.from_numpy(weight), generator=generator)
            assert set(centers.flatten().tolist()) == {1.0, 5.0}


@few_rows
@each_mapping
@pytest.mark.parametrize("init", ["k-means++", "random"])
def test_row_27_points_of_weight_0_have_no_influence(mapping, init):
    X, _ = blobs(60)
    rng = np.random.default_rng(0)
    zeros = 50 * rng.standard_normal((30, 5))  # far out, where seeding and relocation look
    order = rng.permutation(90)
    both = np.vstack([X, zeros])[order]
    weight = np.repeat([1.0, 0.0], [60, 30])[order]
    for seed in range(3):
        arguments = {"mapping": mapping, "init": init, "n_init": 1, "random_state": seed}
        alone = EntMeans(5, **arguments).fit(X)
        model = EntMeans(5, **arguments).fit(both, sample_weight=weight)
        np.testing.assert_allclose(model.cluster_centers_, alone.cluster_centers_, rtol=1e-9)
        assert model.inertia_ == pytest.approx(alone.inertia_, rel=1e-12)
        assert model.hardening_temperature_ == pytest.approx(alone.hardening_temperature_)


def test_row_27_an_empty_center_is_not_moved_to_a_point_of_weight_0():
    X, weight = column(0, 1, 10, 1_000), [1, 1, 1, 0]
    model = EntMeans(2, temperature=0, init=column(0, -500)).fit(X, sample_weight=weight)
    assert sorted(model.cluster_centers_[:, 0]) == [0.5, 10.0]


@few_rows
def test_row_27_zero_weights_leave_fewer_locations_than_clusters():
    X, weight = column(1, 2, 3, 4), [1, 1, 0, 0]
    model = EntMeans(3, random_state=0).fit(X, sample_weight=weight)
    assert set(model.cluster_centers_[:, 0]) == {1.0, 2.0}
    assert model.inertia_ == 0


@each_mapping
@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_row_27_inertia_is_weighted_and_weights_have_no_scale(mapping, factor):
    X, _ = blobs()
    weight = np.random.default_rng(0).uniform(0.1, 3, len(X))
    model = EntMeans(4, mapping=mapping, random_state=0).fit(X, sample_weight=weight)
    scaled = EntMeans(4, mapping=mapping, random_state=0).fit(X, sample_weight=factor * weight)
    assert model.inertia_ == pytest.approx(
        brute_inertia(X, model.cluster_centers_, weight), rel=1e-12
    )
    assert scaled.inertia_ == pytest.approx(factor * model.inertia_, rel=1e-9)
    np.testing.assert_array_equal(scaled.labels_, model.labels_)


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
def test_row_27_the_weights_are_not_changed(kind):
    X, _ = blobs()
    weight = np.linspace(0, 3, len(X))
    given = kind(weight.copy())
    model = EntMeans(4, random_state=0).fit(X, sample_weight=given)
    model.score(X, sample_weight=given)
    np.testing.assert_array_equal(np.asarray(given), weight)


@each_mapping
@pytest.mark.parametrize("init", ["k-means++", "random"])
def test_row_27_a_weight_of_k_equals_k_copies_in_any_order(mapping, init):
    X, _ = blobs(80)
    rng = np.random.default_rng(0)
    weight = rng.integers(0, 4, len(X))
    copies = rng.permutation(np.repeat(X, weight, axis=0))
    for seed in range(3):
        arguments = {"mapping": mapping, "init": init, "n_init": 1, "random_state": seed}
        a = EntMeans(4, **arguments).fit(X, sample_weight=weight)
        b = EntMeans(4, **arguments).fit(copies)
        np.testing.assert_allclose(a.cluster_centers_, b.cluster_centers_, rtol=1e-9, atol=1e-12)
        assert a.inertia_ == pytest.approx(b.inertia_, rel=1e-12)


def test_row_28_a_new_estimator_with_centers_set_by_hand_predicts():
    model = EntMeans(2)
    model.cluster_centers_ = column(0, 4)
    X = column(1, 3)
    assert model.predict(X).tolist() == [0, 1]
    assert model.transform(X).tolist() == [[1, 3], [3, 1]]
    assert model.predict_proba(X).tolist() == [[1, 0], [0, 1]]
    assert model.score(X) == -2.0


def test_row_28_centers_changed_by_hand_are_used():
    X, _ = blobs()
    model = EntMeans(3, random_state=0).fit(X)
    model.cluster_centers_ = model.cluster_centers_[::-1].copy()
    np.testing.assert_array_equal(model.predict(X), 2 - model.labels_)


@each_mapping
@pytest.mark.parametrize("init", ["k-means++", "random"])
def test_row_29_random_state_decides_the_result(mapping, init):
    X = np.random.default_rng(0).standard_normal((200, 3))
    fits = [
        EntMeans(8, mapping=mapping, init=init, n_init=1, random_state=seed).fit(X)
        for seed in (0, 0, 1, 2, 3)
    ]
    np.testing.assert_array_equal(fits[0].cluster_centers_, fits[1].cluster_centers_)
    assert len({fit.inertia_ for fit in fits}) >= 3


def test_row_29_a_random_state_object_advances_from_fit_to_fit():
    X = np.random.default_rng(0).standard_normal((200, 3))
    state = np.random.RandomState(0)
    first, second = (EntMeans(8, random_state=state).fit(X).inertia_ for _ in range(2))
    again = EntMeans(8, random_state=np.random.RandomState(0)).fit(X).inertia_
    assert first == again != second


def test_row_29_without_random_state_fits_differ():
    X = np.random.default_rng(0).standard_normal((300, 3))
    assert len({EntMeans(20, max_iter=1).fit(X).inertia_ for _ in range(5)}) > 1


@pytest.mark.parametrize("init", ["k-means++", "random"])
def test_row_29_restarts_use_different_seeds(init, monkeypatch):
    seeds = []
    draw = entmeans.estimators.kmeans.SEEDING[init]

    def spy(*arguments, generator):
        seeds.append(generator.initial_seed())
        return draw(*arguments, generator=generator)

    monkeypatch.setitem(entmeans.estimators.kmeans.SEEDING, init, spy)
    EntMeans(3, init=init, n_init=7, random_state=0).fit(blobs()[0])
    assert len(seeds) == len(set(seeds)) == 7


# Memory, speed, processes: also in test_processes.py


def test_row_30_mean_inertia_never_grows_with_the_number_of_clusters():
    X = load_iris().data
    means = [
        np.mean([EntMeans(k, random_state=seed).fit(X).inertia_ for seed in range(4)])
        for k in range(1, 11)
    ]
    assert all(more <= fewer for fewer, more in itertools.pairwise(means))


def test_row_30_the_best_inertia_falls_to_0_at_one_cluster_per_distinct_row():
    X = np.random.default_rng(0).standard_normal((10, 2))
    best = [EntMeans(k, n_init=4, random_state=0).fit(X).inertia_ for k in range(1, 11)]
    assert best == sorted(best, reverse=True)
    assert best[-2] > best[-1] == 0


@few_rows
@pytest.mark.parametrize("verbose", [0, 1])
def test_row_34_nothing_is_printed_without_being_asked(verbose, capfd):
    X, _ = blobs()
    model = EntMeans(5, random_state=0, verbose=verbose, n_init=1).fit(X)
    model.predict(X)
    model.transform(X)
    model.predict_proba(X, 0.1)
    printed = capfd.readouterr()
    assert printed.err == ""
    assert printed.out.count("\n") == (model.n_iter_ if verbose else 0)
    if verbose:
        assert "temperature" in printed.out
        assert "inertia" in printed.out


def test_row_34_every_point_takes_part():
    X = np.random.default_rng(0).standard_normal((50_000, 2))
    model = EntMeans(1).fit(X)
    np.testing.assert_allclose(model.cluster_centers_[0], X.mean(0), rtol=1e-12, atol=1e-15)
    model = EntMeans(3, max_iter=3, random_state=0).fit(X)
    assert model.labels_.shape == (50_000,)
    centers = torch.from_numpy(model.cluster_centers_)
    found = entmeans.statistics(torch.from_numpy(X), centers, temperature=0.5)
    assert found.mass.sum().item() == pytest.approx(50_000, rel=1e-14)
