"""Seeding draws from a weighted measure in space, with a generator of its own."""

import math

import pytest
import torch
from cases import CASES, DTYPES
from torch import Tensor

import entmeans
from entmeans import step
from entmeans.seeding import nearer

SEEDINGS = {"k-means++": entmeans.kmeans_plusplus, "random": entmeans.random_centers}
each_seeding = pytest.mark.parametrize("seed_centers", SEEDINGS.values(), ids=SEEDINGS)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0, dtype=torch.float64) -> Tensor:
    return torch.randn(shape, dtype=dtype, generator=generator(seed))


def rows(values: Tensor) -> set[tuple[float, ...]]:
    return {tuple(row) for row in values.tolist()}


@each_seeding
@each_dtype
@pytest.mark.parametrize("name", CASES)
def test_centers_are_points_with_weight_and_distinct_while_points_last(seed_centers, name, dtype):
    points, centers, weight = CASES[name].tensors(dtype)
    candidates = rows(points if weight is None else points[weight > 0])
    for k in (1, len(centers), len(points) + 2):
        found = seed_centers(points, k, weight, generator=generator(k))
        assert found.shape == (k, points.shape[1])
        assert found.dtype == dtype
        assert rows(found) <= candidates
        assert len(rows(found)) == min(k, len(candidates))


@each_seeding
@each_dtype
def test_the_order_of_points_has_no_influence(seed_centers, dtype):
    points, weight = normal(101, 3, dtype=dtype), normal(101, seed=1, dtype=dtype).abs()
    order = torch.randperm(101, generator=generator(9))
    for seed in range(20):
        drawn = seed_centers(points, 7, weight, generator=generator(seed))
        again = seed_centers(points[order], 7, weight[order], generator=generator(seed))
        assert torch.equal(drawn, again)


@each_seeding
@each_dtype
def test_copies_in_place_of_weights_have_no_influence(seed_centers, dtype):
    points = normal(40, 2, dtype=dtype)
    weight = torch.randint(0, 4, (40,), generator=generator(5))
    copies = points.repeat_interleave(weight, 0)[
        torch.randperm(int(weight.sum()), generator=generator(6))
    ]
    for seed in range(20):
        drawn = seed_centers(points, 6, weight.to(dtype), generator=generator(seed))
        assert torch.equal(drawn, seed_centers(copies, 6, generator=generator(seed)))


@each_seeding
def test_units_of_points_and_of_weights_have_no_influence(seed_centers):
    points, weight = normal(50, 2), normal(50, seed=1).abs()
    for seed in range(10):
        drawn = seed_centers(points, 5, weight, generator=generator(seed))
        for s in (2.0**-30, 2.0**30):
            scaled = seed_centers(s * points, 5, weight / s, generator=generator(seed))
            assert torch.equal(scaled, s * drawn)


@each_seeding
def test_the_generator_decides_and_nothing_else_is_touched(seed_centers):
    points = normal(100, 2)
    state = torch.get_rng_state()
    first, second = (seed_centers(points, 5, generator=generator(s)) for s in (1, 2))
    assert torch.equal(first, seed_centers(points, 5, generator=generator(1)))
    assert not torch.equal(first, second)
    draws = [seed_centers(points, 5) for _ in range(3)]
    assert not torch.equal(draws[0], draws[1]) or not torch.equal(draws[1], draws[2])
    assert torch.equal(torch.get_rng_state(), state)


@each_seeding
def test_a_generator_goes_on_from_draw_to_draw(seed_centers):
    points, one = normal(100, 2), generator(3)
    draws = [seed_centers(points, 4, generator=one) for _ in range(4)]
    assert len({tuple(draw.flatten().tolist()) for draw in draws}) == 4


@each_seeding
def test_points_without_weight_are_never_drawn(seed_centers):
    points = torch.tensor([[1e6], [0.0], [1.0], [-1e6]], dtype=torch.float64)
    weight = torch.tensor([0.0, 1.0, 1e-8, 0.0], dtype=torch.float64)
    for seed in range(100):
        assert rows(seed_centers(points, 3, weight, generator=generator(seed))) == {(0,), (1,)}


