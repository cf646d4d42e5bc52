"""The contract of EntMeans beyond scikit-learn's own checks."""

import copy
import itertools
import math
import pickle
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from scipy.spatial.distance import cdist
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.metrics import adjusted_rand_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import entmeans
from entmeans import EntMeans, StopReason

MAPPINGS = ["softmax", "entmax15", "sparsemax", "hard"]
SOFT = MAPPINGS[:3]
each_mapping = pytest.mark.parametrize("mapping", MAPPINGS)
each_soft_mapping = pytest.mark.parametrize("mapping", SOFT)
each_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float64])

PARAMETERS = {
    "n_clusters": 8,
    "mapping": "entmax15",
    "temperature": "auto",
    "final_temperature": 0.0,
    "cooling": "geometric",
    "init": "k-means++",
    "n_init": "auto",
    "max_iter": 300,
    "tol": 1e-4,
    "random_state": None,
    "verbose": 0,
}


@pytest.fixture(scope="module")
def iris():
    return load_iris().data


@pytest.fixture(scope="module")
def fitted(iris):
    return EntMeans(3, random_state=0).fit(iris)


@pytest.fixture(scope="module")
def cloud():
    """Points without clusters, where fits from different starts differ."""
    return np.random.default_rng(0).standard_normal((300, 3))


def tensors(*arrays):
    return [torch.from_numpy(np.asarray(a)) for a in arrays]


def one_hot(labels, k, dtype=float):
    return np.eye(k, dtype=dtype)[np.asarray(labels)]


# Parameters


def test_defaults_are_the_documented_ones():
    assert EntMeans().get_params() == PARAMETERS


def test_all_parameters_but_the_first_are_keywords():
    with pytest.raises(TypeError, match="positional"):
        EntMeans(3, "softmax")


def test_shared_parameters_have_the_defaults_of_kmeans():
    theirs = KMeans().get_params()
    shared = PARAMETERS.keys() & theirs.keys()
    assert shared == set(PARAMETERS) - {"mapping", "temperature", "final_temperature", "cooling"}
    assert {name: theirs[name] for name in shared} == {name: PARAMETERS[name] for name in shared}


def test_the_constructor_stores_what_it_is_given():
    values = {name: object() for name in PARAMETERS}
    assert vars(EntMeans(**values)) == values
    assert EntMeans().set_params(**values).get_params() == values


BAD = [
    ("n_clusters", 0),
    ("n_clusters", -1),
    ("n_clusters", 2.5),
    ("n_clusters", "3"),
    ("n_clusters", None),
    ("n_clusters", True),
    ("mapping", "sofmax"),
    ("mapping", 3),
    ("mapping", None),
    ("temperature", -1.0),
    ("temperature", math.nan),
    ("temperature", "hot"),
    ("temperature", None),
    ("temperature", np.array([1.0, 2.0])),
    ("final_temperature", -1.0),
    ("final_temperature", math.nan),
    ("final_temperature", "auto"),
    ("cooling", "fast"),
    ("cooling", 0.9),
    ("cooling", None),
    ("init", "kmeans"),
    ("init", None),
    ("n_init", 0),
    ("n_init", 1.5),
    ("n_init", "many"),
    ("n_init", None),
    ("max_iter", 0),
    ("max_iter", 1.5),
    ("max_iter", None),
    ("tol", -1e-9),
    ("tol", math.nan),
    ("tol", "small"),
    ("random_state", "seed"),
    ("random_state", -1),
]


@pytest.mark.parametrize(("name", "value"), BAD, ids=str)
def test_a_bad_parameter_is_one_error_with_its_name_its_value_and_the_rule(name, value, iris):
    with pytest.raises(ValueError, match=name) as error:
        EntMeans(**{"n_clusters": 3, name: value}).fit(iris)
    message = str(error.value)
    assert repr(value) in message
    assert "must be" in message or "use one of" in message
    assert "\n" not in message


GOOD = [
    ("n_clusters", np.int64(3)),
    ("temperature", np.float32(0.5)),
    ("temperature", 1),
    ("temperature", 1e30),
    ("final_temperature", np.float64(0.0)),
    ("n_init", np.int32(2)),
    ("max_iter", np.int64(5)),
    ("tol", 0),
    ("tol", np.float32(1e-4)),
    ("random_state", np.int64(0)),
    ("mapping", entmeans.MAPPINGS["softmax"]),
    ("cooling", entmeans.Linear(steps=3)),
]


@pytest.mark.parametrize(("name", "value"), GOOD, ids=str)
def test_numbers_of_numpy_and_objects_are_accepted(name, value, iris):
    model = EntMeans(**{"n_clusters": 3, "random_state": 0, name: value}).fit(iris)
    assert model.cluster_centers_.shape == (3, 4)


