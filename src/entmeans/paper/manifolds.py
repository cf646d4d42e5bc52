"""C9: curved manifolds stay unseparated, whatever the temperature; and are paths rougher there?"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..fit import anneal
from ..functional import inertia, nearest
from ..nn import SoftKMeans, TemperatureScheduler
from ..schedules import Geometric
from .geometries import GEOMETRIES
from .paths import MAPPINGS, best_fixed_point, cooling, scale, start, turning
from .records import Judgement, Record, Table, Verdict, spread

METHOD = (
    "With as many clusters as classes, the adjusted Rand index (ARI) against the true classes is "
    "measured for K-means (the best of ten starts), for soft K-means with entmax15 cooled to 0, "
    "and, beyond the paper, for a small encoder (a perceptron 2-32-32-2 with a decoder like it) "
    "that learns to reconstruct the points and, at the same time, to make the free energy of its "
    "codes small while T falls, its clusters being those of its layer SoftKMeans. Single "
    "linkage, which joins what is near, shows that the classes can be told apart. For the "
    "second half, five centers are followed on every geometry from just below the critical "
    "temperature down to 1e-5 of the scale of the data, and the total turning angle of "
    "their paths is compared with that on blobs of the same seed."
)

QUICK = {"n_points": 100, "n_temperatures": 12, "epochs": 80}

METHODS = ("K-means", "soft K-means", "encoder", "single linkage")
CURVED = tuple(GEOMETRIES)[1:]

SEPARATED = 0.9
"""An ARI from here on says that classes and clusters are the same."""


class Autoencoder(NamedTuple):
    encoder: nn.Module
    decoder: nn.Module


def measure(
    seeds: Iterable[int],
    *,
    n_points: int = 300,
    n_clusters: int = 5,
    n_temperatures: int = 32,
    epochs: int = 300,
) -> Record:
    """Agreement with the true classes, and how much paths turn.

    Parameters
    ----------
    seeds : iterable of int
    n_points : int
        N of each geometry.
    n_clusters : int
        Of the paths; the agreement is that of as many clusters as there are classes.
    n_temperatures : int
        Along a path.
    epochs : int
        Of the encoder, each with all points at once.

    Examples
    --------
    >>> from entmeans.paper.manifolds import measure
    >>> record = measure([0], n_points=40, n_temperatures=3, epochs=2)
    >>> len(record["agreement"]), len(record["roughness"])
    (4, 12)
    """
    options = {name: value for name, value in locals().items() if name != "seeds"}
    agreement, roughness, used = [], [], []
    for seed in seeds:
        used.append(seed)
        for geometry, sample in GEOMETRIES.items():
            points, classes = sample(n_points, seed=seed)
            about = {"geometry": geometry, "seed": seed}
            agreement.append(about | _agreement(points, classes, epochs, seed))
            for mapping in MAPPINGS:
                path = cooling(geometry, n_points, n_clusters, n_temperatures, mapping, seed).path
                angle = turning(path, scale(points) ** 0.5).mean().item()
                roughness.append(about | {"mapping": mapping, "turning": angle})
    return {
        "seeds": used,
        "options": options,
        "agreement": agreement,
        "roughness": roughness,
    }


def judge(record: Record) -> Judgement:
    """Holds if nothing separates the curved classes and their paths turn more than on blobs.

    Examples
    --------
    >>> from entmeans.paper.manifolds import judge, measure
    >>> judge(measure([0, 1], n_points=100, n_temperatures=12, epochs=20)).verdict
    <Verdict.HOLDS: 'holds'>
    """
    median = {m: _medians(record, m) for m in METHODS}
    kept = all(median[m][g] < SEPARATED for m in ("K-means", "soft K-means") for g in CURVED)
    rougher = {g: more_turning(record, g) for g in CURVED}
    shares = [float(np.mean(rougher[g])) for g in CURVED]
    if not kept:
        verdict = Verdict.FAILS
    else:
        verdict = Verdict.HOLDS if min(shares) > 0.5 else Verdict.CONDITION
    listed = "; ".join(
        f"{g} {median['K-means'][g]:.2f} / {median['soft K-means'][g]:.2f}" for g in GEOMETRIES
    )
    encoder = ", ".join(f"{g} {median['encoder'][g]:.2f}" for g in GEOMETRIES)
    linkage = ", ".join(f"{g} {median['single linkage'][g]:.2f}" for g in GEOMETRIES)
    separated = [
        g for run in record["agreement"] if run["encoder"] >= SEPARATED for g in [run["geometry"]]
    ]
    warned = sum(run["collapsed"] for run in record["agreement"])
    turns = ", ".join(f"{g} {share:.0%}" for g, share in zip(CURVED, shares, strict=True))
    return Judgement(
        verdict,
        f"Median ARI of K-means / soft K-means: {listed}. Paths turn more than on blobs of the "
        f"same seed in {np.mean(shares):.0%} of the runs.",
        (
            "Cooling finds other minima of the same objective; no temperature makes a cell of a "
            f"moon. Single linkage, which goes by what is connected: {linkage}.",
            f"The encoder that learns with the clusters: {encoder}. It separates the classes "
            f"(ARI of {SEPARATED} or more) in {sum(g in CURVED for g in separated)} of "
            f"{len(record['seeds']) * len(CURVED)} runs on curved geometries. To reconstruct "
            "points it keeps near what is near, and the free energy asks for compact clusters, not "
            f"for connected ones. Its layer warned of a collapse in {warned} runs.",
            f"Paths turn more than on blobs, by geometry: {turns} of seeds and mappings.",
        ),
        (_agreement_table(record), _roughness_table(record)),
    )


def more_turning(record: Record, geometry: str) -> list[bool]:
    """For each seed and mapping, whether paths turn more than on blobs."""
    angle = {
        (run["geometry"], run["mapping"], run["seed"]): run["turning"]
        for run in record["roughness"]
    }
    return [angle[geometry, m, s] > angle["blobs", m, s] for m in MAPPINGS for s in record["seeds"]]


def _medians(record: Record, method: str) -> dict[str, float]:
    return {
        g: float(np.median([run[method] for run in record["agreement"] if run["geometry"] == g]))
        for g in GEOMETRIES
    }


def _agreement(points: Tensor, classes: Tensor, epochs: int, seed: int) -> Record:
    """ARI by method."""
    from sklearn.cluster import AgglomerativeClustering
    from sklearn.metrics import adjusted_rand_score

    k = int(classes.max()) + 1
    hard = best_fixed_point(points, k, seed, 10)
    soft = [anneal(points, start(points, k, 10 * seed + i)).centers for i in range(10)]
    best = min(soft, key=lambda centers: inertia(points, centers).item())
    encoded, collapsed = _encoded(points, k, epochs, seed)
    labels = {
        "K-means": nearest(points, hard).labels,
        "soft K-means": nearest(points, best).labels,
        "encoder": encoded,
        "single linkage": AgglomerativeClustering(k, linkage="single").fit_predict(points.numpy()),
    }
    found = {name: float(adjusted_rand_score(classes, each)) for name, each in labels.items()}
    return found | {"collapsed": collapsed}


def _encoded(points: Tensor, n_clusters: int, epochs: int, seed: int) -> tuple[Tensor, bool]:
    """Labels by an encoder that learns to reconstruct and to cluster, and whether it collapsed."""
    generator = torch.Generator().manual_seed(seed)
    net = _autoencoder(generator)
    x = (points - points.mean(0)).float()
    x = x / x.std()
    head = SoftKMeans(n_clusters, 2)
    optimizer = torch.optim.Adam(
        nn.ModuleList([net.encoder, net.decoder, head]).parameters(), lr=0.005
    )
    warm_up = epochs // 3
    for epoch in range(epochs):
        if epoch == warm_up:  # codes that say something, then clusters among them
            with torch.no_grad():
                head.reset_centers(net.encoder(x), set_temperature=True, generator=generator)
            cooling = TemperatureScheduler(head, Geometric(0.97, epochs - warm_up - epochs // 10))
        z = net.encoder(x)
        loss = (net.decoder(z) - x).square().sum(1).mean()
        if epoch >= warm_up:
            loss = loss + 0.5 * head.loss(z)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if epoch >= warm_up:
            cooling.step()
    with torch.no_grad():
        z = net.encoder(x)
    return head.predict(z), head.usage(z).warning is not None


def _autoencoder(generator: torch.Generator) -> Autoencoder:
    """Perceptrons 2-32-32-2 there and back, weights drawn by the generator."""
    with torch.random.fork_rng(devices=[]):  # torch draws what is overwritten here
        pair = [
            nn.Sequential(
                *(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
            )
            for _ in range(2)
        ]
    for module in pair:
        for layer in module:
            if isinstance(layer, nn.Linear):
                bound = layer.in_features**-0.5  # as torch's own
                for parameter in layer.parameters():
                    parameter.data.uniform_(-bound, bound, generator=generator)
    return Autoencoder(*pair)


def _agreement_table(record: Record) -> Table:
    rows = []
    for g in GEOMETRIES:
        runs = [run for run in record["agreement"] if run["geometry"] == g]
        rows.append((g, *(spread(run[m] for run in runs) for m in METHODS)))
    return Table(
        "ARI against the true classes: median (quartiles) over seeds",
        ("geometry", *METHODS),
        tuple(rows),
    )


def _roughness_table(record: Record) -> Table:
    rows = []
    for g in GEOMETRIES:
        each = (
            spread(
                run["turning"]
                for run in record["roughness"]
                if (run["geometry"], run["mapping"]) == (g, m)
            )
            for m in MAPPINGS
        )
        share = f"{np.mean(more_turning(record, g)):.0%}" if g in CURVED else "-"
        rows.append((g, *each, share))
    return Table(
        "Total turning angle of the path of a center, in radians: median (quartiles) over seeds",
        ("geometry", *MAPPINGS, "more than on blobs"),
        tuple(rows),
    )
