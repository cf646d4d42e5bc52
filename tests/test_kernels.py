"""The kernels for the CPU: that they ran, and that they are the formulas of step.py, only faster.

Every comparison runs in `kernels_only`, in which a formula that runs in place of a kernel is an
error.
"""

import inspect
import itertools
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from textwrap import dedent

import cases
import numpy as np
import oracle
import pytest
import torch
from cases import CASES, DTYPES, MAPPINGS, SOFT, assert_within
from test_processes import run
from torch.testing import assert_close

import entmeans
from entmeans import EntMeans, kernels, mappings, operators, step
from entmeans.kernels import threads
from entmeans.kernels.cpu import FEW
from entmeans.kernels.cpu_numba import LONG
from entmeans.step import Statistics

each_case = pytest.mark.parametrize("name", CASES)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
each_mapping = pytest.mark.parametrize("mapping", MAPPINGS)
each_soft_mapping = pytest.mark.parametrize("mapping", SOFT)

OPERATORS = {op._name: op for op in operators.FORMULAS}
OF_POINTS = [name for name in OPERATORS if not name.startswith("map_")]
FORMULAS = {name: operators.FORMULAS[op] for name, op in OPERATORS.items()}
ROWS = {"nearest": (0, 1, 2), "statistics_vjp": (0, 2)}
"""Which results have a row for each point; the first, where nothing else is said."""

each_operator = pytest.mark.parametrize("operator", OPERATORS)
each_operator_of_points = pytest.mark.parametrize("operator", OF_POINTS)

FIELDS = Statistics.__dataclass_fields__


# Proof that the kernels ran


def refuse(*arguments):
    raise AssertionError("a formula ran in place of the kernel")


@contextmanager
def kernels_only(*allowed):
    """Kernels serve all calls of this thread, and any formula is an error but those allowed.

    The code of the formulas is exchanged, not their names, which others may have looked up before.
    """
    with pytest.MonkeyPatch.context() as patch, entmeans.use_implementation("numba"):
        for name in FORMULAS.keys() - {*allowed}:
            patch.setattr(inspect.unwrap(FORMULAS[name]), "__code__", refuse.__code__)
        yield


def normal(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype)


def cotangents(k, d, dtype=torch.float64):
    """Derivatives by mass, moment, distortion, energies."""
    sizes = (k,), (k, d), (k,), (2,)
    return [normal(*size, seed=7 + i, dtype=dtype) for i, size in enumerate(sizes)]


def given(operator, points, centers, weight=None, temperature=1.0, mapping="entmax15"):
    """Arguments of an operator; those of the mappings take the points as scores."""
    t = torch.tensor(temperature, dtype=torch.float64)
    of_all = points, centers, weight, t, mapping
    return {
        "map_scores": lambda: (points, mapping),
        "map_scores_vjp": lambda: (
            entmeans.MAPPINGS[mapping].probabilities(points),
            points.sin(),
            mapping,
        ),
        "squared_distances": lambda: (points, centers),
        "nearest": lambda: (points, centers),
        "responsibilities": lambda: (points, centers, t, mapping),
        "free_energy": lambda: of_all,
        "statistics": lambda: of_all,
        "statistics_vjp": lambda: (*of_all, *cotangents(*centers.shape)),
    }[operator]()


def results(function, *arguments):
    """What an operator or a formula returns, as a tuple."""
    found = function(*arguments)
    return (found,) if isinstance(found, torch.Tensor) else tuple(found)


def by_row(operator, found):
    return [found[i] for i in ROWS.get(operator, (0,))]


def same(a, b):
    """The same bits, and NaN in the same places."""
    return len(a) == len(b) and all(
        torch.equal(x.isnan(), y.isnan()) and torch.equal(x.nan_to_num(), y.nan_to_num())
        for x, y in zip(a, b, strict=True)
    )


def problem(n=23, k=5, d=7, dtype=torch.float64):
    """Points, centers, weights."""
    return (
        normal(n, d, dtype=dtype),
        normal(k, d, seed=1, dtype=dtype),
        normal(n, seed=2, dtype=dtype).abs() + 0.1,
    )


@each_operator
def test_the_guard_notices_the_reference(operator):
    arguments = given(operator, *problem())
    with kernels_only():
        OPERATORS[operator](*arguments)
        with (
            entmeans.use_implementation("reference"),
            pytest.raises(AssertionError, match="in place of the kernel"),
        ):
            OPERATORS[operator](*arguments)
    with entmeans.use_implementation("reference"):
        OPERATORS[operator](*arguments)  # the formulas are back


@each_operator_of_points
@pytest.mark.parametrize("bad", ["row", "center"])
def test_the_guard_notices_what_is_left_to_the_formula(operator, bad):
    points, centers, weight = problem()
    (points if bad == "row" else centers)[2, 1] = math.nan
    with kernels_only(), pytest.raises(AssertionError, match="in place of the kernel"):
        OPERATORS[operator](*given(operator, points, centers, weight))


# Equal to the formulas


def at_all_temperatures(name, dtype, mapping):
    """At 0, so small that all rows are one-hot, cold, at the scale of the data, hot, infinite."""
    scale = CASES[name].scale
    soft = (0.0, 1e-30, 1e-3 * scale, scale, 1e3 * scale, math.inf)
    for temperature in (0.0, scale, math.inf) if mapping == "hard" else soft:
        yield cases.expected(name, dtype, mapping, temperature)


def inputs_of(name, dtype):
    """Points, centers and weights of a case in the dtype, and the same values in float64."""
    narrow = CASES[name].tensors(dtype)
    return narrow, tuple(None if value is None else value.double() for value in narrow)


def scalar(temperature):
    return torch.tensor(temperature, dtype=torch.float64)


@each_case
@each_dtype
def test_distances_and_the_nearest_are_those_of_the_formulas(name, dtype):
    (points, centers, _), (wide_points, wide_centers, _) = inputs_of(name, dtype)
    e = cases.expected(name, dtype, "hard", 0.0)
    with kernels_only():
        found = operators.squared_distances(points, centers)
        labels, near, margins = operators.nearest(points, centers)
    exact = step.squared_distances(wide_points, wide_centers)
    # Both are within a bound of the truth.
    assert_within(found, exact, 2 * e.error[:, None] + 8 * e.eps * e.distances)
    best = step.nearest(wide_points, wide_centers)
    of_label, size = e.distances[range(len(points)), labels], e.distances.max(1)
    assert (of_label <= e.distances[range(len(points)), best[0]] + 2 * e.error).all()
    if CASES[name].exact:
        assert torch.equal(labels, best[0])
    rounding = 4 * (points.shape[1] + 2) * e.eps * of_label
    assert_within(near, best[1], 2 * e.error + rounding)
    assert_within(margins, best[2], 4 * e.error + 8 * e.eps * size)


