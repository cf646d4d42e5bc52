"""The solver: Lloyd's algorithm at T = 0, soft above, with a reason to stop."""

import math
from itertools import pairwise

import cases
import numpy as np
import oracle
import pytest
import torch
from cases import CASES, DTYPES, MAPPINGS, SOFT, stable
from hypothesis import given
from torch.testing import assert_close

import entmeans
from entmeans import FitResult, StopReason, anneal

each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
each_mapping = pytest.mark.parametrize("mapping", MAPPINGS)
each_soft_mapping = pytest.mark.parametrize("mapping", SOFT)
constant = entmeans.Constant()


def generator(seed):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, dtype=dtype, generator=generator(seed))


def column(*values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype)[:, None]


def blobs(k=5, each=30, d=2, std=0.3, dtype=torch.float64):
    middles = 4 * normal(k, d, seed=50)
    return (middles.repeat_interleave(each, 0) + std * normal(k * each, d, seed=51)).to(dtype)


def assert_consistent(result: FitResult, points, weight=None):
    """What a result says about its centers is what the functions say."""
    found = entmeans.nearest(points, result.centers)
    assert result.centers.isfinite().all()
    assert torch.equal(result.labels, found.labels)
    assert result.inertia == entmeans.inertia(points, result.centers, weight).item()


def same(a: FitResult, b: FitResult) -> bool:
    return (
        torch.equal(a.centers, b.centers)
        and torch.equal(a.labels, b.labels)
        and (a.history == b.history)
    )


# T = 0 is K-means


@pytest.mark.parametrize("name", CASES)
def test_at_zero_temperature_it_is_lloyds_algorithm(name):
    points, centers, weight = CASES[name].tensors(torch.float64)
    exact, labels, history = oracle.lloyd(points, centers, CASES[name].weights(torch.float64))
    result = anneal(points, centers, temperature=0.0, tol=0.0, sample_weight=weight)
    assert result.stop_reason is StopReason.CONVERGED
    assert_consistent(result, points, weight)
    radius = cases.expected(name, torch.float64, "hard", 0.0).radius
    slack = 1e-12 * radius**2 * CASES[name].weights(torch.float64).sum().item()
    assert result.inertia == pytest.approx(history[-1], rel=1e-12, abs=slack)
    recorded = [record.inertia for record in result.history]
    steps = min(len(recorded), len(history))
    assert recorded[:steps] == pytest.approx(history[:steps], rel=1e-12, abs=slack)
    # An update may differ in its last digit and then take one more step to rest.
    assert abs(len(recorded) - len(history)) <= 2
    cases.assert_within(result.centers, exact, 1e-12 * radius + 4e-16 * abs(exact).max())
    if len(set(map(tuple, exact))) == len(exact):
        assert result.labels.tolist() == labels.tolist()


@pytest.mark.parametrize("seed", range(8))
@each_dtype
def test_lloyd_from_random_starts(seed, dtype):
    points = normal(60, 3, seed=seed, dtype=dtype)
    centers = points[:7]
    exact, labels, history = oracle.lloyd(points, centers, np.ones(60))
    result = anneal(points, centers, temperature=0.0, tol=0.0)
    # No point of these lies within float32 rounding of a boundary.
    assert result.labels.tolist() == labels.tolist()
    assert [r.inertia for r in result.history] == pytest.approx(
        history[: len(result.history)], 1e-5
    )
    cases.assert_within(result.centers, exact, 16 * torch.finfo(dtype).eps)


@each_mapping
def test_all_mappings_are_the_same_at_zero_temperature(mapping):
    points = normal(80, 2)
    hard = anneal(points, points[:6], mapping="hard")
    assert same(anneal(points, points[:6], mapping=mapping, temperature=0.0), hard)
    assert all(record.temperature == 0 and record.hard_share == 1 for record in hard.history)


