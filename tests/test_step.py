"""One step: against the definitions, its invariants, its gradients, its memory."""

import math
import re
from pathlib import Path

import cases
import entmax
import numpy as np
import oracle
import pytest
import torch
from cases import CASES, DTYPES, MAPPINGS, SOFT, assert_within, at_all_temperatures, stable
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import entmeans
from entmeans import step

each_case = pytest.mark.parametrize("name", CASES)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
each_mapping = pytest.mark.parametrize("mapping", MAPPINGS)
each_soft_mapping = pytest.mark.parametrize("mapping", SOFT)
any_mapping = st.sampled_from(MAPPINGS)

# float64: the products of small numbers below are exact to 1e-16 and sums have few terms.
CLOSE = {"rtol": 1e-12, "atol": 1e-12}

FIELDS = (
    *("mass", "moment", "distortion", "removal_cost"),
    *("free_energy", "inertia", "hard_mass", "smallest_margin"),
)


@pytest.fixture(
    params=[(torch.float64, None), (torch.float32, 32)],
    ids=["float64", "float32 in small chunks"],
)
def dtype(request, monkeypatch):
    dtype, chunk = request.param
    if chunk is not None:
        monkeypatch.setattr(step, "CHUNK_ELEMENTS", chunk)
    return dtype


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def problem(n=7, k=4, d=3):
    """Points, centers, temperature and weights that require gradients."""
    inputs = (normal(n, d), normal(k, d, seed=1), torch.tensor(1.0), normal(n, seed=2).abs() + 0.1)
    return [value.double().requires_grad_() for value in inputs]


# Equal to the definitions


@each_case
def test_squared_distances_and_the_nearest_are_those_of_the_definition(name, dtype):
    points, centers, _ = CASES[name].tensors(dtype)
    distances, error = cases.distances_of(name, dtype)
    found = entmeans.squared_distances(points, centers)
    eps = torch.finfo(dtype).eps
    assert found.dtype == dtype
    assert (found >= 0).all()
    assert_within(found, distances, error[:, None] + 4 * eps * distances)

    labels, near, margins = entmeans.nearest(points, centers)
    of_label = distances[range(len(points)), labels]
    assert labels.dtype == torch.int64
    assert (of_label <= distances.min(1) + error).all()
    if CASES[name].exact:
        assert labels.tolist() == oracle.labels(distances).tolist()
    # From differences: as exact as the subtraction of the shift, not as the matrix product.
    radius = cases.expected(name, dtype, "hard", 0.0).radius
    shifted = 8 * eps * radius
    rounding = 4 * (points.shape[1] + 2) * eps * of_label
    assert_within(near, of_label, 2 * shifted * of_label**0.5 + shifted**2 + rounding)
    assert_within(margins, oracle.margins(distances), 2 * error + 4 * eps * distances.max(1))


@each_case
@each_mapping
def test_responsibilities_are_those_of_the_definition(name, mapping, dtype):
    points, centers, _ = CASES[name].tensors(dtype)
    for e in at_all_temperatures(name, dtype, mapping):
        p = entmeans.responsibilities(points, centers, e.temperature, mapping)
        assert p.dtype == dtype
        assert (p >= 0).all()
        e.assert_within(p, e.p, e.p_error)
        e.assert_within(p.sum(1), torch.ones(len(p)), e.rounding)


@each_case
@each_mapping
def test_statistics_and_new_centers_are_those_of_the_definition(name, mapping, dtype):
    points, centers, weight = CASES[name].tensors(dtype)
    for e in at_all_temperatures(name, dtype, mapping):
        found = entmeans.statistics(points, centers, e.temperature, mapping, weight)
        assert all(getattr(found, field).dtype == torch.float64 for field in FIELDS[:-1])
        assert_sums_over_shares(found, e)
        assert_sums_over_margins(found, e)
        assert_new_centers(found.centers(centers), centers, e)


def assert_sums_over_shares(found, e):
    exact, w, d, error = e.statistics, e.weight[:, None], e.distances, e.error[:, None]
    high = e.p + e.p_error
    share = w * (e.p_error + e.rounding * high)  # the error of w p
    e.assert_within(found.mass, exact.mass, share.sum(0))
    size = abs(e.points).max(1) + 3 * abs(e.centers).max()
    e.assert_within(found.moment, exact.moment, (share.T @ size)[:, None])
    e.assert_within(found.distortion, exact.distortion, (share * d + w * high * error).sum(0))
    e.assert_within(found.free_energy, exact.free_energy, e.weight @ e.free_energy_error)


def assert_sums_over_margins(found, e):
    exact, lead, threshold = e.statistics, oracle.margins(e.distances), 0.0
    near = 2 * e.weight @ e.error
    e.assert_within(found.inertia, exact.inertia, near + e.rounding * exact.inertia)
    cost = exact.removal_cost.sum()
    cost_error = near + (e.rounding * cost if cost < math.inf else 0)
    e.assert_within(found.removal_cost, exact.removal_cost, cost_error)
    if e.temperature > 0 and e.mapping != "hard":
        threshold = oracle.ONE_HOT_MARGIN[e.mapping] * e.temperature
    unsure = np.zeros(len(lead))
    if len(e.centers) > 1 and threshold > 0:
        unsure = abs(lead - threshold) <= 2 * e.error + 4 * e.eps * lead
    total = e.weight.sum()
    e.assert_within(found.hard_mass, exact.hard_mass, e.weight @ unsure + e.rounding * total)
    margin_error = 2 * e.error.max() + 4 * e.eps * e.distances.max()
    e.assert_within(found.smallest_margin, exact.smallest_margin, margin_error)