def errors_of_statistics(e):
    """How far rounding may take each field from the definition."""
    exact, w, error = e.statistics, e.weight, e.error
    high = e.p + e.p_error
    share = w[:, None] * (e.p_error + e.rounding * high)  # the error of w p
    size = abs(e.points).max(1) + 3 * abs(e.centers).max()
    lead = oracle.margins(e.distances)
    one_hot = e.temperature == 0 or e.mapping == "hard"
    threshold = 0.0 if one_hot else oracle.ONE_HOT_MARGIN[e.mapping] * e.temperature
    unsure = np.zeros(len(lead))
    if len(e.centers) > 1 and threshold > 0:
        unsure = abs(lead - threshold) <= 2 * error + 4 * e.eps * lead
    cost = exact.removal_cost.sum()
    return {
        "mass": share.sum(0),
        "moment": (share.T @ size)[:, None],
        "distortion": (share * e.distances + w[:, None] * high * error[:, None]).sum(0),
        "free_energy": w @ e.free_energy_error,
        "inertia": 2 * w @ error + e.rounding * exact.inertia,
        "removal_cost": 2 * w @ error + (e.rounding * cost if cost < math.inf else 0),
        "hard_mass": w @ unsure + e.rounding * w.sum(),
        "smallest_margin": 2 * error.max() + 4 * e.eps * e.distances.max(),
    }


@each_case
@each_mapping
@each_dtype
def test_shares_free_energy_and_statistics_are_those_of_the_formulas(name, mapping, dtype):
    narrow, wide = inputs_of(name, dtype)
    for e in at_all_temperatures(name, dtype, mapping):
        rule = scalar(e.temperature), mapping
        with kernels_only():
            p = operators.responsibilities(*narrow[:2], *rule)
            terms, total = operators.free_energy(*narrow, *rule)
            parts = operators.statistics(*narrow, *rule)
        e.assert_within(p, step.responsibilities(*wide[:2], *rule), 2 * e.p_error)

        exact_terms, exact_total = step.free_energy(*wide, *rule)
        e.assert_within(terms, exact_terms, 2 * e.free_energy_error)
        e.assert_within(total, exact_total, 2 * e.weight @ e.free_energy_error)

        assert all(part.dtype == torch.float64 for part in parts)
        found = Statistics.of(parts)
        exact = Statistics.of(step.statistics(*wide, *rule))
        for field, error in errors_of_statistics(e).items():
            e.assert_within(getattr(found, field), getattr(exact, field), 2 * error)


def sensitivity_and_error(e):
    """Upper bounds (N, K) of the sensitivity of the mapping and of its error."""
    p, low, high = e.p, (e.p - e.p_error).clip(0), e.p + e.p_error
    if e.mapping == "hard" or e.temperature == 0:
        return 0 * p, 0 * p
    if e.mapping == "softmax":
        return high, e.p_error + e.rounding * high
    # Where no distance within its error gives a share, there is none.
    none = (p == 0) & (e.p_error <= 4 * (p.shape[1] + 4) * e.eps)
    root = np.sqrt if e.mapping == "entmax15" else lambda q: 1.0 * (q > 0)
    s, error = root(high), root(high) - root(low) + e.rounding * root(high)
    return np.where(none, 0, s), np.where(none, 0, error)


def entropy_error(e):
    if e.mapping == "hard" or e.temperature == 0:
        return 0 * e.error
    error = e.p_error.clip(1e-300)
    if e.mapping == "softmax":  # |entr(p) - entr(q)| <= entr(|p - q|)
        small = np.minimum(error, 1 / math.e)
        each = -small * np.log(small)
    else:
        each = {"entmax15": 10 / 3, "sparsemax": 3 / 2}[e.mapping] * error
    return each.sum(1) + e.rounding * (1 + oracle.MAX_ENTROPY[e.mapping](e.p.shape[1]))


def errors_of_vjp(e, to_mass, to_moment, to_distortion, to_energies):
    """How far rounding may take the derivatives by points, centers, weights and temperature.

    They are sums of c_ij times positions, c_ij = f p_ij + i [j is the label] + p_ij to_distortion_j
    - drift_ij, where drift = s (value - mean of value under s) / T and the sum of s is at least 1.
    """
    to_free, to_inertia = np.abs(to_energies)
    p_error, high = e.p_error + e.rounding * e.p, e.p + e.p_error
    near = e.distances.min(1)
    gaps = e.distances - near[:, None]
    close = gaps <= 2 * e.error[:, None]
    unsure = close & (close.sum(1, keepdims=True) > 1) & (e.error[:, None] > 0)
    c_error, c_size = to_free * p_error + to_inertia * unsure, to_free * high + to_inertia
    by_weight = to_free * e.free_energy_error + to_inertia * (2 * e.error + e.rounding * near)
    by_temperature = to_free * entropy_error(e)
    by_point = np.zeros_like(e.points)
    if to_mass is not None:
        reach = abs(e.points) + 2 * abs(e.centers).max()
        size = abs(to_mass) + reach @ abs(to_moment).T + e.distances * abs(to_distortion)
        value = to_mass + e.points @ to_moment.T + e.distances * to_distortion
        value_error = e.rounding * size + e.error[:, None] * abs(to_distortion)
        s, s_error = sensitivity_and_error(e)
        several = (s > 0).sum(1, keepdims=True) > 1  # alone, a center is its own mean
        inside = np.where(s > 0, value, np.nan)
        span = np.zeros((len(s), 1))
        some = several[:, 0]
        span[some, 0] = np.nanmax(inside[some], 1) - np.nanmin(inside[some], 1)
        blur = np.where(s > 0, value_error, 0).max(1, keepdims=True)
        mean_error = (s_error * span).sum(1, keepdims=True) + blur
        t = max(e.temperature, 1e-300)
        drift = np.where(several, s * span / t, 0)
        drift_error = np.where(several, (s_error * span + s * (blur + mean_error)) / t, 0)
        drift_error = drift_error + e.rounding * drift
        c_error = c_error + p_error * abs(to_distortion) + drift_error
        c_size = c_size + high * abs(to_distortion) + drift
        by_weight = by_weight + (p_error * abs(value) + high * value_error).sum(1)
        slope = drift_error * gaps + 2 * drift * e.error[:, None] + e.rounding * drift * gaps
        by_temperature = by_temperature + slope.sum(1) / t
        by_point = p_error @ abs(to_moment)
    pull = 8 * e.radius * e.weight[:, None] * (c_error + e.rounding * c_size)  # both sides of it
    return (
        pull.sum(1, keepdims=True) + e.weight[:, None] * by_point,
        pull.sum(0)[:, None],
        by_weight,
        e.weight @ by_temperature,
    )


def pulled_back_by_autograd(points, centers, weight, t, mapping, given):
    """Derivatives of the plain formula in float64."""
    if weight is None:
        weight = points.new_ones(len(points))
    inputs = [value.detach().clone().requires_grad_() for value in (points, centers, weight, t)]
    parts = step.statistics(*inputs, mapping)[:4]
    kept = [i for i, to in enumerate(given) if to is not None]
    outputs, to = ([values[i] for i in kept] for values in (parts, given))
    return torch.autograd.grad(outputs, inputs, to, materialize_grads=True)