@stable
@given(cases.problems())
def test_inertia_never_rises_at_zero_temperature(problem):
    points, centers, weight, _ = problem
    result = anneal(points, centers, temperature=0.0, tol=0.0, sample_weight=weight, max_iter=50)
    inertias = [*(record.inertia for record in result.history), result.inertia]
    slack = 1e-12 * (1 + inertias[0])
    assert all(after <= before + slack for before, after in pairwise(inertias))
    assert result.stop_reason is StopReason.CONVERGED


@stable
@given(cases.problems())
def test_free_energy_never_rises_at_a_constant_temperature(problem):
    points, centers, weight, t = problem
    for mapping in SOFT:
        result = anneal(
            *(points, centers, constant, mapping),
            temperature=t,
            sample_weight=weight,
            max_iter=30,
        )
        free = [*(record.free_energy for record in result.history), result.free_energy]
        slack = 1e-12 * weight.sum().item() * (t + 1e3)
        assert all(after <= before + slack for before, after in pairwise(free))


@each_soft_mapping
def test_cooling_finds_clusters_that_lloyd_misses(mapping):
    points, schedule = blobs(), entmeans.Geometric(ratio=0.8, steps=40)
    starts = [entmeans.random_centers(points, 5, generator=generator(s)) for s in range(10)]
    lloyd = sum(anneal(points, start, temperature=0.0).inertia for start in starts)
    cooled = sum(
        anneal(points, start, schedule, mapping, temperature=100.0).inertia for start in starts
    )
    assert cooled < lloyd / 2


# Stopping


@each_mapping
@each_dtype
@pytest.mark.parametrize(("n", "k", "d"), [(101, 1, 3), (101, 5, 3), (60, 60, 2), (33, 4, 1)])
def test_with_tol_0_it_stops_when_nothing_changes(mapping, dtype, n, k, d):
    points = normal(n, d, dtype=dtype)
    points = points - points.mean(0)  # centers near 0 have many digits to change
    result = anneal(points, points[:k], mapping=mapping, tol=0.0, max_iter=300)
    assert result.stop_reason is StopReason.CONVERGED
    # Means of the same points, taken from centers that differ by rounding, differ by rounding.
    assert result.history[-1].shift <= 16 * torch.finfo(dtype).eps


@each_soft_mapping
def test_with_tol_0_it_stops_at_a_constant_temperature_too(mapping):
    points = normal(50, 2)
    result = anneal(points, points[:4], constant, mapping, temperature=0.3, tol=0.0, max_iter=3000)
    assert result.stop_reason is StopReason.CONVERGED


def test_tol_is_in_units_of_the_variance():
    points = normal(300, 4)
    variance = points.var(0, correction=0).mean().item()
    for tol in (1e-1, 1e-2, 1e-3):
        result = anneal(points, points[:8], temperature=0.0, tol=tol)
        one_less = anneal(
            points, points[:8], temperature=0.0, tol=0.0, max_iter=len(result.history) - 1
        )
        last = (result.centers - one_less.centers).square().sum().item()
        assert last <= tol * variance
        before = anneal(
            points, points[:8], temperature=0.0, tol=0.0, max_iter=len(result.history) - 2
        )
        assert (one_less.centers - before.centers).square().sum().item() > tol * variance


def test_it_does_not_stop_while_the_temperature_still_falls():
    points = column(-1.0, 1.0)
    mean = torch.zeros(2, 1, dtype=torch.float64)  # a fixed point at any high temperature
    result = anneal(points, mean, entmeans.Geometric(0.5, 10), temperature=100.0)
    assert [record.temperature for record in result.history[:10]] == [
        100.0 * 0.5**i for i in range(10)
    ]
    assert result.history[-1].temperature == 0
    assert result.inertia == 0


