"""Arithmetic on a group of points, whole vectors at a time: lane l is point l of the group.

Scores, shares and the like are matrices (centers, lanes), row by row.  Where the lanes are said to
be ``across`` one row, they are the vectors of that row instead, one after the other.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from numba import types

from .lanes import Code, Lanes, Memory, Sum, Value, Variable, Whole, vectors

ROWS = 6
"""Rows of a tile of a matrix product: 6 x 16 sums fill the registers of AVX2."""


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
    code: Code,
    packed: Memory,
    j: Whole,
    d: Whole,
    x: Memory,
    n: Whole,
    out: Memory,
    start: Any,
    term: Any,
) -> None:
    """From the first n of d features, for the packed rows from j on."""
    centers = Factor(packed, j * d, 1, ROWS)
    points = Factor(x, code.whole(0), 0, x.count)
    for row, total in enumerate(tile(code, centers, points, n, start, term)):
        out.store((j + row) * out.count, total.get())


@vectors()
def product_tile(
    code: Code,
    packed: Memory,
    offsets: Memory,
    j: Whole,
    d: Whole,
    x: Memory,
    n: Whole,
    out: Memory,
) -> None:
    """Offset plus product with the points of the group."""
    start = lambda row: x.all(offsets.scalar(j + row))  # noqa: E731
    center_tile(code, packed, j, d, x, n, out, start, plus_product)


@vectors()
def difference_tile(code: Code, packed: Memory, j: Whole, x: Memory, d: Whole, out: Memory) -> None:
    """Squared distances to the points of the group."""
    center_tile(code, packed, j, d, x, d, out, lambda row: x.all(0.0), plus_square)


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
def copy(code: Code, x: Memory, x_at: Whole, d: Whole, out: Memory, out_at: Whole) -> None:
    """out = x for rows of any length."""
    for start, end, count in code.spans(d, x.count):
        with code.steps(end, count, start) as k:
            out.store(out_at + k, x.load(x_at + k, count))


@vectors()
def transpose(
    code: Code,
    x: Memory,
    first: Whole,
    row: Whole,
    shift: Memory,
    n: Whole,
    out: Memory,
    squares: Memory,
) -> None:
    """The first n columns (a multiple of half the lanes) of rows minus the shift, as rows.

    Also the sums of their squares.
    """
    side = x.count // 2
    sums = [code.variable(x.all(0.0, side)) for _ in range(0, x.count, side)]
    with code.steps(n, side) as at:
        for top, total in zip(range(0, x.count, side), sums, strict=True):
            part = [x.load(first + row * (top + i) + at, side) for i in range(side)]
            half = 1
            while half < side:
                part = _exchanged(part, half)
                half *= 2
            for i, column in enumerate(part):
                value = column - shift.scalar(at + i)
                total.set(total.get().plus_product(value, value))
                out.store((at + i) * x.count + top, value)
    for top, total in zip(range(0, x.count, side), sums, strict=True):
        squares.store(top, total.get())


def _exchanged(part: list[Lanes], half: int) -> list[Lanes]:
    """A step of transposing: exchange the blocks of that size beside the diagonal."""
    side, out = len(part), list(part)
    for i in (i for i in range(side) if not i & half):
        a, b = part[i], part[i + half]
        out[i] = a.shuffle(b, [n if not n & half else side + n - half for n in range(side)])
        out[i + half] = a.shuffle(b, [n + half if not n & half else side + n for n in range(side)])
    return out


@vectors()
def transpose_back(
    code: Code, shares: Memory, n: Whole, out: Memory, first: Whole, row: Whole
) -> None:
    """The inverse of `transpose`, without a shift."""
    side = shares.count // 2
    with code.steps(n, side) as at:
        for top in range(0, shares.count, side):
            part = [shares.load((at + i) * shares.count + top, side) for i in range(side)]
            half = 1
            while half < side:
                part = _exchanged(part, half)
                half *= 2
            for i, points in enumerate(part):
                out.store(first + row * (top + i) + at, points)


@vectors(types.float64)
def squared_distance(code: Code, x: Memory, x_at: Whole, c: Memory, c_at: Whole, d: Whole) -> Value:
    """||x - c||^2 of rows of any length."""
    total = code.variable(x.all(0.0, 1))
    for start, end, count in code.spans(d, x.count):
        part = code.variable(x.all(0.0, count))
        with code.steps(end, count, start) as k:
            gap = x.load(x_at + k, count) - c.load(c_at + k, count)
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


def unite(code: Code, across: Whole, *sums: Variable | Sum) -> None:
    """Sums over the lanes as well, if the lanes are ``across`` a single row of numbers."""
    with code.when(across):
        for each in sums:
            each.set(each.get().like(each.get().sum()))


@vectors()
def entmax15_shares(code: Code, x: Memory, n: Whole, across: Whole, entropy: Memory) -> None:
    """x (halved scores, 0 at the top) to shares [x - tau]_+^2, as `Entmax15.probabilities`.

    Newton's steps double the digits: once one is below the root of the rounding, the support is
    settled but for shares below rounding, and on it the rest of the way has a closed form.  Where
    the sums of very many scores were so blurred that tau is far off, a step to the left by that
    form ends left of the threshold, and Newton's on the sum of squares never oversteps from there.
    """
    zero, one, tau = x.all(0.0), x.all(1.0), code.variable(x.all(-1.0))
    moving = code.variable(one > zero)  # a point stops by itself, whatever the others do
    with code.repeat() as again:
        square, slope = code.variable(zero), code.variable(zero)
        with code.loop(n) as c:
            q = (x.load(c * x.count) - tau.get()).maximum(0.0)
            square.set(square.get().plus_product(q, q))
            slope.set(slope.get() + q)
        unite(code, across, square, slope)
        step = (square.get() - square.get().sqrt()) / slope.get()
        tau.set((tau.get() + step).where(moving.get(), tau.get()))
        moving.set(moving.get() & (step > x.epsilon**0.5))
        again(moving.get().any())
    moving.set(one > zero)
    with code.repeat() as again:  # once, but for very many scores
        size, total, powers = Sum(code, zero), Sum(code, zero), Sum(code, zero)
        with code.loop(n) as c:
            q = (x.load(c * x.count) - tau.get()).maximum(0.0)
            size.add(one.where(q > 0.0, 0.0))
            total.add(q)
            powers.add(q * q)
        unite(code, across, size, total, powers)
        mean, left = total.get() / size.get(), (one - powers.get()) / size.get()
        step = left / (mean + (mean * mean + left.maximum(0.0)).sqrt())
        tau.set((tau.get() - step).where(moving.get(), tau.get()))
        moving.set(moving.get() & (step * step * size.get() > x.epsilon))
        again(moving.get().any())
    total = Sum(code, zero)
    with code.loop(n) as c:
        q = (x.load(c * x.count) - tau.get()).maximum(0.0)
        p = q * q
        x.store(c * x.count, p)
        total.add(p * (one - q))
    entropy.store(0, total.get() * (4 / 3))


@vectors()
def sparsemax_shares(code: Code, x: Memory, n: Whole, across: Whole, entropy: Memory) -> None:
    """x (scores, 0 at the top) to shares [x - tau]_+; the support shrinks until it is settled."""
    zero, tau, size = x.all(0.0), code.variable(x.all(-1.0)), code.variable(x.all(math.inf))
    with code.repeat() as again:
        count, total = Sum(code, zero), Sum(code, zero)
        with code.loop(n) as c:
            value = x.load(c * x.count)
            inside = value > tau.get()
            count.add(x.all(1.0).where(inside, 0.0))
            total.add(value.where(inside, 0.0))
        unite(code, across, count, total)
        shrinks = (count.get() < size.get()).any()
        size.set(count.get())
        tau.set((total.get() - 1.0) / count.get())
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
    across: Whole,
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
            e = score.exp().where(alive, 0.0)
            at = count.get()
            x.store(at * x.count, e)
            chosen.put(at, j)
            count.set(at + 1)
            total.add(e)
            spread.add((e * gap).where(alive, 0.0))
    unite(code, across, total)
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
        # 0 times a gap over T that overflows is 0
        turn = (drift * (gap / temperature)).where(drift.nonzero(), 0.0)
        slope.set(slope.get() + turn)
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
def add_features(
    code: Code,
    shares: Memory,
    n: Whole,
    chosen: Memory,
    features: Memory,
    shift: Memory,
    d: Whole,
    out: Memory,
    width: Whole,
) -> None:
    """out_j += sum_i s_ij (x_i - shift) for few features, one after the other."""
    with code.loop(n) as c:
        j, s = chosen.whole(c), shares.load(c * shares.count)
        with code.loop(d) as k:
            x = features.load(k * features.count) - shift.scalar(k)
            out.add(j * width + k, (s * x).total())


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