@each_case
@each_mapping
@each_dtype
def test_derivatives_are_those_of_autograd_of_the_formula(name, mapping, dtype):
    narrow, wide = inputs_of(name, dtype)
    by_all = cotangents(*narrow[1].shape)
    by_the_energies = [None, None, None, by_all[3]]
    by_the_inertia = [None, None, None, torch.tensor([0.0, 1.0], dtype=torch.float64)]
    for e in at_all_temperatures(name, dtype, mapping):
        t = scalar(e.temperature)
        for to in (by_all, by_the_energies, by_the_inertia):
            with kernels_only():
                found = operators.statistics_vjp(*narrow, t, mapping, *to)
            if math.isinf(e.temperature):  # autograd knows no T dH at infinite T
                exact = step.statistics_vjp(*wide, t, mapping, *to)
            else:
                exact = pulled_back_by_autograd(*wide, t, mapping, to)
            errors = errors_of_vjp(e, *(None if v is None else v.numpy() for v in to))
            for f, x, error in zip(found, exact, errors, strict=True):
                e.assert_within(f, x, 2 * error)


@each_dtype
@each_mapping
@pytest.mark.parametrize(
    "shape", [(1, 1), (2, 3, 33), (40, 16), (17, 1000), (0, 5), (0, 1000)], ids=str
)
@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0, 1e8])
def test_mappings_of_scores_and_their_derivatives_are_those_of_the_formulas(
    dtype, mapping, shape, scale
):
    scores = scale * normal(*shape, dtype=dtype)
    gradient = normal(*shape, seed=1, dtype=dtype)
    with kernels_only():
        p = operators.map_scores(scores, mapping)
        pulled = operators.map_scores_vjp(p, gradient, mapping)
    eps = torch.finfo(dtype).eps
    exact = operators.map_scores_formula(scores.double(), mapping)
    # z is rounded once when the top is subtracted and each sum adds up to K positive terms.
    assert_close(p.double(), exact, rtol=0, atol=8 * (math.sqrt(shape[-1]) + 1) * eps)
    exact = operators.map_scores_vjp_formula(p.double(), gradient.double(), mapping)
    assert_close(pulled.double(), exact, rtol=0, atol=8 * (math.sqrt(shape[-1]) + 1) * eps)