@pytest.mark.parametrize("max_iter", [0, 1, 2, 5])
def test_max_iter_is_the_largest_number_of_steps(max_iter):
    points = normal(200, 2)
    result = anneal(points, points[:9], max_iter=max_iter, tol=0.0)
    assert len(result.history) == max_iter
    assert result.stop_reason is StopReason.MAX_ITER
    assert_consistent(result, points)
    if max_iter == 0:
        assert torch.equal(result.centers, points[:9])


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (StopReason.CONVERGED, "tol"),
        (StopReason.MAX_ITER, "raise max_iter"),
        (StopReason.NOT_FINITE, "float64"),
    ],
)
def test_a_stop_reason_says_what_to_do(reason, words):
    assert words in str(reason)
    assert str(reason) == reason.value


@each_mapping
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["points", "centers"])
@pytest.mark.parametrize("temperature", [None, 0.0, 1.0])
def test_values_that_are_not_finite_stop_it_at_once(mapping, bad, where, temperature):
    points = normal(20, 2)
    centers = points[:3].clone()
    (points if where == "points" else centers)[1, 0] = bad
    try:
        result = anneal(points, centers, mapping=mapping, temperature=temperature)
    except ValueError as error:
        assert where in str(error)  # noqa: PT017
        return
    assert result.stop_reason is StopReason.NOT_FINITE
    assert len(result.history) <= 2


def test_overflow_of_squared_distances_stops_it():
    points = normal(20, 2).float() * 1e30
    result = anneal(points, points[:3], temperature=0.0)
    assert result.stop_reason is StopReason.NOT_FINITE


# Empty centers


@each_mapping
@pytest.mark.parametrize("empty", [0, 1, 2])
def test_an_empty_center_moves_to_the_farthest_point(mapping, empty):
    points = column(0.0, 1.0, 10.0, 11.0, 40.0)
    centers = column(0.5, 10.5)
    start = torch.cat([centers[:empty], column(1e6), centers[empty:]])
    result = anneal(points, start, mapping=mapping, temperature=0.0)
    assert result.centers.flatten().sort().values.tolist() == [0.5, 10.5, 40.0]
    assert result.history[0].inertia == 1.0
    assert_consistent(result, points)


def test_several_empty_centers_move_to_different_points():
    points = column(0.0, 10.0, 20.0, 30.0)
    start = column(0.0, 1e4, 1e5, 1e6)
    result = anneal(points, start, temperature=0.0)
    assert result.centers.flatten().sort().values.tolist() == [0, 10, 20, 30]
    assert result.inertia == 0


def test_an_empty_center_does_not_move_to_a_point_without_weight():
    points = column(0.0, 1.0, 2.0, 1e3)
    weight = torch.tensor([1.0, 1.0, 1.0, 0.0]).double()
    result = anneal(points, column(1.0, -1e6), temperature=0.0, sample_weight=weight)
    assert result.inertia == pytest.approx(0.5)
    assert result.centers.abs().max() <= 2


@each_mapping
def test_an_unused_center_is_not_pulled_to_the_origin(mapping):
    points = column(5.0, 5.0, 7.0, 7.0)
    for start in (column(5.0, 7.0, 6.0), column(0.0, 5.0, 7.0), column(5.0, 5.0, 5.0)):
        result = anneal(points, start, mapping=mapping)
        assert result.inertia == 0
        assert set(result.centers.flatten().tolist()) == {5, 7}


@each_mapping
def test_nothing_is_stale_after_a_relocation(mapping):
    points, start = column(1.0, 2.0, 3.0), column(4.0, 0.0, 1.0)
    for max_iter in (1, 2, 300):
        result = anneal(points, start, mapping=mapping, temperature=0.0, tol=0.0, max_iter=max_iter)
        assert_consistent(result, points)
    assert result.inertia == 0


