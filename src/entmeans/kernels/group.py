"""One group of points, one in each lane: distances, shares, and what they add to sums.

The functions are serial, and run without the interpreter's lock.  Names and formulas are those of
step.py; what is here is how.
"""

from __future__ import annotations

import math
import os
import warnings
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numba.core.compiler_lock import global_compiler_lock
from numpy.typing import NDArray

from .lanes import LINE
from .vectors import (
    ROWS,
    add_features,
    add_point,
    add_row,
    add_tile,
    candidates,
    difference,
    difference_tile,
    entmax15_shares,
    lowest_bit,
    mean_gaps,
    product_tile,
    softmax_shares,
    sparsemax_shares,
    spread,
    squared_distance,
    transpose,
    transpose_back,
    two_smallest,
)

Array = NDArray[Any]

HARD, SOFTMAX, ENTMAX15, SPARSEMAX = range(4)

DEPTH = 256
"""Features in one go of a product: those of a group of points then stay in the first-level cache.
"""


def _can_keep() -> bool:
    """Whether Numba has a folder for what it compiles; a warning where it has none."""
    try:
        njit(cache=True)(_can_keep)
    except RuntimeError:
        warnings.warn(
            "Numba finds no folder that it can write to: each process compiles the kernels of "
            "entmeans anew, for some 20 s. Set NUMBA_CACHE_DIR to a folder that can be written.",
            RuntimeWarning,
            stacklevel=2,
        )
        return False
    return True


KEEP = _can_keep()
jit = njit(nogil=True, cache=KEEP)
# Without reference counts, which would take longer than the arithmetic of a small group; such a
# function cannot make arrays.
plain = njit(nogil=True, cache=KEEP, _nrt=False)

# A fork while another thread compiles would leave the child with a lock that nobody opens.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=global_compiler_lock.acquire,
        after_in_parent=global_compiler_lock.release,
        after_in_child=global_compiler_lock.release,
    )


class Centers(NamedTuple):
    """Centers, or other rows of numbers for each center, laid out for products.

    ``packed`` holds tiles of ROWS rows, one feature after the other; ``rows`` holds the rows,
    padded with zeros to whole vectors and to a whole number of tiles.
    """

    packed: Array  # (high * D,)
    offsets: Array  # (high,), squared norms
    rows: Array  # (high * width,), minus the shift
    raw: Array  # (K * D,), as they are
    shift: Array  # (D,), of the rows
    origin: Array  # (D,), of the features of points: the shift, or 0 where differences are exact
    direct: bool  # distances from differences, of points about 0
    reach: float  # the largest norm; infinite where squared distances might be
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


@plain
def largest_square(values):
    """Of points and of centers: (a + b)^2 is then finite."""
    return np.finfo(values.dtype).max / 16


