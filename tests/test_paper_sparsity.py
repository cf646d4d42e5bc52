"""Claim 7: the Voronoi partition, the support, the cost of the threshold and what it saves."""

import copy
import json

import numpy as np
import pytest
import torch

import entmeans
from entmeans.paper import sparsity
from entmeans.paper.figures import sparsity as drawing
from entmeans.paper.records import Verdict

SMALL = {
    "n_points": 30,
    "n_temperatures": 4,
    "sizes": (8, 128, 1024, 4096),
    "n_scores": 2**14,
    "n_rows": 200,
}


@pytest.fixture(scope="module")
def record():
    return sparsity.measure(iter([0, 1]), **SMALL)


def without_times(record):
    changed = copy.deepcopy(record)
    for run in (*changed["threshold"], *changed["later"]):
        del run["times"]
    return changed


def test_the_record_is_plain_and_says_what_made_it(record):
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert record["seeds"] == [0, 1]
    assert record["options"]["sizes"] == [8, 128, 1024, 4096]
    assert record["options"]["n_rows"] == 200


def test_measuring_again_gives_the_same_but_for_times_and_touches_no_global_state(record, capsys):
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    expected = torch.rand(3), np.random.rand(3)  # noqa: NPY002
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        again = sparsity.measure([0, 1], **SMALL)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert without_times(again) == without_times(record)
    assert torch.equal(torch.rand(3), expected[0])
    assert (np.random.rand(3) == expected[1]).all()  # noqa: NPY002
    assert capsys.readouterr() == ("", "")


def test_threads_are_restored_after_an_error():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(RuntimeError, match="shapes"), sparsity.one_thread():
            torch.ones(2, 3) @ torch.ones(2, 3)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("width", [0.01, 0.3, 3.0, 100.0])
@pytest.mark.parametrize("k", [1, 2, 9, 500])
def test_entmax15_by_sorting_is_entmax15(width, k):
    generator = torch.Generator().manual_seed(k)
    scores = width * torch.randn(20, k, dtype=torch.float64, generator=generator)
    found = sparsity.entmax15_by_sorting(scores)
    torch.testing.assert_close(found, entmeans.entmax15(scores), rtol=0, atol=1e-9)


def test_entmax15_by_sorting_of_ties_and_of_a_leader_by_two():
    scores = torch.tensor([[1.0, 1.0, 1.0, 1.0], [2.0, 0.0, -1.0, -9.0]], dtype=torch.float64)
    expected = torch.tensor([[0.25] * 4, [1.0, 0, 0, 0]], dtype=torch.float64)
    torch.testing.assert_close(sparsity.entmax15_by_sorting(scores), expected)


def test_leads_and_supports_are_counted():
    # squared distances (0, 4) and (1, 1); the scale is 1/4: one-hot up to T = 2, and a tie
    points = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    centers = torch.tensor([[0.0], [2.0]], dtype=torch.float64)
    found = sparsity._shares(points, centers, [4.0, 8.0, 1e9], "entmax15")
    assert found == {"kept": 1.0, "support": [1.5, 1.5, 2.0]}
    assert sparsity._shares(points, centers, [4.0], "softmax")["support"] == [2.0]


def test_the_support_grows_from_one_to_all(record):
    for run in record["partition"] + record["many"]:
        assert run["kept"] == 1
        if run["mapping"] != "softmax":
            assert np.all(np.diff(run["support"]) >= 0)
            assert run["support"][0] < 1.1
    assert {run["support"][-1] for run in record["partition"]} == {5.0}


def test_the_temperature_of_a_support_is_found(record):
    generator = torch.Generator().manual_seed(0)
    points, centers = (torch.randn(n, 4, generator=generator) for n in (200, 64))
    for target in (1.5, 4.0, 32.0):
        t = sparsity.temperature_of_support(points, centers, target)
        support = (entmeans.responsibilities(points, centers, t) > 0).sum(1).double().mean()
        assert support.item() == pytest.approx(target, rel=0.02)


def test_exponents_are_those_of_a_power():
    sizes = [8, 128, 512, 2048]
    times = {"sort": [99.0, *(k**1.2 for k in sizes[1:])]}  # below 128 overhead rules
    made = {"threshold": [{"sizes": sizes, "times": times}]}
    assert sparsity.exponents(made, "sort") == [pytest.approx(1.2)]


def test_other_seeds_change_no_verdict(record):
    assert sparsity.judge(record).verdict is Verdict.CONDITION
    assert sparsity.judge(sparsity.measure([11], **SMALL)).verdict is Verdict.CONDITION


def altered(record, change):
    changed = copy.deepcopy(record)
    change(changed)
    return changed


def lose_the_partition(record):
    record["partition"][0]["kept"] = 0.99


def stay_soft_when_cold(record):
    for run in record["many"]:
        run["support"][0] = 100.0


def sort_in_quadratic_time(record):
    for run in record["threshold"]:
        run["times"]["sort"] = [k**2 for k in run["sizes"]]


def gain_nothing(record):
    for run in record["later"]:
        run["times"]["read-out, sparse"] = run["times"]["read-out, dense"]


def gain_always(record):
    for run in record["later"]:
        run["times"]["read-out, sparse"] = run["times"]["read-out, dense"] / 10


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        (lose_the_partition, Verdict.FAILS),
        (stay_soft_when_cold, Verdict.FAILS),
        (sort_in_quadratic_time, Verdict.FAILS),
        (gain_nothing, Verdict.FAILS),
        (gain_always, Verdict.HOLDS),
    ],
)
def test_the_verdict_follows_the_record(record, change, verdict):
    assert sparsity.judge(altered(record, change)).verdict is verdict


def test_a_slow_kernel_alone_decides_no_verdict_and_is_told(record):
    def slow(record):
        for run in record["threshold"]:
            run["times"]["kernel"] = [k**2 for k in run["sizes"]]

    judgement = sparsity.judge(altered(record, slow))
    assert judgement.verdict is Verdict.CONDITION
    assert any("costs 512 times as much at K = 4,096 as at K = 8" in s for s in judgement.findings)


@pytest.mark.parametrize("noise", [0.7, 1.4])
def test_a_machine_faster_or_slower_at_sparse_work_changes_no_verdict(record, noise):
    def blur(record):
        for run in record["later"]:
            run["times"]["read-out, sparse"] *= noise

    assert sparsity.judge(altered(record, blur)).verdict is Verdict.CONDITION


def test_the_judgement_is_sentences_and_tables_of_text(record):
    judgement = sparsity.judge(record)
    assert len(judgement.measured) < 220
    assert all(s.endswith(".") for s in (judgement.measured, *judgement.findings))
    for table in judgement.tables:
        assert all(len(row) == len(table.columns) for row in table.rows)
        assert all(isinstance(cell, str) for row in table.rows for cell in row)


def test_the_figures_are_drawn(record, tmp_path):
    figures = drawing.draw(record)
    assert set(figures) == {"c7-support", "c7-cost"}
    for name, figure in figures.items():
        figure.savefig(tmp_path / f"{name}.png", dpi=40)
        assert figure.axes[0].get_title(loc="left")