def test_the_order_of_centers_does_not_change_the_answer_of_a_relocation():
    points = torch.tensor([[0.0, 0.0], [5.0, 5.0], [5.0, 5.0]])
    centers = torch.tensor([[9.0, 9.0], [5.0, 5.0], [0.0, 0.0]])
    inertias = set()
    for order in ([0, 1, 2], [2, 1, 0], [1, 0, 2], [1, 2, 0], [0, 2, 1], [2, 0, 1]):
        result = anneal(points, centers[order], temperature=0.0, max_iter=1)
        assert_consistent(result, points)
        inertias.add(result.inertia)
        assert {tuple(c) for c in result.centers.tolist()} == {(0.0, 0.0), (5.0, 5.0)}
    assert inertias == {0.0}


@each_mapping
def test_more_centers_than_locations_come_to_rest_on_the_data(mapping):
    distinct = normal(9, 2)
    points = torch.cat([distinct, distinct[:8]])
    start = entmeans.kmeans_plusplus(points, 10, generator=generator(0))
    result = anneal(points, start, mapping=mapping, tol=0.0)
    assert result.inertia == pytest.approx(0, abs=1e-28)
    assert result.stop_reason is StopReason.CONVERGED
    near = torch.cdist(result.centers, distinct).amin(1)
    assert (near < 1e-14).all()


@each_mapping
def test_gray_values_with_very_many_copies_stay_finite(mapping):
    points = torch.randint(0, 5, (2000, 1), generator=generator(0), dtype=torch.uint8)
    start = entmeans.random_centers(points, 8, generator=generator(1))
    result = anneal(points, start, mapping=mapping)
    assert result.inertia == 0
    assert result.centers.isfinite().all()
    assert result.labels.unique().numel() == 5


@each_mapping
def test_a_start_without_error_stops_at_once(mapping):
    points = torch.tensor([[0.0, 0], [1, 0], [0, 1], [4, 4], [5, 5], [0, 0]]).double()
    result = anneal(points, points, mapping=mapping)
    assert result.inertia == 0
    assert len(result.history) <= 2
    assert result.stop_reason is StopReason.CONVERGED


@each_soft_mapping
def test_a_center_without_mass_stays_while_the_step_is_soft(mapping):
    points = column(0.0, 1.0, 2.0)
    result = anneal(*(points, column(1.0, 1e4), constant, mapping), temperature=1e-3, max_iter=1)
    assert result.centers[1].item() == 1e4


# The record


@each_mapping
def test_history_describes_the_centers_before_each_step(mapping):
    points, weight = normal(60, 2), normal(60, seed=1).abs()
    centers, schedule = points[:5], entmeans.Geometric(0.5, 4)
    options = {"sample_weight": weight, "temperature": 3.0, "final_temperature": 0.2}
    result = anneal(points, centers, schedule, mapping, tol=1e-9, **options)
    for i, record in enumerate(result.history):
        t = max(0.2, 3.0 * schedule(i))
        assert record.temperature == t
        now = entmeans.statistics(points, centers, t, mapping, weight)
        moved = now.centers(centers)
        assert record.free_energy == pytest.approx(now.free_energy.item(), rel=1e-12)
        assert record.inertia == pytest.approx(now.inertia.item(), rel=1e-12)
        assert record.hard_share == pytest.approx((now.hard_mass / weight.sum()).item(), rel=1e-12)
        assert record.shift == pytest.approx((moved - centers).norm(dim=1).max().item(), rel=1e-9)
        centers = moved
    assert_close(result.centers, centers, rtol=1e-12, atol=1e-12)


def test_on_step_sees_each_record_as_it_is_made():
    seen = []
    points = normal(50, 2)
    result = anneal(points, points[:4], on_step=seen.append)
    assert seen == result.history
    assert all(isinstance(record, entmeans.Step) for record in seen)


def test_on_step_may_end_the_run():
    def stop(record):
        raise KeyboardInterrupt

    points = normal(50, 2)
    with pytest.raises(KeyboardInterrupt):
        anneal(points, points[:4], on_step=stop)


