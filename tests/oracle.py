"""Float64 reference: every function of the library from its definition, one point at a time.

Nothing here is shared with the library: distances are sums of squared differences, thresholds come
from bisection, sums from `math.fsum`.  Inputs are tensors or arrays of any dtype; their values are
taken as exact.  Rounding of the library is modelled by `distance_error`, a bound on how far its
distances may be off, and carried through each mapping as an interval, so that a point near a tie
is judged by its distances and not by its label.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

# H(p), the margin from which p is one-hot, and s in the Jacobian diag(s) - s s' / sum(s).
ENTROPY = {
    "softmax": lambda p: math.fsum(-q * math.log(q) for q in p if q > 0),
    "entmax15": lambda p: 4 / 3 * math.fsum(q - q**1.5 for q in p),
    "sparsemax": lambda p: 1 / 2 * math.fsum(q - q**2 for q in p),
    "hard": lambda p: 0.0,
}
MAX_ENTROPY = {
    "softmax": math.log,
    "entmax15": lambda n: 4 / 3 * (1 - n**-0.5),
    "sparsemax": lambda n: 1 / 2 * (1 - 1 / n),
    "hard": lambda n: 0.0,
}
ONE_HOT_MARGIN = {"softmax": math.inf, "entmax15": 2.0, "sparsemax": 1.0, "hard": 0.0}
SENSITIVITY = {"softmax": lambda p: p, "entmax15": math.sqrt, "sparsemax": lambda p: 1.0}


def array(values: ArrayLike) -> Array:
    return np.asarray(values, dtype=np.float64)


# Mappings


def softmax(z: Array) -> Array:
    p = np.exp(z - z.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def entmax15(z: Array) -> Array:
    """p_j = [z_j/2 - tau]_+^2 with tau such that the row sums to 1."""
    x = (z - z.max(-1, keepdims=True)) / 2
    return np.maximum(x - _threshold(x, 2), 0) ** 2


def sparsemax(z: Array) -> Array:
    """p_j = [z_j - tau]_+ with tau such that the row sums to 1."""
    x = z - z.max(-1, keepdims=True)
    return np.maximum(x - _threshold(x, 1), 0)


def hard(z: Array) -> Array:
    return np.eye(z.shape[-1])[z.argmax(-1)]


MAPPINGS = {"softmax": softmax, "entmax15": entmax15, "sparsemax": sparsemax, "hard": hard}


def _threshold(x: Array, power: int) -> Array:
    """The root tau of sum_j [x_j - tau]_+^power = 1, by bisection; the row maximum is 0."""
    low, high = np.full_like(x[..., :1], -1.0), np.zeros_like(x[..., :1])
    for _ in range(60):  # 2^-60 is below the rounding of tau
        middle = (low + high) / 2
        above = (np.maximum(x - middle, 0) ** power).sum(-1, keepdims=True) >= 1
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return low


# One step


def squared_distances(points: ArrayLike, centers: ArrayLike) -> Array:
    points, centers = array(points), array(centers)
    return np.array(
        [
            [math.fsum((a - b) ** 2 for a, b in zip(x, c, strict=True)) for c in centers]
            for x in points
        ]
    ).reshape(len(points), len(centers))


def distance_error(points: ArrayLike, centers: ArrayLike, eps: float) -> Array:
    """A bound (N,) on the error of the squared distances of a point, for a machine epsilon.

    The library documents a few units of rounding of ||x - c|| ||mu - c|| with c near the mean of
    the centers.  A dot product of D terms has a relative error of at most D eps in the norms of
    its factors; c is off the mean by no more than the spread of the centers in each feature.
    """
    points, centers = array(points), array(centers)
    mean = centers.mean(0)
    off = 1.5 * np.abs(centers - mean).max() * math.sqrt(points.shape[1])
    to_points = np.sqrt(((points - mean) ** 2).sum(-1)) + off
    to_centers = np.sqrt(((centers - mean) ** 2).sum(-1)).max() + off
    return 4 * (points.shape[1] + 4) * eps * (to_points + to_centers) ** 2


def responsibilities(distances: Array, temperature: float, mapping: str) -> Array:
    if temperature == 0 or mapping == "hard":
        return hard(-distances)
    if math.isinf(temperature):
        return np.full_like(distances, 1 / distances.shape[1])
    gaps = distances - distances.min(-1, keepdims=True)
    return MAPPINGS[mapping](-gaps / temperature)


def responsibility_bounds(
    distances: Array, error: Array, temperature: float, mapping: str
) -> tuple[Array, Array]:
    """Smallest and largest p_ij over all distances within ``error`` (N,) of the given ones.

    In each mapping p_j falls with d_j and rises with every other d_k.
    """
    n, k = distances.shape
    sign = 2 * np.eye(k) - 1  # row j: +1 at j, -1 elsewhere
    e = error[:, None, None]

    def extreme(shift: Array) -> Array:
        p = responsibilities((distances[:, None] + shift).reshape(n * k, k), temperature, mapping)
        return p.reshape(n, k, k).diagonal(axis1=1, axis2=2)

    if temperature == 0 or mapping == "hard":
        # A one-hot row may fall either way within the error, also where the shifted rows tie.
        e = np.nextafter(e, np.inf) if error.any() else e
    return extreme(e * sign), extreme(-e * sign)


@dataclass(frozen=True)
class Statistics:
    mass: Array
    moment: Array
    distortion: Array
    removal_cost: Array
    free_energy: float
    inertia: float
    hard_mass: float
    smallest_margin: float


def labels(distances: Array) -> NDArray[np.int64]:
    return np.array([list(row).index(min(row)) for row in distances], dtype=np.int64)


def margins(distances: Array) -> Array:
    ordered = [[*sorted(row), math.inf] for row in distances]
    return array([row[1] - row[0] for row in ordered])


def free_energy_terms(distances: Array, p: Array, temperature: float, mapping: str) -> Array:
    """<p, d> - T H(p) for each point, and -T logsumexp(-d/T) for softmax."""
    terms = []
    for d, q in zip(distances, p, strict=True):
        entropy = 0.0 if temperature == 0 else ENTROPY[mapping](q)
        mean = math.fsum(q * d)
        if mapping == "softmax" and 0 < temperature < math.inf:
            total = math.fsum(math.exp(-(v - min(d)) / temperature) for v in d)
            terms.append(min(d) - temperature * math.log(total))
        else:
            terms.append(mean - temperature * entropy if entropy > 0 else mean)
    return array(terms)


def statistics(
    points: ArrayLike,
    weight: ArrayLike,
    distances: Array,
    p: Array,
    temperature: float,
    mapping: str,
) -> Statistics:
    points, weight = array(points), array(weight)
    n, k = distances.shape
    lead, label = margins(distances), labels(distances)
    threshold = (
        0.0 if temperature == 0 or mapping == "hard" else ONE_HOT_MARGIN[mapping] * temperature
    )
    terms = free_energy_terms(distances, p, temperature, mapping)
    present = [i for i in range(n) if weight[i] > 0]

    def over_points(value) -> float:
        return math.fsum(weight[i] * value(i) for i in present)

    return Statistics(
        mass=array([over_points(lambda i, j=j: p[i, j]) for j in range(k)]),
        moment=array(
            [
                [
                    over_points(lambda i, j=j, f=f: p[i, j] * points[i, f])
                    for f in range(points.shape[1])
                ]
                for j in range(k)
            ]
        ),
        distortion=array([over_points(lambda i, j=j: p[i, j] * distances[i, j]) for j in range(k)]),
        removal_cost=array(
            [over_points(lambda i, j=j: lead[i] if label[i] == j else 0.0) for j in range(k)]
        ),
        free_energy=sum(weight[i] * terms[i] for i in present),
        inertia=over_points(lambda i: min(distances[i])),
        hard_mass=over_points(lambda i: float(lead[i] >= threshold)),
        smallest_margin=min((lead[i] for i in present), default=math.inf),
    )


def free_energy_gradients(
    points: ArrayLike, centers: ArrayLike, weight: ArrayLike, p: Array, mapping: str
) -> tuple[Array, Array, float]:
    """dF/dx_i, dF/dmu_j and dF/dT of the sum over the points."""
    points, centers, weight = array(points), array(centers), array(weight)
    to_points = [
        2 * w * sum(q * (x - c) for q, c in zip(row, centers, strict=True))
        for x, w, row in zip(points, weight, p, strict=True)
    ]
    to_centers = [
        sum(2 * w * q * (c - x) for x, w, q in zip(points, weight, p[:, j], strict=True))
        for j, c in enumerate(centers)
    ]
    entropy = [ENTROPY[mapping](row) for row in p]
    to_temperature = -math.fsum(w * h for w, h in zip(weight, entropy, strict=True))
    return array(to_points), array(to_centers), to_temperature


def reduce(terms: ArrayLike, weight: ArrayLike, reduction: str) -> Array:
    """Weighted terms, their sum or their mean; a point without weight has no influence."""
    weighted = [w * t if w > 0 else 0.0 for w, t in zip(array(weight), array(terms), strict=True)]
    if reduction == "none":
        return array(weighted)
    total = sum(weighted)
    return array(total if reduction == "sum" else total / math.fsum(array(weight)))


# The limit


def free_energy_bounds(
    distances: Array, weight: ArrayLike, temperature: float, mapping: str, reduction: str
) -> tuple[Array, Array]:
    inertia = distances.min(-1)
    entropy = MAX_ENTROPY[mapping](distances.shape[1])
    lower = inertia - temperature * entropy if entropy > 0 else inertia
    return reduce(lower, weight, reduction), reduce(inertia, weight, reduction)


def hardening_temperature(distances: Array, weight: ArrayLike, mapping: str) -> float:
    """The largest T at which every point of positive weight has a one-hot row."""
    lead = min((m for m, w in zip(margins(distances), array(weight), strict=True) if w > 0))
    if mapping == "hard" or math.isinf(lead):
        return math.inf
    return lead / ONE_HOT_MARGIN[mapping]


def critical_temperature(
    points: ArrayLike, weight: ArrayLike, n_clusters: int, mapping: str
) -> float:
    """Where the Jacobian of the step at K centers on the mean has its largest eigenvalue 1.

    There p = 1/K and dp_j/dmu_k = 2/T (diag(s) - s s' / sum(s))_jk (x - mean), so centers that
    move apart along the first principal axis grow by 2 K s(1/K) lambda_max / T in each step.
    """
    points, weight = array(points), array(weight)
    mean = sum(w * x for w, x in zip(weight, points, strict=True)) / math.fsum(weight)
    covariance = sum(
        w * np.outer(x - mean, x - mean) for w, x in zip(weight, points, strict=True)
    ) / math.fsum(weight)
    s = SENSITIVITY[mapping](1 / n_clusters)
    return 2 * n_clusters * s * float(np.linalg.eigvalsh(covariance).max())


def step(stats: Statistics, centers: ArrayLike) -> Array:
    """moment / mass; a center without mass stays."""
    return np.array(
        [
            m / w if w > 0 else c
            for m, w, c in zip(stats.moment, stats.mass, array(centers), strict=True)
        ]
    )


def scale(points: ArrayLike, weight: ArrayLike) -> float:
    """The mean squared distance of the points to their mean."""
    points, weight = array(points), array(weight)
    mean = sum(w * x for w, x in zip(weight, points, strict=True)) / math.fsum(weight)
    return float(reduce(((points - mean) ** 2).sum(-1), weight, "mean"))


# The solver


def lloyd(
    points: ArrayLike, centers: ArrayLike, weight: ArrayLike, max_iter: int = 300
) -> tuple[Array, NDArray[np.int64], list[float]]:
    """Lloyd's algorithm until nothing changes: centers, labels, inertia before each step.

    An empty center first moves onto the point that is farthest from all centers.
    """
    points, centers, weight = array(points), array(centers).copy(), array(weight)
    history = []
    for _ in range(max_iter):
        assigned = labels(squared_distances(points, centers))
        filled = {assigned[i] for i in range(len(points)) if weight[i] > 0}
        start = centers.copy()
        for j in sorted(set(range(len(centers))) - filled):
            near = squared_distances(points, start).min(-1)
            start[j] = points[np.where(weight > 0, near, -1).argmax()]
        distances = squared_distances(points, start)
        p = hard(-distances)
        stats = statistics(points, weight, distances, p, 0.0, "hard")
        history.append(stats.inertia)
        moved = step(stats, start)
        done = np.array_equal(moved, centers)
        centers = moved
        if done:
            break
    return centers, labels(squared_distances(points, centers)), history
