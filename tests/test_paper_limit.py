"""Claims 1 to 5 of the paper: experiments are pure, right where the answer is known, and judged."""

import copy
import json
import math
import random

import numpy as np
import pytest
import torch

import entmeans
from entmeans.paper import GEOMETRIES, freezing, objective, paths, rates, trajectories, update
from entmeans.paper import figures as drawings
from entmeans.paper.records import Verdict, quartiles, short, spread

SMALL = {
    objective: {
        "n_points": 40,
        "n_sets": 4,
        "n_temperatures": 3,
        "n_starts": 3,
        "n_cells": 40,
        "n_cooling": 6,
    },
    update: {"n_points": 40, "n_temperatures": 3},
    trajectories: {"n_points": 40, "n_temperatures": 4, "n_steps": 6},
    freezing: {"n_points": 40, "n_temperatures": 6},
    rates: {
        "n_points": 60,
        "n_temperatures": 6,
        "n_starts": 2,
        "n_on_line": 2000,
        "sizes": (20, 40, 80),
    },
}
EXPECTED = {
    objective: Verdict.HOLDS,
    update: Verdict.CONDITION,
    trajectories: Verdict.CONDITION,
    freezing: Verdict.FAILS,
    rates: Verdict.CONDITION,
}


def name_of(module):
    return module.__name__.rpartition(".")[2]


@pytest.fixture(scope="module")
def records():
    """Each experiment of this module, once."""
    return {m: m.measure(iter([0, 1]), **options) for m, options in SMALL.items()}


modules = pytest.mark.parametrize("module", SMALL, ids=name_of)


@modules
def test_records_are_plain_and_say_what_made_them(module, records):
    record = records[module]
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert record["seeds"] == [0, 1]
    options = json.loads(json.dumps(SMALL[module]))
    assert {key: record["options"][key] for key in options} == options


@modules
def test_measuring_again_gives_the_same_and_touches_no_global_state(module, records, capsys):
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    random.seed(5)
    expected = torch.rand(3), np.random.rand(3), random.random()  # noqa: NPY002
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    random.seed(5)
    assert module.measure([0, 1], **SMALL[module]) == records[module]
    assert torch.equal(torch.rand(3), expected[0])
    assert (np.random.rand(3) == expected[1]).all()  # noqa: NPY002
    assert random.random() == expected[2]
    assert capsys.readouterr() == ("", "")


@modules
def test_other_seeds_change_no_verdict(module, records):
    assert module.judge(records[module]).verdict is EXPECTED[module]
    other = module.measure([11, 12], **SMALL[module])
    assert module.judge(other).verdict is EXPECTED[module]


@modules
def test_judgements_are_sentences_and_tables_of_text(module, records):
    judgement = module.judge(records[module])
    assert len(judgement.measured) < 260
    assert all(sentence.endswith(".") for sentence in (judgement.measured, *judgement.findings))
    for table in judgement.tables:
        assert all(len(row) == len(table.columns) for row in table.rows)
        assert all(isinstance(cell, str) for row in table.rows for cell in row)
    assert module.METHOD.endswith(".")


@modules
def test_figures_are_drawn_and_named_after_the_claim(module, records, tmp_path):
    figures = getattr(drawings, name_of(module)).draw(records[module])
    for name, figure in figures.items():
        assert name[0] == "c"
        assert name[1].isdigit()
        figure.savefig(tmp_path / f"{name}.png", dpi=40)
        axes = figure.axes[0]
        assert axes.get_title(loc="left")


def altered(record, change):
    changed = copy.deepcopy(record)
    change(changed)
    return changed


def exceed_the_bound(record):
    record["gaps"]["spiral"]["entmax15"]["largest_share_of_bound"] = 1.01


def stay_away(record):
    record["line"][0]["distance"] = 0.1


def err(record):
    record["steps"][0]["error"] = 1e-9


def miss_a_bit(record):
    next(run for run in record["lloyd"] if run["mapping"] == "sparsemax")["equal"][1] = False


def pass_with_the_distortion(record):
    for run in record["steps"]:
        run["error"] = 0.0


def leave_the_path(record):
    next(r for r in record["runs"] if r["mapping"] == "entmax15" and r["at_limit"] is not None)[
        "at_limit"
    ] = 1e-16


def drop_ties(record):
    record["runs"] = [run for run in record["runs"] if run["smallest_margin"] > 0]


def never_rise(record):
    record["example"]["distances"] = [0.3, 0.2, 0.1, 0.0]
    for run in record["runs"]:
        run["down"]["rises"] = []


def never_rise_nor_arrive(record):
    never_rise(record)
    record["runs"][0]["down"]["distances"][-1] = 0.2