@each_mapping
@pytest.mark.parametrize("final_temperature", [0.0, 0.5])
@pytest.mark.parametrize("max_iter", [1, 3, 300])
def test_a_result_describes_its_own_centers(mapping, final_temperature, max_iter):
    points, weight = normal(60, 3), normal(60, seed=1).abs()
    result = anneal(
        *(points, points[:4], "linear", mapping),
        sample_weight=weight,
        final_temperature=final_temperature,
        max_iter=max_iter,
    )
    assert_consistent(result, points, weight)
    arguments = (points, result.centers)
    last = result.history[-1].temperature
    free = entmeans.free_energy(*arguments, last, mapping, weight, "sum")
    assert result.free_energy == pytest.approx(free.item(), rel=1e-12)
    hardening = entmeans.hardening_temperature(*arguments, mapping, weight)
    assert result.hardening_temperature == hardening.item()


def test_results_are_on_record_only():
    result = anneal(normal(9, 2), normal(2, 2))
    with pytest.raises(AttributeError):
        result.centers = None


# Temperatures and schedules


def test_the_default_first_temperature_follows_the_data():
    points, weight = normal(40, 2), normal(40, seed=1).abs()
    for mapping in SOFT:
        first = entmeans.reference_temperature(points, points[:3], mapping, weight)
        mean = entmeans.inertia(points, points[:3], weight, "mean").item()
        assert 0.1 * mean < first < 10 * mean
        result = anneal(points, points[:3], mapping=mapping, sample_weight=weight)
        assert result.history[0].temperature == first
    assert entmeans.reference_temperature(points, points[:3], "hard") == 0


@pytest.mark.parametrize("schedule", ["geometric", "linear"])
def test_a_schedule_may_be_named(schedule):
    points = normal(50, 2)
    by_value = {"geometric": entmeans.Geometric(), "linear": entmeans.Linear()}[schedule]
    assert same(anneal(points, points[:4], schedule), anneal(points, points[:4], by_value))


def test_a_schedule_may_be_any_function():
    points, steps = normal(50, 2), [1.0, 3.0, 0.25, 0.0]

    def factor(step):
        return steps[min(step, 3)]

    result = anneal(points, points[:4], factor, temperature=2.0)
    assert [record.temperature for record in result.history[:4]] == [2.0, 6.0, 0.5, 0.0]


@each_mapping
def test_infinite_temperature_puts_all_centers_on_the_mean(mapping):
    points = normal(30, 2)
    result = anneal(points, points[:3], constant, mapping, temperature=math.inf, max_iter=50)
    assert result.stop_reason is StopReason.CONVERGED
    if mapping != "hard":
        assert_close(result.centers, points.mean(0).expand(3, 2), rtol=1e-12, atol=1e-12)
        assert result.free_energy == -math.inf


@each_soft_mapping
@pytest.mark.parametrize("schedule", ["geometric", "linear"])
def test_cooling_from_infinite_temperature_ends_in_kmeans(mapping, schedule):
    points = normal(30, 2)
    result = anneal(points, points[:3], schedule, mapping, temperature=math.inf)
    assert result.history[0].temperature == math.inf
    assert result.history[-1].temperature == 0
    assert result.stop_reason is StopReason.CONVERGED
    assert result.labels.unique().numel() == 3


@each_soft_mapping
def test_it_ends_at_the_final_temperature_in_a_fixed_point(mapping):
    points = normal(80, 2)
    result = anneal(points, points[:4], mapping=mapping, final_temperature=0.4, tol=1e-14)
    assert result.stop_reason is StopReason.CONVERGED
    assert result.history[-1].temperature == 0.4
    assert entmeans.is_fixed_point(points, result.centers, 0.4, mapping, tol=1e-6)


