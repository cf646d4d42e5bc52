"""The limit T -> 0, measured: bounds, hardening, critical temperature, fixed points."""

import math

import cases
import oracle
import pytest
import torch
from cases import CASES, DTYPES, MAPPINGS, SOFT, assert_within, at_all_temperatures, stable
from hypothesis import given
from hypothesis import strategies as st

import entmeans

each_case = pytest.mark.parametrize("name", CASES)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
each_mapping = pytest.mark.parametrize("mapping", MAPPINGS)
each_soft_mapping = pytest.mark.parametrize("mapping", SOFT)


def normal(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


@each_case
@each_mapping
@each_dtype
def test_bounds_are_those_of_the_definition(name, mapping, dtype):
    points, centers, weight = CASES[name].tensors(dtype)
    for e in at_all_temperatures(name, dtype, mapping):
        for reduction in ("mean", "sum", "none"):
            arguments = (points, centers, e.temperature, mapping, weight, reduction)
            exact = oracle.free_energy_bounds(
                e.distances, e.weight, e.temperature, mapping, reduction
            )
            error = 2 * e.error + e.rounding * e.distances.min(1) + e.free_energy_error
            tolerance = oracle.reduce(error, e.weight, reduction)
            for found, wanted in zip(entmeans.free_energy_bounds(*arguments), exact, strict=True):
                assert found.dtype == dtype
                e.assert_within(found, wanted, tolerance)


@each_case
@each_mapping
@each_dtype
def test_hardening_temperature_is_that_of_the_definition(name, mapping, dtype):
    points, centers, weight = CASES[name].tensors(dtype)
    distances, error = cases.distances_of(name, dtype)
    exact = oracle.hardening_temperature(distances, CASES[name].weights(dtype), mapping)
    found = entmeans.hardening_temperature(points, centers, mapping, weight)
    eps = torch.finfo(dtype).eps
    assert found.shape == ()
    assert_within(found, exact, 2 * error.max() + 4 * eps * distances.max())
    if mapping == "softmax" and len(centers) > 1:
        assert found == 0


@pytest.mark.parametrize("mapping", ["entmax15", "sparsemax"])
@each_case
def test_all_rows_are_one_hot_up_to_the_hardening_temperature_and_not_above(name, mapping):
    points, centers, weight = CASES[name].tensors(torch.float64)
    hardening = entmeans.hardening_temperature(points, centers, mapping, weight).item()
    if not 0 < hardening < math.inf:
        return
    total = CASES[name].weights(torch.float64).sum().item()
    for factor in (1e-6, 0.5, 1.0):
        found = entmeans.statistics(points, centers, factor * hardening, mapping, weight)
        assert found.hard_mass.item() == pytest.approx(total, rel=1e-14)
    above = entmeans.statistics(points, centers, 1.001 * hardening, mapping, weight)
    assert above.hard_mass < total * (1 - 1e-15)


@each_soft_mapping
@pytest.mark.parametrize("name", ["plain", "odd sizes", "zero weights", "offset 1e6", "D=1"])
@pytest.mark.parametrize("n_clusters", [2, 3, 16])
@each_dtype
def test_critical_temperature_is_that_of_the_definition(name, mapping, n_clusters, dtype):
    points, _, weight = CASES[name].tensors(dtype)
    found = entmeans.critical_temperature(points, n_clusters, mapping, weight)
    weights = CASES[name].weights(dtype)
    exact = oracle.critical_temperature(points, weights, n_clusters, mapping)
    # The covariance of points known to eps * |x|, squared differences of about the spread.
    size = (points - points.mean(0)).abs().max().item() + points.abs().max().item() * 1e-3
    tolerance = 1e3 * torch.finfo(dtype).eps * n_clusters * size**2
    assert_within(found, exact, tolerance)


@each_soft_mapping
@pytest.mark.parametrize("n_clusters", [2, 4, 6])
@pytest.mark.parametrize("factor", [0.5, 0.9, 1.1, 2.0])
def test_centers_on_the_mean_split_below_the_critical_temperature_and_not_above(
    mapping, n_clusters, factor
):
    points = normal(200, 3) * torch.tensor([3.0, 1.0, 0.5])
    mean = points.mean(0)
    _, vectors = torch.linalg.eigh((points - mean).T @ (points - mean))
    apart = 1e-5 * torch.tensor([1.0, -1.0] * (n_clusters // 2))[:, None] * vectors[:, -1]
    temperature = factor * entmeans.critical_temperature(points, n_clusters, mapping).item()
    found = entmeans.statistics(points, mean + apart, temperature, mapping)
    moved = found.centers(mean + apart) - mean
    # Growth 1/factor up to terms of second order in the distance of the centers, 1e-5.
    growth = (moved.norm() / apart.norm()).item()
    assert growth == pytest.approx(1 / factor, rel=1e-3)


@pytest.mark.parametrize(("mapping", "n_clusters"), [("hard", 3), ("entmax15", 1), ("softmax", 0)])
def test_critical_temperature_needs_a_soft_mapping_and_two_clusters(mapping, n_clusters):
    with pytest.raises(ValueError, match=f"mapping='{mapping}' and n_clusters={n_clusters}"):
        entmeans.critical_temperature(normal(5, 2), n_clusters, mapping)


@each_case
@each_mapping
def test_is_fixed_point_compares_the_step_with_tol(name, mapping):
    points, centers, weight = CASES[name].tensors(torch.float64)
    for e in at_all_temperatures(name, torch.float64, mapping):
        moved = oracle.step(e.statistics, e.centers)
        displacement = ((moved - e.centers) ** 2).sum(1).max() ** 0.5
        scale = oracle.scale(e.points, e.weight) ** 0.5
        arguments = (points, centers, e.temperature, mapping, weight)
        assert not entmeans.is_fixed_point(
            *arguments, tol=0.999 * displacement / (scale or 1.0)
        ) or (
            displacement <= e.radius * 1e-8  # nothing moved
        )
        if scale > 0:
            assert entmeans.is_fixed_point(*arguments, tol=1.001 * displacement / scale + 1e-8)


@each_mapping
@each_dtype
@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
@pytest.mark.parametrize("temperature", [0.0, 0.5, math.inf])
def test_the_end_of_a_fit_is_a_fixed_point_at_any_scale(mapping, dtype, scale, temperature):
    points = scale * (normal(60, 2) + 1).to(dtype)
    result = entmeans.anneal(
        *(points, points[:4], entmeans.Constant(), mapping),
        temperature=temperature * scale**2,
        tol=0.0,
        max_iter=5000,
    )
    arguments = (temperature * scale**2, mapping)
    assert entmeans.is_fixed_point(points, result.centers, *arguments)
    pushed = result.centers + 0.01 * scale
    assert not entmeans.is_fixed_point(points, pushed, *arguments)


def test_is_fixed_point_respects_weights_and_points_all_alike():
    points = torch.tensor([[0.0], [1.0], [10.0]])
    mean = torch.tensor([[0.5]])
    assert not entmeans.is_fixed_point(points, mean)
    assert entmeans.is_fixed_point(points, mean, sample_weight=torch.tensor([1.0, 1.0, 0.0]))
    same = torch.full((4, 2), 3.0)
    assert entmeans.is_fixed_point(same, same[:1])
    assert not entmeans.is_fixed_point(same, same[:1] + 1)


# What the theory says about the way to the limit


@stable
@given(cases.problems(), st.sampled_from(SOFT))
def test_free_energy_falls_with_the_temperature_no_faster_than_the_largest_entropy(
    problem, mapping
):
    points, centers, weight, t = problem
    temperatures = [0.0, t / 100, t / 10, t, 10 * t]
    free = [
        entmeans.free_energy(points, centers, temperature, mapping, weight, "sum").item()
        for temperature in temperatures
    ]
    total = weight.sum().item()
    slope = total * oracle.MAX_ENTROPY[mapping](len(centers))
    slack = 1e-12 * total * (10 * t + 1e3)
    steps = zip(free, free[1:], temperatures, temperatures[1:], strict=False)
    for before, after, cold, warm in steps:
        assert after <= before + slack
        assert before - after <= slope * (warm - cold) + slack


@stable
@given(cases.problems(), st.sampled_from(["entmax15", "sparsemax"]))
def test_below_the_hardening_temperature_free_energy_is_the_inertia(problem, mapping):
    points, centers, weight, _ = problem
    hardening = entmeans.hardening_temperature(points, centers, mapping, weight)
    if hardening == math.inf:
        return
    free = entmeans.free_energy(points, centers, hardening, mapping, weight, "none")
    assert torch.equal(free, entmeans.inertia(points, centers, weight, "none"))


@stable
@given(cases.problems())
def test_softmax_approaches_one_hot_exponentially_in_the_margin(problem):
    points, centers, _, t = problem
    p = entmeans.responsibilities(points, centers, t, "softmax")
    margins = entmeans.nearest(points, centers).margins
    rest = 1 - p.amax(1)
    assert (rest <= (len(centers) - 1) * torch.exp(-margins / t) + 1e-15 * len(centers)).all()