def assert_new_centers(moved, previous, e):
    """The means; a center without mass stays; one with hardly any may be anywhere."""
    assert moved.dtype == previous.dtype
    exact, mass, unsure = (
        oracle.step(e.statistics, e.centers),
        e.statistics.mass,
        e.weight @ e.p_error,
    )
    settled = (mass == 0) | (unsure < 0.5 * mass)
    noise = 4 * e.radius * (unsure[:, None] / mass.clip(1e-300)[:, None] + e.rounding)
    noise = noise + 2 * e.eps * abs(exact)  # the result is rounded to the dtype
    e.assert_within(moved[settled], exact[settled], noise[settled])
    stays = e.weight @ (e.p + e.p_error) == 0
    assert torch.equal(moved[stays], previous[stays])


@each_case
@each_mapping
def test_free_energy_and_its_gradients_are_those_of_the_definition(name, mapping, dtype):
    points, centers, weight = CASES[name].tensors(dtype)
    points, centers = points.requires_grad_(), centers.requires_grad_()
    for e in at_all_temperatures(name, dtype, mapping):
        free = entmeans.free_energy(points, centers, e.temperature, mapping, weight, "none")
        exact = oracle.free_energy_terms(e.distances, e.p, e.temperature, mapping)
        assert free.dtype == dtype
        e.assert_within(
            free, oracle.reduce(exact, e.weight, "none"), e.weight * e.free_energy_error
        )
        to_points, to_centers = torch.autograd.grad(free.sum(), (points, centers))
        exact = oracle.free_energy_gradients(e.points, e.centers, e.weight, e.p, mapping)
        noise = 8 * e.radius * e.weight[:, None] * (e.p_error + e.rounding * e.p)
        e.assert_within(to_points, exact[0], noise.sum(1, keepdims=True))
        e.assert_within(to_centers, exact[1], noise.sum(0)[:, None])


@each_case
@each_mapping
def test_expected_distortion_is_that_of_the_definition(name, mapping, dtype):
    points, centers, weight = CASES[name].tensors(dtype)
    inertia = entmeans.inertia(points, centers, weight, "none")
    for e in at_all_temperatures(name, dtype, mapping):
        found = entmeans.expected_distortion(
            points, centers, e.temperature, mapping, weight, "none"
        )
        exact = oracle.reduce((e.p * e.distances).sum(1), e.weight, "none")
        high = e.p + e.p_error
        error = e.p_error * e.distances + high * (e.error[:, None] + e.rounding * e.distances)
        e.assert_within(found, exact, e.weight * error.sum(1))
        assert (found >= inertia - 2 * torch.as_tensor(e.weight * e.error)).all()


@each_case
def test_inertia_is_that_of_the_definition(name, dtype):
    points, centers, weight = CASES[name].tensors(dtype)
    e = cases.expected(name, dtype, "hard", 0.0)
    near = e.distances.min(1)
    found = entmeans.inertia(points, centers, weight, "none")
    exact = oracle.reduce(near, e.weight, "none")
    e.assert_within(found, exact, e.weight * (2 * e.error + e.rounding * near))
    total = entmeans.inertia(points, centers, weight)
    assert_close(total, found.double().sum().to(dtype))


@pytest.mark.parametrize("name", ["plain", "zero weights", "weights of all sizes", "N=1"])
@each_mapping
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_reductions_weigh_every_point(name, mapping, reduction, dtype):
    points, centers, weight = CASES[name].tensors(dtype)
    for e in at_all_temperatures(name, dtype, mapping):
        terms = oracle.free_energy_terms(e.distances, e.p, e.temperature, mapping)
        arguments = (points, centers, e.temperature, mapping, weight)
        found = entmeans.free_energy(*arguments, reduction)
        tolerance = oracle.reduce(e.free_energy_error, e.weight, reduction)
        e.assert_within(found, oracle.reduce(terms, e.weight, reduction), tolerance)
        each = entmeans.expected_distortion(*arguments, "none").double()
        total = e.weight.sum()
        exact = {"none": each, "sum": each.sum(), "mean": each.sum() / total}[reduction]
        assert_close(entmeans.expected_distortion(*arguments, reduction), exact.to(dtype))


