"""Claim 6: which forms give usable numbers and gradients at low temperature."""

import copy
import json
import math

import numpy as np
import pytest
import torch

from entmeans.paper import stability
from entmeans.paper.figures import stability as drawing
from entmeans.paper.records import Verdict

SMALL = {
    "n_points": 30,
    "n_temperatures": 16,
    "n_timed": 100,
    "n_timed_features": 4,
    "n_timed_clusters": 8,
    "n_timed_temperatures": 3,
}


@pytest.fixture(scope="module")
def record():
    return stability.measure(iter([0, 1]), **SMALL)


def without_times(record):
    kept = {key: value for key, value in record.items() if key != "times"}
    times = [{k: v for k, v in run.items() if k != "seconds"} for run in record["times"]]
    return kept | {"times": times}


def counted(distances, form, temperature, dtype=torch.float32):
    d = torch.tensor(distances, dtype=dtype)
    v = torch.arange(1.0, d.shape[1] + 1, dtype=dtype).expand_as(d)
    return stability._row_counts(d, v, form, temperature)[0]


def test_the_record_is_plain_and_says_what_made_it(record):
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert record["seeds"] == [0, 1]
    assert {key: record["options"][key] for key in SMALL} == SMALL
    assert record["n_rows"] == 4 * SMALL["n_points"]


def test_measuring_again_gives_the_same_but_for_times_and_touches_no_global_state(record, capsys):
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    expected = torch.rand(3), np.random.rand(3)  # noqa: NPY002
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        again = stability.measure([0, 1], **SMALL)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert without_times(again) == without_times(record)
    assert torch.equal(torch.rand(3), expected[0])
    assert (np.random.rand(3) == expected[1]).all()  # noqa: NPY002
    assert capsys.readouterr() == ("", "")


def test_threads_are_restored_after_an_error():
    def broken():
        yield 0
        raise OSError("no more seeds")

    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(OSError, match="no more"):
            stability.measure(broken(), **SMALL)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


# exp(-d / T) underflows to 0 in float32 from d / T = 104 on, in float64 from 746 on
@pytest.mark.parametrize(
    ("dtype", "fine", "broken"), [(torch.float32, 80.0, 120.0), (torch.float64, 700.0, 760.0)]
)
def test_the_raw_ratio_becomes_0_by_0_where_every_gaussian_underflows(dtype, fine, broken):
    distances = [[fine, fine + 1], [broken, broken + 1]]
    found = counted(distances, "raw ratio", 1.0, dtype)
    assert (found["nan"], found["p broken"], found["F broken"]) == (1, 1, 1)
    for form in stability.FORMS[1:]:
        assert counted(distances, form, 1.0, dtype)["nan"] == 0


@pytest.mark.parametrize("mapping", ["softmax", "entmax15"])
def test_half_precision_overflows_without_the_shift_for_either_mapping(mapping):
    distances, t = [[1.0, 2.0]], 1e-5  # d / T is 1e5, the largest float16 is 65,504
    assert counted(distances, mapping, t, torch.float16)["nan"] == 1
    assert counted(distances, f"{mapping}, shifted", t, torch.float16)["nan"] == 0
    assert counted(distances, mapping, t, torch.bfloat16)["nan"] == 0
    d = torch.tensor(distances, dtype=torch.float16)
    for form in (mapping, f"{mapping}, shifted"):
        underflowed = torch.tensor(1e-9).to(d)
        assert underflowed == 0
        assert stability._n_broken(d, form, underflowed) == 1


def test_gradients_through_responsibilities_vanish_as_each_mapping_says():
    distances = [[0.0, 1.9], [0.0, 2.0], [0.0, 50.0], [0.0, 200.0]]
    entmax15 = counted(distances, "entmax15, shifted", 1.0)
    assert (entmax15["p zero"], entmax15["p broken"]) == (3, 0)  # from a margin of 2 T on
    softmax = counted(distances, "softmax, shifted", 1.0)
    assert (softmax["p tiny"], softmax["p zero"]) == (1, 1)  # e^-50 < eps; e^-200 is 0
    for found in (entmax15, softmax):
        assert (found["F zero"], found["F broken"]) == (0, 0)
    hard = stability._n_hard(torch.tensor(distances), 1.0)
    assert hard == 3


def test_subnormal_numbers_are_counted():
    assert counted([[0.0, 90.0], [0.0, 80.0]], "softmax, shifted", 1.0)["subnormal"] == 1
    assert counted([[0.0, 90.0], [0.0, 80.0]], "entmax15, shifted", 1.0)["subnormal"] == 0


@pytest.mark.parametrize("form", stability.FORMS)
def test_the_gradient_of_the_free_energy_is_the_responsibilities(form):
    d = torch.tensor([[0.3, 1.0, 2.0], [0.1, 0.2, 4.0]], dtype=torch.float64, requires_grad=True)
    p, energy = stability.CALLS[form](d, 0.7)
    (gradient,) = torch.autograd.grad(energy.sum(), d)
    torch.testing.assert_close(gradient, p.detach(), rtol=1e-12, atol=1e-12)
    if not form.startswith("entmax15"):
        expected = -0.7 * torch.logsumexp(-d / 0.7, -1)
        torch.testing.assert_close(energy, expected, rtol=1e-12, atol=1e-12)


def test_shares_of_rows_are_those_of_the_runs(record):
    found = stability.shares(record, "float32", "raw ratio", "nan")
    assert found[0] > 0.9
    assert found[-1] == 0
    assert all(math.isclose(x * 240, round(x * 240)) for x in found)


def test_other_seeds_change_no_verdict(record):
    assert stability.judge(record).verdict is Verdict.CONDITION
    assert stability.judge(stability.measure([11], **SMALL)).verdict is Verdict.CONDITION


def altered(record, form, value):
    changed = copy.deepcopy(record)
    for run in changed["runs"]:
        if run["form"] == form:
            run["counts"]["nan"] = [value] * len(run["counts"]["nan"])
    return changed


@pytest.mark.parametrize(
    ("form", "value", "verdict"),
    [
        ("softmax, shifted", 1, Verdict.HOLDS),
        ("entmax15, shifted", 1, Verdict.FAILS),
        ("raw ratio", 0, Verdict.FAILS),
        ("entmax15", 0, Verdict.CONDITION),
    ],
)
def test_the_verdict_follows_the_record(record, form, value, verdict):
    assert stability.judge(altered(record, form, value)).verdict is verdict


def test_times_decide_no_verdict(record):
    changed = copy.deepcopy(record)
    for run in changed["times"]:
        run["seconds"] = [1000 * t if run["mapping"] == "entmax15" else t for t in run["seconds"]]
    assert stability.judge(changed).verdict is Verdict.CONDITION


def test_the_judgement_is_sentences_and_tables_of_text(record):
    judgement = stability.judge(record)
    assert len(judgement.measured) < 220
    assert all(s.endswith(".") for s in (judgement.measured, *judgement.findings))
    for table in judgement.tables:
        assert all(len(row) == len(table.columns) for row in table.rows)
        assert all(isinstance(cell, str) for row in table.rows for cell in row)


def test_the_figures_are_drawn(record, tmp_path):
    figures = drawing.draw(record)
    assert set(figures) == {"c6-stability", "c6-time"}
    for name, figure in figures.items():
        figure.savefig(tmp_path / f"{name}.png", dpi=40)
        assert figure.axes[0].get_title(loc="left")