@pytest.mark.parametrize("mapping", ["entmax15", "sparsemax"])
def test_below_the_hardening_temperature_a_soft_run_is_kmeans(mapping):
    points = blobs()
    start = anneal(points, points[::30], temperature=0.0, tol=0.0)
    t = 0.99 * start.hardening_temperature
    assert t > 0
    soft = anneal(points, start.centers, constant, mapping, temperature=t, tol=0.0)
    assert torch.equal(soft.centers, start.centers)
    assert soft.history[-1].hard_share == 1


def test_a_mapping_of_ones_own_is_accepted():
    class Colder(type(entmeans.MAPPINGS["softmax"])):
        name = "colder"

        def probabilities(self, scores):
            return super().probabilities(2 * scores)

        def entropy(self, p):
            return super().entropy(p) / 2

        def max_entropy(self, n):
            return super().max_entropy(n) / 2

    points = normal(40, 2)
    for temperature in (None, 1.0):
        result = anneal(points, points[:3], mapping=Colder(), temperature=temperature)
        assert result.stop_reason is StopReason.CONVERGED
    soft = anneal(
        *(points, points[:3], constant, "softmax"), temperature=0.5, final_temperature=0.5
    )
    own = anneal(*(points, points[:3], constant, Colder()), temperature=1.0)
    assert_close(own.centers, soft.centers, rtol=1e-12, atol=1e-12)


# Invariants


@each_mapping
@pytest.mark.parametrize("exponent", [-60, -20, 20, 60])
def test_a_change_of_units_changes_nothing(mapping, exponent):
    points, s = normal(80, 3), 2.0**exponent
    plain = anneal(points, points[:5], mapping=mapping)
    scaled = anneal(s * points, s * points[:5], mapping=mapping)
    assert torch.equal(scaled.centers, s * plain.centers)
    assert torch.equal(scaled.labels, plain.labels)
    assert len(scaled.history) == len(plain.history)
    assert scaled.inertia == s**2 * plain.inertia
    assert [r.hard_share for r in scaled.history] == [r.hard_share for r in plain.history]


@each_mapping
@each_dtype
def test_blobs_far_from_the_origin_separate(mapping, dtype):
    truth = torch.arange(300) % 2
    points = (1e4 + truth[:, None] + 0.05 * normal(300, 2)).to(dtype)
    for seed in range(5):
        start = entmeans.kmeans_plusplus(points, 2, generator=generator(seed))
        labels = anneal(points, start, mapping=mapping).labels
        assert (labels == truth).all() or (labels != truth).all()


@each_mapping
def test_a_weight_of_k_equals_k_copies(mapping):
    points, weight = normal(50, 2), torch.arange(50) % 4
    copies = points.repeat_interleave(weight, 0)
    weighted = anneal(points, points[:4], mapping=mapping, sample_weight=weight)
    copied = anneal(copies, points[:4], mapping=mapping)
    assert_close(weighted.centers, copied.centers, rtol=1e-10, atol=1e-10)
    assert weighted.inertia == pytest.approx(copied.inertia, rel=1e-10)
    assert torch.equal(
        weighted.labels[weight > 0].repeat_interleave(weight[weight > 0]), copied.labels
    )


@each_mapping
def test_a_common_factor_of_the_weights_changes_only_the_sums(mapping):
    points, weight = normal(50, 2), normal(50, seed=1).abs()
    one = anneal(points, points[:4], mapping=mapping, sample_weight=weight)
    many = anneal(points, points[:4], mapping=mapping, sample_weight=2.0**40 * weight)
    assert torch.equal(one.centers, many.centers)
    assert many.inertia == 2.0**40 * one.inertia


@each_mapping
def test_the_order_of_points_has_no_influence(mapping):
    points = blobs()
    order = torch.randperm(len(points), generator=generator(3))
    plain = anneal(points, points[::30], mapping=mapping)
    shuffled = anneal(points[order], points[::30], mapping=mapping)
    assert_close(shuffled.centers, plain.centers, rtol=1e-10, atol=1e-10)
    assert torch.equal(shuffled.labels, plain.labels[order])