@pytest.mark.parametrize("shape", [(2, 4), (4, 4), (3, 3), (3,), (1, 3, 4)])
def test_initial_centers_of_a_wrong_shape_are_an_error_with_both_shapes(shape, iris):
    with pytest.raises(ValueError, match="init") as error:
        EntMeans(3, init=np.zeros(shape)).fit(iris)
    assert str((3, 4)) in str(error.value)
    assert str(shape) in str(error.value)


def test_initial_centers_that_are_not_finite_are_an_error_with_row_and_column(iris):
    init = iris[:3].copy()
    init[1, 2] = np.nan
    with pytest.raises(ValueError, match=r"init contains NaN or infinity.*row 1, column 2"):
        EntMeans(3, init=init).fit(iris)


BAD_WEIGHTS = {
    "negative": np.r_[-1.0, np.ones(149)],
    "NaN": np.r_[np.nan, np.ones(149)],
    "infinite": np.r_[np.inf, np.ones(149)],
    "all zero": np.zeros(150),
    "too few": np.ones(149),
    "a matrix": np.ones((150, 1)),
}


@pytest.mark.parametrize("method", ["fit", "fit_predict", "fit_transform", "score"])
@pytest.mark.parametrize("weight", BAD_WEIGHTS.values(), ids=BAD_WEIGHTS)
def test_bad_weights_are_an_error_that_names_them(method, weight, iris):
    model = EntMeans.from_centers(iris[:3])
    for kind in (np.asarray, torch.from_numpy):
        with pytest.raises(ValueError, match="sample_weight must"):
            getattr(model, method)(iris, sample_weight=kind(weight))


# Data


@each_dtype
@pytest.mark.parametrize("sign", [1, -1])
def test_values_whose_squares_overflow_are_an_error_with_a_remedy(dtype, sign, iris):
    X = iris.astype(dtype)
    X[7, 1] = sign * np.finfo(dtype).max / 100
    for call in (EntMeans(3).fit, EntMeans.from_centers(iris[:3]).predict):
        with pytest.raises(ValueError, match=r"squared distances overflow.*scale them"):
            call(X)


@each_dtype
def test_the_largest_values_that_do_not_overflow_are_clustered(dtype, iris):
    labels = EntMeans(3, random_state=0).fit(iris.astype(dtype)).labels_
    X = iris.astype(dtype) / 8
    X *= dtype(np.sqrt(np.finfo(dtype).max) / 16)
    model = EntMeans(3, random_state=0).fit(X)
    assert np.isfinite([model.inertia_, model.history_[0].free_energy]).all()
    assert adjusted_rand_score(model.labels_, labels) == 1.0


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (torch.zeros(5), "2D"),
        (torch.zeros(5, 2, 2), "2D"),
        (torch.zeros(0, 2), "empty"),
        (torch.zeros(5, 0), "empty"),
        (torch.zeros(5, 2, dtype=torch.complex64), "Complex"),
    ],
)
def test_tensors_are_checked_like_arrays(X, message):
    with pytest.raises(ValueError, match=message):
        EntMeans(2).fit(X)


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
@pytest.mark.parametrize("method", ["predict", "transform", "predict_proba", "score"])
def test_another_number_of_features_is_an_error_with_both_numbers(method, kind, fitted):
    with pytest.raises(ValueError, match=r"3 features.*4 features"):
        getattr(fitted, method)(kind(np.zeros((5, 3))))


@pytest.mark.parametrize("method", ["predict", "transform", "predict_proba", "score"])
def test_an_estimator_without_centers_says_so(method, iris):
    for X in (iris, torch.from_numpy(iris)):
        with pytest.raises(NotFittedError, match="not fitted"):
            getattr(EntMeans(3), method)(X)


def frame_of(kind, X):
    names = ["a", "b", "c", "d"]
    return pd.DataFrame(X, columns=names) if kind == "pandas" else pl.DataFrame(X, schema=names)


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_frames_give_the_fit_of_the_array_and_keep_its_names(kind, iris, fitted):
    frame = frame_of(kind, iris)
    model = EntMeans(3, random_state=0).fit(frame)
    np.testing.assert_array_equal(model.cluster_centers_, fitted.cluster_centers_)
    np.testing.assert_array_equal(model.predict(frame), fitted.labels_)
    np.testing.assert_array_equal(model.transform(frame), fitted.transform(iris))
    assert model.feature_names_in_.tolist() == ["a", "b", "c", "d"]
    assert model.n_features_in_ == 4
    assert isinstance(model.labels_, np.ndarray)


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_columns_in_another_order_or_by_another_name_are_an_error(kind, iris):
    frame = frame_of(kind, iris)
    model = EntMeans(3, random_state=0).fit(frame)
    with pytest.raises(ValueError, match="same order"):
        model.predict(frame[["b", "a", "c", "d"]])
    renamed = frame.rename({"a": "z"}) if kind == "polars" else frame.rename(columns={"a": "z"})
    with pytest.raises(ValueError, match="names unseen at fit time"):
        model.predict(renamed)
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        model.predict(iris)


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
def test_a_new_fit_forgets_the_names_of_the_last(kind, iris):
    model = EntMeans(3, random_state=0).fit(frame_of("pandas", iris))
    model.fit(kind(iris[:, :2]))
    assert not hasattr(model, "feature_names_in_")
    assert model.n_features_in_ == 2


