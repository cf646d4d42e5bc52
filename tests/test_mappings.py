"""The mappings against bisection on their definition and against the entmax package."""

import math
from itertools import pairwise

import entmax
import oracle
import pytest
import torch
from cases import MAPPINGS, SOFT, assert_within, stable
from hypothesis import given
from hypothesis import strategies as st
from torch.func import hessian, jacfwd, jacrev, vmap
from torch.testing import assert_close

import entmeans
from entmeans.mappings import get_mapping
from entmeans.operators import probabilities

SPARSE = {
    "entmax15": (entmeans.entmax15, entmax.entmax15),
    "sparsemax": (entmeans.sparsemax, entmax.sparsemax),
}
BOTH = pytest.mark.parametrize(("ours", "theirs"), SPARSE.values(), ids=SPARSE)
# torch itself warns where its forward mode is first used.
forward_mode = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
# float64 rounds at 1e-16; both sides add K terms and take a root.
PEER = 1e-12


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def apply(name, scores):
    return probabilities(scores, entmeans.MAPPINGS[name])


@pytest.mark.parametrize("name", MAPPINGS)
@pytest.mark.parametrize("size", [1, 2, 3, 17, 1000])
@pytest.mark.parametrize("scale", [0.0, 1e-8, 0.1, 1.0, 10.0, 1e8])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_equals_bisection_on_the_definition(name, size, scale, dtype):
    scores = scale * normal(11, size, dtype=dtype)
    exact = oracle.MAPPINGS[name](oracle.array(scores))
    # z is rounded once when the top is subtracted and each sum adds up to K positive terms.
    assert_within(apply(name, scores), exact, 8 * (math.sqrt(size) + 1) * torch.finfo(dtype).eps)


@BOTH
@pytest.mark.parametrize("shape", [(1,), (7, 1), (3, 5), (2, 3, 33), (4, 1000)], ids=str)
@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_equals_the_entmax_package_forward_and_backward(ours, theirs, shape, scale):
    x, y = (
        (scale * normal(*shape)).requires_grad_(),
        (scale * normal(*shape)).requires_grad_(),
    )
    p, q = ours(x), theirs(y, dim=-1)
    direction = normal(*shape, seed=1)
    p.backward(direction)
    q.backward(direction)
    assert_close(p, q, rtol=0, atol=PEER)
    assert_close(x.grad, y.grad, rtol=0, atol=PEER)


@BOTH
@pytest.mark.parametrize("shape", [(4, 6, 1), (1, 6, 1), (1, 5, 7), (3, 1, 2)], ids=str)
@pytest.mark.parametrize("dim", [0, 1, -2, -1])
def test_any_dimension_may_be_the_one_that_sums_to_1(ours, theirs, shape, dim):
    x = normal(*shape)
    assert_close(ours(x, dim), theirs(x, dim=dim), rtol=0, atol=PEER)
    assert_close(ours(x, dim).sum(dim), torch.ones(()).double().expand(x.sum(dim).shape))


@pytest.mark.parametrize("name", MAPPINGS)
@pytest.mark.parametrize("size", [2, 3, 100])
def test_one_hot_exactly_from_the_margin_on_and_not_below(name, size):
    margin = entmeans.MAPPINGS[name].one_hot_margin
    assert margin == oracle.ONE_HOT_MARGIN[name]
    if math.isinf(margin):
        margin = 30.0
        assert apply(name, torch.tensor([margin, 0.0], dtype=torch.float64))[0] < 1
        return
    scores = torch.zeros(size, dtype=torch.float64)
    scores[1] = margin
    one_hot = torch.eye(size, dtype=torch.float64)[1 if margin else 0]
    assert torch.equal(apply(name, scores), one_hot)
    if margin:
        scores[1] = margin * (1 - 1e-6)
        assert 0.99 < apply(name, scores)[1] < 1


@BOTH
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_thousand_times_normal_is_the_exact_one_hot(ours, theirs, dtype):
    x = (1000 * normal(64, 50)).to(dtype)
    clear = x.topk(2).values.diff().abs().squeeze(-1) >= 2
    assert clear.sum() > 50
    assert torch.equal(ours(x)[clear], torch.eye(50, dtype=dtype)[x.argmax(-1)][clear])


@BOTH
def test_bfloat16_scores_near_minus_1000_are_as_exact_as_their_values(ours, theirs):
    x = (normal(64, 17) - 1000).bfloat16()
    p = ours(x)
    assert p.dtype == torch.bfloat16
    assert torch.equal(p, ours(x.float()).bfloat16())
    exact = getattr(oracle, ours.__name__)(oracle.array(x.float()))
    assert_within(p.float(), exact, torch.finfo(torch.bfloat16).eps)


