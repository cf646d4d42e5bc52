"""soft_kmeans: where soft K-means rests, as a function with gradients."""

import math

import oracle
import pytest
import torch
from cases import SOFT

import entmeans
from entmeans import soft_kmeans
from entmeans.fixed_point import GRADIENTS

TEMPERATURES = (0.1, 1.0, 10.0)


def normal(*shape, seed):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def problem(seed=0, n=40, d=2, k=3):
    """Points, weights and starts that come to rest away from the kinks of sparsemax."""
    points = normal(n, d, seed=seed)
    return points, normal(n, seed=seed + 1).abs() + 0.1, points[:k].clone()


def outcome(found):
    """A number that depends on all that `soft_kmeans` gives."""
    k, d = found.centers.shape[-2:]
    factors = torch.arange(1.0, 1 + k * d, dtype=torch.float64).reshape(k, d)
    shares = found.responsibilities.square() @ factors[:, 0]
    return (found.centers.sin() * factors).sum() + shares.sum() + found.free_energy.sum()


def gradients(function, *values):
    leaves = [v.detach().clone().requires_grad_() for v in values]
    return torch.autograd.grad(function(*leaves), leaves)


def slope(function, values, along, step=1e-6):
    """The derivative by central differences."""
    ahead, behind = (
        function(*(v + s * a for v, a in zip(values, along, strict=True))) for s in (step, -step)
    )
    return (ahead - behind) / (2 * step)


def test_outcomes_that_no_loss_uses_pass_nothing_on():
    points, weight, start = problem()
    options = {"sample_weight": weight, "tol": 0.0, "max_iter": 2000}
    points.requires_grad_()  # `gradcheck` asks for undefined gradients too
    assert torch.autograd.gradcheck(
        lambda x: soft_kmeans(x, start, 1.0, "softmax", **options).centers, points
    )