def test_y_is_ignored(iris, fitted):
    y = load_iris().target
    assert EntMeans(3, random_state=0).fit(iris, y).inertia_ == fitted.inertia_
    assert fitted.score(iris, y) == fitted.score(iris)


def test_weights_take_the_third_place_as_in_kmeans(iris):
    weight = np.linspace(0, 1, 150)
    by_name = EntMeans(3, random_state=0).fit(iris, sample_weight=weight)
    by_place = EntMeans(3, random_state=0).fit(iris, None, weight)
    assert by_place.inertia_ == by_name.inertia_
    assert by_place.score(iris, None, weight) == -by_name.inertia_


@pytest.mark.parametrize("kind", [list, pd.Series, pl.Series, torch.from_numpy, np.float32])
def test_weights_may_be_anything_like_an_array(kind, iris):
    weight = np.arange(150) % 4.0
    expected = EntMeans(3, random_state=0).fit(iris, sample_weight=weight)
    model = EntMeans(3, random_state=0).fit(iris, sample_weight=kind(weight))
    np.testing.assert_array_equal(model.cluster_centers_, expected.cluster_centers_)
    assert model.score(iris, sample_weight=kind(weight)) == -expected.inertia_


def test_weights_count_in_every_method_that_takes_them(iris):
    weight = np.arange(150) % 3
    copies = np.repeat(iris, weight, axis=0)
    model = EntMeans(3, random_state=0)
    labels = model.fit_predict(copies)
    weighted = EntMeans(3, random_state=0).fit_predict(iris, sample_weight=weight)
    np.testing.assert_array_equal(np.repeat(weighted, weight), labels)
    distances = EntMeans(3, random_state=0).fit_transform(iris, sample_weight=weight)
    np.testing.assert_allclose(np.repeat(distances, weight, axis=0), model.transform(copies))
    assert model.score(iris, sample_weight=weight) == pytest.approx(model.score(copies))


# Attributes and results


def test_a_fit_sets_the_documented_attributes_and_no_others(iris, fitted):
    names = {name for name in vars(fitted) if name.endswith("_") and not name.startswith("_")}
    assert names == {
        "cluster_centers_",
        "labels_",
        "inertia_",
        "n_iter_",
        "n_features_in_",
        "hardening_temperature_",
        "stop_reason_",
        "history_",
    }
    assert fitted.cluster_centers_.shape == (3, 4)
    assert fitted.labels_.shape == (150,)
    assert np.issubdtype(fitted.labels_.dtype, np.integer)
    assert type(fitted.inertia_) is type(fitted.hardening_temperature_) is float
    assert fitted.n_iter_ == len(fitted.history_)
    assert fitted.stop_reason_ is StopReason.CONVERGED
    assert fitted.get_params() == PARAMETERS | {"n_clusters": 3, "random_state": 0}


def test_the_default_fit_finds_the_known_minimum_of_iris(fitted):
    assert fitted.inertia_ == pytest.approx(78.851441, abs=1e-6)


@each_mapping
def test_hardening_temperature_is_that_of_the_centers(mapping, iris):
    model = EntMeans(3, mapping=mapping, random_state=0).fit(iris)
    distances = np.sort(cdist(iris, model.cluster_centers_, "sqeuclidean"), axis=1)
    margin = (distances[:, 1] - distances[:, 0]).min()
    expected = {"softmax": 0, "entmax15": margin / 2, "sparsemax": margin, "hard": math.inf}
    assert model.hardening_temperature_ == pytest.approx(expected[mapping], rel=1e-9)


@pytest.mark.parametrize("mapping", ["entmax15", "sparsemax", "hard"])
def test_one_cluster_is_hard_at_every_temperature(mapping, iris):
    assert EntMeans(1, mapping=mapping).fit(iris).hardening_temperature_ == math.inf


def test_transform_gives_distances_and_score_minus_the_inertia(iris, fitted):
    exact = cdist(iris, fitted.cluster_centers_)
    np.testing.assert_allclose(fitted.transform(iris), exact, rtol=1e-12)
    assert fitted.score(iris) == pytest.approx(-(exact.min(1) ** 2).sum(), rel=1e-12)
    np.testing.assert_array_equal(fitted.predict(iris), exact.argmin(1))
    new = EntMeans(3, random_state=0).fit_transform(iris)
    np.testing.assert_array_equal(new, fitted.transform(iris))