@jit
def pack(rows, shift, origin, scale, direct):
    """Rows (K, D) laid out for products with points about the origin, times the scale."""
    count, d = rows.shape
    high, width = padded(count, ROWS), padded(d, lanes_of(rows))
    out = np.zeros(high * width, rows.dtype)
    packed = np.zeros(high * d, rows.dtype)
    offsets = np.zeros(high, rows.dtype)
    reach = 0.0
    for j in range(count):
        square = 0.0
        for k in range(d):
            out[j * width + k] = rows[j, k] - shift[k]
            value = rows[j, k] - origin[k]
            square += np.float64(value) ** 2
            packed[j // ROWS * ROWS * d + k * ROWS + j % ROWS] = scale * value
        offsets[j] = square
        reach = max(reach, math.sqrt(square)) if square <= largest_square(rows) else math.inf
    flat = rows.ravel()
    return Centers(packed, offsets, out, flat, shift, origin, direct, reach, count, width)


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
    if d <= differences:
        return pack(centers, shift, np.zeros_like(shift), kind.type(1), True)
    return pack(centers, shift, shift, kind.type(-2), False)


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
    d, lanes, packed, features = len(centers.shift), len(group.low), centers.packed, group.features
    n = min(d, DEPTH)
    for j in range(0, len(centers.offsets), ROWS):
        product_tile(packed, centers.offsets, j, d, features, n, out)
    for first in range(n, d, DEPTH):
        n = min(d - first, DEPTH)
        for j in range(0, len(centers.offsets), ROWS):
            a, b = j * d + first * ROWS, first * lanes
            add_tile(packed, a, 1, ROWS, features, b, lanes, n, out, j * lanes, lanes)


@plain
def take(points, bad, first, count, centers, group):
    """Features of points first, ..., first + count - 1; zeros for ``bad`` ones.

    Those are not finite, or so large that a squared distance might not be.
    """
    d, lanes, origin = len(centers.shift), len(group.low), centers.origin
    side = lanes // 2
    whole = d // side * side if count == lanes else 0
    transpose(points, first * d, d, origin, whole, group.features, group.near)
    for k in range(whole, d):
        for i in range(lanes):
            there = i < count
            value = points[(first + i) * d + k] - origin[k] if there else origin[k] * 0
            group.features[k * lanes + i] = value
            group.near[i] += value * value
    total = 0.0
    for i in range(lanes):
        total += group.near[i]
    limit = largest_square(points)
    if total <= limit:
        return
    for i in range(count):
        if not group.near[i] <= limit:
            bad[first + i] = True
            group.near[i] = 0
            for k in range(d):
                group.features[k * lanes + i] = 0


@plain
def rounding(points, d):
    """Of scores, over the reach and the sum of the reach and the norm of the point."""
    return 2 * np.finfo(points.dtype).eps * (d + 2)  # errors all of one sign


@plain
def compare(points, bad, first, count, centers, group):
    """Scores of the group, and the nearest center of each point."""
    d = len(centers.shift)
    if centers.direct:
        for j in range(0, len(centers.offsets), ROWS):
            difference_tile(centers.packed, j, group.features, d, group.scores)
        two_smallest(group.scores, centers.n, group.low, group.second, group.label)
        for i in range(len(group.low)):
            group.near[i] = group.low[i]
        return
    products(centers, group, group.scores)
    two_smallest(group.scores, centers.n, group.low, group.second, group.label)
    scale = rounding(points, d) * centers.reach
    for i in range(count):
        if bad[first + i]:
            continue
        at = (first + i) * d
        blur = scale * (centers.reach + math.sqrt(group.near[i]))
        if group.second[i] - group.low[i] <= blur:
            settle(points, at, centers, group, i, group.low[i] + blur)
        group.near[i] = squared_distance(points, at, centers.raw, group.label[i] * d, d)


@plain
def settle(points, at, centers, group, i, limit):
    """Compare the centers whose scores are within rounding of the lowest by differences."""
    d, lanes = len(centers.shift), len(group.low)
    nearest = second = math.inf
    for j in range(centers.n):
        if group.scores[j * lanes + i] <= limit:
            distance = squared_distance(points, at, centers.raw, j * d, d)
            if distance < nearest:
                nearest, group.label[i] = distance, j
    for j in range(centers.n):
        score = j * lanes + i
        if group.scores[score] <= limit:
            distance = squared_distance(points, at, centers.raw, j * d, d)
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
    n = soft_shares(kind, temperature, count, 0, group)
    if kind == SOFTMAX:
        for i in range(len(group.low)):
            group.entropy[i] = math.log(group.entropy[i]) + group.mean_gap[i] / temperature
    else:
        mean_gaps(group.shares, n, group.chosen, group.scores, group.low, group.mean_gap)
    return n


@plain
def soft_shares(kind, temperature, count, across, group):
    """Responsibilities of the chosen of ``count`` vectors of scores (how many is returned).

    Also the entropies, for softmax without logarithm.
    """
    one = group.low.dtype.type(1)
    if kind == SOFTMAX:
        return softmax_shares(
            group.scores,
            count,
            group.low,
            group.low.dtype.type(min(one / temperature, np.finfo(group.low.dtype).max)),
            _softmax_floor(count * len(group.low) if across else count, group),
            across,
            group.shares,
            group.chosen,
            group.mean_gap,
            group.entropy,
        )
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
        entmax15_shares(group.shares, n, across, group.entropy)
    else:
        sparsemax_shares(group.shares, n, across, group.entropy)
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
    if centers.direct:
        shift = centers.shift
        add_features(shares, n, chosen, group.features, shift, d, moment, width)
        return False
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


@plain
def write_shares(group, chosen, n, first, count, out):
    """Shares of the chosen centers into rows first, ..., first + count - 1 of (N, n)."""
    lanes, shares = len(group.low), group.shares
    if count == lanes and 4 * chosen > n:
        side = lanes // 2
        whole = n // side * side
        in_place = complete(chosen, shares, n, group.chosen, lanes, group.spread)
        full = shares if in_place else group.spread
        transpose_back(full, whole, out, first * n, n)
        for i in range(count):
            for j in range(whole, n):
                out[(first + i) * n + j] = full[j * lanes + i]
        return
    for at in range(first * n, (first + count) * n):
        out[at] = 0
    for i in range(count):
        for c in range(chosen):
            out[(first + i) * n + group.chosen[c]] = shares[c * lanes + i]


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
    """The derivative of the inertia: that of the distance to the nearest center.

    Returns how many more shares are not zero.
    """
    lanes, more = len(group.low), 0
    for i in range(count):
        for c in range(n):
            if group.chosen[c] == group.label[i]:
                share = to_inertia * group.weight[i]
                group.shares[c * lanes + i] += share
                mass[group.label[i]] += share
                more += 1 - (group.masks[c] >> i & 1)
                group.masks[c] |= 1 << i
                break
    return more