@each_dtype
@each_mapping
@pytest.mark.parametrize("size", [LONG - 1, LONG, LONG + 1, LONG + 15, 9000, 2**16 + 1])
def test_long_rows_are_those_of_the_formula(dtype, mapping, size):
    scores = normal(4, size, dtype=dtype) * torch.tensor(
        [[10.0], [0.3], [1e-3], [1.0]], dtype=dtype
    )
    scores[0, ::7] = -math.inf
    scores[3, size // 2 :: 16] = 20  # ties, far above all others
    with kernels_only():
        p = operators.map_scores(scores, mapping)
    exact = operators.map_scores_formula(scores.double(), mapping)
    eps = torch.finfo(dtype).eps
    assert_close(p.double(), exact, rtol=64 * eps, atol=8 * eps * exact.max().item())
    assert_close(p.double().sum(1), torch.ones(4, dtype=torch.float64), rtol=0, atol=64 * eps)


@each_dtype
@each_mapping
@pytest.mark.parametrize("size", [9, LONG + 9])
def test_rows_of_scores_without_a_finite_maximum_are_nan_and_touch_no_other(dtype, mapping, size):
    scores = normal(37, size, dtype=dtype)
    spoiled = scores.clone()
    spoiled[3, 4], spoiled[20, 0], spoiled[36], spoiled[5, 2] = math.nan, math.inf, -math.inf, -1e9
    bad = torch.tensor([3, 20, 36])
    with kernels_only():
        p = operators.map_scores(spoiled, mapping)
        clean = operators.map_scores(scores, mapping)
    kept = [i for i in range(37) if i not in (3, 5, 20, 36)]
    assert p[bad].isnan().all()
    assert p[5, 2] == 0
    assert torch.equal(p[kept], clean[kept])


# Registered as torch asks


def with_gradients(values):
    return [
        v.clone().requires_grad_() if isinstance(v, torch.Tensor) and v.is_floating_point() else v
        for v in values
    ]


WEIGHTED = ("free_energy", "statistics", "statistics_vjp")


@pytest.mark.parametrize(
    ("operator", "weighted"),
    [*((name, True) for name in OPERATORS), *((name, False) for name in WEIGHTED)],
)
def test_torch_finds_no_fault_with_the_registration(operator, weighted):
    points, centers, weight = problem(n=7, k=4, d=3)
    arguments = given(operator, points, centers, weight if weighted else None)
    with kernels_only():
        torch.library.opcheck(OPERATORS[operator], arguments)
    if operator.endswith("_vjp"):
        return  # has no derivatives of its own
    checks = ["test_schema", "test_autograd_registration", "test_faketensor"]
    if operator != "nearest":  # the check adds labels to distances in place, which torch refuses
        checks.append("test_aot_dispatch_dynamic")
    # Under a trace the derivatives are formulas, which can be differentiated again.
    with kernels_only("statistics_vjp"):
        torch.library.opcheck(OPERATORS[operator], with_gradients(arguments), test_utils=checks)


# Derivatives by finite differences, through the functions of the library


def smooth_problem(n, t):
    """Points, centers, T and weights that require gradients, with no threshold near any row."""
    points, centers, weight = problem(n=n, k=3, d=4)
    return [value.requires_grad_() for value in (points, centers, scalar(t), weight)]


at_temperatures = pytest.mark.parametrize("t", [0.1, 1.0, 10.0])


def differentiable_statistics(points, centers, temperature, weight, mapping):
    found = entmeans.statistics(points, centers, temperature, mapping, weight)
    return found.mass, found.moment, found.distortion, found.free_energy, found.inertia


@each_mapping
@at_temperatures
@pytest.mark.parametrize("orders", [1, 2])
@pytest.mark.parametrize("function", ["statistics", "free_energy", "responsibilities"])
def test_derivatives_are_those_of_finite_differences(function, mapping, t, orders):
    inputs = smooth_problem(5 if orders == 1 else 2, t)
    call = {
        "statistics": lambda *i: differentiable_statistics(*i, mapping),
        "free_energy": lambda x, c, t, w: (
            entmeans.free_energy(x, c, t, mapping, w, "sum"),
            entmeans.free_energy(x, c, t, mapping, w, "none"),
        ),
        "responsibilities": lambda x, c, t: entmeans.responsibilities(x, c, t, mapping),
    }[function]
    inputs = inputs[:3] if function == "responsibilities" else inputs
    if orders == 1:
        with kernels_only():
            assert torch.autograd.gradcheck(call, inputs)
    else:
        with kernels_only("statistics_vjp"):
            assert torch.autograd.gradgradcheck(call, inputs)


@pytest.mark.parametrize("d", [2, 4])
def test_derivatives_of_distances_are_those_of_finite_differences(d):
    points, centers = normal(6, d).requires_grad_(), normal(4, d, seed=1).requires_grad_()
    with kernels_only():
        assert torch.autograd.gradcheck(entmeans.squared_distances, (points, centers))
        assert torch.autograd.gradcheck(lambda *i: entmeans.nearest(*i)[1:], (points, centers))
        assert torch.autograd.gradcheck(entmeans.inertia, (points, centers))


@pytest.mark.parametrize("function", [entmeans.entmax15, entmeans.sparsemax])
@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_derivatives_of_mappings_are_those_of_finite_differences(function, scale):
    scores = (scale * normal(4, 5, seed=3)).requires_grad_()
    with kernels_only():
        assert torch.autograd.gradcheck(function, scores)
        assert torch.autograd.gradgradcheck(function, scores)


# Batches, splits, threads


@each_operator
@pytest.mark.parametrize("shared", [False, True], ids=["all batched", "centers shared"])
def test_vmap_equals_a_loop(operator, shared):
    items = [given(operator, *problem(n=n, k=4, d=3)) for n in (9,)] * 3
    items = [
        tuple(v * (1 + i / 8) if isinstance(v, torch.Tensor) else v for v in item)
        for i, item in enumerate(items)
    ]
    # The centers, or the gradient of a mapping, or nothing where there is one tensor only.
    common = 1 if shared and operator != "map_scores" else None
    if common is not None:
        items = [(*i[:common], items[0][common], *i[common + 1 :]) for i in items]
    dims, batch = [], []
    for position, values in enumerate(zip(*items, strict=True)):
        whole = isinstance(values[0], torch.Tensor) and position != common
        dims.append(0 if whole else None)
        batch.append(torch.stack(values) if whole else values[0])
    with kernels_only():
        one_by_one = [results(OPERATORS[operator], *item) for item in items]
        at_once = results(torch.func.vmap(OPERATORS[operator], tuple(dims)), *batch)
    looped = [torch.stack(parts) for parts in zip(*one_by_one, strict=True)]
    assert not torch.equal(looped[-1][0], looped[-1][1])
    assert same(at_once, looped)


@each_dtype
@each_mapping
@pytest.mark.parametrize("d", [2, 17])
@pytest.mark.parametrize(
    "cuts",
    [(0,), (1,), (15,), (16,), (17,), (40,), (1, 16, 17), (16, 16, 32), tuple(range(1, 40))],
    ids=str,
)
def test_statistics_of_any_parts_add_up_to_those_of_all(dtype, mapping, d, cuts):
    points, centers, weight = problem(n=40, k=7, d=d, dtype=dtype)
    tolerance = 2 * (40 + 7 + d) * torch.finfo(dtype).eps  # of sums, in any order
    for t in (0.0, float(d), math.inf):
        with kernels_only():
            whole, *parts = (
                entmeans.statistics(points[rows], centers, t, mapping, weight[rows])
                for rows in [slice(None), *map(slice, (0, *cuts), (*cuts, 40))]
            )
        total = sum(parts[1:], parts[0])
        for field in FIELDS:
            found, exact = getattr(total, field), getattr(whole, field)
            assert_close(found, exact, rtol=tolerance, atol=tolerance * d, msg=field)


LARGE = {"n": 50_000, "k": 21, "d": 17}
"""Rows for several parts, and work for several threads, in each operator."""


@pytest.fixture
def asked_for_workers(monkeypatch):
    """A list that grows whenever a call takes one more thread from the pool."""
    asked, workers = [], threads._workers

    def spied():
        asked.append(threading.get_ident())
        return workers()

    monkeypatch.setattr(threads, "_workers", spied)
    return asked


@pytest.fixture
def set_num_threads():
    """A function that sets the number of torch threads until the end of the test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@each_dtype
@each_operator
@pytest.mark.parametrize("mapping", ["entmax15", "hard"])
def test_the_number_of_threads_changes_no_bit(
    operator, dtype, mapping, asked_for_workers, set_num_threads
):
    arguments = given(operator, *problem(**LARGE, dtype=dtype), 4.0, mapping)
    found = []
    for count in (1, 2, 3):
        set_num_threads(count)
        asked_for_workers.clear()
        with kernels_only():
            found.append(results(OPERATORS[operator], *arguments))
        assert len(asked_for_workers) == count - 1
    assert same(found[1], found[0])
    assert same(found[2], found[0])


def test_little_work_wakes_no_thread(asked_for_workers, set_num_threads):
    set_num_threads(2)
    with kernels_only():
        for operator, function in OPERATORS.items():
            function(*given(operator, *problem()))
    assert asked_for_workers == []


def test_ten_threads_at_once_get_the_bits_of_one(asked_for_workers, set_num_threads):
    points, centers, weight = problem(**LARGE, dtype=torch.float32)
    arguments = given("statistics", points, centers, weight, 4.0)
    model = EntMeans.from_centers(centers)
    X = points.numpy()

    def both(_):
        with entmeans.use_implementation("numba"):
            return *results(operators.statistics, *arguments), torch.as_tensor(model.predict(X))

    set_num_threads(1)
    with kernels_only():
        alone = both(0)
        assert asked_for_workers == []
        set_num_threads(2)
        with ThreadPoolExecutor(10) as pool:
            found = list(pool.map(both, range(20), timeout=60))
    assert len(set(asked_for_workers)) > 1
    assert all(same(f, alone) for f in found)


def test_an_error_in_one_thread_of_the_pool_reaches_the_caller(set_num_threads):
    set_num_threads(2)
    barrier = threading.Barrier(2, timeout=30)

    def task(i):
        barrier.wait()  # each part in a thread of its own
        if threading.current_thread() is not threading.main_thread():
            raise KeyError(i)

    with pytest.raises(KeyError):
        threads.share_out(task, 2, 2 * threads.THREAD_WORK)


def dedented(*parts):
    """Scripts one after the other."""
    return "".join(map(dedent, parts))


FORKED = """
    import os
    import torch
    import entmeans
    from entmeans.kernels import threads
    from torch.utils.data import DataLoader, Dataset

    generator = torch.Generator().manual_seed(0)
    points = torch.randn(20_000, 17, generator=generator)

    def parts():
        torch.set_num_threads(2)
        with entmeans.use_implementation("numba"):
            return entmeans.statistics(points, points[:21], 4.0).parts()

    expected = parts()
    pool = threads._pool
    assert pool is not None

    def new_pool_and_same_bits():
        fresh = threads._pool is None
        same = all(map(torch.equal, parts(), expected))
        return fresh and same and threads._pool not in (None, pool)
"""


def test_forked_processes_get_a_pool_of_their_own_even_if_the_lock_was_taken():
    script = """
        class Checks(Dataset):
            def __len__(self):
                return 2

            def __getitem__(self, i):
                return new_pool_and_same_bits()

        with threads._lock:
            child = os.fork()
            if child == 0:
                os._exit(0 if new_pool_and_same_bits() else 2)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        loader = DataLoader(Checks(), num_workers=2, multiprocessing_context="fork")
        print([bool(batch) for batch in loader])
        print(threads._pool is pool, all(map(torch.equal, parts(), expected)))
    """
    assert run(dedented(FORKED, script)).splitlines() == ["0", "[True, True]", "True True"]


# Sizes about the width of vectors and tiles

SIZES = (1, 2, 5, 6, 7, 15, 16, 17, 33)


@each_dtype
@pytest.mark.parametrize("d", SIZES)
@pytest.mark.parametrize("n", SIZES)
def test_every_operator_is_right_at_sizes_about_the_width_of_a_vector(dtype, n, d):
    eps = torch.finfo(dtype).eps
    start = (SIZES.index(n) + SIZES.index(d)) % 3
    for k in SIZES[start::3]:  # over all tests, every two sizes meet three times
        points, centers, weight = problem(n, k, d, dtype)
        distances = torch.cdist(
            points.double(), centers.double(), compute_mode="donot_use_mm_for_euclid_dist"
        ).square()
        with kernels_only():
            labels = operators.nearest(points, centers)[0]
        gap = distances.gather(1, labels[:, None])[:, 0] - distances.amin(1)
        assert (gap.numpy() <= oracle.distance_error(points, centers, eps)).all()

        mapping = MAPPINGS[(n + k + d) % 4]
        # Distances of about 2 d to T = d: scores are rounded in units of eps d, sums in n and k.
        tolerance = 64 * (n + k + d) * eps
        for operator, function in OPERATORS.items():
            arguments = given(operator, points, centers, weight, float(d), mapping)
            with kernels_only():
                found = results(function, *arguments)
            wide = [
                a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a
                for a in arguments
            ]
            exact = results(FORMULAS[operator], *wide)
            for i, (f, x) in enumerate(zip(found, exact, strict=True)):
                if f.dtype != torch.int64:
                    assert_close(
                        f.double(),
                        x.double(),
                        rtol=tolerance,
                        atol=tolerance,
                        msg=lambda text, i=i, k=k, o=operator: f"{o}[{i}], k={k}: {text}",
                    )


# Numbers that are not finite


@each_dtype
@each_mapping
@pytest.mark.parametrize("operator", [name for name in OF_POINTS if name != "statistics"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("d", [2, 7])
def test_a_bad_row_is_nan_and_no_other_row_changes_a_bit(operator, dtype, mapping, bad, d):
    points, centers, weight = problem(n=37, d=d, dtype=dtype)
    spoiled = points.clone()
    spoiled[18, 1] = bad
    others = torch.arange(37) != 18
    for t in (0.0, 1.0):
        with kernels_only():
            clean = results(
                OPERATORS[operator], *given(operator, points, centers, weight, t, mapping)
            )
        with kernels_only(operator):
            found = results(
                OPERATORS[operator], *given(operator, spoiled, centers, weight, t, mapping)
            )
        expected = results(
            FORMULAS[operator], *given(operator, spoiled[18:19], centers, weight[18:19], t, mapping)
        )
        for c, f, x in zip(*(by_row(operator, r) for r in (clean, found, expected)), strict=True):
            assert torch.equal(f[others], c[others])
            assert same([f[18:19]], [x])
            assert f.dtype == torch.int64 or not f[18].isfinite().any()


@each_dtype
@each_mapping
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("weight_of_it", [0.0, 1.0])
def test_sums_over_a_bad_row_are_those_of_the_formula(dtype, mapping, bad, weight_of_it):
    points, centers, weight = problem(n=37, dtype=dtype)
    points[18, 1], weight[18] = bad, weight_of_it
    tolerance = 64 * (37 + 5 + 7) * torch.finfo(dtype).eps
    for operator, t in itertools.product(("statistics", "free_energy", "statistics_vjp"), (0, 1)):
        arguments = given(operator, points, centers, weight, float(t), mapping)
        with kernels_only(operator):
            found = results(OPERATORS[operator], *arguments)
        exact = results(FORMULAS[operator], *arguments)
        assert not all(x.isfinite().all() for x in exact)
        for f, x in zip(found, exact, strict=True):
            assert_close(f, x, rtol=tolerance, atol=tolerance, equal_nan=True)


@each_dtype
@each_operator_of_points
@pytest.mark.parametrize("bad", [math.nan, math.inf, "large"])
def test_centers_that_are_not_finite_or_whose_squares_are_not_go_to_the_formula(
    operator, dtype, bad
):
    points, centers, weight = problem(dtype=dtype)
    centers[2, 1] = torch.finfo(dtype).max ** 0.75 if bad == "large" else bad
    assert not centers.square().isfinite().all()
    arguments = given(operator, points, centers, weight)
    with kernels_only(operator):
        found = results(OPERATORS[operator], *arguments)
    assert same(found, results(FORMULAS[operator], *arguments))


# Ties and the limit


@pytest.mark.parametrize("d", [4, 16])
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("places", [(-5e3, 5e3), (0.0, 1e4)], ids=["about the origin", "one at it"])
def test_a_group_of_centers_far_away_does_not_blur_the_labels_in_the_other(d, seed, places):
    where = torch.tensor(places).repeat_interleave(20)[:, None]
    centers = (where + normal(40, d, seed=seed)).float()
    points = (where.repeat(25, 1) + normal(1000, d, seed=seed + 100)).float()
    distances = torch.cdist(
        points.double(), centers.double(), compute_mode="donot_use_mm_for_euclid_dist"
    ).square()
    with kernels_only():
        labels = operators.nearest(points, centers)[0]
        p = operators.responsibilities(points, centers, scalar(0.0), "hard")
        mass = operators.statistics(points, centers, None, scalar(0.0), "hard")[0]
    # Distances within a group are about 2 d; float32 rounds a difference at 6e-8.
    behind = distances.gather(1, labels[:, None])[:, 0] - distances.amin(1)
    assert behind.max() <= 1e-6 * 2 * d
    assert torch.equal(p, torch.eye(40)[labels])
    assert torch.equal(mass, torch.bincount(labels, minlength=40).double())


@each_dtype
@pytest.mark.parametrize("mapping", ["entmax15", "sparsemax"])
@pytest.mark.parametrize("d", [2, 3, 4, 17])
@pytest.mark.parametrize("seed", range(5))
def test_up_to_the_hardening_temperature_shares_are_one_hot_and_sums_those_of_zero(
    dtype, mapping, d, seed
):
    points, centers = normal(101, d, seed=seed, dtype=dtype), normal(7, d, seed=99, dtype=dtype)
    weight = normal(101, seed=98, dtype=dtype).abs()
    with kernels_only():
        hardening = entmeans.hardening_temperature(points, centers, mapping, weight).item()
        assert hardening > 0
        labels = entmeans.nearest(points, centers).labels
        cold = entmeans.statistics(points, centers, 0.0, mapping, weight)
        for t in (hardening, hardening / 3):
            p = entmeans.responsibilities(points, centers, t, mapping)
            soft = entmeans.statistics(points, centers, t, mapping, weight)
            assert torch.equal(p, torch.eye(7, dtype=dtype)[labels])
            assert torch.equal(soft.mass, cold.mass)
            assert torch.equal(soft.moment, cold.moment)
            assert torch.equal(soft.centers(centers), cold.centers(centers))
        warm = entmeans.responsibilities(points, centers, 1.01 * hardening, mapping)
    assert not torch.equal(warm, p)


# Which implementation serves a call


class Mine(mappings.Softmax):
    """A mapping that only the formulas know."""


def test_the_implementation_is_named():
    points = torch.zeros(3, 2)
    with entmeans.use_implementation("auto"):
        assert entmeans.implementation(points) == "numba"
        assert all(entmeans.implementation(points, name) == "numba" for name in MAPPINGS)
        assert entmeans.implementation(points, entmeans.MAPPINGS["softmax"]) == "numba"
        assert entmeans.implementation(points, Mine()) == "reference"
        assert entmeans.implementation(points.to("meta")) == "reference"
    with entmeans.use_implementation("numba"):
        assert entmeans.implementation(points) == "numba"
    with entmeans.use_implementation("reference"):
        assert entmeans.implementation(points) == "reference"
        with entmeans.use_implementation("numba"):
            assert entmeans.implementation(points) == "numba"
        assert entmeans.implementation(points) == "reference"


def test_the_implementation_named_is_the_one_that_runs():
    points, centers, _ = problem()
    ran = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step.Statistics, "__add__", lambda a, b: ran.append("reference") or a)
        patch.setattr(step, "CHUNK_ELEMENTS", 25)  # several chunks, to be added
        for name in ("numba", "reference"):
            with entmeans.use_implementation(name):
                entmeans.statistics(points, centers, 1.0)
                assert ("reference" in ran) == (entmeans.implementation(points) == "reference")


@pytest.mark.parametrize(
    ("device", "mapping", "reason"),
    [("meta", "softmax", "the tensors are on meta"), ("cpu", Mine(), "not one of the built-in")],
    ids=["device", "mapping"],
)
def test_kernels_asked_for_where_they_cannot_serve_are_an_error_with_the_reason(
    device, mapping, reason
):
    points = torch.zeros(3, 2, device=device)
    with (
        entmeans.use_implementation("numba"),
        pytest.raises(RuntimeError, match=f"numba, cannot serve: .*{reason}"),
    ):
        entmeans.implementation(points, mapping)


@pytest.mark.parametrize(
    "function", [entmeans.statistics, entmeans.responsibilities, entmeans.free_energy]
)
@pytest.mark.parametrize(
    ("device", "mapping"), [("meta", "softmax"), ("cpu", Mine())], ids=["device", "mapping"]
)
def test_a_call_that_the_kernels_asked_for_cannot_serve_is_an_error(function, device, mapping):
    points = torch.zeros(3, 2, device=device)
    with (
        entmeans.use_implementation("numba"),
        pytest.raises(RuntimeError, match="numba, cannot serve"),
    ):
        function(points, points, 1.0, mapping)


def test_the_implementation_is_restored_after_an_error():
    points = torch.zeros(3, 2)
    with entmeans.use_implementation("auto"):
        with pytest.raises(KeyError), entmeans.use_implementation("reference"):
            raise KeyError
        assert entmeans.implementation(points) == "numba"


def test_the_implementation_chosen_in_one_thread_is_not_that_of_others(monkeypatch):
    monkeypatch.delenv("ENTMEANS_IMPLEMENTATION", raising=False)
    points = torch.zeros(3, 2)
    with (
        ThreadPoolExecutor(1) as pool,
        entmeans.use_implementation("reference"),
    ):
        assert pool.submit(entmeans.implementation, points).result(timeout=60) == "numba"
        assert entmeans.implementation(points) == "reference"


@pytest.mark.parametrize("name", ["fast", "", "Numba", None])
def test_an_unknown_implementation_is_an_error_that_names_the_choices(name):
    with (
        pytest.raises(ValueError, match=rf"name={name!r} is unknown.*auto, numba, reference"),
        entmeans.use_implementation(name),
    ):
        pass


def test_an_unknown_implementation_in_the_environment_is_an_error_of_every_call(monkeypatch):
    monkeypatch.setenv("ENTMEANS_IMPLEMENTATION", "fast")
    points = torch.zeros(3, 2)
    for call in (entmeans.implementation, lambda x: entmeans.nearest(x, x), entmeans.entmax15):
        with pytest.raises(
            ValueError, match=r"ENTMEANS_IMPLEMENTATION='fast' is unknown.*auto, numba, reference"
        ):
            call(points)


def test_the_environment_chooses_for_a_whole_process_and_its_threads():
    script = """
        import os, sys
        os.environ["ENTMEANS_IMPLEMENTATION"] = "reference"
        import torch
        from concurrent.futures import ThreadPoolExecutor
        import entmeans
        points = torch.zeros(3, 2)
        print(entmeans.implementation(points))
        with ThreadPoolExecutor(1) as pool:
            print(pool.submit(entmeans.implementation, points).result())
        entmeans.statistics(points, points, 1.0)
        print("numba" in sys.modules)
        with entmeans.use_implementation("numba"):
            print(entmeans.implementation(points))
    """
    assert run(script).split() == ["reference", "reference", "False", "numba"]


def test_without_numba_the_first_call_is_an_error_that_names_the_remedy():
    script = """
        import os, sys
        sys.modules["numba"] = None
        os.environ.pop("ENTMEANS_IMPLEMENTATION", None)
        import torch
        import entmeans
        points = torch.eye(3)
        calls = [
            lambda: entmeans.nearest(points, points),
            lambda: entmeans.statistics(points, points, 1.0),
            lambda: entmeans.entmax15(points),
        ]
        for call in calls + calls:
            try:
                call()
            except ImportError as error:
                assert "pip install --upgrade numba" in str(error), error
                assert "ENTMEANS_IMPLEMENTATION=reference" in str(error), error
            else:
                raise AssertionError("no error")
        with entmeans.use_implementation("reference"):
            print(entmeans.nearest(points, points).labels.tolist())
        os.environ["ENTMEANS_IMPLEMENTATION"] = "reference"
        print(entmeans.nearest(points, points).labels.tolist())
    """
    assert run(script).splitlines() == ["[0, 1, 2]", "[0, 1, 2]"]


# What a review found


DERIVATIVES = {
    "free energy": lambda x, c, w, t, m: entmeans.free_energy(x, c, t, m, w),
    "terms": lambda x, c, w, t, m: entmeans.free_energy(x, c, t, m, w, "none").sin().sum(),
    "statistics": lambda x, c, w, t, m: of_statistics(entmeans.statistics(x, c, t, m, w)),
    "responsibilities": lambda x, c, w, t, m: entmeans.responsibilities(x, c, t, m).sin().sum(),
    "distances": lambda x, c, w, t, m: entmeans.squared_distances(x, c).sin().sum(),
    "nearest": lambda x, c, w, t, m: sum(v.sin().sum() for v in entmeans.nearest(x, c)[1:]),
    "inertia": lambda x, c, w, t, m: entmeans.inertia(x, c, w),
    "expected distortion": lambda x, c, w, t, m: entmeans.expected_distortion(x, c, t, m, w),
}
USED = {"responsibilities": (0, 1, 3), "distances": (0, 1), "nearest": (0, 1), "inertia": (0, 1, 2)}


def of_statistics(stats):
    sums = stats.mass.sin().sum() + stats.moment.cos().sum() + stats.distortion.sin().sum()
    return sums + stats.free_energy + stats.inertia


# torch's own forward mode is scripted, which torch deprecates
@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")
@pytest.mark.parametrize("name", DERIVATIVES)
@each_soft_mapping
def test_derivatives_of_both_modes_and_under_transforms_are_finite_differences(name, mapping):
    values = [*problem(n=9, k=3, d=4), torch.tensor(2.0, dtype=torch.float64)]
    for i in USED.get(name, range(4)):

        def of(value, i=i):
            given = [value if j == i else v for j, v in enumerate(values)]
            return DERIVATIVES[name](*given, mapping)

        v, h = normal(*values[i].shape, seed=5), 1e-6
        expected = (of(values[i] + h * v) - of(values[i] - h * v)) / (2 * h)
        forward = torch.func.jvp(of, (values[i],), (v,))[1]
        assert_close((torch.func.grad(of)(values[i]) * v).sum(), expected, rtol=1e-6, atol=1e-6)
        assert_close(forward, expected, rtol=1e-6, atol=1e-6)

    def of_centers(c):
        return DERIVATIVES[name](values[0], c, *values[2:], mapping)

    centers = values[1]
    second = torch.func.jacrev(torch.func.jacrev(of_centers))(centers)
    assert_close(torch.func.hessian(of_centers)(centers), second)
    batch = torch.stack([centers, centers + 0.1])
    each = torch.stack([torch.func.grad(of_centers)(c) for c in batch])
    assert_close(torch.func.vmap(torch.func.grad(of_centers))(batch), each)


@pytest.mark.parametrize("size", [1.5e19, 1e18])
@each_mapping
def test_points_whose_squared_distances_overflow_are_left_to_the_formula(mapping, size):
    x = torch.full((16, 1), size, requires_grad=True)
    c = torch.tensor([[-size], [-0.9 * size]], requires_grad=True)

    def everything():
        stats = entmeans.statistics(x, c, 1.0, mapping)
        gradients = torch.autograd.grad(stats.inertia + stats.free_energy, (x, c))
        return [*(getattr(stats, field) for field in FIELDS), *gradients]

    with entmeans.use_implementation("reference"):
        expected = everything()
    with entmeans.use_implementation("numba"):
        found = everything()
    for a, b in zip(found, expected, strict=True):
        assert_close(a, b, equal_nan=True, rtol=1e-5, atol=0)


@pytest.mark.parametrize("d", [7, 40])
def test_a_compiled_call_gets_the_strides_that_it_was_told(d):
    points, centers = normal(d, 20).T, normal(d, 5, seed=1).T
    compiled = {
        "distances": lambda x, c: entmeans.squared_distances(x, c),
        "shares": lambda x, c: entmeans.responsibilities(x, c, torch.tensor(1.0)),
        "entmax": lambda x, c: entmeans.entmax15(x, 0).contiguous().view(-1),
        "terms": lambda x, c: entmeans.free_energy(x, c, torch.tensor(1.0), reduction="none"),
    }
    for function in compiled.values():
        x, c = points.detach().requires_grad_(), centers.detach().requires_grad_()
        expected = function(x, c)
        found = torch.compile(function, backend="aot_eager")(x, c)
        assert_close(found, expected)
        gradients = (torch.autograd.grad(y.sin().sum(), x)[0] for y in (found, expected))
        assert_close(*gradients)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((torch.zeros(20, 4), torch.zeros(3, 7)), ValueError),
        ((torch.zeros(20, 4), torch.zeros(3, 4, dtype=torch.float64)), TypeError),
        ((torch.zeros(20, 4).half(), torch.zeros(3, 4).half()), TypeError),
        ((torch.zeros(20), torch.zeros(3, 4)), ValueError),
    ],
)
def test_a_kernel_refuses_what_it_would_read_past(arguments, error):
    with entmeans.use_implementation("numba"), pytest.raises(error, match="points"):
        operators.nearest(*arguments)


def test_a_kernel_refuses_weights_that_do_not_fit():
    points, centers, weight = problem()
    for wrong in (weight[:3], weight.float()):
        arguments = points, centers, wrong, torch.tensor(1.0), "entmax15"
        with entmeans.use_implementation("numba"), pytest.raises(ValueError, match="weight"):
            operators.statistics(*arguments)


@pytest.mark.parametrize("size", [2**16 + 1, 500_000])
def test_long_rows_of_float32_sum_to_1(size):
    scores = normal(1, size, dtype=torch.float32) * 1e-3
    for mapping in (entmeans.entmax15, entmeans.sparsemax):
        assert_close(mapping(scores).double().sum().item(), 1.0, rtol=0, atol=1e-5)


@pytest.mark.parametrize("size", [2**20, 8_000_000])
def test_rows_of_millions_of_float32_with_wide_support_sum_to_1(size):
    scores = normal(1, size, dtype=torch.float32) * (3 / size**0.5)
    with kernels_only():
        p = operators.map_scores(scores, "entmax15")
    assert_close(p.double().sum().item(), 1.0, rtol=0, atol=1e-5)


def test_after_an_error_no_part_runs_on(set_num_threads):
    set_num_threads(2)
    done, caller = [], threading.get_ident()

    def task(i):
        if threading.get_ident() == caller:
            raise KeyError(i)
        threading.Event().wait(0.001)
        done.append(i)

    with pytest.raises(KeyError):
        threads.share_out(task, 50, 100 * threads.THREAD_WORK)
    count = len(done)
    threading.Event().wait(0.05)
    assert len(done) == count


def test_large_calls_still_work_when_the_interpreter_ends():
    script = """
        import atexit
        import torch
        import entmeans
        torch.set_num_threads(2)
        x = torch.randn(30_000, 16)

        @atexit.register
        def last():
            print(entmeans.statistics(x, x[:50], 1.0).mass.sum().item())

        entmeans.statistics(x, x[:50], 1.0)
    """
    assert float(run(script)) == pytest.approx(30_000)


def test_a_fork_waits_for_a_thread_that_compiles():
    script = """
        import os, threading, time
        os.environ["ENTMEANS_IMPLEMENTATION"] = "numba"
        import torch
        import entmeans
        from numba import njit
        from numba.core.compiler_lock import global_compiler_lock
        x = torch.zeros(3, 2)
        entmeans.nearest(x, x)
        held = threading.Event()

        def compiling():
            with global_compiler_lock:
                held.set()
                time.sleep(0.3)

        threading.Thread(target=compiling).start()
        held.wait()
        child = os.fork()
        if child == 0:
            os._exit(njit(lambda: 7)())  # hangs if the lock of the parent stays shut
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    assert int(run(script)) == 7


def test_without_a_folder_to_keep_them_kernels_compile_with_a_warning():
    script = """
        import os, warnings
        os.environ["ENTMEANS_IMPLEMENTATION"] = "numba"
        import numba.core.caching
        import torch
        import entmeans
        numba.core.caching.CacheImpl._locator_classes = []
        x = torch.arange(6.0).reshape(3, 2)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            labels = entmeans.nearest(x, x).labels.tolist()
        print(labels, sum("NUMBA_CACHE_DIR" in str(w.message) for w in seen))
    """
    assert run(script).strip() == "[0, 1, 2] 1"


@each_mapping
@pytest.mark.parametrize("t", [0.0, 1e-30, 1.0, math.inf])
@pytest.mark.parametrize("implementation", ["numba", "reference"])
def test_a_temperature_may_have_another_dtype_than_the_points(implementation, t, mapping):
    points, centers, weight = problem()
    found = []
    for dtype in DTYPES:
        temperature = torch.tensor(t, dtype=dtype)
        x, c = points.clone().requires_grad_(), centers.clone().requires_grad_()
        with entmeans.use_implementation(implementation):
            stats = entmeans.statistics(x, c, temperature, mapping, weight)
            p = entmeans.responsibilities(x, c, temperature, mapping)
            loss = stats.moment.sin().sum() + p.sin().sum()
        found.append((stats.mass, p, *torch.autograd.grad(loss, (x, c))))
    for a, b in zip(*found, strict=True):
        assert a.isfinite().all()
        assert_close(a, b, rtol=1e-6, atol=1e-6)


# Hard steps that know the last one


def hard_step(points, centers, weight, known):
    """Mass, moment and inertia, and those of the kernel that knows nothing."""
    with kernels_only():
        found = kernels.run(step.hard_statistics, points, centers, weight, known)
        t = torch.zeros((), dtype=torch.float64)
        all_ = kernels.run(operators.statistics, points, centers, weight, t, "hard")
    return found, (all_[0], all_[1], all_[3][1])


def problems_in_motion():
    """Points, centers, weights of many sizes; the last has more sums than a cache holds."""
    sizes = (1, 1, 1), (7, 2, 3), (40, 300, 2), (333, 3, 200), (1000, 90, 7), (2000, 40, 500)
    for n, d, k in sizes:  # the first two are too small for a memory
        points = normal(n, d, seed=n)
        yield points, points[torch.arange(k) % n] + 0.1 * normal(k, d), None
        weight = normal(n, seed=1).clamp(min=0)
        yield points.round(), points[torch.arange(k) % n].round(), weight  # full of ties


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_hard_step_that_knows_the_last_one_is_the_same_to_the_last_bit(dtype):
    for points, centers, weight in problems_in_motion():
        points, centers = points.to(dtype), centers.to(dtype)
        weight = None if weight is None else weight.to(dtype)
        known = step.Known()
        for i in range(30):
            found, right = hard_step(points, centers, weight, known)
            for a, b in zip(found, right, strict=True):
                assert torch.equal(a, b)
            if points.shape[1] * len(centers) > FEW:
                with kernels_only():
                    right_labels = entmeans.nearest(points, centers).labels
                assert torch.equal(known.labels.long(), right_labels)
            centers = step.means(*found[:2], centers)
            if i % 10 == 9:  # not by a step of K-means
                centers = centers.flip(0) + 10.0 ** (-i / 10) * normal(*centers.shape, seed=i)
                centers = centers.to(dtype)


@each_dtype
@pytest.mark.parametrize(("d", "k"), [(50, 12), (3, 200), (1, 600)])
def test_bounds_hold_for_every_other_center(dtype, d, k):
    points, centers = normal(500, d, dtype=dtype), normal(k, d, seed=1, dtype=dtype)
    known = step.Known()
    for i in range(20):
        hard_step(points, centers, None, known)
        gaps = points.double().unsqueeze(1) - centers.double()
        exact = gaps.square().sum(-1).sqrt()
        others = exact.scatter(1, known.labels.long().unsqueeze(1), math.inf).amin(1)
        assert (known.bounds.sqrt() <= others).all()
        assert known.bounds.sqrt().mean() > 0.5 * others.mean()  # and they say something
        centers = centers + 0.02 / k * normal(k, d, seed=2 + i, dtype=dtype)


@pytest.mark.parametrize("d", [1, 3])
def test_a_center_that_comes_straight_in_is_seen_by_a_hair(d):
    points = torch.zeros(1, d)
    for i in range(300):
        start = torch.full((600, d), 50.0)
        start[:2] = 0.0
        start[0, 0], start[1, 0] = -1e-3, 1.0 + 0.001 * i
        end = start.clone()
        end[1, 0] = 1e-3 * (1 - 2e-5)
        known = step.Known()
        for centers in (start, end):
            found, right = hard_step(points, centers, None, known)
            assert torch.equal(found[2], right[2])


@pytest.mark.parametrize(("dtype", "scale"), [(torch.float32, 3e-22), (torch.float64, 1e-158)])
def test_nothing_is_known_of_distances_that_underflow(dtype, scale):
    points, centers = scale * normal(200, 9), scale * normal(70, 9, seed=1)
    points, known = points.to(dtype), step.Known()
    for i in range(12):
        found, right = hard_step(points, centers.to(dtype), None, known)
        for a, b in zip(found, right, strict=True):
            assert torch.equal(a, b)
        centers = centers + 1e-4 * scale * normal(70, 9, seed=2 + i)


def test_a_point_far_within_its_cluster_is_compared_with_one_center_only():
    points = torch.cat([normal(100, 600), normal(100, 600) + 100])
    centers, known = points[[0, 100]], step.Known()
    hard_step(points, centers, None, known)
    wrong = 1 - known.labels
    known.labels[:], known.bounds[:] = wrong, 1e9  # what no comparison would find
    with kernels_only():
        kernels.run(step.hard_statistics, points, centers + 1e-3, None, known)
    assert torch.equal(known.labels, wrong)
    known.bounds[:] = 0
    hard_step(points, centers, None, known)
    assert torch.equal(known.labels, 1 - wrong)


def test_points_left_to_the_formula_are_looked_at_in_each_step():
    points, centers = normal(50, 400), normal(3, 400, seed=1)
    points[7] = 1e200
    known = step.Known()
    for _ in range(3):
        with entmeans.use_implementation("numba"):
            mass, moment, _ = kernels.run(step.hard_statistics, points, centers, None, known)
        right = step.hard_statistics(points, centers, None, step.Known())
        assert_close(mass, right[0], rtol=0, atol=0)
        assert_close(moment, right[1])
        centers = centers + 1e-4