def be_slow(record):
    for run in record["runs"]:
        if run["mapping"] == "softmax":
            run["exponential"]["slope"] = -0.2


def miss_zero(record):
    next(run for run in record["runs"] if run["mapping"] == "entmax15")["exactly_zero"] = False


@pytest.mark.parametrize(
    ("module", "change", "verdict"),
    [
        (objective, exceed_the_bound, Verdict.FAILS),
        (objective, stay_away, Verdict.FAILS),
        (update, err, Verdict.FAILS),
        (update, miss_a_bit, Verdict.FAILS),
        (update, pass_with_the_distortion, Verdict.HOLDS),
        (trajectories, leave_the_path, Verdict.FAILS),
        (trajectories, drop_ties, Verdict.HOLDS),
        (freezing, never_rise, Verdict.HOLDS),
        (freezing, never_rise_nor_arrive, Verdict.FAILS),
        (rates, be_slow, Verdict.FAILS),
        (rates, miss_zero, Verdict.FAILS),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)).rpartition(".")[2],
)
def test_another_measurement_gets_another_verdict(module, change, verdict, records):
    record = altered(records[module], change)
    if change is err:
        record["steps"][0]["loss"] = "free energy"
    assert module.judge(record).verdict is verdict


def test_the_bound_is_attained_where_all_centers_coincide(records):
    for by_mapping in records[objective]["gaps"].values():
        for gap in by_mapping.values():
            assert gap["largest_share_of_bound"] == pytest.approx(1, abs=1e-9)
            assert gap["largest_at_random"] < 1


def test_the_weighted_loss_moves_centers_elsewhere_as_worked_by_hand():
    """One point at 0 between centers at -1 and 2, softmax, T = 3."""
    points, centers = torch.tensor([[0.0]]).double(), torch.tensor([[-1.0], [2.0]]).double()
    errors = update._errors(points, centers, 3.0, "softmax")
    p = np.exp([-1 / 3, -4 / 3])
    p /= p.sum()
    mean = p @ [1.0, 4.0]
    slope = p * (1 - ([1.0, 4.0] - mean) / 3)  # dE/dd_j
    moved = np.array([-1.0, 2.0]) - slope * 2 * np.array([-1.0, 2.0]) / (2 * p)
    assert errors["free energy"] < 1e-14
    assert errors["distortion, p held"] < 1e-14
    assert errors["distortion"] == pytest.approx(abs(moved).max(), rel=1e-12)


def test_a_tie_sends_soft_and_hard_paths_apart_at_every_temperature():
    points = torch.tensor([[0.0], [1.0], [2.0]]).double()
    first = torch.tensor([[0.0], [2.0]]).double()
    hard = trajectories.path(points, first, 0.0, "hard", "centroid steps", 3)
    soft = trajectories.path(points, first, 1e-12, "entmax15", "centroid steps", 3)
    assert hard.margins[0] == 0
    assert hard.centers[1].flatten().tolist() == [0.5, 2.0]
    assert soft.centers[1].flatten().tolist() == pytest.approx([1 / 3, 5 / 3])


def test_a_gradient_step_with_one_rate_is_that_of_the_free_energy():
    points = GEOMETRIES["spiral"](50).points
    first = paths.start(points, 4, 0)
    moved = trajectories.path(points, first, 0.5, "entmax15", "gradient steps", 1).centers[1]
    leaf = first.clone().requires_grad_()
    entmeans.free_energy(points, leaf, 0.5, reduction="sum").backward()
    assert torch.allclose(moved, first - 4 / (4 * 50) * leaf.grad, rtol=0, atol=1e-13)


def test_soft_paths_are_those_of_kmeans_below_half_the_margin(records):
    runs = [r for r in records[trajectories]["runs"] if r["at_limit"] is not None]
    assert {r["at_limit"] for r in runs if r["mapping"] != "softmax"} == {0.0}
    for run in runs:
        if run["mapping"] == "entmax15":
            t = records[trajectories]["temperatures"]
            below = [
                d
                for d, x in zip(run["distances"], t, strict=True)
                if x <= run["smallest_margin"] / 2
            ]
            assert not any(below)


def test_merged_centers_part_where_they_are_nudged():
    points = GEOMETRIES["blobs"](60).points
    together = points[:1].expand(5, -1)
    temperatures = np.geomspace(10, 0.1, 10).tolist()
    assert torch.pdist(paths.cool(points, together, temperatures, "entmax15", 0)[-1]).amin() > 1
    stuck = paths.follow(points, together.contiguous(), temperatures, "entmax15")[-1]
    assert torch.pdist(stuck).amax() == 0


