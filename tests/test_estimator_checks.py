"""scikit-learn's own conformance checks, all of them, with no expected failures."""

import numpy as np
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.utils.estimator_checks import check_estimator

from entmeans import EntMeans, RBFNetworkClassifier, RBFNetworkRegressor

ESTIMATORS = {
    "entmax15": EntMeans(),
    "softmax": EntMeans(mapping="softmax"),
    "sparsemax": EntMeans(mapping="sparsemax"),
    "hard": EntMeans(mapping="hard"),
    "lloyd": EntMeans(temperature=0),
    "classifier": RBFNetworkClassifier(),
    "classifier, gaussians": RBFNetworkClassifier(
        4, normalized=False, widths="per_center", init="anneal", learning_rate=0.05
    ),
    "classifier, two stages": RBFNetworkClassifier(joint=False, mapping="softmax"),
    "regressor": RBFNetworkRegressor(),
    "regressor, per center": RBFNetworkRegressor(
        8, widths="per_center", mapping="softmax", clustering_weight=0
    ),
    "regressor, two stages": RBFNetworkRegressor(joint=False, learning_rate=0.05),
}

# Needs scipy imported with SCIPY_ARRAY_API=1; EntMeans does not declare array API support.
SKIPPED = {"check_array_api_input"}

# Some checks fit 8 clusters to 4 distinct rows, where the warning is the promised behavior.
FEW_ROWS = (
    r"ignore:Number of distinct clusters \(4\) found smaller than n_clusters \(8\)"
    ":sklearn.exceptions.ConvergenceWarning"
)


@pytest.mark.filterwarnings(FEW_ROWS)
@pytest.mark.parametrize("name", ESTIMATORS)
def test_scikit_learn_conformance_checks_all_pass(name):
    records = check_estimator(ESTIMATORS[name], on_fail=None, on_skip=None)
    failed = {r["check_name"]: r["exception"] for r in records if r["status"] == "failed"}
    assert failed == {}
    not_run = {r["check_name"] for r in records if r["status"] != "passed"}
    assert not_run <= SKIPPED
    assert not any(r["expected_to_fail"] for r in records)
    # The check that scikit-learn's own KMeans is excused from.
    assert "check_sample_weight_equivalence_on_dense_data" in {r["check_name"] for r in records}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_fit_that_fails_leaves_the_estimator_as_it_was(name):
    X = np.random.default_rng(0).normal(size=(40, 3))
    y = np.arange(40) % 2
    model = clone(ESTIMATORS[name])
    with pytest.raises(ValueError, match="NaN"):
        model.fit(np.full((40, 2), np.nan), y)
    assert not hasattr(model, "n_features_in_")
    model.fit(X, y)
    before = dict(vars(model))
    with pytest.raises(ValueError, match="NaN"):
        model.fit(np.full((40, 2), np.nan), y)
    with pytest.raises(ValueError, match="0 or more"):
        model.fit(X[:, :2], y, sample_weight=-np.ones(40))
    assert vars(model) == before


def test_sparse_input_is_refused_with_a_remedy():
    """Why scikit-learn's second weight check, for sparse data, is not in the list."""
    sparse = scipy.sparse.csr_matrix(np.eye(4))
    assert not EntMeans().__sklearn_tags__().input_tags.sparse
    with pytest.raises(TypeError, match=r"Sparse data.*dense"):
        EntMeans(n_clusters=2).fit(sparse)
