"""RBFNetworkClassifier and RBFNetworkRegressor beyond scikit-learn's own checks."""

import copy
import math
import pickle
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV, train_test_split

from entmeans import (
    EntMeans,
    RBFNetworkClassifier,
    RBFNetworkRegressor,
    anneal,
    free_energy,
    kmeans_plusplus,
    reference_temperature,
)
from entmeans.nn import RBFNetwork

BOTH = [RBFNetworkClassifier, RBFNetworkRegressor]
both = pytest.mark.parametrize("kind", BOTH, ids=lambda kind: kind.__name__)
each_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float64])
each_width = pytest.mark.parametrize("widths", ["shared", "per_center"])

PARAMETERS = {
    "n_centers": 10,
    "mapping": "entmax15",
    "widths": "shared",
    "normalized": True,
    "init": "k-means++",
    "clustering_weight": 0.1,
    "joint": True,
    "learning_rate": 0.05,
    "batch_size": "auto",
    "max_iter": 100,
    "early_stopping": False,
    "validation_fraction": 0.1,
    "n_iter_no_change": 10,
    "tol": 1e-4,
    "random_state": None,
    "verbose": 0,
    "device": None,
}


def blobs(n=90, seed=0, dtype=np.float64):
    """Three clusters in the plane, and the number of the cluster."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 3
    X = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]])[y] + rng.standard_normal((n, 2))
    return X.astype(dtype), y


def quick(kind, **parameters):
    return kind(**{"n_centers": 4, "max_iter": 20, "random_state": 0} | parameters)


def outputs(model, X):
    return model.predict_proba(X) if hasattr(model, "predict_proba") else model.predict(X)


# What it is for


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    return train_test_split(X, y, train_size=0.6, random_state=0, stratify=y)


def test_on_digits_ten_joint_centers_beat_ten_of_two_stages(digits):
    train, test, y, y_test = digits
    options = {"n_centers": 10, "max_iter": 60, "random_state": 0}
    two = RBFNetworkClassifier(joint=False, **options).fit(train, y).score(test, y_test)
    joint = RBFNetworkClassifier(**options).fit(train, y).score(test, y_test)
    assert two > 0.75
    assert joint > 0.92
    assert joint > two + 0.05


@pytest.mark.parametrize("mapping", ["entmax15", "softmax", "sparsemax"])
@pytest.mark.parametrize("normalized", [True, False])
@each_width
def test_every_kind_of_unit_learns_both_tasks(mapping, normalized, widths):
    options = {"mapping": mapping, "normalized": normalized, "widths": widths, "max_iter": 60}
    X, y = blobs()
    new, truth = blobs(seed=1)
    assert quick(RBFNetworkClassifier, **options).fit(X, y).score(new, truth) > 0.9
    target = np.sin(X[:, 0]) + X[:, 1]
    model = quick(RBFNetworkRegressor, n_centers=8, **options).fit(X, target)
    assert model.score(X, target) > 0.8


def test_data_that_are_not_standardized_are_learned():
    X, y = load_breast_cancer(return_X_y=True)
    X, new, y, truth = train_test_split(X, y, train_size=0.6, random_state=0)
    assert RBFNetworkClassifier(max_iter=40, random_state=0).fit(X, y).score(new, truth) > 0.88


def test_the_clustering_loss_keeps_centers_in_clusters():
    X, y = blobs()
    y = y[np.random.default_rng(0).permutation(len(y))]  # classes that clusters say nothing about
    energies = []
    for weight in (0.0, 3.0):
        model = quick(RBFNetworkClassifier, clustering_weight=weight, max_iter=100).fit(X, y)
        energies.append(-EntMeans.from_centers(model.cluster_centers_).score(X))
    assert energies[1] < energies[0]


@pytest.mark.parametrize("init", ["k-means++", "anneal"])
def test_the_first_loss_is_that_of_no_knowledge_and_the_weighted_free_energy(init):
    X, y = blobs(1200)  # six batches: each counts by its points
    options = {"init": init, "max_iter": 1, "learning_rate": 1e-12, "clustering_weight": 2.0}
    model = quick(RBFNetworkClassifier, **options).fit(X, y)
    points, centers = torch.from_numpy(X), torch.from_numpy(model.cluster_centers_)
    temperature = 2 * reference_temperature(points, centers)
    energy = free_energy(points, centers, temperature).item()
    wanted = math.log(3) + 2.0 * energy / temperature
    assert model.loss_curve_[0] == pytest.approx(wanted, rel=1e-6)
    assert 2 * model.widths_**2 == pytest.approx(temperature, rel=1e-6)


def test_the_learning_rate_falls_to_zero(monkeypatch):
    made = []
    build = RBFNetworkClassifier._optimizer

    def optimizer(self, network, samples):
        made.append(build(self, network, samples))
        return made[-1]

    monkeypatch.setattr(RBFNetworkClassifier, "_optimizer", optimizer)
    X, y = blobs()
    quick(RBFNetworkClassifier, max_iter=5).fit(X, y)
    assert [group["lr"] for group in made[0].param_groups] == [0.0] * 3


@both
@each_width
def test_a_fit_in_one_dtype_serves_the_other(kind, widths):
    X, y = blobs()
    for of_fit, other in ((np.float32, np.float64), (np.float64, np.float32)):
        model = quick(kind, widths=widths).fit(X.astype(of_fit), y)
        found, wanted = (outputs(model, X.astype(dtype)) for dtype in (other, of_fit))
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
        assert model.score(X.astype(other), y) > 0.8


@both
def test_a_score_looks_at_the_names_of_features(kind):
    X, y = blobs()
    for frame in (pd.DataFrame(X, columns=["a", "b"]), pl.DataFrame(X, schema=["a", "b"])):
        model = quick(kind).fit(frame, y)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert model.score(frame, y) == pytest.approx(quick(kind).fit(X, y).score(X, y))
        with pytest.raises(ValueError, match="feature names should match"):
            model.score(frame[["b", "a"]], y)


@pytest.mark.parametrize(
    ("scale", "dtype"),
    [(1e200, np.float64), (1e40, np.float32), (1e-40, np.float32), (1e-310, np.float64)],
)
def test_targets_out_of_range_are_refused(scale, dtype):
    X, y = blobs(dtype=dtype)
    with pytest.raises(ValueError, match="y holds"):
        RBFNetworkRegressor().fit(X, y * scale)


@pytest.mark.parametrize(
    ("scale", "dtype"), [(1e30, np.float32), (1e-30, np.float32), (1e-150, np.float64)]
)
def test_targets_of_all_other_scales_are_learned(scale, dtype):
    X, y = blobs(dtype=dtype)
    one, other = (quick(RBFNetworkRegressor).fit(X, y * s).score(X, y * s) for s in (1.0, scale))
    assert other == pytest.approx(one, abs=1e-2)


# Parameters


@both
def test_defaults_are_the_documented_ones(kind):
    assert kind().get_params() == PARAMETERS


@both
def test_the_constructor_stores_what_it_is_given_by_keyword(kind):
    values = {name: object() for name in PARAMETERS}
    assert vars(kind(**values)) == values
    with pytest.raises(TypeError, match="positional"):
        kind(3, "softmax")


BAD = [
    ("n_centers", 0),
    ("n_centers", 2.5),
    ("n_centers", True),
    ("mapping", "sofmax"),
    ("widths", "many"),
    ("widths", None),
    ("normalized", "yes"),
    ("init", "random"),
    ("init", None),
    ("init", EntMeans(4)),
    ("clustering_weight", -1.0),
    ("clustering_weight", math.nan),
    ("clustering_weight", math.inf),
    ("joint", None),
    ("learning_rate", 0),
    ("learning_rate", math.inf),
    ("batch_size", 0),
    ("batch_size", "all"),
    ("max_iter", 0),
    ("early_stopping", 1),
    ("validation_fraction", 0.0),
    ("validation_fraction", 1.0),
    ("n_iter_no_change", 0),
    ("tol", -1.0),
    ("random_state", "seed"),
    ("device", "abacus"),
]


@both
@pytest.mark.parametrize(("name", "value"), BAD, ids=str)
def test_a_bad_parameter_is_one_error_with_its_name_its_value_and_the_rule(kind, name, value):
    with pytest.raises(ValueError, match=name) as error:
        quick(kind, **{name: value}).fit(*blobs())
    message = str(error.value)
    assert repr(value) in message
    assert "must be" in message or "use one of" in message
    assert "\n" not in message


@both
@pytest.mark.parametrize("shape", [(3, 2), (4, 3), (4,)])
def test_first_centers_of_a_wrong_shape_are_an_error_with_both_shapes(kind, shape):
    with pytest.raises(
        ValueError, match=r"init must have shape \(n_centers, n_features\)"
    ) as error:
        quick(kind, init=np.zeros(shape)).fit(*blobs())
    assert str((4, 2)) in str(error.value)
    assert str(shape) in str(error.value)


def test_a_loss_that_is_not_finite_is_an_error_with_a_remedy():
    with pytest.raises(ValueError, match=r"loss became .* lower learning_rate"):
        quick(RBFNetworkRegressor, learning_rate=1e200, normalized=False).fit(*blobs())


@both
def test_bad_targets_are_an_error(kind):
    X, y = blobs()
    with pytest.raises(ValueError, match="y is None"):
        quick(kind).fit(X, None)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        quick(kind).fit(X, y[:-1])
    with pytest.raises(ValueError, match="y contains"):
        quick(kind).fit(X, np.where(y == 0, np.nan, y))


@both
def test_more_centers_than_samples_coincide(kind):
    X, y = blobs(n=6)
    model = quick(kind, n_centers=10, max_iter=100).fit(X, y)
    assert model.cluster_centers_.shape == (10, 2)
    assert model.score(X, y) > 0.8


# Invariances


@both
@each_width
@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("scale", [1e3, 1e-9, 1e60])
def test_the_scale_of_the_data_does_not_matter(kind, widths, joint, scale):
    X, y = blobs()
    options = {"widths": widths, "joint": joint, "batch_size": 32}
    model = quick(kind, **options).fit(X, y)
    scaled = quick(kind, **options).fit(X * scale, y)
    np.testing.assert_allclose(outputs(scaled, X * scale), outputs(model, X), atol=1e-9)
    np.testing.assert_allclose(scaled.cluster_centers_ / scale, model.cluster_centers_, atol=1e-9)
    np.testing.assert_allclose(np.divide(scaled.widths_, scale), model.widths_, rtol=1e-9)
    np.testing.assert_allclose(scaled.loss_curve_, model.loss_curve_, rtol=1e-9)


def test_the_scale_of_the_targets_does_not_matter():
    X, y = load_diabetes(return_X_y=True)
    model = quick(RBFNetworkRegressor).fit(X, y)
    scaled = quick(RBFNetworkRegressor).fit(X, 1e6 * y + 1e5)
    np.testing.assert_allclose(scaled.predict(X), 1e6 * model.predict(X) + 1e5, rtol=1e-9)


@both
@pytest.mark.parametrize("joint", [True, False])
def test_a_weight_of_k_equals_k_copies_and_0_none(kind, joint):
    X, y = blobs(n=60)
    weight = np.random.default_rng(0).integers(0, 4, len(X))
    X[weight == 0] += 100  # no center may go there
    copies = quick(kind, joint=joint).fit(np.repeat(X, weight, 0), np.repeat(y, weight))
    model = quick(kind, joint=joint).fit(X, y, weight)
    np.testing.assert_allclose(outputs(model, X), outputs(copies, X), atol=1e-9)
    np.testing.assert_allclose(model.cluster_centers_, copies.cluster_centers_, atol=1e-9)
    plain = quick(kind, joint=joint).fit(X, y)
    assert not np.allclose(outputs(model, X), outputs(plain, X), atol=1e-3)


@both
def test_weights_count_only_in_proportion(kind):
    X, y = blobs()
    weight = np.linspace(0.5, 1.5, len(X))
    one, other = (quick(kind, batch_size=32).fit(X, y, w) for w in (weight, 1e6 * weight))
    np.testing.assert_allclose(outputs(one, X), outputs(other, X), atol=1e-9)


@both
def test_a_seed_repeats_the_fit_and_leaves_the_global_generators_alone(kind):
    X, y = blobs()
    options = {"batch_size": 16, "early_stopping": True}
    first = quick(kind, **options).fit(X, y)
    np.random.seed(5)  # noqa: NPY002
    torch.manual_seed(5)
    states = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    second = quick(kind, **options).fit(X, y)
    assert torch.equal(torch.get_rng_state(), states[0])
    np.testing.assert_array_equal(np.random.get_state()[1], states[1])  # noqa: NPY002
    np.testing.assert_array_equal(outputs(first, X), outputs(second, X))
    other = quick(kind, random_state=1, **options).fit(X, y)
    assert not np.array_equal(outputs(first, X), outputs(other, X))


# Where centers start


@both
def test_in_two_stages_centers_and_widths_stay_as_they_were(kind):
    X, y = blobs()
    init = X[:4] * 1.1
    model = quick(kind, init=init, joint=False).fit(X, y)
    np.testing.assert_array_equal(model.cluster_centers_, init)
    assert quick(kind, init=init, joint=False, max_iter=1).fit(X, y).widths_ == model.widths_
    assert not np.allclose(quick(kind, init=init).fit(X, y).cluster_centers_, init)


@both
def test_the_centers_of_a_fitted_estimator_are_handed_over(kind):
    X, y = blobs()
    clusters = EntMeans(4, random_state=0).fit(X)
    model = quick(kind, init=clusters, joint=False).fit(X, y)
    np.testing.assert_array_equal(model.cluster_centers_, clusters.cluster_centers_)
    with pytest.raises(ValueError, match=r"init=.*fitted"):
        clone(model).fit(X, y)
    frozen = clone(quick(kind, init=FrozenEstimator(clusters), joint=False)).fit(X, y)
    np.testing.assert_array_equal(frozen.cluster_centers_, clusters.cluster_centers_)


def test_first_centers_can_be_annealed():
    X, y = blobs()
    seed = int(np.random.RandomState(0).randint(2**31 - 1))
    points = torch.from_numpy(X)
    drawn = kmeans_plusplus(points, 4, generator=torch.Generator().manual_seed(seed))
    for init, expected in (("k-means++", drawn), ("anneal", anneal(points, drawn).centers)):
        model = quick(RBFNetworkClassifier, init=init, joint=False).fit(X, y)
        np.testing.assert_allclose(model.cluster_centers_, expected, rtol=1e-12)


@both
def test_given_centers_are_not_changed(kind):
    X, y = blobs()
    init = X[:4].copy()
    quick(kind, init=init).fit(X, y)
    np.testing.assert_array_equal(init, X[:4])


# Training


@both
def test_early_stopping_ends_sooner_and_restores_the_best_network(kind):
    X, y = blobs(n=200)
    y = (y + np.random.default_rng(0).integers(0, 2, len(y))) % 3  # noise, to be overfitted
    options = {"early_stopping": True, "max_iter": 200, "n_iter_no_change": 3, "n_centers": 20}
    model = quick(kind, learning_rate=0.2, validation_fraction=0.3, **options).fit(X, y)
    scores = model.validation_scores_
    assert len(scores) == len(model.loss_curve_) == model.n_iter_ < 200
    assert model.best_validation_score_ == max(scores) > scores[-1]
    best = int(np.argmax(scores)) + 1
    stopped = kind(**model.get_params() | {"n_iter_no_change": best}).fit(X, y)
    assert stopped.validation_scores_[: len(scores)] == scores[: stopped.n_iter_]
    held = train_test_split(
        np.arange(200),
        test_size=0.3,
        random_state=np.random.RandomState(0),
        stratify=y if kind is RBFNetworkClassifier else None,
    )[1]
    assert model.score(X[held], y[held]) == pytest.approx(max(scores), abs=1e-12)


@both
def test_without_early_stopping_training_ends_where_the_loss_does(kind):
    X, y = blobs()
    model = quick(kind, tol=0.5, n_iter_no_change=2).fit(X, y)
    assert model.n_iter_ == len(model.loss_curve_) < 20
    assert model.validation_scores_ is model.best_validation_score_ is None
    curve = quick(kind, n_iter_no_change=20).fit(X, y).loss_curve_
    assert len(curve) == 20
    assert curve[-1] < curve[0]


def test_too_few_samples_to_hold_some_out_are_an_error():
    X, y = blobs(n=9)
    for kind in BOTH:
        with pytest.raises(ValueError, match=r"validation_fraction=0.1 of n_samples=9"):
            quick(kind, early_stopping=True).fit(X, y)


@both
@pytest.mark.parametrize("early_stopping", [True, False])
def test_verbose_prints_a_line_for_each_epoch(kind, early_stopping, capsys):
    options = {"early_stopping": early_stopping, "tol": 0.0, "n_iter_no_change": 50}
    quick(kind, max_iter=3, verbose=1, **options).fit(*blobs())
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["epoch 1", "epoch 2", "epoch 3"]
    assert all("loss" in line and ("validation" in line) == early_stopping for line in lines)
    quick(kind, max_iter=3).fit(*blobs())
    assert capsys.readouterr().out == ""


def test_large_data_are_trained_in_batches():
    X, y = blobs(n=300)
    one = quick(RBFNetworkClassifier, batch_size=300, max_iter=5).fit(X, y)
    more = quick(RBFNetworkClassifier, max_iter=5).fit(X, y)  # 200 and 100
    assert more.loss_curve_[-1] < one.loss_curve_[-1]


# Results


@both
@each_dtype
@each_width
def test_a_fit_sets_the_documented_attributes_in_the_dtype_of_the_data(kind, dtype, widths):
    X, y = blobs(dtype=dtype)
    model = quick(kind, widths=widths).fit(X, y)
    names = {name for name in vars(model) if name.endswith("_")}
    assert names - {"classes_"} == {
        "network_",
        "cluster_centers_",
        "widths_",
        "n_iter_",
        "loss_curve_",
        "validation_scores_",
        "best_validation_score_",
        "n_features_in_",
    }
    assert model.cluster_centers_.dtype == outputs(model, X).dtype == dtype
    assert {p.dtype for p in model.network_.parameters()} == {torch.from_numpy(X).dtype}
    assert np.shape(model.widths_) == (() if widths == "shared" else (4,))
    assert np.all(np.asarray(model.widths_) > 0)
    assert isinstance(model.network_, RBFNetwork)
    assert not model.network_.training


@both
@each_width
def test_the_network_takes_points_in_the_units_of_the_data(kind, widths):
    X, y = blobs()
    X, y = X * 50 + 7, y * 100
    model = quick(kind, widths=widths).fit(X, y)
    with torch.no_grad():
        raw = model.network_(torch.from_numpy(X))
    if kind is RBFNetworkClassifier:
        np.testing.assert_allclose(model.predict_proba(X), raw.softmax(1), rtol=1e-12)
        np.testing.assert_array_equal(model.predict(X), model.classes_[raw.argmax(1)])
    else:
        np.testing.assert_allclose(model.predict(X), raw[:, 0], rtol=1e-12)
    np.testing.assert_array_equal(model.network_.clusters.centers.detach(), model.cluster_centers_)
    np.testing.assert_allclose(model.network_.widths.detach(), model.widths_, rtol=1e-12)


@pytest.mark.parametrize(
    "names", [["ant", "bee", "cow"], [7, -1, 3], [0.5, 1.5, 2.0], [10**6, 1, 0]], ids=str
)
def test_classes_may_be_named_in_any_way(names):
    X, y = blobs()
    labels = np.array(names, dtype=object if isinstance(names[0], str) else None)[y]
    if isinstance(names[0], float):
        with pytest.raises(ValueError, match="continuous"):
            quick(RBFNetworkClassifier).fit(X, labels)
        return
    model = quick(RBFNetworkClassifier, max_iter=60).fit(X, labels)
    assert model.classes_.tolist() == sorted(names)
    assert model.score(X, labels) > 0.9
    assert set(model.predict(X)) == set(names)
    proba = model.predict_proba(X)
    np.testing.assert_allclose(proba.sum(1), 1)
    np.testing.assert_array_equal(model.classes_[proba.argmax(1)], model.predict(X))


def test_several_outputs_are_learned_each_in_its_own_scale():
    X, _ = blobs()
    Y = np.c_[X[:, 0], 1e4 * X[:, 1] - 1e5]
    model = quick(RBFNetworkRegressor, n_centers=8, max_iter=100).fit(X, Y)
    assert model.predict(X).shape == Y.shape
    residual = ((model.predict(X) - Y) ** 2).mean(0) / Y.var(0)
    assert residual.max() < 0.2
    assert quick(RBFNetworkRegressor).fit(X, Y[:, :1]).predict(X).shape == (90, 1)


def test_a_target_that_never_changes_is_predicted():
    X, _ = blobs()
    np.testing.assert_allclose(quick(RBFNetworkRegressor).fit(X, X[:, 0] * 0 + 3).predict(X), 3)


# Kinds of data


@both
@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_frames_give_the_fit_of_the_array(kind, frame):
    X, y = blobs()
    columns = {"a": X[:, 0], "b": X[:, 1]}
    model = quick(kind).fit(frame(columns), pd.Series(y) if frame is pd.DataFrame else pl.Series(y))
    np.testing.assert_array_equal(outputs(model, frame(columns)), outputs(quick(kind).fit(X, y), X))
    assert model.feature_names_in_.tolist() == ["a", "b"]
    assert isinstance(model.predict(frame(columns)), np.ndarray)


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_tensors_give_tensors(kind, dtype):
    X, y = (torch.from_numpy(v) for v in blobs())
    X = X.to(dtype)
    kept = torch.float32 if dtype == torch.bfloat16 else dtype
    model = quick(kind).fit(X, y, torch.ones(len(X)))
    assert model.cluster_centers_.dtype == outputs(model, X).dtype == kept
    assert isinstance(model.predict(X), torch.Tensor)
    assert model.predict(X).dtype == (kept if kind is RBFNetworkRegressor else y.dtype)
    expected = quick(kind).fit(X.to(kept).numpy(), y.numpy())
    np.testing.assert_array_equal(outputs(model, X), outputs(expected, X.to(kept).numpy()))
    assert model.score(X, y) == expected.score(X.to(kept).numpy(), y.numpy())
    assert isinstance(model.predict(X.to(kept).numpy()), np.ndarray)


def test_names_of_classes_are_an_array_for_tensors_too():
    X, y = blobs()
    model = quick(RBFNetworkClassifier).fit(torch.from_numpy(X), np.array(["a", "b", "c"])[y])
    assert isinstance(model.predict(torch.from_numpy(X)), np.ndarray)
    assert isinstance(model.predict_proba(torch.from_numpy(X)), torch.Tensor)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@both
def test_on_a_gpu_the_fit_is_that_of_the_cpu(kind):
    X, y = blobs()
    expected = quick(kind).fit(X, y)
    model = quick(kind, device="cuda").fit(X, y)
    assert model.network_.clusters.centers.is_cuda
    np.testing.assert_allclose(outputs(model, X), outputs(expected, X), atol=1e-6)
    tensor = torch.from_numpy(X).cuda()
    model = quick(kind).fit(tensor, torch.from_numpy(y).cuda())
    assert model.predict(tensor).is_cuda
    assert model.cluster_centers_.is_cuda
    assert model.score(tensor, torch.from_numpy(y).cuda()) == pytest.approx(expected.score(X, y))


# Use with scikit-learn


@both
@pytest.mark.parametrize("copier", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_and_pickles_are_the_same_model(kind, copier):
    X, y = blobs()
    model = quick(kind, widths="per_center").fit(X, y)
    other = copier(model)
    np.testing.assert_array_equal(outputs(other, X), outputs(model, X))
    assert other.get_params() == model.get_params()
    assert not hasattr(clone(model), "network_")


def test_grid_search_finds_how_many_centers_are_needed():
    X, y = load_iris(return_X_y=True)
    grid = {"n_centers": [1, 6]}
    model = quick(RBFNetworkClassifier, max_iter=40)
    search = GridSearchCV(model, grid, cv=3, error_score="raise").fit(X, y)
    assert search.best_params_ == {"n_centers": 6}
    assert search.best_score_ > 0.85
