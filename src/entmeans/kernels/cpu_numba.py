"""The step on the CPU, in Numba: 16 points (8 in float64) at a time, one in each lane of a vector.

    squared distances -> responsibilities(T) -> statistics

run for a group of points within the first-level cache: no score and no share is ever written to
memory.  Functions are serial and run without the interpreter's lock: `threads` shares out the
rows.  Names and formulas are those of step.py; what is here is how.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit, types
from numba.core.errors import NumbaError
from numpy.typing import NDArray

from .lanes import LINE, Code, Lanes, Memory, Sum, Value, Variable, Whole, vectors

Array = NDArray[Any]

ROWS = 6
"""Rows of a tile of a matrix product: 6 x 16 sums fill the registers of AVX2."""

FLUSH = 8
"""Groups whose products are summed in their own dtype before they are added up in float64."""

__all__ = ["NumbaError"]

HARD, SOFTMAX, ENTMAX15, SPARSEMAX = range(4)

jit = njit(nogil=True, cache=True)
# Without reference counts, which would take longer than the arithmetic of a small group; such a
# function cannot make arrays.
plain = njit(nogil=True, cache=True, _nrt=False)


# Matrix products: a tile is ROWS rows by one vector of columns


class Factor(NamedTuple):
    """Where a factor of a product lies: position of its first element and the strides."""

    memory: Memory
    at: Whole
    row: Whole | int
    step: Whole | int


def tile(code: Code, a: Factor, b: Factor, n: Whole, start: Any, term: Any) -> list[Variable]:
    """For ROWS rows: ``start(row)`` and then, for k < n, ``term(sum, b[k], a[row, k])``."""
    sums = [code.variable(start(row)) for row in range(ROWS)]
    with code.loop(n) as k:
        vector = b.memory.load(b.at + k * b.step)
        at = a.at + k * a.step
        for row, total in enumerate(sums):
            number = a.memory.scalar(at + code.whole(row) * a.row)
            total.set(term(total.get(), vector, number))
    return sums


def plus_product(total: Lanes, vector: Lanes, number: Value) -> Lanes:
    return total.plus_product(vector, number)


def plus_square(total: Lanes, vector: Lanes, number: Value) -> Lanes:
    difference = vector - number
    return total.plus_product(difference, difference)


def center_tile(
    code: Code, packed: Memory, j: Whole, x: Memory, d: Whole, out: Memory, start: Any, term: Any
) -> None:
    centers = Factor(packed, j * d, 1, ROWS)
    points = Factor(x, code.whole(0), 0, x.count)
    for row, total in enumerate(tile(code, centers, points, d, start, term)):
        out.store((j + row) * out.count, total.get())


@vectors()
def product_tile(
    code: Code, packed: Memory, offsets: Memory, j: Whole, x: Memory, d: Whole, out: Memory
) -> None:
    """Offset plus product with the points of the group, for the packed rows from j on."""
    start = lambda row: x.all(offsets.scalar(j + row))  # noqa: E731
    center_tile(code, packed, j, x, d, out, start, plus_product)


@vectors()
def difference_tile(code: Code, packed: Memory, j: Whole, x: Memory, d: Whole, out: Memory) -> None:
    """Squared distances to the points of the group, for the packed rows from j on."""
    center_tile(code, packed, j, x, d, out, lambda row: x.all(0.0), plus_square)


@vectors()
def add_tile(
    code: Code,
    a: Memory,
    a_at: Whole,
    a_row: Whole,
    a_step: Whole,
    b: Memory,
    b_at: Whole,
    b_step: Whole,
    n: Whole,
    out: Memory,
    out_at: Whole,
    out_row: Whole,
) -> None:
    """out[row] += sum_k a[row, k] b[k]."""
    factors = Factor(a, a_at, a_row, a_step), Factor(b, b_at, 0, b_step)
    start = lambda row: out.load(out_at + out_row * row)  # noqa: E731
    for row, total in enumerate(tile(code, *factors, n, start, plus_product)):
        out.store(out_at + out_row * row, total.get())


# One group of points: lane l is point l


@vectors()
def difference(
    code: Code, a: Memory, a_at: Whole, b: Memory, d: Whole, out: Memory, out_at: Whole
) -> None:
    """out = a - b of rows of any length."""
    for start, end, count in code.spans(d, a.count):
        with code.steps(end, count, start) as k:
            out.store(out_at + k, a.load(a_at + k, count) - b.load(k, count))


@vectors()
def transpose(
    code: Code, x: Memory, first: Whole, row: Whole, shift: Memory, n: Whole, out: Memory
) -> None:
    """The first n columns (a multiple of half the lanes) of rows minus the shift, as rows."""
    side = x.count // 2
    with code.steps(n, side) as at:
        for top in range(0, x.count, side):
            part = [x.load(first + row * (top + i) + at, side) for i in range(side)]
            half = 1
            while half < side:
                part = _exchanged(part, half)
                half *= 2
            for i, column in enumerate(part):
                out.store((at + i) * x.count + top, column - shift.scalar(at + i))


def _exchanged(part: list[Lanes], half: int) -> list[Lanes]:
    """A step of transposing: exchange the blocks of that size beside the diagonal."""
    side, out = len(part), list(part)
    for i in (i for i in range(side) if not i & half):
        a, b = part[i], part[i + half]
        out[i] = a.shuffle(b, [n if not n & half else side + n - half for n in range(side)])
        out[i + half] = a.shuffle(b, [n + half if not n & half else side + n for n in range(side)])
    return out


@vectors()
def squares(code: Code, x: Memory, d: Whole, out: Memory) -> None:
    """||x||^2 of each point."""
    total = code.variable(x.all(0.0))
    with code.loop(d) as k:
        value = x.load(k * x.count)
        total.set(total.get().plus_product(value, value))
    out.store(0, total.get())


@vectors(types.float64)
def squared_distance(
    code: Code, x: Memory, x_at: Whole, shift: Memory, c: Memory, c_at: Whole, d: Whole
) -> Value:
    """||x - shift - c||^2 of rows of any length."""
    total = code.variable(x.all(0.0, 1))
    for start, end, count in code.spans(d, x.count):
        part = code.variable(x.all(0.0, count))
        with code.steps(end, count, start) as k:
            gap = x.load(x_at + k, count) - shift.load(k, count) - c.load(c_at + k, count)
            part.set(part.get().plus_product(gap, gap))
        total.set(total.get() + part.get().sum())
    return total.get().total()


@vectors()
def two_smallest(
    code: Code, scores: Memory, n: Whole, low: Memory, second: Memory, label: Memory
) -> None:
    """The smallest score of each point, its index (the lowest), and the second smallest."""
    infinite = scores.all(math.inf)
    least, next_ = code.variable(infinite), code.variable(infinite)
    index = code.variable(label.all(0, scores.count))
    with code.loop(n) as j:
        score = scores.load(j * scores.count)
        less = score < least.get()
        next_.set(next_.get().minimum(least.get().maximum(score)))
        index.set(label.all(j, scores.count).where(less, index.get()))
        least.set(score.where(less, least.get()))
    low.store(0, least.get())
    second.store(0, next_.get())
    label.store(0, index.get())


@vectors(types.int64)
def candidates(
    code: Code,
    scores: Memory,
    n: Whole,
    low: Memory,
    temperature: Value,
    half: Value,
    reach: Value,
    x: Memory,
    chosen: Memory,
) -> Value:
    """Scaled gaps x of those centers for which a gap is within reach of the top."""
    top, count = low.load(0), code.variable(0)
    with code.loop(n) as j:
        gap = scores.load(j * scores.count) - top
        with code.when((gap < reach).any()):
            at = count.get()
            x.store(at * x.count, gap * -1.0 / temperature * half)
            chosen.put(at, j)
            count.set(at + 1)
    return count.get().value


@vectors()
def entmax15_shares(code: Code, x: Memory, n: Whole, entropy: Memory) -> None:
    """x (halved scores, 0 at the top) to shares [x - tau]_+^2, as `Entmax15.probabilities`."""
    zero, tau = x.all(0.0), code.variable(x.all(-1.0))
    with code.repeat() as again:
        square, slope = code.variable(zero), code.variable(zero)
        with code.loop(n) as c:
            q = (x.load(c * x.count) - tau.get()).maximum(0.0)
            square.set(square.get().plus_product(q, q))
            slope.set(slope.get() + q)
        step = (square.get() - square.get().sqrt()) / slope.get()
        tau.set(tau.get() + step)
        again((step > 4 * x.epsilon).any())
    size, total = code.variable(zero), Sum(code, zero)
    with code.loop(n) as c:
        value = x.load(c * x.count)
        inside = value > tau.get()
        size.set(size.get() + x.all(1.0).where(inside, 0.0))
        total.add(value.where(inside, 0.0))
    mean, spread = total.get() / size.get(), Sum(code, zero)
    with code.loop(n) as c:
        value = x.load(c * x.count)
        deviation = (value - mean).where(value > tau.get(), 0.0)
        spread.add(deviation * deviation)
    threshold = mean - ((x.all(1.0) - spread.get()) / size.get()).sqrt()
    total = Sum(code, zero)
    with code.loop(n) as c:
        q = (x.load(c * x.count) - threshold).maximum(0.0)
        p = q * q
        x.store(c * x.count, p)
        total.add(p * (x.all(1.0) - q))
    entropy.store(0, total.get() * (4 / 3))


@vectors()
def sparsemax_shares(code: Code, x: Memory, n: Whole, entropy: Memory) -> None:
    """x (scores, 0 at the top) to shares [x - tau]_+; the support shrinks until it is settled."""
    zero, tau, size = x.all(0.0), code.variable(x.all(-1.0)), code.variable(x.all(math.inf))
    with code.repeat() as again:
        count, total = code.variable(zero), Sum(code, x.all(-1.0))
        with code.loop(n) as c:
            value = x.load(c * x.count)
            inside = value > tau.get()
            count.set(count.get() + x.all(1.0).where(inside, 0.0))
            total.add(value.where(inside, 0.0))
        shrinks = (count.get() < size.get()).any()
        size.set(count.get())
        tau.set(total.get() / count.get())
        again(shrinks)
    total = Sum(code, zero)
    with code.loop(n) as c:
        p = (x.load(c * x.count) - tau.get()).maximum(0.0)
        x.store(c * x.count, p)
        total.add(p * (x.all(1.0) - p))
    entropy.store(0, total.get() * 0.5)


@vectors(types.int64)
def softmax_shares(
    code: Code,
    scores: Memory,
    n: Whole,
    low: Memory,
    rate: Value,
    floor: Value,
    x: Memory,
    chosen: Memory,
    mean_gap: Memory,
    entropy: Memory,
) -> Value:
    """Shares of those centers for which one is a normal number; the entropy lacks its logarithm.

    ``rate`` is 1 / T.
    """
    top, count = low.load(0), code.variable(0)
    total, spread = Sum(code, x.all(0.0)), Sum(code, x.all(0.0))
    with code.loop(n) as j:
        gap = scores.load(j * scores.count) - top
        score = gap * rate * -1.0
        alive = score > floor
        with code.when(alive.any()):
            e = score.maximum(floor).exp().where(alive, 0.0)
            at = count.get()
            x.store(at * x.count, e)
            chosen.put(at, j)
            count.set(at + 1)
            total.add(e)
            spread.add((e * gap).where(alive, 0.0))
    scale = x.all(1.0) / total.get()
    entropy.store(0, total.get())
    mean_gap.store(0, spread.get() * scale)
    with code.loop(count.get()) as c:
        x.store(c * x.count, x.load(c * x.count) * scale)
    return count.get().value


@vectors()
def mean_gaps(
    code: Code, shares: Memory, n: Whole, chosen: Memory, scores: Memory, low: Memory, out: Memory
) -> None:
    """sum_j p_j gap_j of each point."""
    total = Sum(code, scores.all(0.0))
    with code.loop(n) as c:
        gap = scores.load(chosen.whole(c) * scores.count) - low.load(0)
        total.add(shares.load(c * shares.count) * gap)
    out.store(0, total.get())


@vectors(types.int64)
def weigh(
    code: Code,
    shares: Memory,
    n: Whole,
    chosen: Memory,
    scores: Memory,
    low: Memory,
    near: Memory,
    weight: Memory,
    mass: Memory,
    distortion: Memory,
    masks: Memory,
) -> Value:
    """Shares times weights, their sums and those of distances; which lanes have any, how many."""
    count = code.variable(0)
    with code.loop(n) as c:
        j = chosen.whole(c)
        p = shares.load(c * shares.count) * weight.load(0)
        alive = p.nonzero().bits()
        masks.put(c, alive)
        count.set(count.get() + alive.ones())
        shares.store(c * shares.count, p)
        mass.add(j, p.total())
        gap = scores.load(j * scores.count) - low.load(0)
        distortion.add(j, (p * (near.load(0) + gap)).total())
    return count.get().value


@vectors(types.int64)
def couple(
    code: Code,
    shares: Memory,
    n: Whole,
    chosen: Memory,
    scores: Memory,
    low: Memory,
    near: Memory,
    weight: Memory,
    flux: Memory,
    to_distortion: Memory,
    temperature: Value,
    powers: Memory,
    to_free_energy: Value,
    flow: Memory,
    mass: Memory,
    masks: Memory,
    to_weight: Memory,
    to_temperature: Memory,
) -> Value:
    """Shares to derivatives by the distances, given those by the shares (``flux``).

    ``powers`` are the factors of p, sqrt(p) and 1 in the sensitivity of the mapping; ``flow`` gets
    the weighted shares; ``to_weight`` lacks what does not come from shares.
    """
    zero, one, w = shares.all(0.0), shares.all(1.0), weight.load(0)
    size, total, mean, slope = (code.variable(zero) for _ in range(4))
    count = code.variable(0)

    def sensitivity(p: Lanes) -> Lanes:
        linear, root, flat = (powers.scalar(i) for i in range(3))
        present = one.where(p > 0.0, 0.0)
        return (p * linear).plus_product(p.sqrt(), root).plus_product(present, flat)

    def gap_of(j: Whole) -> Lanes:
        return scores.load(j * scores.count) - low.load(0)

    with code.loop(n) as c:
        j, p = chosen.whole(c), shares.load(c * shares.count)
        value = flux.load(j * flux.count)
        value = value.plus_product(near.load(0) + gap_of(j), to_distortion.scalar(j))
        s = sensitivity(p)
        size.set(size.get() + s)
        total.set(total.get().plus_product(s, value))
        mean.set(mean.get().plus_product(p, value))
    middle = total.get() / size.get().where(size.get() > 0.0, 1.0)
    with code.loop(n) as c:
        j, p = chosen.whole(c), shares.load(c * shares.count)
        gap, direct = gap_of(j), to_distortion.scalar(j)
        value = flux.load(j * flux.count).plus_product(near.load(0) + gap, direct)
        drift = sensitivity(p) * (value - middle) / temperature
        slope.set(slope.get().plus_product(drift, gap / temperature))
        alive = (p * w).nonzero().bits()
        masks.put(c, alive)
        count.set(count.get() + alive.ones())
        flow.store(c * flow.count, p * w)
        p = (p * direct).plus_product(p, to_free_energy) - drift
        p = p * w
        shares.store(c * shares.count, p)
        mass.add(j, p.total())
    to_weight.store(0, mean.get())
    to_temperature.store(0, slope.get())
    return count.get().value


@vectors()
def sum_shares(code: Code, shares: Memory, n: Whole, out: Memory) -> None:
    """The sum over the chosen centers for each point."""
    total = code.variable(shares.all(0.0))
    with code.loop(n) as c:
        total.set(total.get() + shares.load(c * shares.count))
    out.store(0, total.get())


@vectors()
def add_row(
    code: Code, x: Memory, x_at: Whole, factor: Value, out: Memory, out_at: Whole, width: Whole
) -> None:
    """out += factor * x, for rows of a whole number of vectors."""
    with code.steps(width, x.count) as k:
        out.store(out_at + k, out.load(out_at + k).plus_product(x.load(x_at + k), factor))


@vectors()
def add_point(
    code: Code,
    x: Memory,
    x_at: Whole,
    shift: Memory,
    factor: Value,
    out: Memory,
    out_at: Whole,
    d: Whole,
) -> None:
    """out += factor * (x - shift), in float64, for rows of any length."""
    for start, end, count in code.spans(d, x.count):
        with code.steps(end, count, start) as k:
            total = out.load(out_at + k, count)
            point = x.load(x_at + k, count) - shift.load(k, count)
            out.store(out_at + k, total.plus_product(point.converted(total.type), factor))


@vectors()
def spread(code: Code, shares: Memory, n: Whole, chosen: Memory, out: Memory) -> None:
    """Shares of the chosen centers into their places among those of all."""
    with code.loop(n) as c:
        out.store(chosen.whole(c) * out.count, shares.load(c * shares.count))


@vectors()
def flush(code: Code, partial: Memory, moment: Memory, n: Whole) -> None:
    """Products summed in their own dtype, added up in float64."""
    with code.steps(n, partial.count) as at:
        total, part = moment.load(at, partial.count), partial.load(at)
        moment.store(at, total + part.converted(total.type))
        partial.store(at, partial.all(0.0))


@vectors()
def add_potentials(
    code: Code,
    scores: Memory,
    n: Whole,
    low: Memory,
    near: Memory,
    so_far: Memory,
    weight: Memory,
    out: Memory,
) -> None:
    """out_j += sum_i w_i min(d_ij, so_far_i)."""
    with code.loop(n) as j:
        distance = near.load(0) + (scores.load(j * scores.count) - low.load(0))
        out.add(j, (distance.minimum(so_far.load(0)) * weight.load(0)).total())


@vectors(types.int64)
def lowest_bit(code: Code, mask: Whole) -> Value:
    return mask.trailing_zeros().value


class Centers(NamedTuple):
    """Centers, or other rows of numbers for each center, laid out for products.

    ``packed`` holds tiles of ROWS rows, one feature after the other; ``rows`` holds the rows,
    padded with zeros to whole vectors and to a whole number of tiles.
    """

    packed: Array  # (high * D,)
    offsets: Array  # (high,), squared norms
    rows: Array  # (high * width,)
    shift: Array  # (D,)
    reach: float  # the largest norm
    n: int
    width: int


class Group(NamedTuple):
    """Memory for one group of points, used again for the next; matrices lie row by row."""

    x: Array  # (lanes, width), the points minus the shift
    features: Array  # (width, lanes), its transpose
    scores: Array  # (high, lanes), squared distances up to a number for each point
    shares: Array  # (high, lanes), of the chosen centers only
    spread: Array  # (high, lanes), of all centers
    chosen: Array  # (high,)
    masks: Array  # (high,)
    low: Array  # (lanes,), the lowest score
    second: Array  # the second lowest
    label: Array
    near: Array  # the squared distance to the nearest center
    weight: Array
    mean_gap: Array
    entropy: Array
    totals: Array
    scrap: Array  # (high,), sums that nobody asks for
    flux: Array  # (high, lanes), derivatives by the shares of all centers
    flow: Array  # (high, lanes), weighted shares of the chosen centers
    pull: Array  # (lanes + ROWS, width), what centers add to the derivatives by the points


@plain
def padded(n, unit):
    return -(-n // unit) * unit


@plain
def lanes_of(values):
    return LINE // values.itemsize


@jit
def pack(rows, shift, scale):
    """Rows (K, D) minus the shift, laid out for products; ``scale`` is a factor in the products."""
    count, d = rows.shape
    high, width = padded(count, ROWS), padded(d, lanes_of(rows))
    out = np.zeros(high * width, rows.dtype)
    packed = np.zeros(high * d, rows.dtype)
    offsets = np.zeros(high, rows.dtype)
    reach = 0.0
    for j in range(count):
        square = rows.dtype.type(0)
        for k in range(d):
            value = rows[j, k] - shift[k]
            square += value * value
            out[j * width + k] = value
            packed[j // ROWS * ROWS * d + k * ROWS + j % ROWS] = scale * value
        offsets[j] = square
        reach = max(reach, math.sqrt(square)) if math.isfinite(square) else math.inf
    return Centers(packed, offsets, out, shift, reach, count, width)


@jit
def pack_centers(centers, differences):
    """Centers about a shift near their mean, as `step.common_shift`."""
    count, d = centers.shape
    mean, spread = np.zeros(d), 0.0
    for k in range(d):
        for j in range(count):
            mean[k] += centers[j, k] / count
        for j in range(count):
            spread = max(spread, abs(centers[j, k] - mean[k]))
    shift = mean.astype(centers.dtype)
    if 0 < spread < math.inf:
        grid = 2.0 ** math.ceil(math.log2(spread))
        for k in range(d):
            shift[k] = round(mean[k] / grid) * grid
    kind = centers.dtype
    return pack(centers, shift, kind.type(1 if d <= differences else -2))


@jit
def new_group(like, high, width):
    kind, lanes = like.dtype, lanes_of(like)
    return Group(
        np.zeros(lanes * width, kind),
        np.empty(width * lanes, kind),
        np.empty(high * lanes, kind),
        np.empty((high + 1) * lanes, kind),
        np.empty((high + 1) * lanes, kind),
        np.empty(high + 1, np.int64),
        np.empty(high, np.int64),
        np.empty(lanes, kind),
        np.empty(lanes, kind),
        np.empty(lanes, np.int32),
        np.empty(lanes, kind),
        np.zeros(lanes, kind),
        np.empty(lanes, kind),
        np.empty(lanes, kind),
        np.empty(lanes, kind),
        np.zeros(high),
        np.empty(high * lanes, kind),
        np.empty((high + 1) * lanes, kind),
        np.empty((lanes + ROWS) * width, kind),
    )


@plain
def products(centers, group, out):
    """Offsets plus products of the points with all packed rows."""
    for j in range(0, len(centers.offsets), ROWS):
        product_tile(centers.packed, centers.offsets, j, group.features, len(centers.shift), out)


@plain
def take(points, bad, first, count, centers, group):
    """Features of points first, ..., first + count - 1; zeros for ``bad`` ones, not finite."""
    d, lanes, shift = len(centers.shift), len(group.low), centers.shift
    side = lanes // 2
    whole = d // side * side if count == lanes else 0
    transpose(points, first * d, d, shift, whole, group.features)
    for k in range(whole, d):
        for i in range(lanes):
            there = i < count
            value = points[(first + i) * d + k] - shift[k] if there else shift[k] * 0
            group.features[k * lanes + i] = value
    squares(group.features, d, group.near)
    total = 0.0
    for i in range(lanes):
        total += group.near[i]
    if math.isfinite(total):
        return
    for i in range(count):
        if not math.isfinite(group.near[i]):
            bad[first + i] = True
            group.near[i] = 0
            for k in range(d):
                group.features[k * lanes + i] = 0


@plain
def compare(points, bad, first, count, centers, differences, group):
    """Scores of the group, and the nearest center of each point."""
    d, width = len(centers.shift), centers.width
    if d <= differences:
        for j in range(0, len(centers.offsets), ROWS):
            difference_tile(centers.packed, j, group.features, d, group.scores)
        two_smallest(group.scores, centers.n, group.low, group.second, group.label)
        for i in range(len(group.low)):
            group.near[i] = group.low[i]
        return
    products(centers, group, group.scores)
    two_smallest(group.scores, centers.n, group.low, group.second, group.label)
    rounding = 4 * np.finfo(points.dtype).eps * math.sqrt(d) * centers.reach
    for i in range(count):
        if bad[first + i]:
            continue
        at = (first + i) * d
        blur = rounding * (centers.reach + math.sqrt(group.near[i]))
        if group.second[i] - group.low[i] <= blur:
            settle(points, at, centers, group, i, group.low[i] + blur)
        c = group.label[i] * width
        group.near[i] = squared_distance(points, at, centers.shift, centers.rows, c, d)


@plain
def settle(points, at, centers, group, i, limit):
    """Compare the centers whose scores are within rounding of the lowest by differences."""
    d, lanes, width = len(centers.shift), len(group.low), centers.width
    shift, rows = centers.shift, centers.rows
    nearest = second = math.inf
    for j in range(centers.n):
        if group.scores[j * lanes + i] <= limit:
            distance = squared_distance(points, at, shift, rows, j * width, d)
            if distance < nearest:
                nearest, group.label[i] = distance, j
    for j in range(centers.n):
        score = j * lanes + i
        if group.scores[score] <= limit:
            distance = squared_distance(points, at, shift, rows, j * width, d)
            group.scores[score] = group.low[i] + (distance - nearest)
        if j != group.label[i]:
            second = min(second, group.scores[score])
    group.second[i] = second


@plain
def all_hard(kind, temperature, group):
    """Whether each point of the group has one center only, by its margin."""
    if kind == HARD:
        return True
    if kind == SOFTMAX:
        return False
    half = _half(kind, group)
    for i in range(len(group.low)):
        if (group.low[i] - group.second[i]) / temperature * half > -1:
            return False
    return True


@plain
def _half(kind, group):
    """The factor of scores in the mapping."""
    return group.low.dtype.type(0.5 if kind == ENTMAX15 else 1.0)


@plain
def share(kind, temperature, count, group):
    """Responsibilities of the chosen of ``count`` centers (how many is returned).

    Also the mean gaps and entropies.
    """
    if all_hard(kind, temperature, group):
        return _one_hot(group)
    one = group.low.dtype.type(1)
    if kind == SOFTMAX:
        n = softmax_shares(
            group.scores,
            count,
            group.low,
            group.low.dtype.type(min(one / temperature, np.finfo(group.low.dtype).max)),
            _softmax_floor(count, group),
            group.shares,
            group.chosen,
            group.mean_gap,
            group.entropy,
        )
        for i in range(len(group.low)):
            group.entropy[i] = math.log(group.entropy[i]) + group.mean_gap[i] / temperature
        return n
    half = _half(kind, group)
    n = candidates(
        group.scores,
        count,
        group.low,
        temperature,
        half,
        group.low.dtype.type(temperature / half * (1 + 4 * np.finfo(group.low.dtype).eps)),
        group.shares,
        group.chosen,
    )
    if kind == ENTMAX15:
        entmax15_shares(group.shares, n, group.entropy)
    else:
        sparsemax_shares(group.shares, n, group.entropy)
    mean_gaps(group.shares, n, group.chosen, group.scores, group.low, group.mean_gap)
    return n


@plain
def _softmax_floor(count, group):
    """Below it the share would be subnormal: no weight, and slow."""
    kind = group.low.dtype
    return kind.type(math.log(np.finfo(kind).tiny * count))


@plain
def _one_hot(group):
    lanes, n = len(group.low), 0
    for i in range(lanes):
        c = 0
        while c < n and group.chosen[c] != group.label[i]:
            c += 1
        if c == n:
            group.chosen[n] = group.label[i]
            for at in range(n * lanes, (n + 1) * lanes):
                group.shares[at] = 0
            n += 1
        group.shares[c * lanes + i] = 1
        group.mean_gap[i] = 0
        group.entropy[i] = 0
    return n


@plain
def free(temperature, near, mean_gap, entropy):
    """near + <p, gap> - T H of a point; T H is 0 where H is 0, at infinite T too."""
    return near + mean_gap - (temperature * entropy if entropy != 0 else entropy)


@plain
def add_moments(points, bad, first, count, n, nonzero, centers, group, partial, moment):
    """moment_j += sum_i s_ij (x_i - shift) for the weighted shares s; True: to ``partial``."""
    d, lanes, width = len(centers.shift), len(group.low), centers.width
    x, shares, masks, chosen = group.x, group.shares, group.masks, group.chosen
    if nonzero * 10 <= lanes * centers.n:
        for c in range(n):
            mask, at = masks[c], chosen[c] * width
            while mask:
                i = lowest_bit(mask)
                mask &= mask - 1
                factor = np.float64(shares[c * lanes + i])
                add_point(points, (first + i) * d, centers.shift, factor, moment, at, d)
        return False
    for i in range(lanes):
        if i < count and not bad[first + i]:
            difference(points, (first + i) * d, centers.shift, d, x, i * width)
        else:
            for at in range(i * width, (i + 1) * width):
                x[at] = 0
    in_place = complete(n, shares, centers.n, chosen, lanes, group.spread)
    full = shares if in_place else group.spread
    for j in range(0, len(centers.offsets), ROWS):
        for k in range(0, width, lanes):
            at = j * width + k
            add_tile(full, j * lanes, lanes, 1, x, k, width, lanes, partial, at, width)
    return True


@plain
def complete(n, shares, count, chosen, lanes, full):
    """Shares of all centers in their places, and zeros up to a whole number of tiles.

    True if they are in ``shares`` as it is, else they are in ``full``.
    """
    in_place = n == count
    for c in range(n):
        in_place &= chosen[c] == c
    for at in range(count * lanes, len(shares)):
        shares[at] = 0
        full[at] = 0
    if not in_place:
        for at in range(count * lanes):
            full[at] = 0
        spread(shares, n, chosen, full)
    return in_place


@jit
def nearest_rows(points, bad, first, last, centers, differences, labels, near, margins):
    """Labels, distances and margins of rows first, ..., last - 1."""
    group = new_group(points, len(centers.offsets), centers.width)
    lanes = len(group.low)
    for start in range(first, last, lanes):
        count = min(lanes, last - start)
        take(points, bad, start, count, centers, group)
        compare(points, bad, start, count, centers, differences, group)
        for i in range(count):
            labels[start + i] = group.label[i]
            near[start + i] = group.near[i]
            margins[start + i] = group.second[i] - group.low[i]


@jit
def potential_rows(points, bad, weight, first, last, centers, differences, so_far, out):
    """Add what rows first, ..., last - 1 contribute to `step.potentials`."""
    group = new_group(points, len(centers.offsets), centers.width)
    lanes = len(group.low)
    for start in range(first, last, lanes):
        count = min(lanes, last - start)
        take(points, bad, start, count, centers, group)
        compare(points, bad, start, count, centers, differences, group)
        for i in range(lanes):
            there = i < count and not bad[start + i]
            group.weight[i] = weight[start + i] if there else 0
            group.totals[i] = so_far[start + i] if there else 0
        near, low, totals = group.near, group.low, group.totals
        add_potentials(group.scores, centers.n, low, near, totals, group.weight, out)


@jit
def distance_rows(points, bad, first, last, centers, differences, out):
    """Squared distances (N, K) of rows first, ..., last - 1."""
    group = new_group(points, len(centers.offsets), centers.width)
    lanes, n = len(group.low), centers.n
    for start in range(first, last, lanes):
        count = min(lanes, last - start)
        take(points, bad, start, count, centers, group)
        compare(points, bad, start, count, centers, differences, group)
        for i in range(count):
            near, low = group.near[i], group.low[i]
            for j in range(n):
                out[(start + i) * n + j] = near + (group.scores[j * lanes + i] - low)


@jit
def share_rows(points, bad, first, last, centers, differences, kind, temperature, out):
    """Responsibilities (N, K) of rows first, ..., last - 1."""
    group = new_group(points, len(centers.offsets), centers.width)
    lanes, n = len(group.low), centers.n
    for start in range(first, last, lanes):
        count = min(lanes, last - start)
        take(points, bad, start, count, centers, group)
        compare(points, bad, start, count, centers, differences, group)
        chosen = share(kind, temperature, n, group)
        write_shares(group, chosen, n, start, count, out)


@plain
def write_shares(group, chosen, n, first, count, out):
    """Shares of the chosen centers into rows first, ..., first + count - 1 of (N, n)."""
    lanes, shares = len(group.low), group.shares
    for at in range(first * n, (first + count) * n):
        out[at] = 0
    for i in range(count):
        for c in range(chosen):
            out[(first + i) * n + group.chosen[c]] = shares[c * lanes + i]


@jit
def free_energy_rows(
    points, bad, weight, first, last, centers, differences, kind, temperature, terms, sums
):
    """min_p <p, d_i> - T H(p) of rows first, ..., last - 1, and their weighted sum."""
    group = new_group(points, len(centers.offsets), centers.width)
    lanes = len(group.low)
    for start in range(first, last, lanes):
        count = min(lanes, last - start)
        take(points, bad, start, count, centers, group)
        compare(points, bad, start, count, centers, differences, group)
        share(kind, temperature, centers.n, group)
        for i in range(count):
            term = free(temperature, group.near[i], group.mean_gap[i], group.entropy[i])
            terms[start + i] = term
            if weight[start + i] != 0 and not bad[start + i]:
                sums[0] += np.float64(weight[start + i]) * term


@plain
def add_statistics(
    group,
    partial,
    points,
    bad,
    weight,
    first,
    last,
    centers,
    differences,
    kind,
    temperature,
    threshold,
    mass,
    moment,
    distortion,
    cost,
    totals,
):
    """Add the statistics of rows first, ..., last - 1.

    Moments are about the shift.  ``totals``: free energy, inertia, hard mass, smallest margin.
    """
    d, lanes, width = len(centers.shift), len(group.low), centers.width
    waiting = 0
    for start in range(first, last, lanes):
        count = min(lanes, last - start)
        take(points, bad, start, count, centers, group)
        compare(points, bad, start, count, centers, differences, group)
        for i in range(lanes):
            there = i < count and not bad[start + i]
            group.weight[i] = weight[start + i] if there else 0
            if group.weight[i] == 0:
                group.second[i] = math.inf  # a point that is not there has no soft share
        if all_hard(kind, temperature, group):
            for i in range(count):
                group.mean_gap[i] = 0
                group.entropy[i] = 0
                j, w = group.label[i], np.float64(group.weight[i])
                if w != 0:
                    mass[j] += w
                    distortion[j] += w * group.near[i]
                    at = (start + i) * d
                    add_point(points, at, centers.shift, w, moment, j * width, d)
        else:
            n = share(kind, temperature, centers.n, group)
            nonzero = weigh(
                group.shares,
                n,
                group.chosen,
                group.scores,
                group.low,
                group.near,
                group.weight,
                mass,
                distortion,
                group.masks,
            )
            waiting += add_moments(
                points, bad, start, count, n, nonzero, centers, group, partial, moment
            )
            if waiting == FLUSH:
                flush(partial, moment, len(moment))
                waiting = 0
        for i in range(count):
            w = np.float64(group.weight[i])
            if w != 0:
                margin = group.second[i] - group.low[i]
                totals[0] += w * free(
                    temperature, group.near[i], group.mean_gap[i], group.entropy[i]
                )
                totals[1] += w * group.near[i]
                totals[2] += w if margin >= threshold else 0.0
                totals[3] = min(totals[3], margin)
                cost[group.label[i]] += w * margin
    flush(partial, moment, len(moment))


@jit
def statistics_rows(
    points,
    bad,
    weight,
    first,
    last,
    centers,
    differences,
    kind,
    temperature,
    threshold,
    mass,
    moment,
    distortion,
    cost,
    totals,
):
    add_statistics(
        new_group(points, len(centers.offsets), centers.width),
        np.zeros(len(moment), points.dtype),
        points,
        bad,
        weight,
        first,
        last,
        centers,
        differences,
        kind,
        temperature,
        threshold,
        mass,
        moment,
        distortion,
        cost,
        totals,
    )


@jit
def moved(mass, moment, start, previous):
    """`step.moved`."""
    k, d = moment.shape
    centers, numbers = start.copy(), np.zeros(5)
    numbers[1] = math.inf
    for j in range(k):
        shift = 0.0
        for f in range(d):
            if mass[j] != 0:
                centers[j, f] = moment[j, f] / mass[j]
            shift += np.float64(centers[j, f] - previous[j, f]) ** 2
            numbers[4] += np.float64(centers[j, f]) ** 2
        numbers[0] += mass[j]
        numbers[1] = min(numbers[1], mass[j])
        numbers[2] = shift if shift > numbers[2] or math.isnan(shift) else numbers[2]
        numbers[3] += shift
    return centers, numbers


@jit
def add_parts(mass, moment, d, width, shift, k):
    """Mass (K,) and moment (K, D) of all parts, in their order; moments were about the shift."""
    masses, moments = np.zeros(k), np.zeros((k, d))
    for part in range(len(mass)):
        for j in range(k):
            masses[j] += mass[part, j]
            for f in range(d):
                moments[j, f] += moment[part, j * width + f]
    for j in range(k):
        for f in range(d):
            moments[j, f] += masses[j] * shift[f]
    return masses, moments


@plain
def pull_rows(n, dense, shares, centers, group):
    """pull_i += sum_j s_ij mu_j for the shares s of the chosen centers."""
    lanes, width = len(group.low), centers.width
    pull, masks, chosen, rows = group.pull, group.masks, group.chosen, centers.rows
    if dense:
        in_place = complete(n, shares, centers.n, chosen, lanes, group.spread)
        full = shares if in_place else group.spread
        for i in range(0, lanes, ROWS):
            for k in range(0, width, lanes):
                at = i * width + k
                add_tile(full, i, 1, lanes, rows, k, width, centers.n, pull, at, width)
        return
    for c in range(n):
        mask, at = masks[c], chosen[c] * width
        while mask:
            i = lowest_bit(mask)
            mask &= mask - 1
            add_row(rows, at, shares[c * lanes + i], pull, i * width, width)


@plain
def add_inertia(n, count, to_inertia, group, mass):
    """The derivative of the inertia: that of the distance to the nearest center."""
    lanes = len(group.low)
    for i in range(count):
        c = 0
        while group.chosen[c] != group.label[i]:
            c += 1
        share = to_inertia * group.weight[i]
        group.shares[c * lanes + i] += share
        mass[group.label[i]] += share


@plain
def add_pullback(
    group,
    partial,
    points,
    bad,
    weight,
    first,
    last,
    centers,
    differences,
    kind,
    temperature,
    powers,
    through,
    cotangent,
    to_distortion,
    to_free_energy,
    to_inertia,
    mass,
    moment,
    to_points,
    to_weight,
    totals,
):
    """Derivatives by rows first, ..., last - 1, and what centers and temperature get from them.

    mass_j = sum_i dL/dd_ij and moment_j = sum_i dL/dd_ij x_i, from which the derivative by a
    center is 2 (mass_j mu_j - moment_j).
    """
    d, lanes, width = len(centers.shift), len(group.low), centers.width
    waiting = 0
    for start in range(first, last, lanes):
        count = min(lanes, last - start)
        take(points, bad, start, count, centers, group)
        compare(points, bad, start, count, centers, differences, group)
        for i in range(lanes):
            there = i < count and not bad[start + i]
            group.weight[i] = weight[start + i] if there else 0
        for at in range(len(group.pull)):
            group.pull[at] = 0
        n = share(kind, temperature, centers.n, group)
        for i in range(count):
            near, gap, entropy = group.near[i], group.mean_gap[i], group.entropy[i]
            to_weight[start + i] = to_inertia * near
            if to_free_energy != 0:
                to_weight[start + i] += to_free_energy * free(temperature, near, gap, entropy)
            totals[0] -= np.float64(to_free_energy * group.weight[i]) * entropy
        if through:
            products(cotangent, group, group.flux)
            nonzero = couple(
                group.shares,
                n,
                group.chosen,
                group.scores,
                group.low,
                group.near,
                group.weight,
                group.flux,
                to_distortion,
                temperature,
                powers,
                to_free_energy,
                group.flow,
                mass,
                group.masks,
                group.totals,
                group.entropy,
            )
            for i in range(count):
                to_weight[start + i] += group.totals[i]
                totals[0] += np.float64(group.weight[i]) * group.entropy[i]
        else:
            for i in range(lanes):
                group.totals[i] = to_free_energy * group.weight[i]
            nonzero = weigh(
                group.shares,
                n,
                group.chosen,
                group.scores,
                group.low,
                group.near,
                group.totals,
                mass,
                group.scrap,
                group.masks,
            )
        if to_inertia != 0:
            add_inertia(n, count, to_inertia, group, mass)
        sum_shares(group.shares, n, group.totals)
        dense = add_moments(points, bad, start, count, n, nonzero, centers, group, partial, moment)
        waiting += dense
        if waiting == FLUSH:
            flush(partial, moment, len(moment))
            waiting = 0
        pull_rows(n, dense, group.shares, centers, group)
        for i in range(count):
            total, at, out = group.totals[i], i * width, (start + i) * d
            for k in range(d):
                x = points[out + k] - centers.shift[k]
                to_points[out + k] = 2 * (total * x - group.pull[at + k])
                group.pull[at + k] = 0
        if through:
            pull_rows(n, dense, group.flow, cotangent, group)
            for i in range(count):
                at, out = i * width, (start + i) * d
                for k in range(d):
                    to_points[out + k] += group.pull[at + k]
    flush(partial, moment, len(moment))


@jit
def pullback_rows(
    points,
    bad,
    weight,
    first,
    last,
    centers,
    differences,
    kind,
    temperature,
    powers,
    through,
    cotangent,
    to_distortion,
    to_free_energy,
    to_inertia,
    mass,
    moment,
    to_points,
    to_weight,
    totals,
):
    add_pullback(
        new_group(points, len(centers.offsets), centers.width),
        np.zeros(len(moment), points.dtype),
        points,
        bad,
        weight,
        first,
        last,
        centers,
        differences,
        kind,
        temperature,
        powers,
        through,
        cotangent,
        to_distortion,
        to_free_energy,
        to_inertia,
        mass,
        moment,
        to_points,
        to_weight,
        totals,
    )


# Mappings of dense scores (N, K)


@vectors()
def negate(code: Code, scores: Memory, n: Whole) -> None:
    with code.loop(n) as j:
        scores.store(j * scores.count, scores.load(j * scores.count) * -1.0)


@vectors(types.int64)
def not_numbers(code: Code, scores: Memory, n: Whole) -> Value:
    """The points of which a score is NaN."""
    bad = code.variable(0)
    with code.loop(n) as j:
        bad.set(bad.get() | scores.load(j * scores.count).unordered().bits())
    return bad.get().value


@plain
def map_group(group, scores, first, count, n, kind, one, out):
    """Probabilities of rows first, ..., first + count - 1 of scores (N, n)."""
    lanes = len(group.low)
    side = lanes // 2
    whole = n // side * side if count == lanes else 0
    transpose(scores, first * n, n, group.x, whole, group.scores)
    for j in range(whole, n):
        for i in range(lanes):
            group.scores[j * lanes + i] = scores[(first + min(i, count - 1)) * n + j]
    negate(group.scores, n)
    two_smallest(group.scores, n, group.low, group.second, group.label)
    bad = not_numbers(group.scores, n)
    for i in range(lanes):
        if not math.isfinite(group.low[i]):
            bad |= 1 << i
    chosen = share(kind, one, n, group)
    write_shares(group, chosen, n, first, count, out)
    for i in range(count):
        if bad >> i & 1:
            for j in range(n):
                out[(first + i) * n + j] = math.nan


@jit
def map_rows(scores, n, first, last, kind, out):
    """Probabilities of rows first, ..., last - 1 of scores (N, n)."""
    lanes = lanes_of(scores)
    width = padded(n, lanes)
    group = new_group(scores, width, width)
    one = scores.dtype.type(1)
    for start in range(first, last, lanes):
        map_group(group, scores, start, min(lanes, last - start), n, kind, one, out)


@vectors()
def map_vjp_row(
    code: Code, p: Memory, gradient: Memory, at: Whole, n: Whole, powers: Memory, out: Memory
) -> None:
    """s (g - sum s g / sum s) of a row."""
    linear, root, flat = (powers.scalar(i) for i in range(3))

    def sensitivity(k: Whole, count: int) -> Lanes:
        value = p.load(at + k, count)
        present = value.like(1.0).where(value > 0.0, 0.0)
        return (value * linear).plus_product(value.sqrt(), root).plus_product(present, flat)

    size, total = code.variable(p.all(0.0, 1)), code.variable(p.all(0.0, 1))
    for first, last, count in code.spans(n, p.count):
        sizes, totals = code.variable(p.all(0.0, count)), code.variable(p.all(0.0, count))
        with code.steps(last, count, first) as k:
            s = sensitivity(k, count)
            sizes.set(sizes.get() + s)
            totals.set(totals.get().plus_product(s, gradient.load(at + k, count)))
        size.set(size.get() + sizes.get().sum())
        total.set(total.get() + totals.get().sum())
    mean = (total.get() / size.get().where(size.get() > 0.0, 1.0)).sum()
    for first, last, count in code.spans(n, p.count):
        with code.steps(last, count, first) as k:
            drift = gradient.load(at + k, count) - mean
            out.store(at + k, sensitivity(k, count) * drift)


@jit
def map_vjp_rows(p, gradient, n, first, last, powers, out):
    """Derivatives by the scores of rows first, ..., last - 1, from those by the probabilities."""
    for row in range(first, last):
        map_vjp_row(p, gradient, row * n, n, powers, out)