@pytest.mark.parametrize("layout", [cases.transposed, cases.strided, cases.offset_view])
@each_dtype
def test_memory_layout_has_no_influence(layout, dtype):
    points = blobs(d=3, dtype=dtype)
    plain, other = (anneal(p, p[::30]) for p in (points, layout(points)))
    assert torch.equal(plain.labels, other.labels)
    assert_close(plain.centers, other.centers)


@each_mapping
def test_more_clusters_never_leave_more_inertia(mapping):
    points = normal(40, 2)
    best = []
    for k in range(1, 7):
        starts = (
            entmeans.kmeans_plusplus(points, k, generator=generator(seed)) for seed in range(5)
        )
        best.append(min(anneal(points, start, mapping=mapping).inertia for start in starts))
    assert best == sorted(best, reverse=True)


def test_inputs_are_left_as_they_were_and_no_graph_is_kept():
    points, centers = normal(30, 2).requires_grad_(), normal(3, 2, seed=1).requires_grad_()
    weight = torch.ones(30, dtype=torch.float64)
    before = [value.detach().clone() for value in (points, centers, weight)]
    result = anneal(points, centers, sample_weight=weight)
    assert all(map(torch.equal, before, (points, centers, weight)))
    assert not result.centers.requires_grad
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    ("dtype", "result"),
    [
        *((torch.float64, torch.float64), (torch.float32, torch.float32)),
        *((torch.bfloat16, torch.float32), (torch.float16, torch.float32)),
        *((torch.int64, torch.float64), (torch.uint8, torch.float64)),
    ],
    ids=str,
)
def test_dtype_of_the_centers(dtype, result):
    points = torch.arange(40).reshape(20, 2).to(dtype)
    found = anneal(points, points[:3])
    assert found.centers.dtype == result
    assert found.labels.dtype == torch.int64
    assert len(found.labels) == 20


@each_mapping
def test_one_cluster_is_the_mean(mapping):
    points, weight = normal(30, 2), normal(30, seed=1).abs()
    result = anneal(points, points[:1], mapping=mapping, sample_weight=weight)
    assert_close(result.centers[0], (weight @ points) / weight.sum(), rtol=1e-12, atol=1e-12)
    assert result.stop_reason is StopReason.CONVERGED
    assert result.hardening_temperature == math.inf


# Bad input


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"temperature": -1.0}, ValueError, "temperature must.*-1"),
        ({"temperature": math.nan}, ValueError, "temperature must.*nan"),
        ({"final_temperature": -0.5}, ValueError, "final_temperature must.*-0.5"),
        ({"final_temperature": math.nan}, ValueError, "final_temperature must.*nan"),
        ({"max_iter": -1}, ValueError, "max_iter must.*-1"),
        ({"tol": -1e-3}, ValueError, "tol must.*-0.001"),
        ({"tol": math.nan}, ValueError, "tol must.*nan"),
        ({"schedule": "exponential"}, ValueError, "schedule='exponential'.*geometric, linear"),
        ({"schedule": 0.5}, ValueError, "schedule=0.5.*geometric, linear"),
        ({"schedule": lambda step: -1.0}, ValueError, "schedule.*-1"),
        ({"schedule": lambda step: math.nan}, ValueError, "schedule.*nan"),
        ({"mapping": "gumbel"}, ValueError, "mapping='gumbel'.*softmax"),
        ({"sample_weight": torch.full((9,), -1.0)}, ValueError, "sample_weight must.*-1"),
        ({"sample_weight": torch.zeros(9)}, ValueError, "sample_weight must.*0"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_bad_options_are_named_with_their_value(options, error, words):
    points = normal(9, 2)
    with pytest.raises(error, match=words):
        anneal(points, points[:2], **options)


def test_no_points_are_refused_by_name():
    with pytest.raises(ValueError, match=r"points.*\(0, 2\)|points.*0 "):
        anneal(normal(0, 2), normal(2, 2))
