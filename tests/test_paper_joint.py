"""Claim 8: clusters that learn from the main loss, against two stages."""

import copy
import json
import warnings

import numpy as np
import pytest
import torch

from entmeans.paper import joint, paths
from entmeans.paper.figures import joint as drawing
from entmeans.paper.records import Verdict

SMALL = {"n_points": 300, "epochs": 40, "data": ("two moons", "diabetes")}


@pytest.fixture(scope="module")
def record():
    return joint.measure(iter([0, 1]), **SMALL)


def without_times(record):
    runs = [{key: v for key, v in run.items() if key != "seconds"} for run in record["runs"]]
    return record | {"runs": runs}


def altered(record, change):
    """A copy of the record with every run changed."""
    changed = copy.deepcopy(record)
    for run in changed["runs"]:
        change(run)
    return changed


def test_the_record_is_plain_and_says_what_made_it(record):
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert record["seeds"] == [0, 1]
    expected = {**SMALL, "data": list(SMALL["data"]), "learning_rate": 0.05}
    assert record["options"] == expected
    assert [(r["data"], r["seed"]) for r in record["runs"]] == [
        (name, seed) for seed in (0, 1) for name in SMALL["data"]
    ]


def test_measuring_again_gives_the_same_but_for_times_and_touches_no_global_state(record, capsys):
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    expected = torch.rand(3), np.random.rand(3)  # noqa: NPY002
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    threads, filters = torch.get_num_threads(), list(warnings.filters)
    assert without_times(joint.measure([0, 1], **SMALL)) == without_times(record)
    assert torch.get_num_threads() == threads
    assert warnings.filters == filters
    assert torch.equal(torch.rand(3), expected[0])
    assert (np.random.rand(3) == expected[1]).all()  # noqa: NPY002
    assert capsys.readouterr() == ("", "")


def test_the_seeds_are_gone_through_once_and_in_step_with_the_work():
    done = []

    def watched():
        for seed in (3, 4):
            done.append(len(made))
            yield seed

    made = []
    run = joint._run
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joint, "_run", lambda *a: made.append(a) or run(*a))
        joint.measure(watched(), n_points=40, epochs=2, data=("circles",))
    assert done == [0, 1]


@pytest.mark.parametrize(
    ("name", "n_train", "n_features", "n_centers"),
    [("two moons", 36, 2, 5), ("digits", 1078, 64, 10), ("diabetes", 265, 10, 10)],
)
def test_six_in_ten_rows_are_trained_on(name, n_train, n_features, n_centers):
    problem = joint._problem(name, 60, 0)
    assert problem.train.shape == (n_train, n_features)
    assert problem.n_centers == n_centers
    assert problem.train.dtype == problem.test.dtype == np.float32
    share = len(problem.train) / (len(problem.train) + len(problem.test))
    assert share == pytest.approx(0.6, abs=0.002)


def test_classes_are_as_common_in_both_parts():
    problem = joint._problem("two moons", 100, 3)
    assert np.bincount(problem.y).tolist() == [30, 30]
    assert np.bincount(problem.y_test).tolist() == [20, 20]


def test_the_perceptron_has_about_as_many_parameters():
    problem = joint._problem("digits", 0, 0)
    for n_outputs, n_features, k in ((2, 2, 5), (10, 64, 10), (1, 10, 10)):
        own = k * n_features + 1 + (k + 1) * n_outputs
        hidden = round(k * (n_features + n_outputs) / (n_features + n_outputs + 1))
        theirs = hidden * (n_features + 1) + (hidden + 1) * n_outputs
        assert theirs == pytest.approx(own, rel=0.15)
    score, seconds = joint._perceptron(problem, 2, 0)
    assert 0 <= score <= 1
    assert seconds > 0


def test_the_gradient_of_the_loss_reaches_centers_that_share_points_and_no_others():
    y = np.array([0, 1, 0, 1])
    shared = np.array([[0.0], [0.4], [0.6], [1.0]], dtype=np.float32)
    centers = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    assert joint._gradient(joint.Problem(shared, y, shared, y, 2), centers, 0.5, 0) > 1e-3
    apart = np.array([[0.0], [1.0], [0.0], [1.0]], dtype=np.float32)  # T* is 1 / 2
    assert joint._gradient(joint.Problem(apart, y, apart, y, 2), centers, 0.25, 0) == 0