# Dtypes, layouts and sizes


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool], ids=str)
def test_integers_are_computed_in_float64(dtype):
    points, centers = torch.tensor([[0, 1], [1, 1]]).to(dtype), torch.tensor([[1, 0]]).to(dtype)
    distances = entmeans.squared_distances(points, centers)
    assert torch.equal(distances, torch.tensor([[2.0], [1.0]], dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@each_mapping
def test_half_precision_is_computed_and_summed_in_float32(dtype, mapping):
    points, centers = normal(4001, 2).to(dtype) + 1, normal(3, 2, seed=1).to(dtype) + 1
    half = entmeans.statistics(points, centers, 0.5, mapping)
    full = entmeans.statistics(points.float(), centers.float(), 0.5, mapping)
    assert all(torch.equal(getattr(half, field), getattr(full, field)) for field in FIELDS)
    assert half.mass.sum().item() == pytest.approx(4001, rel=1e-6)
    loss = entmeans.free_energy(points.requires_grad_(), centers, 0.5, mapping, reduction="sum")
    loss.backward()
    assert loss.dtype == torch.float32
    assert points.grad.isfinite().all()


def test_mixed_dtypes_take_the_wider():
    points, centers = normal(5, 2), normal(3, 2, dtype=torch.float32)
    assert entmeans.squared_distances(points, centers).dtype == torch.float64
    assert entmeans.squared_distances(points.half(), centers).dtype == torch.float32
    assert entmeans.nearest(points.float(), centers.double()).distances.dtype == torch.float64


@each_dtype
@pytest.mark.parametrize("layout", [cases.transposed, cases.strided, cases.offset_view])
@pytest.mark.parametrize(("n", "k", "d"), [(101, 7, 17), (64, 16, 1), (33, 5, 33)])
def test_memory_layout_has_no_influence(dtype, layout, n, k, d):
    points, centers = normal(n, d, dtype=dtype), normal(k, d, seed=1, dtype=dtype)
    weight = torch.stack([points[:, 0].square(), points[:, 0]], 1)[:, 0]
    plain = entmeans.statistics(points, centers, 1.0, sample_weight=weight.contiguous())
    other = entmeans.statistics(layout(points), layout(centers), 1.0, sample_weight=weight)
    eps = torch.finfo(dtype).eps
    for field in FIELDS:
        # Another layout may take another order of products, on distances of about 2 d.
        assert_close(
            getattr(plain, field), getattr(other, field), rtol=16 * d * eps, atol=16 * d * eps
        )


def test_inputs_are_left_as_they_were():
    points, centers, temperature, weight = (value.detach() for value in problem())
    before = [value.clone() for value in (points, centers, weight)]
    entmeans.statistics(points, centers, temperature, sample_weight=weight)
    entmeans.free_energy(points, centers, temperature, sample_weight=weight)
    assert all(map(torch.equal, before, (points, centers, weight)))


@pytest.mark.parametrize(("n", "k", "d"), [(1, 1, 1), (257, 31, 513), (63, 1025, 2), (1000, 3, 1)])
def test_sizes_that_are_no_multiple_of_anything(n, k, d):
    points, centers = normal(n, d), normal(k, d, seed=1)
    exact = torch.cdist(points, centers, compute_mode="donot_use_mm_for_euclid_dist").square()
    assert_close(entmeans.squared_distances(points, centers), exact, rtol=1e-12, atol=1e-10)
    assert entmeans.statistics(points, centers, 1.0).mass.sum().item() == pytest.approx(n)


def test_no_points_are_the_neutral_element():
    points, centers = normal(5, 2), normal(3, 2, seed=1)
    nothing = entmeans.statistics(points[:0], centers, 1.0)
    assert nothing.mass.tolist() == [0, 0, 0]
    assert nothing.smallest_margin == math.inf
    whole = entmeans.statistics(points, centers, 1.0)
    assert equal(whole + nothing, whole)
    assert torch.equal(nothing.centers(centers), centers)


def test_labels_of_a_row_do_not_depend_on_the_rows_beside_it():
    points, centers = normal(501, 17, dtype=torch.float32), normal(33, 17, seed=1).float()
    alone = torch.cat([entmeans.nearest(point[None], centers).labels for point in points])
    together = entmeans.nearest(points, centers).labels
    distances = oracle.squared_distances(points, centers)
    gap = distances[range(501), alone] - distances[range(501), together]
    assert (
        abs(gap) <= oracle.distance_error(points, centers, torch.finfo(torch.float32).eps)
    ).all()


# Numbers


def equal(a, b):
    return all(torch.equal(getattr(a, field), getattr(b, field)) for field in FIELDS)


def test_two_to_the_24_plus_1_unit_weights_count_right_in_float32():
    n = 2**24 + 1
    found = entmeans.statistics(torch.ones(n, 1), torch.tensor([[1.0]]), 0.0)
    assert found.mass.item() == n
    assert found.hard_mass.item() == n
    assert found.moment.item() == n


def test_differences_of_nearly_equal_values_do_not_cancel():
    points = torch.tensor([[1.0001], [0.9999], [-1.0001], [-0.9999]])
    # Exact up to the rounding of the inputs, 6e-8 in a difference of 1e-4.
    inertia = entmeans.inertia(points, torch.tensor([[1.0], [-1.0]]))
    assert inertia.item() == pytest.approx(4.0e-8, rel=4e-3)
    far = entmeans.squared_distances(torch.tensor([[512695.0]]), torch.tensor([[512804.0]]))
    assert far.item() == 109.0**2


def test_blobs_far_from_the_origin_separate_in_float32():
    blob = torch.arange(200) % 2
    points = (1e4 + blob[:, None] + 0.05 * normal(200, 2)).float()
    centers = torch.tensor([[1e4, 1e4], [1e4 + 1, 1e4 + 1]])
    for t in (0.0, 0.1):
        p = entmeans.responsibilities(points, centers, t)
        assert torch.equal(p, torch.eye(2)[blob])


@pytest.mark.parametrize("d", [1, 3, 4, 8, 32])
@pytest.mark.parametrize("far", [1e2, 1e4, 1e6])
def test_one_center_far_away_does_not_blur_the_others_in_float32(d, far):
    centers = 3 * torch.arange(-4.0, 6.0)[:, None] + 0.1 * normal(10, d, dtype=torch.float32)
    centers[9] = far
    label = torch.arange(9).repeat_interleave(20)
    points = centers[label] + 0.1 * normal(180, d, seed=1, dtype=torch.float32)
    assert torch.equal(entmeans.nearest(points, centers).labels, label)
    mass = entmeans.statistics(points, centers, 0.1).mass
    assert mass.tolist() == pytest.approx([20.0] * 9 + [0.0], rel=1e-5)


@each_dtype
@pytest.mark.parametrize(("n", "k", "d"), [(80_000, 2, 2), (80_000, 1, 3), (2000, 50, 20)])
def test_the_number_of_threads_changes_no_bit(dtype, n, k, d):
    points, centers = normal(n, d, dtype=dtype), normal(k, d, seed=1, dtype=dtype)
    threads, results = torch.get_num_threads(), []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            found = entmeans.statistics(points, centers, 5.0)
            results.append((found, entmeans.free_energy(points, centers, 5.0)))
    finally:
        torch.set_num_threads(threads)
    (one, loss_one), (two, loss_two) = results
    assert equal(one, two)
    assert torch.equal(loss_one, loss_two)


@each_soft_mapping
@each_dtype
@pytest.mark.parametrize("temperature", [1e-30, 1e-6, 1.0, 1e30, math.inf])
def test_free_energy_stays_within_its_bounds_at_any_temperature(mapping, dtype, temperature):
    points, centers = normal(200, 5, dtype=dtype), normal(9, 5, seed=1, dtype=dtype)
    free = entmeans.free_energy(points, centers, temperature, mapping)
    lower, upper = entmeans.free_energy_bounds(points, centers, temperature, mapping)
    slack = 16 * torch.finfo(dtype).eps
    assert not free.isnan()
    assert lower - slack * abs(lower) <= free <= upper + slack * abs(upper)


@each_mapping
@pytest.mark.parametrize("temperature", [0.0, 1e-30, 1e-3])
def test_a_point_on_a_center_belongs_to_it(mapping, temperature):
    points = normal(6, 3) + 1e3
    p = entmeans.responsibilities(points, points, temperature, mapping)
    assert torch.equal(p, torch.eye(6, dtype=torch.float64))
    assert entmeans.inertia(points, points) == 0


@each_mapping
@pytest.mark.parametrize("temperature", [0.0, 1e-30, 1.0, math.inf])
def test_gradients_are_finite_where_points_coincide_with_centers(mapping, temperature):
    points = torch.zeros(4, 2, requires_grad=True)
    centers = torch.zeros(3, 2, requires_grad=True)
    for function in (entmeans.free_energy, entmeans.expected_distortion):
        loss = function(points, centers, temperature, mapping, reduction="none")
        grads = torch.autograd.grad(loss.sum(), (points, centers), allow_unused=True)
        assert all(torch.equal(g, torch.zeros_like(g)) for g in grads if g is not None)


@each_mapping
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_row_is_nan_and_touches_no_other(mapping, bad):
    points, centers = normal(5, 2), normal(3, 2, seed=1)
    spoiled = points.clone()
    spoiled[2, 1] = bad
    others = [0, 1, 3, 4]
    for t in (0.0, 1.0):
        p = entmeans.responsibilities(spoiled, centers, t, mapping)
        assert p[2].isnan().all()
        assert torch.equal(
            p[others], entmeans.responsibilities(points, centers, t, mapping)[others]
        )
        assert not entmeans.statistics(spoiled, centers, t, mapping).mass.isfinite().any()


@each_mapping
@pytest.mark.parametrize("temperature", [0.0, 1.0, math.inf])
def test_points_without_weight_have_no_influence(mapping, temperature):
    points, centers = normal(9, 2), normal(4, 2, seed=1)
    weight = torch.tensor([0.0, 1.0, 2.0] * 3, dtype=torch.float64)
    kept = weight > 0
    whole = entmeans.statistics(points, centers, temperature, mapping, weight)
    part = entmeans.statistics(points[kept], centers, temperature, mapping, weight[kept])
    for field in FIELDS:
        assert_close(getattr(whole, field), getattr(part, field), **CLOSE)
    for reduction in ("sum", "mean"):
        arguments = (centers, temperature, mapping)
        assert_close(
            entmeans.free_energy(points, *arguments, weight, reduction),
            entmeans.free_energy(points[kept], *arguments, weight[kept], reduction),
            **CLOSE,
        )


@each_case
def test_equal_centers_share_alike_and_ties_go_to_the_lowest_index(name):
    points, centers, _ = CASES[name].tensors(torch.float64)
    k = len(centers)
    twice = torch.cat([centers, centers])
    assert (entmeans.nearest(points, twice).labels < k).all()
    for mapping in SOFT:
        p = entmeans.responsibilities(points, twice, 1e-30, mapping)
        assert torch.equal(p[:, :k], p[:, k:])


@each_dtype
@pytest.mark.parametrize("d", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("offset", [0, 1000])
def test_ties_of_whole_numbers_are_exact(dtype, d, offset):
    generator = torch.Generator().manual_seed(d)
    points, centers = (
        torch.randint(0, 5, (n, d), generator=generator).to(dtype) + offset for n in (300, 7)
    )
    distances = oracle.squared_distances(points, centers)
    found = entmeans.nearest(points, centers)
    assert found.labels.tolist() == oracle.labels(distances).tolist()
    assert found.margins.tolist() == oracle.margins(distances).tolist()
    assert (found.margins == 0).sum() > 5
    for mapping in SOFT:
        p = entmeans.responsibilities(points, centers, 1e-30, mapping)
        tied = distances == distances.min(1, keepdims=True)
        assert_within(p, tied / tied.sum(1, keepdims=True), 4 * torch.finfo(dtype).eps)


# Invariants


@stable
@given(cases.problems(), any_mapping)
def test_the_sandwich_holds(problem, mapping):
    points, centers, weight, t = problem
    free = entmeans.free_energy(points, centers, t, mapping, weight, "sum")
    lower, upper = entmeans.free_energy_bounds(points, centers, t, mapping, weight, "sum")
    expected = entmeans.expected_distortion(points, centers, t, mapping, weight, "sum")
    slack = 1e-12 * weight.sum() * (t + 1e3)  # distances of these points reach 600
    assert lower - slack <= free <= upper + slack
    assert upper <= expected + slack


@stable
@given(cases.problems(), any_mapping)
def test_a_step_never_raises_the_free_energy(problem, mapping):
    points, centers, weight, t = problem
    for temperature in (0.0, t):
        before, arguments = centers, (temperature, mapping, weight)
        for _ in range(3):
            after = entmeans.statistics(points, before, *arguments).centers(before)
            slack = 1e-12 * weight.sum() * (t + 1e3)
            assert (
                entmeans.free_energy(points, after, *arguments, "sum")
                <= entmeans.free_energy(points, before, *arguments, "sum") + slack
            )
            before = after


@stable
@given(cases.problems(), any_mapping, st.booleans())
def test_a_gradient_step_of_half_the_inverse_mass_is_the_step(problem, mapping, cold):
    points, centers, weight, t = problem
    temperature = 0.0 if cold else t
    centers.requires_grad_()
    found = entmeans.statistics(points, centers.detach(), temperature, mapping, weight)
    loss = entmeans.free_energy(points, centers, temperature, mapping, weight, "sum")
    (gradient,) = torch.autograd.grad(loss, centers)
    # Below this mass the gradient itself is a subnormal number.
    filled = found.mass > 1e-290
    rate = 1 / (2 * found.mass[filled, None])
    stepped = centers[filled] - rate * gradient[filled]
    assert_close(stepped, found.centers(centers.detach())[filled], rtol=0, atol=1e-12 * 10)
    assert torch.equal(gradient[found.mass == 0], torch.zeros_like(gradient[found.mass == 0]))


@stable
@given(cases.problems(), st.sampled_from(["entmax15", "sparsemax"]), st.floats(1e-3, 1.0))
def test_up_to_the_hardening_temperature_the_soft_step_is_lloyds_bit_for_bit(
    problem, mapping, share
):
    points, centers, weight, _ = problem
    hardening = entmeans.hardening_temperature(points, centers, mapping, weight).item()
    assume(0 < hardening < math.inf)
    zero = entmeans.statistics(points, centers, 0.0, mapping, weight)
    for t in (hardening, share * hardening):
        soft = entmeans.statistics(points, centers, t, mapping, weight)
        assert equal(soft, zero)
        assert torch.equal(soft.centers(centers), zero.centers(centers))
        assert soft.hard_mass == weight.sum()
    warmer = entmeans.statistics(points, centers, 1.01 * hardening, mapping, weight)
    assert warmer.hard_mass < weight.sum()


@stable
@given(cases.problems(whole=True), any_mapping, st.integers(0, 12), st.integers(0, 12))
def test_statistics_of_a_union_are_the_sum_of_the_statistics(problem, mapping, i, j):
    points, centers, weight, t = problem
    cuts = sorted({0, min(i, len(points)), min(j, len(points)), len(points)})
    for temperature in (0.0, t, math.inf):
        whole, *parts = (
            entmeans.statistics(points[rows], centers, temperature, mapping, weight[rows])
            for rows in [slice(None), *map(slice, cuts, cuts[1:])]
        )
        total = sum(parts[1:], parts[0])
        for field in FIELDS:
            assert_close(getattr(total, field), getattr(whole, field), **CLOSE)


def test_only_statistics_can_be_added_to_statistics():
    found = entmeans.statistics(normal(3, 2), normal(2, 2), 1.0)
    with pytest.raises(TypeError):
        found + 1


@stable
@given(cases.problems(whole=True), any_mapping)
def test_a_weight_of_k_equals_k_copies(problem, mapping):
    points, centers, weight, t = problem
    copies = points.repeat_interleave(weight.long(), 0)
    for temperature in (0.0, t):
        weighted = entmeans.statistics(points, centers, temperature, mapping, weight)
        copied = entmeans.statistics(copies, centers, temperature, mapping)
        for field in FIELDS:
            assert_close(getattr(weighted, field), getattr(copied, field), **CLOSE)


@stable
@given(cases.problems(whole=True), any_mapping, st.randoms(use_true_random=False))
def test_the_order_of_points_has_no_influence(problem, mapping, random):
    points, centers, weight, t = problem
    order = random.sample(range(len(points)), len(points))
    for temperature in (0.0, t):
        found = entmeans.statistics(points, centers, temperature, mapping, weight)
        shuffled = entmeans.statistics(points[order], centers, temperature, mapping, weight[order])
        for field in FIELDS:
            assert_close(getattr(shuffled, field), getattr(found, field), **CLOSE)


@stable
@given(cases.problems(whole=True), st.sampled_from(SOFT), st.randoms(use_true_random=False))
def test_the_order_of_centers_is_the_order_of_the_result(problem, mapping, random):
    points, centers, weight, t = problem
    order = random.sample(range(len(centers)), len(centers))
    found = entmeans.statistics(points, centers, t, mapping, weight)
    shuffled = entmeans.statistics(points, centers[order], t, mapping, weight)
    for field in ("mass", "moment", "distortion"):
        assert_close(getattr(shuffled, field), getattr(found, field)[order], **CLOSE)
    for field in ("free_energy", "inertia", "hard_mass", "smallest_margin"):
        assert_close(getattr(shuffled, field), getattr(found, field), **CLOSE)
    # At a tie the cost goes to the lowest index, but is 0.
    assert_close(shuffled.removal_cost, found.removal_cost[order], **CLOSE)


@stable
@given(cases.problems(whole=True), any_mapping, st.integers(-(10**6), 10**6))
def test_a_translation_moves_the_centers_and_nothing_else(problem, mapping, offset):
    points, centers, weight, t = problem
    for temperature in (0.0, t):
        found, moved = (
            entmeans.statistics(points + o, centers + o, temperature, mapping, weight)
            for o in (0, offset)
        )
        for field in set(FIELDS) - {"moment"}:
            assert_close(getattr(moved, field), getattr(found, field), **CLOSE)
        expected = found.centers(centers) + offset
        assert_close(moved.centers(centers + offset), expected, rtol=1e-15, atol=1e-12)


@stable
@given(cases.problems(), any_mapping, st.integers(-40, 40))
def test_a_change_of_units_changes_nothing(problem, mapping, exponent):
    points, centers, weight, t = problem
    s = 2.0**exponent  # a power of two, so that no digit changes
    found = entmeans.statistics(points, centers, t, mapping, weight)
    scaled = entmeans.statistics(s * points, s * centers, s**2 * t, mapping, weight)
    power = {"mass": 0, "hard_mass": 0, "moment": 1}
    for field in FIELDS:
        assert torch.equal(getattr(scaled, field), s ** power.get(field, 2) * getattr(found, field))


@stable
@given(cases.problems(whole=True), any_mapping)
def test_any_chunking_gives_the_same_result(problem, mapping):
    points, centers, weight, t = problem
    whole = entmeans.statistics(points, centers, t, mapping, weight)
    with pytest.MonkeyPatch.context() as patch:
        for elements in (1, 7, 16):
            patch.setattr(step, "CHUNK_ELEMENTS", elements)
            chunked = entmeans.statistics(points, centers, t, mapping, weight)
            for field in FIELDS:
                assert_close(getattr(chunked, field), getattr(whole, field), **CLOSE)


# Gradients

THEIRS = {
    "softmax": lambda z: torch.softmax(z, -1),
    "entmax15": lambda z: entmax.entmax15(z, dim=-1),
    "sparsemax": lambda z: entmax.sparsemax(z, dim=-1),
}
ENTROPY = {
    "softmax": lambda p: torch.special.entr(p),
    "entmax15": lambda p: 4 / 3 * (p - p**1.5),
    "sparsemax": lambda p: (p - p**2) / 2,
}


def dense(points, centers, temperature, weight, mapping, reduction):
    """Free energy and expected distortion by broadcasting, for autograd to differentiate."""
    d = (points[:, None] - centers).square().sum(-1)  # (N, K)
    p = THEIRS[mapping](-d / temperature)
    distortion = (p * d).sum(-1)
    free = distortion - temperature * ENTROPY[mapping](p).sum(-1)
    total = weight.sum() if reduction == "mean" else 1
    return tuple(
        weight * terms if reduction == "none" else (weight * terms).sum() / total
        for terms in (free, distortion)
    )


@each_soft_mapping
@pytest.mark.parametrize("t", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_values_and_gradients_equal_autograd_of_the_dense_formula(
    mapping, t, reduction, monkeypatch
):
    monkeypatch.setattr(step, "CHUNK_ELEMENTS", 32)
    for index, function in enumerate((entmeans.free_energy, entmeans.expected_distortion)):
        points, centers, temperature, weight = inputs = problem(n=23, k=5, d=3)
        temperature.data.fill_(t)
        found = function(points, centers, temperature, mapping, weight, reduction)
        exact = dense(*inputs, mapping, reduction)[index]
        assert_close(found, exact, rtol=1e-12, atol=1e-12)
        direction = normal(*found.shape, seed=5)
        grads = torch.autograd.grad(found, inputs, direction)
        assert_close(grads, torch.autograd.grad(exact, inputs, direction), rtol=1e-10, atol=1e-11)


@each_mapping
@pytest.mark.parametrize("t", [0.1, 1.0, 10.0])
def test_free_energy_has_right_first_and_second_derivatives(mapping, t):
    points, centers, temperature, weight = problem(n=5, k=3, d=2)
    temperature.data.fill_(t)

    def loss(*inputs):
        *first, weight = inputs
        return entmeans.free_energy(*first, mapping, weight, reduction="sum")

    inputs = (points, centers, temperature, weight)
    assert torch.autograd.gradcheck(loss, inputs)
    assert torch.autograd.gradgradcheck(loss, inputs)


@each_soft_mapping
@pytest.mark.parametrize("t", [1e-30, 1e-3, 1e3])
def test_second_derivatives_stay_finite_at_extreme_temperatures(mapping, t):
    points, centers, temperature, _ = problem()
    temperature.data.fill_(t)
    inputs = (points, centers, temperature)
    loss = entmeans.free_energy(*inputs, mapping)
    first = torch.autograd.grad(loss, inputs, create_graph=True)
    second = torch.autograd.grad(sum(g.sum() for g in first), inputs)
    assert all(g.isfinite().all() for g in (*first, *second))


@each_mapping
def test_the_gradient_of_the_temperature_is_minus_the_entropy(mapping):
    points, centers, temperature, weight = problem()
    loss = entmeans.free_energy(points, centers, temperature, mapping, weight, "sum")
    loss.backward()
    p = oracle.responsibilities(
        oracle.squared_distances(points.detach(), centers.detach()), 1.0, mapping
    )
    arrays = (oracle.array(value.detach()) for value in (points, centers, weight))
    to_points, to_centers, to_temperature = oracle.free_energy_gradients(*arrays, p, mapping)
    assert_within(points.grad, to_points, 1e-12)
    assert_within(centers.grad, to_centers, 1e-12)
    assert_within(temperature.grad, to_temperature, 1e-12)


@pytest.mark.parametrize("function", ["free_energy", "expected_distortion", "responsibilities"])
def test_a_learned_temperature_is_accepted_without_a_warning(function):
    points, centers, temperature, _ = problem()
    torch.set_warn_always(True)
    try:
        getattr(entmeans, function)(points, centers, temperature).sum().backward()
    finally:
        torch.set_warn_always(False)
    assert temperature.grad.isfinite()


@each_mapping
def test_at_zero_temperature_the_gradients_are_those_of_kmeans(mapping):
    points, centers, _, weight = problem()
    entmeans.free_energy(points, centers, 0.0, mapping, weight, "sum").backward()
    hard = torch.func.grad(
        lambda c: (weight * (points[:, None] - c).square().sum(-1).amin(-1)).sum()
    )(centers.detach())
    assert_close(centers.grad, hard, **CLOSE)


@each_soft_mapping
def test_responsibilities_are_differentiable(mapping):
    points, centers, temperature, _ = problem(n=4, k=3, d=2)
    assert torch.autograd.gradcheck(
        lambda *inputs: entmeans.responsibilities(*inputs, mapping), (points, centers, temperature)
    )


# Memory and devices


class Largest(TorchDispatchMode):
    """Fails on any operation that makes a tensor of more than a number of elements."""

    def __init__(self, elements):
        super().__init__()
        self.elements, self.largest = elements, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for value in tree_leaves(out):
            if isinstance(value, torch.Tensor):
                stored = value.untyped_storage().nbytes() // value.itemsize
                assert stored <= self.elements, f"{function} made {tuple(value.shape)}"
                self.largest = max(self.largest, stored)
        return out


N, K, D = 3000, 50, 3
CHUNK = 4096


def in_little_memory(function):
    """Inputs have N D elements, so that much and a chunk is allowed; N K is 16 times as much."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step, "CHUNK_ELEMENTS", CHUNK)
        with Largest(N * D + CHUNK) as mode:
            function()
    assert mode.largest >= N


@pytest.mark.parametrize(
    "function",
    [
        lambda x, c, w: entmeans.statistics(x, c, 1.0, sample_weight=w),
        lambda x, c, w: entmeans.nearest(x, c),
        lambda x, c, w: entmeans.inertia(x, c, w),
        lambda x, c, w: entmeans.expected_distortion(x, c, 1.0, sample_weight=w),
        lambda x, c, w: entmeans.free_energy_bounds(x, c, 1.0, sample_weight=w),
        lambda x, c, w: entmeans.hardening_temperature(x, c, sample_weight=w),
        lambda x, c, w: entmeans.is_fixed_point(x, c, 1.0, sample_weight=w),
        lambda x, c, w: entmeans.critical_temperature(x, K, sample_weight=w),
        lambda x, c, w: entmeans.anneal(x, c, sample_weight=w, max_iter=3),
        lambda x, c, w: entmeans.kmeans_plusplus(x, K, w),
        lambda x, c, w: entmeans.random_centers(x, K, w),
    ],
    ids=[
        *("statistics", "nearest", "inertia", "expected_distortion", "free_energy_bounds"),
        *("hardening_temperature", "is_fixed_point", "critical_temperature", "anneal"),
        *("kmeans_plusplus", "random_centers"),
    ],
)
def test_points_times_centers_are_never_held(function):
    points, centers = normal(N, D), normal(K, D, seed=1)
    in_little_memory(lambda: function(points, centers, points[:, 0].abs()))


@each_mapping
def test_the_loss_holds_no_points_times_centers_forward_backward_or_between(mapping):
    points, centers = normal(N, D).requires_grad_(), normal(K, D, seed=1).requires_grad_()
    saved = []

    def pack(value):
        saved.append(value.untyped_storage().nbytes() // value.itemsize)
        return value

    def run():
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
            loss = entmeans.free_energy(points, centers, 1.0, mapping)
        loss.backward()

    in_little_memory(run)
    assert sum(saved) <= 2 * (N * D + K * D + N)


def test_the_memory_check_notices_points_times_centers():
    with pytest.raises(AssertionError, match=r"made \(3000, 50\)"), Largest(N * D + CHUNK):
        torch.cdist(normal(N, D), normal(K, D))


def on_meta(*shape, **options):
    return torch.empty(*shape, device="meta", **options)


@each_mapping
@pytest.mark.parametrize("temperature", [0.0, 1.0, math.inf])
def test_shapes_are_right_on_the_meta_device(mapping, temperature):
    n, k, d = 17, 5, 3
    points, centers = on_meta(n, d, requires_grad=True), on_meta(k, d, requires_grad=True)
    weight, arguments = on_meta(n), (points, centers, temperature, mapping)
    assert entmeans.squared_distances(points, centers).shape == (n, k)
    assert entmeans.responsibilities(*arguments).shape == (n, k)
    found = entmeans.statistics(*arguments, weight)
    shapes = [getattr(found, field).shape for field in FIELDS]
    assert shapes == [(k,), (k, d), (k,), (k,), (), (), (), ()]
    assert found.centers(centers).shape == (k, d)
    assert [part.shape for part in entmeans.nearest(points, centers)] == [(n,)] * 3
    for function in (entmeans.free_energy, entmeans.expected_distortion):
        assert function(*arguments, weight).shape == ()
        assert function(*arguments, weight, "none").shape == (n,)
    entmeans.free_energy(*arguments, weight).backward()
    assert (points.grad.shape, centers.grad.shape) == ((n, d), (k, d))
    assert entmeans.inertia(points, centers, weight).device.type == "meta"
    assert entmeans.hardening_temperature(points, centers, mapping, weight).shape == ()
    assert entmeans.is_fixed_point(*arguments, weight).shape == ()
    assert len(entmeans.free_energy_bounds(*arguments, weight)) == 2


def test_more_than_2_to_the_31_scores_are_no_special_case(monkeypatch):
    # Shapes alone, so that no time is spent on numbers.
    n, k = 36_000, 60_000
    assert n * k > 2**31
    monkeypatch.setattr(step, "CHUNK_ELEMENTS", 2**28)
    points, centers = on_meta(n, 2), on_meta(k, 2)
    with Largest(2**28 + 2 * n):
        assert entmeans.statistics(points, centers, 1.0).mass.shape == (k,)
        assert entmeans.nearest(points, centers).labels.shape == (n,)
        assert entmeans.free_energy(points, centers, 1.0, reduction="none").shape == (n,)


@pytest.mark.parametrize(
    "module", ["inputs", "mappings", "schedules", "step", "limit", "seeding", "fit"]
)
def test_nothing_is_moved_off_the_device_of_the_inputs(module):
    source = Path(step.__file__).with_name(f"{module}.py").read_text()
    assert not re.search(r"\.cpu\(|\.numpy\(|\.cuda\(|to\(['\"]cpu", source)


# Bad input

GOOD = torch.zeros(3, 2)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (([[0.0, 1.0]], GOOD), TypeError, ("points must", "list")),
        ((GOOD.numpy(), GOOD), TypeError, ("points must", "ndarray")),
        ((GOOD, None), TypeError, ("centers must", "NoneType")),
        ((GOOD[0], GOOD), ValueError, ("points must", "(2,)")),
        ((GOOD, GOOD[None]), ValueError, ("centers must", "(1, 3, 2)")),
        ((GOOD, GOOD[:, :1]), ValueError, ("points (3, 2)", "centers (3, 1)", "features")),
        ((GOOD, GOOD[:0]), ValueError, ("centers (0, 2)", "at least one center")),
        ((GOOD[:, :0], GOOD[:, :0]), ValueError, ("points (3, 0)", "feature")),
        ((GOOD.to(torch.complex64), GOOD), TypeError, ("points must be real", "complex64")),
        ((GOOD, GOOD.to(torch.complex64)), TypeError, ("centers must be real", "complex64")),
    ],
    ids=lambda value: None,
)
def test_bad_points_and_centers_are_named(arguments, error, words):
    functions = (
        entmeans.squared_distances,
        entmeans.nearest,
        entmeans.inertia,
        entmeans.hardening_temperature,
        lambda x, c: entmeans.statistics(x, c, 1.0),
        lambda x, c: entmeans.responsibilities(x, c, 1.0),
        lambda x, c: entmeans.free_energy(x, c, 1.0),
        lambda x, c: entmeans.expected_distortion(x, c, 1.0),
        lambda x, c: entmeans.is_fixed_point(x, c, 1.0),
        lambda x, c: entmeans.free_energy_bounds(x, c, 1.0),
        entmeans.anneal,
    )
    for function in functions:
        with pytest.raises(error) as caught:
            function(*arguments)
        assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize(
    "function",
    [
        *(entmeans.responsibilities, entmeans.statistics, entmeans.free_energy),
        *(entmeans.expected_distortion, entmeans.is_fixed_point, entmeans.free_energy_bounds),
    ],
    ids=lambda function: function.__name__,
)
@pytest.mark.parametrize(
    ("temperature", "shown"),
    [
        *((-1.0, "-1.0"), (math.nan, "nan"), (-math.inf, "-inf"), (torch.tensor(-2.0), "-2.0")),
        *(("hot", "hot"), (None, "None"), (torch.ones(2), "(2,)"), ([1.0], "list|1.0")),
    ],
    ids=str,
)
def test_a_bad_temperature_is_named_with_its_value(function, temperature, shown):
    with pytest.raises((ValueError, TypeError), match=f"temperature must.*({shown})"):
        function(GOOD, GOOD, temperature)


@pytest.mark.parametrize(
    "function",
    [entmeans.free_energy, entmeans.expected_distortion, entmeans.free_energy_bounds],
    ids=lambda function: function.__name__,
)
def test_an_unknown_reduction_is_named_with_the_choices(function):
    with pytest.raises(ValueError, match=r"reduction='total'.*mean.*sum.*none"):
        function(GOOD, GOOD, 1.0, reduction="total")


@pytest.mark.parametrize(
    ("weight", "error", "words"),
    [
        ([1.0, 1.0, 1.0], TypeError, ("sample_weight must", "list")),
        (torch.ones(2), ValueError, ("sample_weight must", "(3,)", "(2,)")),
        (torch.ones(3, 1), ValueError, ("sample_weight must", "(3,)", "(3, 1)")),
    ],
    ids=["list", "too few", "a column"],
)
def test_bad_weights_are_named(weight, error, words):
    for function in (
        lambda w: entmeans.statistics(GOOD, GOOD, 1.0, sample_weight=w),
        lambda w: entmeans.free_energy(GOOD, GOOD, 1.0, sample_weight=w),
        lambda w: entmeans.expected_distortion(GOOD, GOOD, 1.0, sample_weight=w),
        lambda w: entmeans.inertia(GOOD, GOOD, w),
        lambda w: entmeans.hardening_temperature(GOOD, GOOD, sample_weight=w),
        lambda w: entmeans.anneal(GOOD, GOOD, sample_weight=w),
        lambda w: entmeans.kmeans_plusplus(GOOD, 2, w),
        lambda w: entmeans.random_centers(GOOD, 2, w),
    ):
        with pytest.raises(error) as caught:
            function(weight)
        assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float64], ids=str)
def test_weights_may_have_any_dtype(dtype):
    weight = torch.tensor([1, 0, 1]).to(dtype)
    assert entmeans.statistics(GOOD, GOOD, 1.0, sample_weight=weight).mass.sum() == pytest.approx(2)


VMAPPED = {
    "squared_distances": lambda x, c, w, t, m: entmeans.squared_distances(x, c),
    "responsibilities": lambda x, c, w, t, m: entmeans.responsibilities(x, c, t, m),
    "nearest": lambda x, c, w, t, m: entmeans.nearest(x, c).margins,
    "free_energy": lambda x, c, w, t, m: entmeans.free_energy(x, c, t, m, w),
    "free_energy without weights": lambda x, c, w, t, m: entmeans.free_energy(x, c, t, m),
    "moment": lambda x, c, w, t, m: entmeans.statistics(x, c, t, m, w).moment,
}


@pytest.mark.parametrize("mapping", MAPPINGS)
@pytest.mark.parametrize("name", VMAPPED)
def test_under_vmap_everything_may_be_batched_and_has_its_gradients(name, mapping):
    """Temperatures too, and gradients taken within vmap or through it."""
    generator = torch.Generator().manual_seed(3)
    shapes = (4, 7, 2), (4, 3, 2), (4, 7), (4,)
    inputs = [torch.rand(s, dtype=torch.float64, generator=generator) for s in shapes]
    inputs[-1][0] = 0.0

    def number(*arguments):
        return VMAPPED[name](*arguments, mapping).square().sum()

    leaves = [v.clone().requires_grad_() for v in inputs]
    each = torch.stack([number(*item) for item in zip(*leaves, strict=True)])
    expected = torch.autograd.grad(each.sum(), leaves, allow_unused=True)
    within = torch.func.vmap(torch.func.grad(number, argnums=(0, 1, 2, 3)))(*inputs)
    through = [v.clone().requires_grad_() for v in inputs]
    together = torch.func.vmap(number)(*through)
    torch.testing.assert_close(together, each)
    outside = torch.autograd.grad(together.sum(), through, allow_unused=True)
    for one, two, three in zip(expected, within, outside, strict=True):
        one = torch.zeros_like(two) if one is None else one
        torch.testing.assert_close(two, one)
        torch.testing.assert_close(torch.zeros_like(one) if three is None else three, one)