@pytest.mark.parametrize("name", MAPPINGS)
@pytest.mark.parametrize(
    "row",
    [[-math.inf] * 3, [0.0, math.nan, 1.0], [math.inf, 0.0, 1.0], [math.nan] * 3, [math.inf] * 3],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_a_row_without_a_finite_maximum_is_nan_and_touches_no_other(name, row, dtype):
    good = normal(5, 3).to(dtype).float()
    p = apply(name, torch.cat([good[:2], torch.tensor([row]), good[2:]]))
    assert p[2].isnan().all()
    assert torch.equal(torch.cat([p[:2], p[3:]]), apply(name, good))


@pytest.mark.parametrize("name", MAPPINGS)
def test_a_score_of_minus_infinity_has_no_mass(name):
    p = apply(name, torch.tensor([0.3, -math.inf, 0.1]))
    assert p[1] == 0
    assert_close(p[[0, 2]], apply(name, torch.tensor([0.3, 0.1])))


@forward_mode
@pytest.mark.parametrize("name", SOFT)
def test_derivatives_of_both_orders_and_modes(name):
    # A seed whose support does not change within the step of finite differences.
    scores = normal(4, 5, seed=3).requires_grad_()
    function = lambda z: apply(name, z)  # noqa: E731
    assert torch.autograd.gradcheck(function, scores, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, scores, check_fwd_over_rev=True)


@forward_mode
@pytest.mark.parametrize("name", SOFT)
def test_jacobian_by_both_modes_is_the_closed_form(name):
    scores = normal(6, seed=4)
    p = apply(name, scores)
    sensitivity = [oracle.SENSITIVITY[name](q) if q > 0 else 0.0 for q in p.tolist()]
    s = torch.tensor(sensitivity, dtype=torch.float64)
    closed = s.diag() - torch.outer(s, s) / s.sum()
    for jacobian in (jacrev, jacfwd):
        assert_close(jacobian(lambda z: apply(name, z))(scores), closed, rtol=0, atol=PEER)


@forward_mode
@BOTH
def test_works_under_vmap_jacrev_and_hessian(ours, theirs):
    x = normal(3, 4, 5)
    assert_close(vmap(ours)(x), ours(x), rtol=0, atol=PEER)
    assert_close(vmap(ours, in_dims=1)(x), ours(x.transpose(0, 1)), rtol=0, atol=PEER)
    per_row = vmap(vmap(jacrev(ours)))(x)
    assert_close(per_row[1, 2], jacrev(ours)(x[1, 2]), rtol=0, atol=PEER)
    assert hessian(lambda z: ours(z).square().sum())(x[0, 0]).isfinite().all()


def test_the_hard_mapping_is_flat():
    scores = normal(3, 4).requires_grad_()
    apply("hard", scores).sum().backward()
    assert torch.equal(scores.grad, torch.zeros(3, 4, dtype=torch.float64))


def test_hard_ties_go_to_the_lowest_index():
    scores = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0], [0.0, 1.0, 1.0]])
    assert apply("hard", scores).argmax(-1).tolist() == [1, 0, 1]


def geometric(size, ratio, top):
    """Support sizes shrink by a constant factor in each Newton step of sparsemax.

    Newton for sum [x - tau]_+ = 1 is slowest when each step lands just beyond a cluster of scores:
    then residual and support shrink together, by ``1 - ratio`` and ``ratio``.
    """
    sizes = [size]
    while sizes[-1] > top:
        sizes.append(max(top, min(sizes[-1] - 1, round(sizes[-1] * ratio))))
    lengths = [1.0]
    for before, after in pairwise(sizes):
        lengths.append(lengths[-1] * (before - after) / after)
    unit = (1 - 1 / top) / sum(lengths[:-1])
    tau, x = -1.0, [torch.zeros(top, dtype=torch.float64)]
    for length, (before, after) in zip(lengths, pairwise(sizes), strict=False):
        x.append(x[0].new_full((before - after,), tau + 1e-6 * length * unit))
        tau += length * unit
    return torch.cat(x)


def depths(depth):
    """A top score and others at the given heights above the lowest threshold, -1."""
    return torch.cat([torch.zeros(1).double(), depth.double() - 1])


HARD_FOR_NEWTON = {
    "geometric clusters, K=300": geometric(300, 0.74, 2),
    "geometric clusters, K=3000": geometric(3000, 0.635, 2),
    "geometric clusters, K=100000": geometric(100_000, 0.525, 2),
    "factorial": depths(torch.tensor([1 / math.factorial(n) for n in range(1, 171)])),
    "powers of 2": depths(2.0 ** -torch.arange(1, 1000, dtype=torch.float64)),
    "1/n": depths(1 / torch.arange(1, 20_000, dtype=torch.float64)),
    "1/n^2": depths(torch.arange(1, 20_000, dtype=torch.float64) ** -2),
    "1/sqrt(n)": depths(torch.arange(1, 20_000, dtype=torch.float64) ** -0.5),
    "all at the lowest threshold": depths(torch.full((100_000,), 1e-12)),
    "all just above the threshold": depths(1e-3 + 1e-9 * torch.rand(50_000).double().sort()[0]),
    "uniform": -torch.linspace(0, 1, 300_001, dtype=torch.float64),
    "normal": normal(300_000, seed=5),
    "equal": torch.zeros(2**20, dtype=torch.float64),
}