@each_mapping
@pytest.mark.parametrize("scale", [1e3, 1e-6])
def test_scaling_the_data_changes_no_label(mapping, scale, cloud):
    model = EntMeans(6, mapping=mapping, random_state=0).fit(cloud)
    scaled = EntMeans(6, mapping=mapping, random_state=0).fit(cloud * scale)
    np.testing.assert_array_equal(scaled.labels_, model.labels_)
    assert scaled.inertia_ == pytest.approx(scale**2 * model.inertia_, rel=1e-9)
    shares = [[step.hard_share for step in m.history_] for m in (scaled, model)]
    assert shares[0] == pytest.approx(shares[1], rel=1e-12)


@each_mapping
def test_moving_the_data_changes_no_label(mapping, cloud):
    model = EntMeans(6, mapping=mapping, random_state=0).fit(cloud)
    moved = EntMeans(6, mapping=mapping, random_state=0).fit(cloud + np.array([1e3, -1e3, 0]))
    np.testing.assert_array_equal(moved.labels_, model.labels_)


# The history


@each_mapping
def test_the_history_tells_how_clusters_freeze(mapping, iris):
    seen = []
    model = EntMeans(3, mapping=mapping, random_state=0, tol=0)
    model._fit(iris, on_step=seen.append)
    history = model.history_
    assert seen == history
    assert history[0]._fields == ("temperature", "free_energy", "inertia", "shift", "hard_share")
    temperatures = [step.temperature for step in history]
    assert temperatures == sorted(temperatures, reverse=True)
    assert temperatures[-1] == 0
    assert history[-1].hard_share == 1
    assert history[-1].inertia == history[-1].free_energy
    assert history[-1].inertia == pytest.approx(model.inertia_, rel=1e-14)  # in another order
    assert history[-1].shift == 0
    for step in history:
        assert step.free_energy <= step.inertia * (1 + 1e-12)
        assert 0 <= step.hard_share <= 1


def test_the_history_starts_at_the_reference_temperature_of_the_initial_centers(iris):
    init = iris[[0, 60, 120]]
    model = EntMeans(3, init=init).fit(iris)
    first = model.history_[0]
    points, centers = tensors(iris, init)
    assert first.temperature == entmeans.reference_temperature(points, centers)
    assert first.inertia == pytest.approx(entmeans.inertia(points, centers).item(), rel=1e-14)
    energy = entmeans.free_energy(points, centers, first.temperature, reduction="sum")
    assert first.free_energy == pytest.approx(energy.item(), rel=1e-14)
    moved = entmeans.statistics(points, centers, first.temperature).centers(centers)
    shift = (moved - centers).norm(dim=1).max().item()
    assert first.shift == pytest.approx(shift, rel=1e-12)
    p = entmeans.responsibilities(points, centers, first.temperature)
    assert first.hard_share == pytest.approx((p == 1).any(1).double().mean().item(), rel=1e-14)


@each_mapping
def test_free_energy_never_rises_while_the_temperature_stays(mapping, cloud):
    model = EntMeans(
        6, mapping=mapping, temperature=0.3, final_temperature=0.3, random_state=0, tol=1e-12
    ).fit(cloud)
    energies = [step.free_energy for step in model.history_]
    slack = 1e-13 * abs(energies[0])
    assert all(later <= sooner + slack for sooner, later in itertools.pairwise(energies))
    assert energies[-1] < energies[0]


def test_a_fit_at_temperature_0_is_hard_from_the_first_step(iris):
    model = EntMeans(3, temperature=0, random_state=0).fit(iris)
    assert {step.temperature for step in model.history_} == {0.0}
    assert {step.hard_share for step in model.history_} == {1.0}


# Temperatures


@each_dtype
@pytest.mark.parametrize("k", [2, 3, 8])
def test_up_to_the_hardening_temperature_responsibilities_are_the_labels(k, dtype, cloud):
    X = cloud.astype(dtype)
    model = EntMeans(k, random_state=0).fit(X)
    limit = model.hardening_temperature_
    assert limit > 0
    expected = one_hot(model.predict(X), k, dtype)
    for temperature in (0.0, 1e-30, 0.5 * limit, limit):
        np.testing.assert_array_equal(model.predict_proba(X, temperature), expected)
    above = model.predict_proba(X, 1.001 * limit)
    assert ((above > 0).sum(1) > 1).sum() == 1  # the row with the smallest margin
    np.testing.assert_array_equal(above.argmax(1), model.labels_)