@pytest.mark.parametrize("u", [0.0, 1 - 2.0**-53])
def test_no_random_number_draws_a_point_without_weight(u, monkeypatch):
    monkeypatch.setattr(torch, "rand", lambda n, **_: torch.full((n,), u, dtype=torch.float64))
    points = torch.tensor([[-1e6], [0.0], [1.0], [1e6]], dtype=torch.float64)
    weight = torch.tensor([0.0, 1.0, 0.1, 0.0], dtype=torch.float64)
    for seed in range(4):  # the random direction decides which end comes first
        drawn = entmeans.kmeans_plusplus(points, 2, weight, generator=generator(seed))
        assert rows(drawn) == {(0,), (1,)}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_heavy_points_are_preferred_to_a_far_one_without_weight_to_speak_of(dtype):
    points = torch.tensor([[1.0], [5.0], [100.0]], dtype=dtype)
    weight = torch.tensor([1e8, 1e8, 1e-8], dtype=dtype)
    for seed in range(50):
        drawn = entmeans.kmeans_plusplus(points, 2, weight, generator=generator(seed))
        assert rows(drawn) == {(1,), (5,)}


@each_seeding
def test_more_clusters_than_locations_repeat_locations(seed_centers):
    points = torch.tensor([[5.0], [5.0], [7.0], [7.0]])
    for seed in range(20):
        drawn = seed_centers(points, 3, generator=generator(seed))
        assert drawn.shape == (3, 1)
        assert rows(drawn) == {(5,), (7,)}


@each_seeding
def test_both_of_two_locations_are_found_among_many_copies(seed_centers):
    points = torch.cat([torch.zeros(248, 2), torch.ones(1, 2)])
    for seed in range(20):
        assert rows(seed_centers(points, 2, generator=generator(seed))) == {(0, 0), (1, 1)}


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e9])
@each_seeding
def test_points_of_huge_norm_in_float32(seed_centers, offset):
    points = (1e9 * normal(60, 3) + offset).float()
    for seed in range(5):
        drawn = seed_centers(points, 9, generator=generator(seed))
        assert len(rows(drawn)) == 9
        assert rows(drawn) <= rows(points)


def test_copies_far_from_the_origin_are_recognized_as_copies():
    points = (1e6 + normal(8, 17)).float().repeat(20, 1)
    for seed in range(5):
        drawn = entmeans.kmeans_plusplus(points, 8, generator=generator(seed))
        assert rows(drawn) == rows(points)


def chi_square(counts: Tensor, probabilities: Tensor) -> float:
    wanted = counts.sum() * probabilities
    possible = wanted > 0
    assert not counts[~possible].any()
    return ((counts - wanted)[possible].square() / wanted[possible]).sum().item()


def frequencies(draw, points: Tensor, draws: int = 2000) -> Tensor:
    """How often each ordered pair of points is drawn, with a fixed seed for each draw."""
    counts = torch.zeros(len(points), len(points), dtype=torch.float64)
    for seed in range(draws):
        pair = draw(generator(seed))
        i, j = ((points == center).all(1).nonzero().item() for center in pair)
        counts[i, j] += 1
    return counts


POINTS = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0], [4.0, 4.0], [-1.0, 0.5]])
WEIGHT = torch.tensor([1.0, 2.0, 0.5, 0.25, 0.0])
# The chi-square statistic of 12 to 16 cells exceeds 40 once in more than a thousand seeds.
RARE = 40


def test_kmeans_plusplus_draws_in_proportion_to_weight_times_squared_distance():
    def draw(g):
        return entmeans.kmeans_plusplus(POINTS, 2, WEIGHT, n_local_trials=1, generator=g)

    distances = torch.cdist(POINTS, POINTS).square()
    second = WEIGHT * distances
    p = (WEIGHT / WEIGHT.sum())[:, None] * second / second.sum(1, keepdim=True)
    assert chi_square(frequencies(draw, POINTS), p.double()) < RARE


