"""The operators on the CPU, in Numba: one group of points after the other, in part of the rows.

    squared distances -> responsibilities(T) -> statistics

run for 16 points (8 in float64) within the first-level cache: no score and no share is ever
written to memory.  Functions are serial; `threads` shares out the rows.

A function ``*_rows`` takes the points, where to say which rows are ``bad`` (not finite, and left
out), the first row and the one after the last, the centers, and then what is its own.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba.core.errors import NumbaError

from .group import (
    HARD,
    Array,
    add_inertia,
    add_moments,
    all_hard,
    compare,
    complete,
    free,
    jit,
    lanes_of,
    new_group,
    pack,
    pack_centers,
    padded,
    plain,
    products,
    pull_rows,
    rounding,
    share,
    soft_shares,
    take,
    write_shares,
)
from .vectors import (
    add_point,
    add_potentials,
    copy,
    couple,
    flush,
    map_vjp_row,
    negate,
    not_numbers,
    squared_distance,
    sum_shares,
    transpose,
    two_smallest,
    weigh,
)

__all__ = ["NumbaError", "pack", "pack_centers"]

EPSILON = 2.0**-52

BLOCK = 16
"""Groups of rows that are added together, after they have got their labels."""

AT_HAND = 2**17
"""Bytes of sums that stay in the second-level cache beside other things."""

LONG = 512
"""Scores from which on a row fills vectors by itself; shorter ones are taken one to each lane."""

FLUSH = 8
"""Groups whose products are summed in their own dtype before they are added up in float64."""


@jit
def nearest_rows(points, bad, first, last, centers, labels, near, margins):
    """Labels, distances and margins of rows first, ..., last - 1."""
    group = new_group(points, len(centers.offsets), centers.width)
    lanes = len(group.low)
    for start in range(first, last, lanes):
        count = min(lanes, last - start)
        take(points, bad, start, count, centers, group)
        compare(points, bad, start, count, centers, group)
        for i in range(count):
            labels[start + i] = group.label[i]
            near[start + i] = group.near[i]
            margins[start + i] = group.second[i] - group.low[i]


@jit
def potential_rows(points, bad, first, last, centers, weight, so_far, out):
    """Add what rows first, ..., last - 1 contribute to `step.potentials`."""
    group = new_group(points, len(centers.offsets), centers.width)
    lanes = len(group.low)
    for start in range(first, last, lanes):
        count = min(lanes, last - start)
        take(points, bad, start, count, centers, group)
        compare(points, bad, start, count, centers, group)
        for i in range(lanes):
            there = i < count and not bad[start + i]
            group.weight[i] = weight[start + i] if there else 0
            group.totals[i] = so_far[start + i] if there else 0
        near, low, totals = group.near, group.low, group.totals
        add_potentials(group.scores, centers.n, low, near, totals, group.weight, out)


@jit
def distance_rows(points, bad, first, last, centers, out):
    """Squared distances (N, K) of rows first, ..., last - 1."""
    group = new_group(points, len(centers.offsets), centers.width)
    lanes, n = len(group.low), centers.n
    for start in range(first, last, lanes):
        count = min(lanes, last - start)
        take(points, bad, start, count, centers, group)
        compare(points, bad, start, count, centers, group)
        for i in range(count):
            near, low = group.near[i], group.low[i]
            for j in range(n):
                out[(start + i) * n + j] = near + (group.scores[j * lanes + i] - low)


@jit
def share_rows(points, bad, first, last, centers, kind, temperature, out):
    """Responsibilities (N, K) of rows first, ..., last - 1."""
    group = new_group(points, len(centers.offsets), centers.width)
    lanes, n = len(group.low), centers.n
    for start in range(first, last, lanes):
        count = min(lanes, last - start)
        take(points, bad, start, count, centers, group)
        compare(points, bad, start, count, centers, group)
        chosen = share(kind, temperature, n, group)
        write_shares(group, chosen, n, start, count, out)


@jit
def free_energy_rows(points, bad, first, last, centers, weight, kind, temperature, terms, sums):
    """min_p <p, d_i> - T H(p) of rows first, ..., last - 1, and their weighted sum."""
    group = new_group(points, len(centers.offsets), centers.width)
    lanes = len(group.low)
    for start in range(first, last, lanes):
        count = min(lanes, last - start)
        take(points, bad, start, count, centers, group)
        compare(points, bad, start, count, centers, group)
        share(kind, temperature, centers.n, group)
        for i in range(count):
            term = free(temperature, group.near[i], group.mean_gap[i], group.entropy[i])
            terms[start + i] = term
            if weight[start + i] != 0 and not bad[start + i]:
                sums[0] += np.float64(weight[start + i]) * term


@jit
def statistics_rows(points, bad, first, last, centers, weight, *given):
    group = new_group(points, len(centers.offsets), centers.width)
    partial = np.zeros(len(centers.rows), points.dtype)
    add_statistics(group, partial, points, bad, first, last, centers, weight, *given)


@plain
def add_statistics(
    group,
    partial,
    points,
    bad,
    first,
    last,
    centers,
    weight,
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
        compare(points, bad, start, count, centers, group)
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


class Some(NamedTuple):
    """A few rows, copied side by side."""

    rows: Array  # (lanes,), which ones
    points: Array  # (lanes * D,)
    bad: Array  # (lanes,)


@jit
def new_some(points, d):
    lanes, kind = lanes_of(points), points.dtype
    return Some(np.empty(lanes, np.int64), np.empty(lanes * d, kind), np.zeros(lanes, np.bool_))


@jit
def hard_rows(
    points, bad, first, last, centers, weight, before, labels, near, bounds, mass, moment, inertia
):
    """The statistics of rows first, ..., last - 1 at T = 0, from what is known of them."""
    d, k, width = len(centers.shift), centers.n, centers.width
    moves, others = shifts(centers, before)
    group = new_group(points, len(centers.offsets), width)
    some, lanes = new_some(points, d), len(group.low)
    scattered = 8 * k * width > AT_HAND
    block = max(BLOCK * lanes, 4 * k if scattered else 0)
    there, sorted_ = np.empty(block, np.int64), np.empty(block, np.int64)
    order, ends = sorted_ if scattered else there, np.empty(k + 1, np.int64)
    for start in range(first, last, block):
        end = min(start + block, last)
        follow(points, bad, start, end, centers, moves, others, labels, near, bounds, group, some)
        count = present(bad, start, end, weight, near, there, inertia)
        if scattered:
            by_center(there, count, labels, ends, sorted_)
        for c in range(count):
            i = order[c]
            j, w = labels[i], np.float64(weight[i])
            mass[j] += w
            add_point(points, i * d, centers.shift, w, moment, j * width, d)


@jit
def shifts(centers, before):
    """How far, at most, each center has moved, and any other one."""
    d, k = len(centers.shift), centers.n
    moves, others = np.zeros(k), np.empty(k)
    largest = second = 0.0
    for j in range(k):
        for f in range(j * d, (j + 1) * d):
            moves[j] += (np.float64(centers.raw[f]) - np.float64(before[f])) ** 2
        moves[j] = math.sqrt(moves[j]) * (1 + 4 * (d + 2) * EPSILON)
        second = max(second, min(moves[j], largest))
        largest = max(largest, moves[j])
    for j in range(k):
        others[j] = second if moves[j] == largest else largest
    return moves, others


@plain
def follow(points, bad, first, last, centers, moves, others, labels, near, bounds, group, some):
    """Labels, distances and bounds of rows first, ..., last - 1, from one center for each row.

    From all of them where another one might be the nearest by now, in these numbers.
    """
    d, lanes, count = len(centers.shift), len(group.low), 0
    slack = 4 * (d + 2) * np.finfo(points.dtype).eps  # twice the rounding of two distances
    floor = np.finfo(points.dtype).tiny / np.finfo(points.dtype).eps ** 2  # above underflow
    for i in range(first, last):
        j, stays = labels[i], False
        if j >= 0:
            bound = math.sqrt(bounds[i]) * (1 - 4 * EPSILON) - others[j]
            if bound > 0 and (bound + moves[j]) ** 2 > near[i]:  # else it surely fails
                distance = squared_distance(points, i * d, centers.raw, j * d, d)
                stays = bound**2 - distance > slack * (bound**2 + distance)
                stays &= distance > floor
                bounds[i], near[i] = bound**2, distance
        if not stays:
            some.rows[count] = i
            count += 1
        if count == lanes or (count and i == last - 1):
            look(points, bad, count, centers, slack, labels, near, bounds, group, some)
            count = 0


@plain
def look(points, bad, count, centers, slack, labels, near, bounds, group, some):
    """Labels, distances and bounds of some rows, from all centers."""
    d, lanes, rows = len(centers.shift), len(group.low), some.rows
    x, out, at = points, bad, rows[0]
    if count < lanes or rows[lanes - 1] - at >= lanes:
        x, out, at = some.points, some.bad, 0
        for i in range(lanes):  # a whole group, of which the last may be there many times
            out[i] = False
            copy(points, rows[min(i, count - 1)] * d, d, x, i * d)
    take(x, out, at, lanes, centers, group)
    compare(x, out, at, count, centers, group)
    blur = 0.0 if centers.direct else rounding(points, d)
    for i in range(count):
        row, distance = rows[i], np.float64(group.near[i])
        near[row], bad[row] = group.near[i], out[at + i]
        labels[row] = -1 if bad[row] else group.label[i]
        gap = np.float64(group.second[i]) - group.low[i]
        # The norm of the point is no more than the reach and the distance together.
        low = (distance + gap) * (1 - slack) - blur * (2.5 * centers.reach**2 + distance / 2)
        bounds[row] = max(low, 0.0)


@plain
def present(bad, first, last, weight, near, there, inertia):
    """The rows that count, and how many; what they add to the inertia."""
    count = 0
    for i in range(first, last):
        if weight[i] != 0 and not bad[i]:
            inertia[0] += np.float64(weight[i]) * near[i]
            there[count] = i
            count += 1
    return count


@plain
def by_center(there, count, labels, ends, out):
    """Rows sorted by their centers, whose sums so stay at hand; else as they come."""
    for j in range(len(ends)):
        ends[j] = 0
    for c in range(count):
        ends[labels[there[c]] + 1] += 1
    for j in range(1, len(ends)):
        ends[j] += ends[j - 1]
    for c in range(count):
        j = labels[there[c]]
        out[ends[j]] = there[c]
        ends[j] += 1


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


@jit
def pullback_rows(points, bad, first, last, centers, weight, *given):
    group = new_group(points, len(centers.offsets), centers.width)
    partial = np.zeros(len(centers.rows), points.dtype)
    add_pullback(group, partial, points, bad, first, last, centers, weight, *given)


@plain
def add_pullback(
    group,
    partial,
    points,
    bad,
    first,
    last,
    centers,
    weight,
    kind,
    temperature,
    powers,
    through,
    cotangent,
    to_distortion,
    to_free_energy,
    to_inertia,
    to_points,
    to_weight,
    mass,
    moment,
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
        compare(points, bad, start, count, centers, group)
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
            nonzero += add_inertia(n, count, to_inertia, group, mass)
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


# Mappings of dense scores (N, K)


@plain
def map_group(group, scores, first, count, n, kind, none, one, out):
    """Probabilities of rows first, ..., first + count - 1 of scores (N, n)."""
    lanes = len(group.low)
    side = lanes // 2
    whole = n // side * side if count == lanes else 0
    transpose(scores, first * n, n, none, whole, group.scores, group.near)
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


@plain
def map_long_row(group, scores, at, n, kind, one, out):
    """Probabilities of the n scores from there on, with the lanes across them."""
    lanes = len(group.low)
    count = padded(n, lanes) // lanes
    for k in range(n, count * lanes):
        group.scores[k] = -math.inf
    copy(scores, at, n, group.scores, 0)
    negate(group.scores, count)
    two_smallest(group.scores, count, group.low, group.second, group.label)
    low = group.low[0]
    for i in range(lanes):
        low = min(low, group.low[i])
    if not_numbers(group.scores, count) or not math.isfinite(low):
        for k in range(at, at + n):
            out[k] = math.nan
        return
    if kind == HARD:
        label = n
        for i in range(lanes):
            if group.low[i] == low:
                label = min(label, group.label[i] * lanes + i)
        for k in range(n):
            out[at + k] = k == label
        return
    for i in range(lanes):
        group.low[i] = low
    chosen = soft_shares(kind, one, count, 1, group)
    in_place = complete(chosen, group.shares, count, group.chosen, lanes, group.spread)
    copy(group.shares if in_place else group.spread, 0, n, out, at)


@jit
def map_rows(scores, n, first, last, kind, out):
    """Probabilities of rows first, ..., last - 1 of scores (N, n)."""
    lanes = lanes_of(scores)
    if n >= LONG:
        group = new_group(scores, padded(n, lanes) // lanes, lanes)
        for row in range(first, last):
            map_long_row(group, scores, row * n, n, kind, scores.dtype.type(1), out)
        return
    group = new_group(scores, padded(n, lanes), lanes)
    none, one = np.zeros(n, scores.dtype), scores.dtype.type(1)
    for start in range(first, last, lanes):
        map_group(group, scores, start, min(lanes, last - start), n, kind, none, one, out)


@jit
def map_vjp_rows(p, gradient, n, first, last, powers, out):
    """Derivatives by the scores of rows first, ..., last - 1, from those by the probabilities."""
    for row in range(first, last):
        map_vjp_row(p, gradient, row * n, n, powers, out)