@each_mapping
def test_predict_proba_at_a_temperature_is_the_network(mapping, iris):
    model = EntMeans(3, mapping=mapping, random_state=0).fit(iris)
    points, centers = tensors(iris, model.cluster_centers_)
    for temperature in (0.01, 1.0, 1e6, math.inf):
        expected = entmeans.responsibilities(points, centers, temperature, mapping).numpy()
        found = model.predict_proba(iris, temperature)
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_allclose(found.sum(1), 1, rtol=1e-14)
    even = one_hot(model.labels_, 3) if mapping == "hard" else np.full((150, 3), 1 / 3)
    np.testing.assert_allclose(model.predict_proba(iris, math.inf), even, rtol=1e-15)
    np.testing.assert_array_equal(model.predict_proba(iris), one_hot(model.labels_, 3))


def test_softmax_responsibilities_are_the_normalized_gaussian_network(iris, fitted):
    model = EntMeans.from_centers(fitted.cluster_centers_, mapping="softmax")
    units = np.exp(-cdist(iris, fitted.cluster_centers_, "sqeuclidean") / 2.0)
    expected = units / units.sum(1, keepdims=True)
    np.testing.assert_allclose(model.predict_proba(iris, 2.0), expected, rtol=1e-10)


@each_soft_mapping
def test_a_final_temperature_ends_at_a_fixed_point_of_the_soft_step(mapping, cloud):
    lloyd = EntMeans(4, temperature=0, random_state=0, tol=0).fit(cloud)
    final = {"softmax": 0.1, "entmax15": 0.3, "sparsemax": 0.5}[mapping]
    model = EntMeans(
        4, mapping=mapping, final_temperature=final, temperature=final, tol=1e-18, max_iter=3_000
    )
    model.set_params(init=lloyd.cluster_centers_).fit(cloud)
    points, centers, hard = tensors(cloud, model.cluster_centers_, lloyd.cluster_centers_)
    assert model.stop_reason_ is StopReason.CONVERGED
    assert {step.temperature for step in model.history_} == {final}
    assert entmeans.is_fixed_point(points, centers, final, mapping)
    assert not entmeans.is_fixed_point(points, hard, final, mapping)
    soft_energy, hard_energy = (
        entmeans.free_energy(points, c, final, mapping) for c in (centers, hard)
    )
    assert soft_energy < hard_energy
    expected = entmeans.responsibilities(points, centers, final, mapping).numpy()
    np.testing.assert_array_equal(model.predict_proba(cloud), expected)
    assert ((expected > 0) & (expected < 1)).any()


def test_cooling_ends_at_the_final_temperature_and_comes_to_rest_there(cloud):
    model = EntMeans(4, temperature=3.0, final_temperature=0.3, random_state=0).fit(cloud)
    temperatures = [step.temperature for step in model.history_]
    assert temperatures[0] == 3.0
    assert temperatures == sorted(temperatures, reverse=True)
    assert temperatures[-1] == 0.3
    assert model.stop_reason_ is StopReason.CONVERGED


@each_soft_mapping
def test_far_above_the_critical_temperature_all_centers_are_the_mean(mapping, cloud):
    points = torch.from_numpy(cloud)
    critical = entmeans.critical_temperature(points, 4, mapping).item()
    model = EntMeans(4, mapping=mapping, temperature=100 * critical, random_state=0, tol=1e-12)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # equal centers share one label
        model.set_params(final_temperature=100 * critical).fit(cloud)
    np.testing.assert_allclose(model.cluster_centers_, [cloud.mean(0)] * 4, atol=1e-6)
    np.testing.assert_allclose(model.predict_proba(cloud), 1 / 4, atol=0.05)


@pytest.mark.parametrize(
    ("cooling", "factors"),
    [
        ("geometric", [entmeans.Geometric()(i) for i in range(entmeans.Geometric().steps)]),
        ("linear", [entmeans.Linear()(i) for i in range(entmeans.Linear().steps)]),
        (entmeans.Geometric(ratio=0.5, steps=3), [1, 0.5, 0.25]),
        (entmeans.Linear(steps=4), [1, 0.75, 0.5, 0.25]),
        (lambda step: 1 / (1 + step) if step < 5 else 0, [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5]),
    ],
)
def test_cooling_follows_the_schedule_and_then_lloyd(cooling, factors, iris):
    model = EntMeans(3, temperature=2.0, cooling=cooling, random_state=0).fit(iris)
    temperatures = [step.temperature for step in model.history_]
    n = len(factors)
    np.testing.assert_allclose(temperatures[:n], 2 * np.array(factors), rtol=1e-15)
    assert set(temperatures[n:]) == {0.0}
    assert model.stop_reason_ is StopReason.CONVERGED


def test_a_plateau_of_the_schedule_is_not_its_end(iris):
    model = EntMeans(3, cooling=lambda step: 1.0 if step < 60 else 0.0, temperature=1.0)
    model.set_params(init=iris[[0, 60, 120]]).fit(iris)
    assert [step.temperature for step in model.history_[:60]] == [1.0] * 60
    assert model.history_[-1].temperature == 0
    np.testing.assert_array_equal(model.predict_proba(iris), one_hot(model.labels_, 3))