def test_turning_is_the_angle_of_a_path_however_fine_it_is():
    angles = torch.linspace(0, math.pi, 200)
    arc = torch.stack([angles.cos(), angles.sin()], 1).unsqueeze(1)  # (200, 1, 2)
    straight = torch.linspace(0, 1, 50).reshape(-1, 1, 1).expand(-1, 1, 2)
    back = torch.cat([straight, straight.flip(0)])
    assert paths.turning(arc, unit=1.0).item() == pytest.approx(math.pi, abs=0.05)
    corners = math.pi * 180 / 199  # 18 of them, each of ten steps of the arc
    assert paths.turning(arc[::10], unit=1.0).item() == pytest.approx(corners, rel=1e-4)
    assert paths.turning(straight, unit=1.0).item() == pytest.approx(0, abs=1e-3)
    assert paths.turning(back, unit=1.0).item() == pytest.approx(math.pi, abs=1e-3)
    assert paths.turning(straight * 1e-5, unit=1.0).item() == 0


def test_every_rise_has_a_cause_and_a_size(records):
    for run in records[freezing]["runs"]:
        far = run["down"]["distances"]
        for rise in run["down"]["rises"]:
            i = rise["step"]
            assert rise["size"] == far[i + 1] - far[i] > 0
            assert rise["cause"] in freezing.CAUSES


def test_five_points_on_a_line_show_a_rise_without_a_change_of_side():
    example = freezing._example()
    far = example["distances"]
    assert example["same_sides"]
    assert far[-1] == 0  # at T*
    assert far[0] < 0.6 * max(far)
    points = torch.tensor(example["points"]).double().unsqueeze(1)
    assert example["temperatures"][-1] == pytest.approx(32 / 9)  # margin 64/9 of the point 4
    fixed = points.new_tensor([[2 / 3], [6.0]])
    assert entmeans.hardening_temperature(points, fixed).item() == pytest.approx(32 / 9)


def test_distances_are_exactly_zero_from_the_hardening_temperature_on(records):
    for run in records[freezing]["runs"]:
        if run["mapping"] != "softmax":
            assert run["at_hardening"] == 0
            steps = zip(run["temperatures"], run["up"]["distances"], strict=True)
            assert not any(d for t, d in steps if t <= run["T*"])


def test_softmax_tends_exponentially_at_the_rate_of_the_smallest_margin():
    """Two points, each with its center: the other's share is that of the margin."""
    points = torch.tensor([[0.0], [1.0]]).double()
    found = rates._rates(points, points, "softmax", 12)
    assert found["exponential"]["slope"] == pytest.approx(-1, abs=0.01)
    assert found["exponential"]["low"] < -1 < found["exponential"]["high"] + 0.01
    assert found["T*"] == 0


def test_on_a_smooth_density_every_mapping_goes_as_the_square_of_the_temperature(records):
    for run in records[rates]["smooth"]:
        assert run["power"]["slope"] == pytest.approx(2, abs=0.05)


def test_a_line_is_fitted_with_its_confidence_interval():
    fit = rates._fit([0.0, 1.0, 2.0, 3.0], [1.0, math.e, math.e**2, 0.0])
    assert fit["slope"] == pytest.approx(1)
    assert fit["n"] == 3  # zeros have no logarithm
    assert fit["low"] <= 1 <= fit["high"]
    assert rates._fit([0.0, 1.0], [1.0, 2.0]) is None


def test_lloyd_ends_where_another_step_changes_no_bit():
    points = GEOMETRIES["two moons"](80).points
    centers = paths.lloyd(points, paths.start(points, 5, 1))
    assert torch.equal(paths.step(points, centers, 0.0, "hard"), centers)


def test_summaries_of_numbers():
    assert quartiles([3.0, None, 1.0, math.nan, 2.0]) == [2.0, 1.5, 2.5]
    assert quartiles([None]) is None
    assert spread([]) == "none"
    assert short(0.00012345) == "0.000123"


@pytest.mark.parametrize("name", GEOMETRIES)
def test_geometries_are_seeded_and_take_their_size_and_noise(name):
    sample = GEOMETRIES[name]
    a, b, c = sample(70, seed=1), sample(70, seed=1), sample(70, seed=2)
    assert torch.equal(a.points, b.points)
    assert not torch.equal(a.points, c.points)
    assert a.points.shape == (70, 2)
    assert a.points.dtype == torch.float64
    assert len(a.classes) == 70
    exact, noisy = sample(400, noise=0.0, seed=1).points, sample(400, noise=0.5, seed=1).points
    near = torch.cdist(noisy, exact).amin(1).square().mean()
    assert 0.01 < near < 0.5