@BOTH
@pytest.mark.parametrize("x", HARD_FOR_NEWTON.values(), ids=HARD_FOR_NEWTON)
@pytest.mark.parametrize("unit", [1.0, 2.0])
def test_the_threshold_is_found_however_the_scores_are_spaced(ours, theirs, x, unit):
    scores = unit * x
    p = ours(scores)
    # tau itself is rounded, and K terms share its error.
    assert_within(p.sum(), 1.0, max(PEER, len(x) * torch.finfo(torch.float64).eps))
    assert_within(p, getattr(oracle, ours.__name__)(oracle.array(scores)), PEER)


@BOTH
@stable
@given(
    counts=st.lists(st.integers(1, 400), min_size=1, max_size=20),
    heights=st.lists(st.floats(1e-6, 1.0), min_size=20, max_size=20),
)
def test_clusters_of_scores_at_any_height_are_solved(ours, theirs, counts, heights):
    levels = torch.tensor(heights, dtype=torch.float64).cumprod(0)[: len(counts)]
    scores = 2 * depths(levels.repeat_interleave(torch.tensor(counts)))
    exact = getattr(oracle, ours.__name__)(oracle.array(scores))
    assert_within(ours(scores), exact, PEER)


@BOTH
@pytest.mark.parametrize("size", [100_000, 2**20])
def test_float32_sums_to_1_over_many_scores(ours, theirs, size):
    for x in (
        torch.zeros(size),
        normal(size, dtype=torch.float32),
        -2.0 * (torch.arange(size) > 0),
    ):
        p = ours(x)
        assert p.isfinite().all()
        # sqrt(K) rounding errors add up in tau, which K terms share.
        assert_within(p.double().sum(), 1.0, math.sqrt(size) * torch.finfo(torch.float32).eps)


@pytest.mark.parametrize("name", MAPPINGS)
def test_entropy_is_the_formula_and_largest_at_uniform(name):
    mapping = entmeans.MAPPINGS[name]
    p = apply(name, normal(20, 7))
    exact = [oracle.ENTROPY[name](row) for row in p.tolist()]
    assert_within(mapping.entropy(p), exact, 1e-15 * 7)
    assert (mapping.entropy(p) <= mapping.max_entropy(7)).all()
    uniform = torch.full((7,), 1 / 7, dtype=torch.float64)
    assert_within(mapping.entropy(uniform), mapping.max_entropy(7), 1e-15)
    assert mapping.max_entropy(7) == pytest.approx(oracle.MAX_ENTROPY[name](7), rel=1e-15)
    assert torch.equal(mapping.entropy(torch.eye(7)), torch.zeros(7))


@pytest.mark.parametrize("name", SOFT)
def test_p_maximizes_the_objective_that_defines_it(name):
    z = normal(30, 6)
    other = torch.softmax(normal(30, 6, seed=9), -1)
    mapping = entmeans.MAPPINGS[name]
    p = apply(name, z)
    for q in (other, p + 1e-3 * (other - p)):
        assert ((p * z).sum(-1) + mapping.entropy(p) >= (q * z).sum(-1) + mapping.entropy(q)).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_softmax_holds_no_subnormal_numbers(dtype):
    scores = torch.linspace(0, -800, 10_000, dtype=dtype)
    p = apply("softmax", scores)
    assert (p[p > 0] >= torch.finfo(dtype).tiny).all()
    assert_close(p, torch.softmax(scores, -1))


@BOTH
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_dtype_and_shape_are_kept(ours, theirs, dtype):
    p = ours(torch.zeros(2, 4, dtype=dtype))
    assert torch.equal(p, torch.full((2, 4), 0.25, dtype=dtype))


@BOTH
@pytest.mark.parametrize(
    ("x", "dim", "error", "words"),
    [
        ([1.0, 2.0], -1, TypeError, ("x must", "list")),
        (torch.tensor([1, 2]), -1, TypeError, ("x must", "int64")),
        (torch.zeros(3, 0), -1, ValueError, ("x must", "dim=-1", "(3, 0)")),
        (torch.tensor(1.0), -1, ValueError, ("x must", "()")),
        (torch.zeros(3, 2), 2, (ValueError, IndexError), ("dim", "2")),
    ],
    ids=["list", "integers", "no scores", "scalar", "dim out of range"],
)
def test_bad_scores_are_named(ours, theirs, x, dim, error, words):
    with pytest.raises(error) as caught:
        ours(x, dim)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize("mapping", ["entmax", "Softmax", "", None, 1.5, ["softmax"]])
def test_an_unknown_mapping_is_named_with_the_choices(mapping):
    with pytest.raises(ValueError, match=r"mapping=.*entmax15, hard, softmax, sparsemax") as caught:
        get_mapping(mapping)
    assert repr(mapping) in str(caught.value)


def test_a_mapping_is_accepted_as_itself():
    assert all(get_mapping(mapping) is mapping for mapping in entmeans.MAPPINGS.values())
    assert [repr(get_mapping(name)) for name in SOFT] == ["Softmax()", "Entmax15()", "Sparsemax()"]