def test_a_start_at_infinite_temperature_still_freezes_into_all_clusters(iris):
    model = EntMeans(3, temperature=math.inf, random_state=0).fit(iris)
    assert model.history_[0].temperature == math.inf
    assert model.history_[-1].temperature == 0
    assert len(set(model.labels_)) == 3


def test_a_schedule_that_never_reaches_0_still_ends_hard(iris):
    model = EntMeans(3, cooling=lambda step: 0.8**step, random_state=0).fit(iris)
    assert model.history_[-1].hard_share == 1
    assert model.history_[-1].shift == 0
    np.testing.assert_array_equal(
        model.predict_proba(iris, model.history_[-1].temperature), one_hot(model.labels_, 3)
    )


@pytest.mark.parametrize("bad", [math.nan, -1.0])
def test_a_schedule_that_leaves_its_range_is_an_error(bad, iris):
    with pytest.raises(ValueError, match="cooling"):
        EntMeans(3, cooling=lambda step: 1.0 if step < 2 else bad, random_state=0).fit(iris)


# Initial centers and restarts


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy, np.ndarray.tolist, pd.DataFrame])
def test_initial_centers_of_any_kind_are_used_and_not_changed(kind, iris):
    init = iris[[0, 60, 120]] + 0.01
    given = kind(init.copy())
    model = EntMeans(3, temperature=0, init=given, tol=0)
    peer = KMeans(3, init=init, n_init=1, tol=0).fit(iris)
    np.testing.assert_array_equal(model.fit(iris).labels_, peer.labels_)
    np.testing.assert_array_equal(np.asarray(given), init)
    assert model.init is given


@each_mapping
def test_a_callable_makes_the_initial_centers_of_each_start(mapping, iris):
    calls = []

    def init(X, n_clusters, random_state):
        calls.append((X, n_clusters))
        return X[random_state.permutation(len(X))[:n_clusters]]

    model = EntMeans(3, mapping=mapping, init=init, n_init=4, random_state=0).fit(iris)
    assert len(calls) == 4
    assert all(X is iris and k == 3 for X, k in calls)
    again = EntMeans(3, mapping=mapping, init=init, n_init=4, random_state=0).fit(iris)
    np.testing.assert_array_equal(again.cluster_centers_, model.cluster_centers_)


@pytest.mark.parametrize(
    ("made", "message"),
    [(np.zeros((2, 4)), r"init.*\(3, 4\).*\(2, 4\)"), (np.full((3, 4), np.nan), "init.*row 0")],
)
def test_a_callable_that_makes_bad_centers_is_an_error(made, message, iris):
    with pytest.raises(ValueError, match=message):
        EntMeans(3, init=lambda X, n_clusters, random_state: made).fit(iris)


@pytest.mark.parametrize("init", ["k-means++", "random"])
def test_seeding_draws_points_of_the_data(init, cloud):
    seen = []
    model = EntMeans(8, init=init, n_init=1, temperature=0, max_iter=1, random_state=0)
    model._fit(cloud, on_step=seen.append)
    draw = entmeans.estimators.kmeans.SEEDING[init]
    seed = int(np.random.RandomState(0).randint(2**31 - 1))
    generator = torch.Generator().manual_seed(seed)
    centers = draw(torch.from_numpy(cloud), 8, generator=generator)
    assert (cdist(centers, cloud).min(1) == 0).all()
    assert len(centers.unique(dim=0)) == 8
    inertia = entmeans.inertia(torch.from_numpy(cloud), centers).item()
    assert seen[0].inertia == pytest.approx(inertia, rel=1e-14)


@pytest.mark.parametrize(
    ("init", "starts"),
    [("k-means++", 1), ("random", 10), (lambda X, n_clusters, random_state: X[:n_clusters], 10)],
)
def test_auto_is_one_start_for_kmeans_plusplus_and_ten_otherwise(init, starts, iris):
    seen = []
    EntMeans(3, init=init, max_iter=1, random_state=0)._fit(iris, on_step=seen.append)
    assert len(seen) == starts


@each_mapping
@pytest.mark.parametrize("final_temperature", [0.0, 0.2])
def test_the_best_of_several_starts_is_kept(mapping, final_temperature, cloud):
    starts = []

    def init(X, n_clusters, random_state):
        starts.append(X[random_state.permutation(len(X))[:n_clusters]])
        return starts[-1]

    arguments = {"mapping": mapping, "temperature": 0.0, "final_temperature": final_temperature}
    model = EntMeans(6, init=init, n_init=5, random_state=0, **arguments).fit(cloud)
    alone = [EntMeans(6, init=start, **arguments).fit(cloud) for start in starts]
    points = torch.from_numpy(cloud)
    energies = [
        entmeans.free_energy(
            points, torch.from_numpy(one.cluster_centers_), final_temperature, mapping
        ).item()
        for one in alone
    ]
    assert len(set(energies)) > 1
    best = alone[int(np.argmin(energies))]
    np.testing.assert_array_equal(model.cluster_centers_, best.cluster_centers_)
    assert model.inertia_ == best.inertia_
    assert model.history_ == best.history_