def test_the_best_width_separates_what_is_one_center_each():
    rows = np.array([[0.0], [0.1], [5.0], [5.1]], dtype=np.float32)
    problem = joint.Problem(rows, np.array([0, 0, 1, 1]), rows, np.array([0, 0, 1, 1]), 2)
    centers = torch.tensor([[0.0], [5.0]], dtype=torch.float64)
    assert joint._best_width(problem, centers) == 1


def test_two_stages_leave_the_centers_and_joint_training_moves_them():
    problem = joint._problem("two moons", 100, 0)
    centers = paths.best_fixed_point(torch.from_numpy(problem.train).double(), 5, 0, 1)
    fitted = {
        together: joint.RBFNetworkClassifier(
            5, init=centers.numpy(), joint=together, clustering_weight=0.0, max_iter=5
        ).fit(problem.train, problem.y)
        for together in (False, True)
    }
    assert np.array_equal(fitted[False].cluster_centers_, centers.numpy().astype(np.float32))
    assert not np.allclose(fitted[True].cluster_centers_, centers.numpy(), atol=1e-3)


def test_differences_are_paired_by_seed():
    runs = [
        {"data": "digits", "scores": {"joint": 0.9, "two stages": 0.5, "perceptron": 1.0}},
        {"data": "circles", "scores": {"joint": 0.0, "two stages": 0.5, "perceptron": 0.0}},
        {"data": "digits", "scores": {"joint": 0.5, "two stages": 0.75, "perceptron": 0.5}},
    ]
    made = {"runs": runs}
    assert joint.differences(made, "digits") == pytest.approx([0.4, -0.25])
    assert joint.differences(made, "digits", "perceptron") == pytest.approx([-0.1, 0.0])


def test_other_seeds_change_no_verdict(record):
    assert joint.judge(record).verdict is Verdict.CONDITION
    assert joint.judge(joint.measure([11, 12], **SMALL)).verdict is Verdict.CONDITION


def reach_all(run):
    run["gradient_when_hard"] = 0.1


def reach_no_center(run):
    run["gradient"] = 0.0


def stay(run):
    run["moved"] = 0.0


def gain_nothing(run):
    run["scores"]["joint"] = run["scores"]["two stages"]


def lose_on_circles(run):
    if run["data"] == "circles":
        run["scores"]["joint"] = 0.0


def lose_on_diabetes(run):
    if run["data"] == "diabetes":
        run["scores"]["joint"] = -1.0


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        (reach_no_center, Verdict.FAILS),
        (stay, Verdict.FAILS),
        (gain_nothing, Verdict.FAILS),
        (lose_on_circles, Verdict.CONDITION),
        (reach_all, Verdict.HOLDS),
        (lose_on_diabetes, Verdict.CONDITION),  # shown, not judged
    ],
)
def test_the_verdict_follows_the_record(record, change, verdict):
    both = copy.deepcopy(record)
    both["options"]["data"].append("circles")
    moons = [run for run in record["runs"] if run["data"] == "two moons"]
    both["runs"] += [copy.deepcopy(run) | {"data": "circles"} for run in moons]
    assert joint.judge(altered(both, change)).verdict is verdict


def test_where_it_loses_is_said(record):
    findings = joint.judge(altered(record, lose_on_diabetes)).findings
    assert any("diabetes" in s and "-1" in s and "held out" in s for s in findings)
    assert not any("R²" in s for s in joint.judge(only(record, "two moons")).findings)

    def better_perceptron(run):
        run["scores"]["perceptron"] = 2.0

    findings = joint.judge(altered(record, better_perceptron)).findings
    assert any("ahead of it on two moons, diabetes" in s for s in findings)


def only(record, name):
    runs = [run for run in record["runs"] if run["data"] == name]
    return record | {"runs": runs, "options": record["options"] | {"data": [name]}}


def test_the_judgement_is_sentences_and_tables_of_text(record):
    judgement = joint.judge(record)
    assert len(judgement.measured) < 220
    assert all(s.endswith(".") for s in (judgement.measured, *judgement.findings))
    for table in judgement.tables:
        assert all(len(row) == len(table.columns) for row in table.rows)
        assert all(isinstance(cell, str) for row in table.rows for cell in row)


def test_the_figure_has_a_line_for_each_seed(record, tmp_path):
    (figure,) = drawing.draw(record).values()
    assert set(drawing.draw(record)) == {"c8-joint"}
    assert [axes.get_title(loc="left") for axes in figure.axes] == list(SMALL["data"])
    for axes in figure.axes:
        paired = [line for line in axes.lines if list(line.get_xdata()) == [0, 1]]
        assert len(paired) == len(record["seeds"])
    figure.savefig(tmp_path / "c8-joint.png", dpi=40)
