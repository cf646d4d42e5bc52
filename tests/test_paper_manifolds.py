"""Claim 9: curved classes stay unseparated, and paths turn more there."""

import copy
import json
import math

import numpy as np
import pytest
import torch

from entmeans.paper import GEOMETRIES, manifolds
from entmeans.paper.figures import manifolds as drawing
from entmeans.paper.paths import MAPPINGS
from entmeans.paper.records import Verdict

SMALL = {
    "n_points": 100,
    "n_on_paths": 100,
    "n_temperatures": 8,
    "epochs": 30,
    "weights": (0.5, 5.0),
}


@pytest.fixture(scope="module")
def record():
    return manifolds.measure(iter([0, 1]), **SMALL)


def test_the_record_is_plain_and_says_what_made_it(record):
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert record["seeds"] == [0, 1]
    assert record["options"] == {**SMALL, "weights": [0.5, 5.0], "n_clusters": 5}
    assert len(record["agreement"]) == 2 * len(GEOMETRIES)
    assert len(record["roughness"]) == 2 * len(GEOMETRIES) * len(MAPPINGS)


def test_measuring_again_gives_the_same_and_touches_no_global_state(record, capsys):
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    expected = torch.rand(3), np.random.rand(3)  # noqa: NPY002
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    assert manifolds.measure([0, 1], **SMALL) == record
    assert torch.equal(torch.rand(3), expected[0])
    assert (np.random.rand(3) == expected[1]).all()  # noqa: NPY002
    assert capsys.readouterr() == ("", "")


def test_the_index_is_1_for_the_same_parts_under_other_names_and_0_for_no_parts():
    classes = torch.tensor([0, 0, 1, 1, 2, 2])
    assert manifolds._index(classes, torch.tensor([2, 2, 0, 0, 1, 1])) == 1
    assert manifolds._index(classes, torch.zeros(6)) == 0


def test_no_center_can_tell_circles_apart_but_nearness_can(record):
    runs = [run for run in record["agreement"] if run["geometry"] == "circles"]
    for run in runs:
        assert abs(run["K-means"]) < 0.05
        assert abs(run["soft K-means"]) < 0.05
        assert run["single linkage"] > 0.9
    blobs = [run for run in record["agreement"] if run["geometry"] == "blobs"]
    assert min(run["K-means"] for run in blobs) > 0.9


def test_soft_k_means_counts_at_its_best_temperature(record):
    # at the coldest, every path has come to a fixed point of K-means
    for run in record["agreement"]:
        path = manifolds.cooling(
            run["geometry"], 100, 5 if run["geometry"] == "blobs" else 2, 8, "entmax15", run["seed"]
        )
        classes = GEOMETRIES[run["geometry"]](100, seed=run["seed"]).classes
        labels = manifolds.nearest(path.points, path.end).labels
        assert run["soft K-means"] >= manifolds._index(classes, labels) - 1e-12


def test_the_best_weight_counts(record):
    for run in record["agreement"]:
        assert [each["weight"] for each in run["encoders"]] == [0.5, 5.0]
        assert run["encoder"] == max(each["ARI"] for each in run["encoders"])


def test_encoders_are_drawn_by_their_seed_and_as_torch_draws_them():
    state = torch.get_rng_state()
    a, b, c = (
        manifolds._network(2, torch.Generator().manual_seed(seed)).encoder.state_dict()
        for seed in (1, 1, 2)
    )
    assert torch.equal(torch.get_rng_state(), state)
    for key, values in a.items():
        assert torch.equal(values, b[key])
        assert not torch.equal(values, c[key])
        n_in = 2 if key.startswith("0.") else 32
        assert values.abs().max() <= n_in**-0.5
        if values.numel() >= 32:
            assert values.abs().max() > 0.8 * n_in**-0.5


def test_the_encoder_reconstructs_and_finds_blobs():
    points, classes = GEOMETRIES["blobs"](200, seed=0)
    code = manifolds.encode(points, 5, 200, 0.5, 0)
    assert code.error < 0.02  # of the variance
    assert not code.collapsed
    assert manifolds._index(classes, code.labels) > 0.9


def test_the_encoder_does_not_depend_on_where_the_data_lie_nor_on_their_scale():
    points, _ = GEOMETRIES["two moons"](60, seed=0)
    code = manifolds.encode(points, 2, 6, 0.5, 0)
    moved = manifolds.encode(1024 * points, 2, 6, 0.5, 0)
    assert torch.equal(code.labels, moved.labels)
    assert math.isclose(code.error, moved.error, rel_tol=1e-5)
    shifted = manifolds.encode(points + 10, 2, 6, 0.5, 0)
    assert math.isclose(code.error, shifted.error, rel_tol=1e-4)


def test_turning_is_compared_with_blobs_of_the_same_seed_and_mapping():
    angles = {("blobs", 0): 1.0, ("blobs", 1): 3.0, ("spiral", 0): 2.0, ("spiral", 1): 2.0}
    made = {
        "seeds": [0, 1],
        "roughness": [
            {"geometry": g, "seed": s, "mapping": m, "turning": angle}
            for (g, s), angle in angles.items()
            for m in MAPPINGS
        ],
    }
    assert manifolds.more_turning(made, "spiral") == [True, False] * 3


def test_other_seeds_change_no_verdict(record):
    assert manifolds.judge(record).verdict is Verdict.HOLDS
    assert manifolds.judge(manifolds.measure([11], **SMALL)).verdict is Verdict.HOLDS


def separate(record):
    for run in record["agreement"]:
        run["soft K-means"] = 1.0


def separate_by_encoder(record):
    for run in record["agreement"]:
        run["encoder"] = 1.0


def turn_less_on_circles(record):
    for run in record["roughness"]:
        if run["geometry"] == "circles":
            run["turning"] = 0.0


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        (separate, Verdict.FAILS),
        (separate_by_encoder, Verdict.HOLDS),  # another method than that of the claim
        (turn_less_on_circles, Verdict.CONDITION),
    ],
)
def test_the_verdict_follows_the_record(record, change, verdict):
    changed = copy.deepcopy(record)
    change(changed)
    assert manifolds.judge(changed).verdict is verdict


def test_what_encoders_do_is_said(record):
    changed = copy.deepcopy(record)
    separate_by_encoder(changed)
    assert any("in 6 of 6 runs on curved" in s for s in manifolds.judge(changed).findings)
    for run in changed["agreement"]:
        run["encoders"][0]["collapsed"] = True
        run["encoders"][1]["collapsed"] = False
    assert any("8 of 16 trainings" in s for s in manifolds.judge(changed).findings)


def test_the_judgement_is_sentences_and_tables_of_text(record):
    judgement = manifolds.judge(record)
    assert len(judgement.measured) < 220
    assert "-0.00" not in judgement.measured
    assert all(s.endswith(".") for s in (judgement.measured, *judgement.findings))
    for table in judgement.tables:
        assert all(len(row) == len(table.columns) for row in table.rows)
        assert all(isinstance(cell, str) for row in table.rows for cell in row)


def test_the_figure_shows_every_seed(record, tmp_path):
    figures = drawing.draw(record)
    assert set(figures) == {"c9-manifolds"}
    left, right = figures["c9-manifolds"].axes
    assert len(left.collections) == len(manifolds.METHODS) * len(GEOMETRIES)
    assert len(right.collections) == len(MAPPINGS) * len(GEOMETRIES)
    for axes in (left, right):
        assert all(len(marks.get_offsets()) == 2 for marks in axes.collections)
        assert axes.get_title(loc="left")
    figures["c9-manifolds"].savefig(tmp_path / "c9-manifolds.png", dpi=40)