def test_soft_starts_are_compared_by_free_energy_and_not_by_inertia(cloud):
    starts = np.stack([cloud[np.random.default_rng(i).permutation(300)[:6]] for i in range(5)])
    arguments = {"mapping": "softmax", "temperature": 0.0, "final_temperature": 0.8}
    alone = [EntMeans(6, init=start, **arguments).fit(cloud) for start in starts]
    points = torch.from_numpy(cloud)
    energies = [
        entmeans.free_energy(points, torch.from_numpy(m.cluster_centers_), 0.8, "softmax").item()
        for m in alone
    ]
    best = int(np.argmin(energies))
    assert best != np.argmin([m.inertia_ for m in alone])  # otherwise this tests nothing
    given = iter(starts)
    model = EntMeans(6, init=lambda *_, random_state: next(given), n_init=5, **arguments)
    np.testing.assert_array_equal(model.fit(cloud).cluster_centers_, alone[best].cluster_centers_)


@pytest.mark.filterwarnings("error")
def test_restarts_of_given_centers_are_a_warning_at_the_call(iris):
    with pytest.warns(RuntimeWarning, match="n_init=5 is not used") as caught:
        EntMeans(3, init=iris[:3], n_init=5).fit(iris)
    assert [w.filename for w in caught] == [__file__]
    EntMeans(3, init=iris[:3], n_init=1).fit(iris)
    EntMeans(3, init=iris[:3]).fit(iris)


def test_too_few_distinct_points_are_a_warning_at_the_call():
    with pytest.warns(ConvergenceWarning, match=r"\(2\).*\(3\)") as caught:
        EntMeans(3, random_state=0).fit([[0.0], [0.0], [1.0], [1.0]])
    assert [w.filename for w in caught] == [__file__]


def test_random_states_of_all_kinds_are_accepted(cloud):
    for state in (None, 0, np.random.RandomState(0), np.random.mtrand._rand):
        model = EntMeans(3, random_state=state).fit(cloud)
        assert model.random_state is state
    a, b = (
        EntMeans(8, random_state=state).fit(cloud).inertia_
        for state in (0, np.random.RandomState(0))
    )
    assert a == b


# Models made from centers


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy, np.ndarray.tolist, pd.DataFrame])
def test_from_centers_makes_a_fitted_model(kind, iris, fitted):
    model = EntMeans.from_centers(kind(fitted.cluster_centers_), final_temperature=0.5)
    assert model.n_clusters == 3
    assert model.n_features_in_ == 4
    assert model.final_temperature == 0.5
    with warnings.catch_warnings():
        if kind is pd.DataFrame:  # whose names the array lacks
            warnings.simplefilter("ignore", UserWarning)
        np.testing.assert_array_equal(model.predict(iris), fitted.labels_)
        np.testing.assert_array_equal(model.transform(iris), fitted.transform(iris))
        np.testing.assert_array_equal(model.predict_proba(iris), fitted.predict_proba(iris, 0.5))
        assert model.score(iris) == fitted.score(iris)


def test_from_centers_keeps_the_kind_and_dtype_of_the_centers(fitted):
    array = EntMeans.from_centers(fitted.cluster_centers_.astype(np.float32))
    tensor = EntMeans.from_centers(torch.from_numpy(fitted.cluster_centers_))
    assert array.cluster_centers_.dtype == np.float32
    assert isinstance(tensor.cluster_centers_, torch.Tensor)
    assert tensor.cluster_centers_.dtype == torch.float64


def test_from_centers_copies_them(iris):
    centers = iris[:3].copy()
    model = EntMeans.from_centers(centers)
    centers += 100
    np.testing.assert_array_equal(model.cluster_centers_, iris[:3])


def test_from_centers_keeps_the_names_of_the_features():
    model = EntMeans.from_centers(pd.DataFrame({"x": [0.0, 4.0], "y": [0.0, 1.0]}))
    assert model.feature_names_in_.tolist() == ["x", "y"]
    assert model.predict(pd.DataFrame({"x": [3.0], "y": [1.0]})).tolist() == [1]


@pytest.mark.parametrize(
    ("centers", "message"),
    [
        ([[0.0, np.nan]], "centers contains NaN or infinity.*row 0, column 1"),
        ([0.0, 1.0], "2D"),
        (torch.zeros(2), "2D"),
    ],
)
def test_from_centers_checks_the_centers(centers, message):
    with pytest.raises(ValueError, match=message):
        EntMeans.from_centers(centers)