def test_random_centers_draw_in_proportion_to_weight_without_replacement():
    def draw(g):
        return entmeans.random_centers(POINTS, 2, WEIGHT, generator=g)

    rest = WEIGHT * (1 - torch.eye(5))
    p = (WEIGHT / WEIGHT.sum())[:, None] * rest / rest.sum(1, keepdim=True)
    assert chi_square(frequencies(draw, POINTS), p.double()) < RARE


def test_local_trials_take_the_candidate_that_leaves_least_inertia():
    # With very many trials the best point is among the candidates.
    points = normal(30, 2)
    for seed in range(10):
        first, second = entmeans.kmeans_plusplus(
            points, 2, n_local_trials=2000, generator=generator(seed)
        )
        left = [entmeans.inertia(points, torch.stack([first, point])).item() for point in points]
        found = entmeans.inertia(points, torch.stack([first, second])).item()
        assert found == pytest.approx(min(left), rel=1e-12)


def test_local_trials_leave_less_inertia_on_average():
    points = normal(200, 2)

    def mean_inertia(trials):
        runs = [
            entmeans.kmeans_plusplus(points, 8, n_local_trials=trials, generator=generator(seed))
            for seed in range(30)
        ]
        return sum(entmeans.inertia(points, centers).item() for centers in runs) / len(runs)

    assert mean_inertia(None) < mean_inertia(1)


def test_chunks_have_no_influence(monkeypatch):
    points, weight = normal(101, 3), normal(101, seed=1).abs()
    whole = entmeans.kmeans_plusplus(points, 7, weight, generator=generator(0))
    monkeypatch.setattr(step, "CHUNK_ELEMENTS", 64)
    assert torch.equal(whole, entmeans.kmeans_plusplus(points, 7, weight, generator=generator(0)))


def test_nearer_is_exact_for_equal_points_at_any_offset():
    points = (1e6 + normal(40, 9)).float()
    center = points[7:8]
    found = nearer(points, center)
    assert found[7] == 0
    assert (found[torch.arange(40) != 7] > 0).all()
    assert torch.equal(nearer(points, center, torch.zeros(40)), torch.zeros(40))


@each_seeding
def test_centers_are_drawn_not_differentiated(seed_centers):
    assert not seed_centers(normal(20, 2).requires_grad_(), 3).requires_grad


@each_seeding
def test_integers_and_half_precision_are_accepted(seed_centers):
    points = torch.arange(20).reshape(10, 2)
    assert seed_centers(points, 3, generator=generator(0)).dtype == torch.float64
    assert seed_centers(points.bfloat16(), 3, generator=generator(0)).dtype == torch.float32


@each_seeding
@pytest.mark.parametrize("n_clusters", [0, -1, 2.5])
def test_a_bad_number_of_clusters_is_named(seed_centers, n_clusters):
    with pytest.raises((ValueError, TypeError), match=f"n_clusters.*{n_clusters}"):
        seed_centers(POINTS, n_clusters)


@pytest.mark.parametrize("n_local_trials", [0, -1])
def test_a_bad_number_of_trials_is_named(n_local_trials):
    with pytest.raises(ValueError, match=f"n_local_trials.*{n_local_trials}"):
        entmeans.kmeans_plusplus(POINTS, 2, n_local_trials=n_local_trials)


@each_seeding
@pytest.mark.parametrize(
    ("points", "error", "words"),
    [
        (POINTS[:0], ValueError, "points.*0"),
        (POINTS[0], ValueError, r"points must.*\(2,\)"),
        (POINTS.tolist(), TypeError, "points must.*list"),
    ],
    ids=["none", "one dimension", "list"],
)
def test_bad_points_are_named(seed_centers, points, error, words):
    with pytest.raises(error, match=words) as caught:
        seed_centers(points, 2)
    assert "centers" not in str(caught.value)


@each_seeding
@pytest.mark.parametrize(
    "weight",
    [[-1.0, 1, 1, 1, 1], [0.0] * 5, [math.nan, 1, 1, 1, 1], [math.inf, 1, 1, 1, 1]],
    ids=["negative", "all zero", "nan", "infinite"],
)
def test_weights_that_are_no_measure_are_named(seed_centers, weight):
    with pytest.raises(ValueError, match="sample_weight must"):
        seed_centers(POINTS, 2, torch.tensor(weight))