@pytest.mark.parametrize("gradient", ["implicit", "unroll"])
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("mapping", SOFT)
def test_row_36_gradients_are_those_of_finite_differences(mapping, temperature, gradient):
    points, weight, start = problem()
    values = points, weight, torch.tensor(temperature, dtype=torch.float64)

    def function(points, weight, t):
        return outcome(
            soft_kmeans(
                *(points, start, t, mapping),
                gradient=gradient,
                sample_weight=weight,
                max_iter=3000,
                tol=0,
            )
        )

    along = [normal(*v.shape, seed=9 + i) for i, v in enumerate(values)]
    found = gradients(function, *values)
    exact = sum((g * a).sum() for g, a in zip(found, along, strict=True))
    # Differences over 1e-6 of centers that rest to 1e-15 or so.
    torch.testing.assert_close(exact, slope(function, values, along), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("temperature", [0.0, *TEMPERATURES])
@pytest.mark.parametrize("mapping", SOFT)
def test_all_three_give_the_same_gradient_of_the_free_energy(mapping, temperature):
    """It does not change with centers at rest, so it does not matter how these came there."""
    points, weight, start = problem(seed=4)
    found = [
        gradients(
            lambda x, w, gradient=gradient: (
                soft_kmeans(
                    *(x, start, temperature, mapping),
                    gradient=gradient,
                    sample_weight=w,
                    max_iter=3000,
                    tol=0,
                ).free_energy
            ),
            points,
            weight,
        )
        for gradient in GRADIENTS
    ]
    for other in found[1:]:
        torch.testing.assert_close(found[0], other, rtol=1e-7, atol=1e-9)


def test_at_zero_temperature_all_three_are_the_derivative_of_a_mean():
    points, weight, start = problem(seed=5)
    labels = soft_kmeans(points, start, 0.0, sample_weight=weight).responsibilities.argmax(-1)
    for gradient in GRADIENTS:
        (found,) = gradients(
            lambda x, gradient=gradient: (
                soft_kmeans(x, start, 0.0, gradient=gradient, sample_weight=weight)
                .centers[:, 0]
                .sum()
            ),
            points,
        )
        mass = torch.zeros(3, dtype=torch.float64).index_add(0, labels, weight)
        expected = torch.stack([weight / mass[labels], torch.zeros_like(weight)], -1)
        torch.testing.assert_close(found, expected)


def test_the_last_step_alone_leaves_out_how_far_the_centers_have_come():
    """Why `gradient="last"` is no more than a direction: it misses 1 / (1 - J)."""
    points, _, start = problem(seed=6)

    def first(x, gradient):
        return soft_kmeans(x, start, 1.0, "softmax", gradient=gradient, tol=0).centers[0, 0]

    (last,) = gradients(lambda x: first(x, "last"), points)
    (exact,) = gradients(lambda x: first(x, "implicit"), points)
    assert not torch.allclose(last, exact, rtol=0.05)
    assert torch.cosine_similarity(last.flatten(), exact.flatten(), dim=0) > 0


@pytest.mark.parametrize("side", [1, -1])
def test_at_a_kink_of_sparsemax_the_share_that_vanishes_counts_as_gone(side):
    """Two centers, T = 1: the share of the far one is (1 - gap) / 2, and 0 from a gap of 1 on."""
    points = torch.tensor([[0.0], [4.0], [side * 1e-9 + 1.875]], dtype=torch.float64)
    start = torch.tensor([[0.0], [4.0]], dtype=torch.float64)
    # With the third point at 1.875 of the first center alone, or shared: one side each.
    found = entmeans.responsibilities(points, start, 1.0, "sparsemax")
    assert (found[2] > 0).all() == (side > 0)
    kink = torch.tensor([[1.875]], dtype=torch.float64, requires_grad=True)
    p = entmeans.responsibilities(kink, start, 1.0, "sparsemax")
    assert p.tolist() == [[1.0, 0.0]]
    assert torch.autograd.grad(p[0, 0], kink)[0] == 0


@pytest.mark.parametrize("mapping", SOFT)
@pytest.mark.parametrize("temperature", [0.0, 0.3, 2.0])
def test_the_centers_are_where_the_step_of_the_oracle_leaves_them(mapping, temperature):
    points, weight, start = problem(seed=7)
    found = soft_kmeans(
        *(points, start, temperature, mapping), sample_weight=weight, tol=0, max_iter=3000
    )
    assert found.converged
    d = oracle.squared_distances(points, found.centers)
    p = torch.from_numpy(oracle.responsibilities(d, temperature, mapping))
    wp = weight[:, None] * p
    torch.testing.assert_close(found.centers, wp.T @ points / wp.sum(0)[:, None])
    torch.testing.assert_close(found.responsibilities, p)
    energy = entmeans.free_energy(points, found.centers, temperature, mapping, weight)
    torch.testing.assert_close(found.free_energy, energy)


@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("mapping", SOFT)
def test_a_batch_is_each_of_its_sets(mapping, gradient):
    sets = normal(4, 30, 3, seed=1) + torch.arange(4.0).reshape(4, 1, 1)
    weight = normal(4, 30, seed=2).abs()
    start = sets[:, :5]

    def whole(x, w):
        return soft_kmeans(x, start, 0.8, mapping, gradient=gradient, sample_weight=w)

    together = whole(sets, weight)
    by_all = gradients(lambda x, w: outcome(whole(x, w)), sets, weight)
    for i in range(4):

        def alone(x, w, i=i):
            return soft_kmeans(x, start[i], 0.8, mapping, gradient=gradient, sample_weight=w)

        single = alone(sets[i], weight[i])
        for a, b in zip(together, single, strict=True):
            torch.testing.assert_close(a[i], b, rtol=1e-7, atol=1e-9)
        by_one = gradients(lambda x, w, alone=alone: outcome(alone(x, w)), sets[i], weight[i])
        for a, b in zip(by_all, by_one, strict=True):
            torch.testing.assert_close(a[i], b, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("filler", [0.0, 1e30, math.nan, math.inf])
@pytest.mark.parametrize("gradient", GRADIENTS)
def test_padding_has_no_influence_whatever_it_holds(gradient, filler):
    sets = normal(3, 20, 1, seed=3)  # one feature: masks must not be taken for it
    lengths = torch.tensor([20, 7, 11])
    mask = torch.arange(20) < lengths[:, None]
    start = sets[:, :3].clone()
    padded = torch.where(mask[..., None], sets, filler).requires_grad_()
    found = soft_kmeans(padded, start, 0.5, mask=mask, gradient=gradient)
    outcome(found).backward()
    assert (padded.grad[~mask] == 0).all()
    assert (found.responsibilities[~mask] == 0).all()
    for i, n in enumerate(lengths):
        alone = sets[i, :n].clone().requires_grad_()
        single = soft_kmeans(alone, start[i], 0.5, gradient=gradient)
        outcome(single).backward()
        torch.testing.assert_close(found.centers[i], single.centers)
        torch.testing.assert_close(found.free_energy[i], single.free_energy)
        torch.testing.assert_close(padded.grad[i, :n], alone.grad, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_a_set_of_nothing_but_padding_leaves_its_centers_and_the_others_alone(gradient):
    sets = normal(2, 9, 2, seed=8).requires_grad_()
    mask = torch.tensor([[True] * 9, [False] * 9])
    found = soft_kmeans(sets, sets[:, :2].detach(), 1.0, mask=mask, gradient=gradient)
    assert found.free_energy[1] == 0
    assert torch.equal(found.centers[1], sets[1, :2])
    assert found.converged.all()
    outcome(found).backward()
    assert sets.grad.isfinite().all()
    assert (sets.grad[0] != 0).any()
    with pytest.raises(ValueError, match="set 1 holds no points"):
        soft_kmeans(sets, 2, 1.0, mask=mask)


def test_a_center_without_mass_stays_and_passes_on_nothing():
    points = normal(12, 2, seed=10).requires_grad_()
    start = torch.cat([points[:2].detach(), torch.full((1, 2), 1e3, dtype=torch.float64)])
    found = soft_kmeans(points, start, 0.5)
    assert torch.equal(found.centers[2], start[2])
    found.centers[2].sum().backward()
    assert (points.grad == 0).all()


def test_weights_are_copies():
    points, _, start = problem(seed=11, n=10)
    counts = torch.tensor([1, 2, 3, 1, 0, 1, 2, 1, 1, 4])
    weighted = soft_kmeans(points, start, 0.7, sample_weight=counts)
    copied = soft_kmeans(points.repeat_interleave(counts, 0), start, 0.7)
    torch.testing.assert_close(weighted.centers, copied.centers, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(weighted.free_energy, copied.free_energy)


def test_a_number_draws_starts_for_each_set_by_the_generator():
    sets = normal(3, 25, 2, seed=12)
    before = torch.random.get_rng_state()
    one, two = (
        soft_kmeans(sets, 4, 0.2, generator=torch.Generator().manual_seed(5)) for _ in range(2)
    )
    assert torch.equal(one.centers, two.centers)
    assert torch.equal(torch.random.get_rng_state(), before)
    generator = torch.Generator().manual_seed(5)
    starts = torch.stack([entmeans.kmeans_plusplus(x, 4, generator=generator) for x in sets])
    assert torch.equal(soft_kmeans(sets, starts, 0.2).centers, one.centers)


def test_one_start_serves_all_sets():
    sets, start = normal(3, 25, 2, seed=13), normal(4, 2, seed=14)
    one = soft_kmeans(sets, start, 0.5)
    each = soft_kmeans(sets, start.expand(3, 4, 2), 0.5)
    assert torch.equal(one.centers, each.centers)


def test_unrolled_steps_pass_gradients_to_the_start_and_a_second_time():
    points, _, start = problem(seed=15, n=8)
    start.requires_grad_()

    def function(x, c):
        return soft_kmeans(x, c, 1.0, gradient="unroll", max_iter=2).centers

    leaf = points.requires_grad_()
    assert torch.autograd.gradcheck(function, (leaf, start))
    assert torch.autograd.gradgradcheck(function, (leaf, start))


def test_implicit_gradients_refuse_a_second_derivative():
    points, _, start = problem(seed=16)
    found = soft_kmeans(points.requires_grad_(), start, 1.0)
    with pytest.raises(RuntimeError, match="unroll"):
        torch.autograd.grad(found.centers.sum(), points, create_graph=True)


def test_implicit_gradients_of_centers_that_do_not_rest_say_so():
    points, _, start = problem(seed=17)
    at_the_mean = points.mean(0, keepdim=True).expand(2, 2)
    found = soft_kmeans(points.requires_grad_(), at_the_mean + 1e-13 * start[:2], 1e-3, "softmax")
    with pytest.warns(RuntimeWarning, match="inexact"):
        found.centers.sum().backward()


def test_implicit_gradients_of_centers_that_still_move_say_so():
    generators = (torch.Generator().manual_seed(seed) for seed in (1, 2))
    near, far = (torch.randn(40, 3, generator=g) for g in generators)
    points = torch.cat([near, far + 2]).double().requires_grad_()
    start = points.detach()[[0, 3, 41]]
    found = soft_kmeans(points, start, 2.0, max_iter=10)
    assert not found.converged
    with pytest.warns(RuntimeWarning, match="not at rest"):
        found.centers.sum().backward()
    assert soft_kmeans(points, start, 2.0).converged


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_gradients_by_what_is_returned_are_its_own(gradient):
    points, _, start = problem()
    found = soft_kmeans(points.requires_grad_(), start, 1.0, gradient=gradient)
    by_centers = torch.autograd.grad(found.centers.square().sum(), found.centers)[0]
    assert torch.equal(by_centers, 2 * found.centers)


def test_a_temperature_that_is_a_number_is_not_rounded():
    points, _, start = problem()
    for scale, t in ((1.0, 1.7), (1e-30, 1.7e-60)):
        x, centers = scale * points, scale * start
        tensor = torch.tensor(t, dtype=torch.float64)
        one, other = (soft_kmeans(x, centers, value).responsibilities for value in (t, tensor))
        assert torch.equal(one, other)
        assert one.amax(1).min() < 0.9


def test_convergence_is_counted_and_told():
    points, _, start = problem(seed=18)
    few = soft_kmeans(points, start, 0.5, max_iter=2)
    many = soft_kmeans(points, start, 0.5, max_iter=1000)
    assert (few.iterations, few.converged) == (2, False)
    assert 2 < many.iterations < 1000
    assert many.converged
    zero = soft_kmeans(points, start, 0.5, max_iter=5000, tol=0)
    assert zero.converged


@pytest.mark.parametrize("temperature", [0.0, 1e-30, 1e-12, 1e12, 1e30, math.inf])
@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("mapping", SOFT)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.filterwarnings("ignore:soft_kmeans. the implicit gradient:RuntimeWarning")
def test_any_temperature_gives_numbers(mapping, gradient, temperature, dtype):
    points = normal(20, 2, seed=19).to(dtype).requires_grad_()
    found = soft_kmeans(points, points[:3].detach(), temperature, mapping, gradient=gradient)
    (found.centers.sum() + found.responsibilities.square().sum()).backward()
    assert found.centers.isfinite().all()
    assert found.responsibilities.isfinite().all()
    assert points.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_half_precision_is_computed_in_float32(dtype):
    points, _, start = problem(seed=20)
    points, start = points.to(dtype), start.to(dtype)
    found = soft_kmeans(points.requires_grad_(), start, 0.5)
    assert found.centers.dtype == torch.float32
    exact = soft_kmeans(points.double(), start.double(), 0.5)
    torch.testing.assert_close(found.centers.double(), exact.centers, rtol=1e-4, atol=1e-4)
    found.centers.sum().backward()
    assert points.grad.dtype == dtype


@pytest.mark.parametrize("sets", [1, 3])
def test_autocast_changes_nothing(sets):
    points, start = normal(sets, 40, 8, seed=23).float(), normal(sets, 3, 8, seed=24).float()
    points, start = (points, start) if sets > 1 else (points[0], start[0])

    def outcome_and_gradient(autocast):
        leaf = points.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            found = soft_kmeans(leaf, start, 4.0)
        return *found[:3], *torch.autograd.grad(found.centers.square().sum(), leaf)

    for a, b in zip(outcome_and_gradient(True), outcome_and_gradient(False), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("offset", [0.0, 2.0**10, 2.0**17])
def test_far_from_the_origin_float32_finds_the_same_centers(offset, gradient):
    """In many small steps, from close to where all centers are equal, a saddle."""
    points = (
        torch.cat([0.3 * normal(50, 2, seed=3), 1 + 0.3 * normal(50, 2, seed=4)]) * 64
    ).round()
    start = torch.tensor([[0.5, 0.5], [0.53, 0.47]]).double() * 64
    options = {"temperature": 1.2 * 64**2, "mapping": "softmax", "gradient": gradient}
    near = points.clone().requires_grad_()
    exact = soft_kmeans(near, start.round(), **options)
    exact.responsibilities.square().sum().backward()
    for sets in (False, True):
        moved = (points + offset).float().requires_grad_()
        x = moved.expand(2, -1, -1) if sets else moved
        found = soft_kmeans(x, (start.round() + offset).float(), **options)
        p, centers, iterations = (
            (v[0] if sets else v) for v in (found.responsibilities, found.centers, found.iterations)
        )
        assert abs(iterations - exact.iterations) < 0.1 * exact.iterations + 3
        assert exact.iterations > 50
        rounding = offset * 2**-24
        torch.testing.assert_close(
            centers.double() - offset, exact.centers, rtol=1e-3, atol=1e-2 + 2 * rounding
        )
        p.square().sum().backward()
        torch.testing.assert_close(moved.grad.double(), near.grad, rtol=2e-2, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"gradient": "exact"}, ValueError, "gradient='exact'"),
        ({"points": torch.zeros(3)}, ValueError, r"\(N, D\) or \(B, N, D\)"),
        ({"points": torch.full((4, 2), math.nan)}, ValueError, "NaN or infinity"),
        ({"points": torch.zeros(0, 2)}, ValueError, "empty"),
        ({"centers": torch.zeros(2, 3)}, ValueError, r"centers \(2, 3\) do not fit"),
        ({"centers": torch.zeros(2, 2, 2)}, ValueError, "do not fit"),
        ({"centers": 0}, ValueError, "centers"),
        ({"temperature": -1.0}, ValueError, "temperature"),
        ({"temperature": math.nan}, ValueError, "temperature"),
        ({"mapping": "hardmax"}, ValueError, "hardmax"),
        ({"mask": torch.ones(4)}, ValueError, "bool"),
        ({"mask": [True] * 4}, TypeError, "mask must be a torch tensor"),
        ({"sample_weight": [1.0] * 4}, TypeError, "sample_weight must be a torch tensor"),
        ({"centers": torch.full((2, 2), math.nan)}, ValueError, "centers hold NaN"),
        ({"points": torch.zeros(3, 4, 2), "centers": torch.zeros(2, 2, 2)}, ValueError, "do not"),
        ({"mask": torch.ones(5, dtype=torch.bool)}, ValueError, "mask"),
        ({"sample_weight": torch.ones(3)}, ValueError, "sample_weight"),
        ({"sample_weight": -torch.ones(4)}, ValueError, "0 or more"),
        ({"max_iter": 0}, ValueError, "max_iter"),
        ({"tol": math.nan}, ValueError, "tol"),
    ],
)
def test_bad_input_gives_one_clear_error(change, error, match):
    good = {"points": normal(4, 2, seed=22), "centers": 2, "temperature": 1.0}
    with pytest.raises(error, match=match):
        soft_kmeans(**{**good, **change})