def test_from_centers_can_be_fitted_again(iris):
    model = EntMeans.from_centers(iris[:5], random_state=0).fit(iris)
    assert model.cluster_centers_.shape == (5, 4)


# Use with scikit-learn


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
@pytest.mark.parametrize("copier", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_and_pickles_are_the_same_model(copier, kind, iris):
    X = kind(iris)
    model = EntMeans(3, cooling=entmeans.Linear(5), final_temperature=0.1, random_state=0).fit(X)
    other = copier(model)
    assert other.get_params() == model.get_params()
    assert other.history_ == model.history_
    assert other.stop_reason_ is model.stop_reason_
    assert type(other.cluster_centers_) is type(model.cluster_centers_)
    np.testing.assert_array_equal(np.asarray(other.predict_proba(X)), model.predict_proba(X))
    assert other.score(X) == model.score(X)


def test_a_clone_has_the_parameters_and_no_fit(fitted):
    other = clone(fitted)
    assert other.get_params() == fitted.get_params()
    assert not hasattr(other, "cluster_centers_")


@each_mapping
@pytest.mark.parametrize("copier", [clone, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_mapping_given_as_an_object_survives_copies(mapping, copier, iris):
    model = EntMeans(3, mapping=entmeans.MAPPINGS[mapping], temperature=1.0, random_state=0)
    expected = EntMeans(3, mapping=mapping, temperature=1.0, random_state=0).fit(iris)
    other = copier(model).fit(iris)
    np.testing.assert_array_equal(other.cluster_centers_, expected.cluster_centers_)
    assert other.hardening_temperature_ == expected.hardening_temperature_
    assert other.history_ == expected.history_


class Gini(type(entmeans.MAPPINGS["sparsemax"])):
    """A mapping of the user's own: sparsemax under another name."""

    name = "gini"


def test_a_mapping_of_the_user_serves_like_the_built_in_ones(iris):
    model = EntMeans(3, mapping=Gini(), random_state=0).fit(iris)
    expected = EntMeans(3, mapping="sparsemax", random_state=0).fit(iris)
    np.testing.assert_array_equal(model.cluster_centers_, expected.cluster_centers_)


def test_repr_shows_what_was_changed():
    assert repr(EntMeans(3, mapping="softmax")) == "EntMeans(mapping='softmax', n_clusters=3)"


@pytest.mark.parametrize(("output", "frame"), [("pandas", pd.DataFrame), ("polars", pl.DataFrame)])
def test_output_can_be_a_frame_with_a_column_for_each_cluster(output, frame, iris, fitted):
    model = EntMeans(3, random_state=0).set_output(transform=output)
    for table in (model.fit_transform(iris), model.transform(iris)):
        assert isinstance(table, frame)
        assert list(table.columns) == ["entmeans0", "entmeans1", "entmeans2"]
        np.testing.assert_array_equal(table.to_numpy(), fitted.transform(iris))
    assert isinstance(model.predict(iris), np.ndarray)


def test_output_names_are_those_of_the_class(fitted):
    assert fitted.get_feature_names_out().tolist() == ["entmeans0", "entmeans1", "entmeans2"]


def test_it_serves_as_the_last_step_and_as_a_step_of_a_pipeline(iris):
    pipeline = make_pipeline(StandardScaler(), EntMeans(3, random_state=0))
    labels = pipeline.fit_predict(iris)
    scaled = StandardScaler().fit_transform(iris)
    np.testing.assert_array_equal(labels, EntMeans(3, random_state=0).fit_predict(scaled))
    np.testing.assert_array_equal(pipeline.predict(iris), labels)
    np.testing.assert_array_equal(pipeline.predict_proba(iris), one_hot(labels, 3))
    before = make_pipeline(EntMeans(5, random_state=0), StandardScaler()).fit_transform(iris)
    assert before.shape == (150, 5)


def test_grid_search_compares_scores_on_held_out_points(iris):
    X = np.random.default_rng(0).permutation(iris)
    grid = {"n_clusters": [1, 2, 4], "mapping": ["entmax15", "softmax"]}
    search = GridSearchCV(EntMeans(random_state=0), grid, cv=3, error_score="raise").fit(X)
    assert search.best_params_["n_clusters"] == 4
    assert search.predict(X).shape == (150,)
    scores = search.cv_results_["mean_test_score"]
    assert np.isfinite(scores).all()
    assert (scores < 0).all()


@pytest.mark.parametrize("verbose", [1, 2, True])
def test_verbose_prints_a_line_for_each_step_of_each_start(verbose, iris, capsys):
    EntMeans(3, init="random", n_init=3, max_iter=2, verbose=verbose, random_state=0).fit(iris)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    assert all("temperature" in line and "hard" in line for line in lines)
