"""The statements of docs/theory.md on data: inequalities as they are proved, examples exact."""

import math
import re
from fractions import Fraction
from pathlib import Path

import cases
import pytest
import torch
from cases import SOFT, stable
from hypothesis import assume, given
from hypothesis import strategies as st

import entmeans
from entmeans.mappings import get_mapping

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "theory.md"
SPARSE = ("entmax15", "sparsemax")
ONE_HOT_MARGIN = {"softmax": math.inf, "entmax15": 2.0, "sparsemax": 1.0}

each_soft_mapping = pytest.mark.parametrize("mapping", SOFT)
each_sparse_mapping = pytest.mark.parametrize("mapping", SPARSE)
any_mapping = st.sampled_from(SOFT)


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def normal(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def step(points, centers, temperature, mapping, weight=None):
    return entmeans.statistics(points, centers, temperature, mapping, weight).centers(centers)


def path(points, centers, temperature, mapping, n_steps, weight=None):
    centers = [centers]
    for _ in range(n_steps):
        centers.append(step(points, centers[-1], temperature, mapping, weight))
    return torch.stack(centers)


def rest(points, centers, temperature, mapping, weight=None):
    for _ in range(10_000):
        before = centers
        centers = step(points, before, temperature, mapping, weight)
        if apart(centers, before) < 1e-14:
            return centers
    raise AssertionError("the centers still move")


def apart(these, those):
    """|mu - nu|: the largest distance of a center from its counterpart."""
    return (these - those).norm(dim=-1).amax(-1)


def diameter(points):
    return torch.cdist(points, points).max().item()


def radius(points, centers):
    return torch.cdist(points, centers).max().item()


def smallest_margin(points, centers):
    return entmeans.nearest(points, centers).margins.min().item()


def blobs(n_points, seed):
    """Three clusters in the plane, and centers that are some way off."""
    means = tensor([0.0, 0.0], [4.0, 1.0], [1.0, 5.0])
    points = means.repeat(n_points // 3, 1) + normal(3 * (n_points // 3), 2, seed=seed)
    return points, means + 0.5 * normal(3, 2, seed=seed + 1000)


def lloyd_path(points, centers, weight=None):
    """Until it rests, the last state twice."""
    found = [centers]
    while len(found) < 2 or not torch.equal(found[-1], found[-2]):
        found.append(step(points, found[-1], 0.0, "hard", weight))
    return torch.stack(found)


def step_derivative(points, centers, temperature, mapping, weight=None):
    """DS_T as a matrix (K D, K D)."""

    def moved(c):
        found = entmeans.statistics(points, c, temperature, mapping, weight)
        return found.moment / found.mass.unsqueeze(-1)

    return torch.autograd.functional.jacobian(moved, centers).reshape(2 * (centers.numel(),))


# The page


def test_every_link_of_the_page_leads_to_what_it_names():
    links = re.findall(r"\[`(\w+)(?:\.py)?`\]\(([^)#]+)\)", PAGE.read_text())
    assert len(links) > 40
    for name, target in links:
        file = (PAGE.parent / target).resolve()
        assert file.exists(), target
        named = re.search(rf"(def|class) {name}\b|^    {name}: ", file.read_text(), flags=re.M)
        assert named or file.stem == name, f"{name} is not in {target}"


def test_every_test_of_this_file_stands_on_the_page():
    own = re.findall(r"^def (test_\w+)", Path(__file__).read_text(), flags=re.M)
    page = PAGE.read_text()
    assert [name for name in own if "page" not in name and name not in page] == []


# Responsibilities


@stable
@given(cases.problems(), any_mapping)
def test_shares_follow_the_order_of_the_distances_and_vanish_with_the_temperature(problem, mapping):
    points, centers, _, t = problem
    d = entmeans.squared_distances(points, centers)
    p = entmeans.responsibilities(points, centers, t, mapping)
    nearer = d.unsqueeze(2) < d.unsqueeze(1) - 1e-9
    assert (p.unsqueeze(2) >= p.unsqueeze(1) - 1e-12)[nearer].all()
    excess = d - d.amin(1, keepdim=True)
    largest = get_mapping(mapping).max_entropy(len(centers))
    assert (p * excess <= t * largest * (1 + 1e-9)).all()


@stable
@given(cases.problems())
def test_softmax_approaches_one_hot_exponentially_and_no_faster(problem):
    points, centers, _, t = problem
    assume(len(centers) > 1)
    d = entmeans.squared_distances(points, centers)
    excess = d - d.amin(1, keepdim=True)
    margins = entmeans.nearest(points, centers).margins
    # 1 - max p as a sum, which does not round at 1.
    powers = (-excess / t).exp().sort(1).values[:, :-1].sum(1)
    rest = powers / (1 + powers)
    largest = entmeans.responsibilities(points, centers, t, "softmax").amax(1)
    assert torch.allclose(1 - rest, largest, rtol=0, atol=1e-12)
    tail = torch.exp(-margins / t)
    assert (rest >= tail / 2 * (1 - 1e-9)).all()
    assert (rest <= (len(centers) - 1) * tail * (1 + 1e-9)).all()


# The objective


@each_soft_mapping
@pytest.mark.parametrize("temperature", [1e-3, 1.0, 1e3])
def test_the_bound_is_attained_where_all_centers_coincide(mapping, temperature):
    points, weight = normal(20, 3), normal(20, seed=1).abs()
    centers = normal(1, 3, seed=2).expand(4, -1)
    arguments = (points, centers, temperature, mapping, weight, "sum")
    lower, _ = entmeans.free_energy_bounds(*arguments)
    free = entmeans.free_energy(*arguments)
    assert abs(free - lower) <= 1e-13 * (free.abs() + weight.sum() * (temperature + 100))


@stable
@given(cases.problems(), any_mapping)
def test_projecting_centers_onto_a_convex_set_with_all_points_raises_nothing(problem, mapping):
    points, centers, weight, t = problem
    centers = 3 * centers
    box = centers.clamp(points.amin(0), points.amax(0))
    for temperature in (0.0, t):
        before, after = (
            entmeans.free_energy(points, c, temperature, mapping, weight, "sum")
            for c in (centers, box)
        )
        assert after <= before + 1e-12 * weight.sum() * (t + 1e4)


@each_soft_mapping
def test_minimizers_of_the_free_energy_are_those_of_k_means_within_the_bound(mapping):
    x = tensor([0], [1], [2.5], [6], [7.25], [11])
    weight = tensor(1, 2, 1, 1, 3, 1)
    halves = [(x[:i], weight[:i], x[i:], weight[i:]) for i in range(1, len(x))]
    splits = [
        torch.stack([(a * u[:, None]).sum(0) / u.sum(), (b * v[:, None]).sum(0) / v.sum()])
        for a, u, b, v in halves
    ]
    best = min(splits, key=lambda c: entmeans.inertia(x, c, weight, "sum").item())
    lowest = entmeans.inertia(x, best, weight, "sum").item()
    grid = torch.cartesian_prod(*2 * [torch.linspace(0, 11, 12, dtype=x.dtype)]).unsqueeze(-1)
    for t in (0.05, 0.5, 5.0, 50.0):
        energies = tensor(
            *(entmeans.free_energy(x, c, t, mapping, weight, "sum").item() for c in grid)
        )
        starts = [*grid[energies.topk(2, largest=False).indices], *splits]
        ends = [path(x, c, t, mapping, 80, weight)[-1] for c in starts]
        found = min(ends, key=lambda c: entmeans.free_energy(x, c, t, mapping, weight, "sum"))
        minimum = entmeans.free_energy(x, found, t, mapping, weight, "sum").item()
        assert minimum <= energies.min().item() + 1e-12
        bound = t * weight.sum().item() * get_mapping(mapping).max_entropy(2)
        assert lowest - bound <= minimum <= lowest + 1e-12
        excess = entmeans.inertia(x, found, weight, "sum").item() - lowest
        assert -1e-12 <= excess <= bound + 1e-12
        if t <= 0.5 and mapping in SPARSE:
            assert torch.allclose(found.sort(0).values, best, rtol=0, atol=1e-14)
            assert minimum == pytest.approx(lowest, abs=1e-12)


@stable
@given(cases.problems(), any_mapping)
def test_steps_from_anywhere_keep_the_objective_within_the_bound(problem, mapping):
    points, centers, weight, t = problem
    before = entmeans.inertia(points, centers, weight, "sum")
    bound = t * weight.sum() * get_mapping(mapping).max_entropy(len(centers))
    # At t alone, and up to it and down again.
    for temperatures in (5 * [t], [0.0, t / 3, t, t, t / 4, 0.0]):
        after = centers
        for temperature in temperatures:
            after = step(points, after, temperature, mapping, weight)
            excess = entmeans.inertia(points, after, weight, "sum") - before
            assert excess <= bound + 1e-12 * weight.sum() * (t + 1e3)


# The update


@stable
@given(cases.problems(), any_mapping, st.booleans())
def test_a_step_lowers_the_free_energy_by_the_mass_times_the_squared_shift(problem, mapping, cold):
    points, centers, weight, t = problem
    arguments = (0.0 if cold else t, mapping, weight)
    found = entmeans.statistics(points, centers, *arguments)
    moved = found.centers(centers)
    before, after = (entmeans.free_energy(points, c, *arguments, "sum") for c in (centers, moved))
    promised = (found.mass * (centers - moved).square().sum(1)).sum()
    assert before - after >= promised - 1e-12 * weight.sum() * (t + 1e3)


@each_soft_mapping
@pytest.mark.parametrize("temperature", [0.5, 3.0, 40.0])
def test_the_gradient_of_the_weighted_loss_has_another_term(mapping, temperature):
    points, centers, weight = normal(30, 2), normal(4, 2, seed=1), normal(30, seed=2).abs()
    leaf = centers.clone().requires_grad_()
    loss = entmeans.expected_distortion(points, leaf, temperature, mapping, weight, "sum")
    (gradient,) = torch.autograd.grad(loss, leaf)
    p = entmeans.responsibilities(points, centers, temperature, mapping)
    d = entmeans.squared_distances(points, centers)
    s = {"softmax": p, "entmax15": p.sqrt(), "sparsemax": (p > 0).double()}[mapping]
    mean = (s * d).sum(1, keepdim=True) / s.sum(1, keepdim=True)
    extra = -s * (d - mean) / temperature

    def pull(c):
        c = weight[:, None] * c
        return 2 * (c.sum(0)[:, None] * centers - c.T @ points)

    assert torch.allclose(gradient, pull(p + extra), rtol=1e-10, atol=1e-10)
    assert pull(extra).abs().max() > 1e-3
    held = entmeans.statistics(points, centers, temperature, mapping, weight)
    assert torch.allclose(pull(p), 2 * (held.mass[:, None] * centers - held.moment), atol=1e-10)


# The hardening temperature


@stable
@given(cases.problems(), st.integers(0, 100), st.floats(1e-3, 2.0))
def test_margins_change_by_no_more_than_the_lemma_allows(problem, seed, size):
    points, centers, _, _ = problem
    assume(len(centers) > 1)
    moved = centers + size * normal(*centers.shape, seed=seed)
    e, reach = apart(moved, centers).item(), radius(points, centers)
    change = e * (2 * reach + e) + 1e-9
    d, d_moved = (entmeans.squared_distances(points, c) for c in (centers, moved))
    assert (d - d_moved).abs().max() <= change
    before, after = (entmeans.nearest(points, c) for c in (centers, moved))
    assert (before.margins - after.margins).abs().max() <= 2 * change
    assert torch.equal(*(found.labels[before.margins > 2 * change] for found in (before, after)))


# Trajectories


@each_sparse_mapping
@pytest.mark.parametrize("seed", range(4))
def test_soft_paths_are_lloyds_below_the_smallest_margin(mapping, seed):
    points, centers = blobs(60, seed)
    hard = lloyd_path(points, centers)
    margin = min(smallest_margin(points, c) for c in hard)
    assert margin > 0
    limit = margin / ONE_HOT_MARGIN[mapping]
    for t in (limit, limit / 2, limit / 1000):
        assert torch.equal(path(points, centers, t, mapping, len(hard) - 1), hard)
    warmer = path(points, centers, 2 * limit, mapping, len(hard) - 1)
    assert not torch.equal(warmer, hard)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("ratio", [1.5, 4.0, 12.0])
def test_a_softmax_step_misses_lloyds_by_no_more_than_the_lemma_allows(ratio, seed):
    points, centers = blobs(60, seed)
    weight = normal(len(points), seed=seed).abs()
    q = math.exp(-ratio)
    assert (len(centers) - 1) * q <= 1 / 2
    t = smallest_margin(points, centers) / ratio
    hard = entmeans.statistics(points, centers, 0.0, "hard", weight)
    factor = 2 * diameter(points) * (len(centers) + (weight.sum() / hard.mass.min()).item())
    soft = step(points, centers, t, "softmax", weight)
    assert apart(soft, hard.centers(centers)) <= factor * q


@pytest.mark.parametrize("seed", range(4))
def test_softmax_paths_stay_within_the_exponential_bound_at_every_step(seed):
    points, centers = blobs(60, seed)
    hard = lloyd_path(points, centers)
    margin = min(smallest_margin(points, c) for c in hard)
    masses = [entmeans.statistics(points, c, 0.0, "hard").mass for c in hard]
    least = min(mass.min().item() for mass in masses)
    assert least > 0
    factor = 2 * diameter(points) * (len(centers) + len(points) / least)
    hard = torch.cat([hard, hard[-1:].expand(200, -1, -1)])
    for ratio in (14.0, 20.0, 28.0):
        soft = path(points, centers, margin / ratio, "softmax", len(hard) - 1)
        assert apart(soft, hard).max() <= 2 * factor * math.exp(-ratio)


# Rates


def fixed_point(seed):
    """A fixed point of K-means, its margins and labels, the smallest one alone."""
    points, centers = blobs(60, seed)
    centers = lloyd_path(points, centers)[-1]
    d = entmeans.squared_distances(points, centers)
    return points, centers, d - d.amin(1, keepdim=True)


@pytest.mark.parametrize("seed", range(4))
def test_softmax_rests_at_the_leading_term_of_the_theorem(seed):
    points, centers, excess = fixed_point(seed)
    two = excess.sort(1).values[:, 1].sort().values[:2]
    margin = two[0].item()
    i, k = (excess - margin).abs().lt(1e-12).nonzero()[0].tolist()
    own = excess[i].argmin().item()
    leading = torch.zeros_like(centers)
    mass = entmeans.statistics(points, centers, 0.0, "hard").mass
    leading[k] = (points[i] - centers[k]) / mass[k]
    leading[own] = -(points[i] - centers[own]) / mass[own]
    assert two[1] > 1.9 * margin
    # The next terms are smaller by exp(-(second margin - margin) / T), at most exp(-14), and by
    # exp(-margin / T) / T; rounding is 1e-16 exp(margin / T).
    for ratio in (16.0, 20.0, 24.0):
        t = margin / ratio
        found = (rest(points, centers, t, "softmax") - centers) * math.exp(ratio)
        assert apart(found, leading) <= 1e-3 * leading.norm(dim=1).max()
    factor = 2 * diameter(points) * (len(centers) + len(points) / mass.min().item())
    assert apart(rest(points, centers, t, "softmax"), centers) <= 2 * factor * math.exp(-ratio)


@pytest.mark.parametrize("ratio", [5.0, 10.0, 20.0])
def test_the_derivative_of_a_softmax_step_is_within_its_bound(ratio):
    points, centers, _ = fixed_point(0)
    margin = smallest_margin(points, centers)
    t, q = margin / ratio, math.exp(-ratio)
    mass = entmeans.statistics(points, centers, 0.0, "hard").mass.min().item()
    bound = 8 * len(points) / mass * diameter(points) * 2 * radius(points, centers) * q / t
    derivative = step_derivative(points, centers, t, "softmax")
    # The norm that belongs to the largest shift of a center is at most that of rows of blocks.
    blocks = derivative.reshape(3, 2, 3, 2).transpose(1, 2)
    norm = torch.linalg.matrix_norm(blocks, ord=2).sum(1).max()
    assert 0 < norm <= bound


@each_sparse_mapping
@pytest.mark.parametrize("seed", range(4))
def test_sparse_mappings_rest_exactly_where_k_means_does(mapping, seed):
    points, centers, _ = fixed_point(seed)
    hardening = entmeans.hardening_temperature(points, centers, mapping).item()
    assert hardening == pytest.approx(smallest_margin(points, centers) / ONE_HOT_MARGIN[mapping])
    room = 0.5 * hardening / (8 * radius(points, centers))
    for t in (hardening, hardening / 2):
        assert torch.equal(step(points, centers, t, mapping), centers)
    near = centers + room * torch.nn.functional.normalize(normal(3, 2, seed=seed), dim=1)
    assert torch.equal(step(points, near, hardening / 2, mapping), centers)
    slope = diameter(points) / hardening
    for t in (1.1 * hardening, 3 * hardening, 30 * hardening):
        distance = apart(rest(points, centers, t, mapping), centers)
        assert 0 < distance <= slope * t


KAPPA = {"softmax": math.pi**2 / 6, "entmax15": 2 - math.pi / 2, "sparsemax": 1 / 6}


@each_soft_mapping
def test_on_a_density_a_step_is_off_by_the_square_of_the_temperature(mapping):
    n, t = 200_000, 0.01
    x = (torch.arange(n, dtype=torch.float64) + 0.5).unsqueeze(1) / n
    rho = 1 + 2 * x.squeeze(1) ** 2  # on [0, 1], not normalized
    a, b = 0.25, 0.85
    centers, c, length = tensor([a], [b]), (a + b) / 2, b - a
    arguments = (mapping, rho / n)
    hard = entmeans.statistics(x, centers, 0.0, *arguments)
    lloyd = hard.centers(centers)
    off = (entmeans.statistics(x, centers, t, *arguments).centers(centers) - lloyd).squeeze(1)
    at_wall, slope = 1 + 2 * c**2, 4 * c
    unit = KAPPA[mapping] * (t / (2 * length)) ** 2 / hard.mass
    means = lloyd.squeeze(1)
    law = unit * (at_wall + (c - means) * slope) * tensor(1, -1)
    assert torch.allclose(off, law, rtol=1e-2)
    energies = [entmeans.free_energy(x, centers, T, *arguments, "sum") for T in (0.0, t)]
    gap = KAPPA[mapping] * at_wall * t**2 / (2 * length)
    assert (energies[0] - energies[1]).item() == pytest.approx(gap, rel=1e-2)


@each_soft_mapping
def test_the_distance_to_k_means_may_rise_as_the_temperature_falls(mapping):
    points, weight = tensor([-10], [-4], [1], [10]), tensor(20, 4, 1, 8)
    hard = tensor([-9], [9])
    assert torch.equal(step(points, hard, 0.0, "hard", weight), hard)
    assert smallest_margin(points, hard) == 36
    warm, cold = {"softmax": (50, 30), "entmax15": (100, 80), "sparsemax": (165, 150)}[mapping]
    distances = []
    for t in (warm, cold):
        found = rest(points, hard, t, mapping, weight)
        derivative = step_derivative(points, found, t, mapping, weight)
        contraction = torch.linalg.matrix_norm(derivative, ord=2).item()
        assert contraction < 0.6  # at and, by continuity, about the fixed point
        residual = apart(step(points, found, t, mapping, weight), found).item()
        error = residual / (1 - contraction)
        assert error < 1e-12
        assert entmeans.nearest(points, found).labels.tolist() == [0, 0, 1, 1]
        distances.append([apart(found, hard).item(), (found - hard).norm().item()])
    assert all(near > 1.2 * far for far, near in zip(*distances, strict=True))
    frozen = 36 / ONE_HOT_MARGIN[mapping]
    if frozen:
        assert torch.equal(rest(points, hard, frozen, mapping, weight), hard)


def test_a_point_that_stays_on_the_wall_keeps_the_centers_away_exactly():
    points, hard, shared = tensor([1], [3], [4], [5], [8]), tensor([8 / 3], [6.5]), tensor([3], [7])
    assert entmeans.hardening_temperature(points, hard).item() == pytest.approx(115 / 72)
    for t in (4.0, 3.5, 2.75, 2.0, 1e-3):
        assert apart(step(points, shared, t, "entmax15"), shared) <= 4e-15
    for t in (3.9, 2.75, 2.6, 1.0):
        eigenvalues = torch.linalg.eigvals(step_derivative(points, shared, t, "entmax15")).real
        law = [0, 40 * 2**0.5 / (21 * t)]
        assert eigenvalues.abs().sort().values.tolist() == pytest.approx(law, abs=1e-12)
    away = tensor([1e-3], [-2e-3])
    assert apart(rest(points, shared + away, 3.0, "entmax15"), shared) < 1e-12
    assert apart(rest(points, shared + away, 1.5, "entmax15"), hard) < 1e-12
    assert apart(shared, hard) == 0.5
    assert apart(rest(points, shared, 6.0, "entmax15"), hard) < 0.17


def test_the_hardening_temperature_of_a_sample_is_of_the_order_one_over_n():
    # Margins are |x - 1/2|, uniform on [0, 1/2]: of density 2, so P(N T* > t) tends to exp(-4 t).
    generator = torch.Generator().manual_seed(0)
    centers = tensor([0.25], [0.75])
    for n in (100, 1000):
        draws = [torch.rand(n, 1, dtype=torch.float64, generator=generator) for _ in range(400)]
        found = tensor(*(n * entmeans.hardening_temperature(x, centers) for x in draws))
        # The standard error of a median of 400 exponential times is 5 % of the mean.
        assert found.median().item() == pytest.approx(math.log(2) / 4, abs=3 * 0.05 / 4)


# The threshold


@stable
@given(
    st.lists(st.fractions(0, 1, max_denominator=1000), min_size=1, max_size=60),
    st.integers(1, 50),
)
def test_newton_rises_to_the_threshold_at_the_proved_rate(depths, copies):
    x = -tensor(*(float(Fraction(depth)) for depth in depths)).repeat(copies)
    x = x - x.max()
    p = get_mapping("entmax15").probabilities(2 * x)
    root = (x[p.argmax()] - p.max().sqrt()).item()
    tau, steps = -1.0, 0
    while True:
        y = (x - tau).clamp_min(0)
        norm = y.norm().item()
        assert norm - 1 <= len(x) * 4.0**-steps + 1e-12
        if norm - 1 <= 1e-13 * len(x):
            break
        size = (norm**2 - norm) / y.sum().item()
        assert size >= (norm**2 - 1) / (2 * y.sum().item()) * (1 - 1e-12)
        tau, steps = tau + size, steps + 1
        assert tau <= root + 1e-9
    assert tau == pytest.approx(root, abs=1e-9)
    assert steps <= math.log(len(x) / 1e-13, 4) + 1


# The critical temperature


@each_soft_mapping
@pytest.mark.parametrize("n_clusters", [2, 3, 5])
def test_the_derivative_of_the_step_at_the_mean_is_that_of_the_theorem(mapping, n_clusters):
    points, weight = normal(40, 3) * tensor(3, 1, 0.5), normal(40, seed=1).abs()
    mean = (weight[:, None] * points).sum(0) / weight.sum()
    centered = points - mean
    covariance = (weight[:, None] * centered).T @ centered / weight.sum()
    t = 7.0
    derivative = step_derivative(points, mean.expand(n_clusters, -1), t, mapping, weight)
    sensitivity = {"softmax": 1 / n_clusters, "entmax15": n_clusters**-0.5, "sparsemax": 1.0}
    unit = torch.eye(n_clusters, dtype=points.dtype) - 1 / n_clusters
    law = 2 * n_clusters * sensitivity[mapping] / t * torch.kron(unit, covariance)
    assert torch.allclose(derivative, law, rtol=1e-9, atol=1e-9)
    critical = entmeans.critical_temperature(points, n_clusters, mapping, weight).item()
    assert torch.linalg.eigvalsh(law)[-1].item() == pytest.approx(critical / t)
