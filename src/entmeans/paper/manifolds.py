"""C9: curved manifolds stay unseparated, whatever the temperature; and are paths rougher there?"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..functional import nearest
from ..nn import SoftKMeans, TemperatureScheduler
from ..schedules import Geometric
from .geometries import GEOMETRIES
from .paths import MAPPINGS, best_fixed_point, cooling, scale, turning
from .records import Judgement, Record, Table, Verdict, short, spread

METHOD = (
    "With as many clusters as classes, the adjusted Rand index (ARI) against the true classes is "
    "measured for the cells of K-means (the best of ten starts), and for those of soft K-means "
    "with each mapping, at the temperature where they agree best with the classes. Beyond the "
    "paper, a small encoder (a perceptron 2-32-32-2 with a decoder like it) learns to reconstruct "
    "the points and, at the same time, to make the free energy of its codes small while T falls, "
    "its clusters being those of its layer SoftKMeans; of several weights of the free energy, the "
    "one that agrees best with the classes counts. Single linkage, which joins what is near, "
    "checks that the curved classes can be told apart. For the second half, five centers are "
    "followed on every geometry from just below the critical temperature down to 1e-5 of the "
    "scale of the data, and the total turning angle of their paths is compared with that on blobs "
    "of the same seed."
)

RULE = (
    "Needs K-means and soft K-means below an ARI of 0.9 on every curved geometry (median). Then it "
    "holds, but only under a condition if paths do not turn more than on blobs in most runs."
)

QUICK = {"n_on_paths": 100, "n_temperatures": 20, "epochs": 80, "weights": (0.5,)}

METHODS = ("K-means", "soft K-means", "encoder", "single linkage")
CURVED = tuple(GEOMETRIES)[1:]

SEPARATED = 0.9
"""An ARI from here on says that classes and clusters are the same."""


class Network(NamedTuple):
    """An encoder, its decoder, and the layer that clusters codes."""

    encoder: nn.Module
    decoder: nn.Module
    head: SoftKMeans


class Code(NamedTuple):
    """Clusters (N,) of an encoder, its error in units of the variance, and whether it collapsed."""

    labels: Tensor
    error: float
    collapsed: bool


def measure(
    seeds: Iterable[int],
    *,
    n_points: int = 300,
    n_on_paths: int = 300,
    n_clusters: int = 5,
    n_temperatures: int = 32,
    epochs: int = 300,
    weights: tuple[float, ...] = (0.05, 0.5, 5.0),
) -> Record:
    """Agreement with the true classes, and how much paths turn.

    Parameters
    ----------
    seeds : iterable of int
    n_points, n_on_paths : int
        N of each geometry: for the agreement, and for how much paths turn.
    n_clusters : int
        Of the paths; the agreement is that of as many clusters as there are classes.
    n_temperatures : int
        Along a path.
    epochs : int
        Of the encoder, each with all points at once.
    weights : tuple of float
        Of the free energy in the loss of the encoder, beside the error of reconstruction.

    Examples
    --------
    >>> from entmeans.paper.manifolds import measure
    >>> record = measure([0], n_points=40, n_on_paths=40, n_temperatures=3, epochs=2)
    >>> len(record["agreement"]), len(record["roughness"])
    (4, 12)
    """
    options = {name: value for name, value in locals().items() if name != "seeds"}
    options["weights"] = list(weights)
    agreement, roughness, used = [], [], []
    for seed in seeds:
        used.append(seed)
        for geometry in GEOMETRIES:
            about = {"geometry": geometry, "seed": seed}
            agreement.append(
                about
                | _agreement(geometry, n_points, n_temperatures, seed)
                | _encoders(geometry, n_points, epochs, weights, seed)
            )
            for mapping in MAPPINGS:
                cooled = cooling(geometry, n_on_paths, n_clusters, n_temperatures, mapping, seed)
                angle = turning(cooled.path, scale(cooled.points) ** 0.5).mean().item()
                roughness.append(about | {"mapping": mapping, "turning": angle})
    return {
        "seeds": used,
        "options": options,
        "agreement": agreement,
        "roughness": roughness,
    }


def judge(record: Record) -> Judgement:
    """Holds if K-means, soft or not, keeps curved classes together, and paths turn more there.

    Examples
    --------
    >>> from entmeans.paper.manifolds import judge, measure
    >>> options = {"n_points": 60, "n_on_paths": 100, "n_temperatures": 8, "epochs": 2}
    >>> judge(measure([0, 1], **options)).verdict
    <Verdict.HOLDS: 'holds'>
    """
    median = {m: _medians(record, m) for m in METHODS}
    kept = all(median[m][g] < SEPARATED for m in ("K-means", "soft K-means") for g in CURVED)
    shares = {g: float(np.mean(more_turning(record, g))) for g in CURVED}
    if not kept:
        verdict = Verdict.FAILS
    else:
        verdict = Verdict.HOLDS if min(shares.values()) > 0.5 else Verdict.CONDITION
    pairs = "; ".join(
        f"{g} {median['K-means'][g]:z.2f} / {median['soft K-means'][g]:z.2f}" for g in GEOMETRIES
    )
    each = {m: ", ".join(f"{g} {x:z.2f}" for g, x in median[m].items()) for m in METHODS}
    turns = ", ".join(f"{g} {share:.0%}" for g, share in shares.items())
    return Judgement(
        verdict,
        f"Median ARI of K-means / soft K-means at its best T: {pairs}. Paths turn more than on "
        f"blobs of the same seed in {np.mean([*shares.values()]):.0%} of the runs.",
        (
            "At every temperature the cells of soft K-means are those of its centers, straight and "
            f"convex. Single linkage, which goes by what is connected: {each['single linkage']}.",
            _encoder_finding(record, each["encoder"]),
            f"Paths turn more than on blobs, by geometry: {turns} of seeds and mappings. "
            "Blobs are as many as centers here, which may be part of the difference.",
        ),
        (_agreement_table(record), _roughness_table(record)),
    )


def _encoder_finding(record: Record, medians: str) -> str:
    curved = [run for run in record["agreement"] if run["geometry"] in CURVED]
    separated = sum(run["encoder"] >= SEPARATED for run in curved)
    encoders = [encoder for run in record["agreement"] for encoder in run["encoders"]]
    error = float(np.median([encoder["error"] for encoder in encoders]))
    weights = record["options"]["weights"]
    chosen = f"with the best of the weights {', '.join(f'{w:g}' for w in weights)}"
    return (
        "The encoder that learns with the clusters, "
        f"{chosen if len(weights) > 1 else f'with a weight of {weights[0]:g}'}: {medians}. It "
        f"separates the classes (ARI of {SEPARATED} or more) in {separated} of {len(curved)} runs "
        f"on curved geometries, though it reconstructs points (error {short(error)} of the "
        f"variance, median) and its layer warned of a collapse in only "
        f"{sum(encoder['collapsed'] for encoder in encoders)} of {len(encoders)} trainings. To "
        "reconstruct points it keeps near what is near, and the free energy asks for compact "
        "clusters, not for connected ones."
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


def _agreement(geometry: str, n_points: int, n_temperatures: int, seed: int) -> Record:
    """ARI by method."""
    from sklearn.cluster import AgglomerativeClustering

    points, classes = GEOMETRIES[geometry](n_points, seed=seed)
    k = int(classes.max()) + 1
    joined = AgglomerativeClustering(k, linkage="single").fit_predict(points.numpy())
    paths = [cooling(geometry, n_points, k, n_temperatures, m, seed).path for m in MAPPINGS]
    return {
        "K-means": _index(classes, nearest(points, best_fixed_point(points, k, seed, 10)).labels),
        "soft K-means": max(
            _index(classes, nearest(points, centers).labels) for path in paths for centers in path
        ),
        "single linkage": _index(classes, torch.as_tensor(joined)),
    }


def _index(classes: Tensor, labels: Tensor) -> float:
    """The adjusted Rand index: 1 where they agree, 0 by chance."""
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(classes, labels))


def _encoders(
    geometry: str, n_points: int, epochs: int, weights: tuple[float, ...], seed: int
) -> Record:
    """What became of an encoder for each weight of the free energy, and the best ARI of all."""
    points, classes = GEOMETRIES[geometry](n_points, seed=seed)
    found = []
    for weight in weights:
        code = encode(points, int(classes.max()) + 1, epochs, weight, seed)
        found.append(
            {
                "weight": weight,
                "ARI": _index(classes, code.labels),
                "error": code.error,
                "collapsed": code.collapsed,
            }
        )
    return {"encoder": max(each["ARI"] for each in found), "encoders": found}


def encode(points: Tensor, n_clusters: int, epochs: int, weight: float, seed: int) -> Code:
    """Train an encoder to reconstruct and, after a third of the epochs, to cluster as well.

    Examples
    --------
    >>> from entmeans.paper import blobs
    >>> from entmeans.paper.manifolds import encode
    >>> code = encode(blobs(20).points, n_clusters=5, epochs=3, weight=0.5, seed=0)
    >>> code.labels.shape, code.collapsed
    (torch.Size([20]), False)
    """
    generator = torch.Generator().manual_seed(seed)
    net = _network(n_clusters, generator)
    head = net.head
    x = (points - points.mean(0)).float()
    x = x / x.square().sum(1).mean().sqrt()
    optimizer = torch.optim.Adam(nn.ModuleList(net).parameters(), lr=0.005)
    warm_up = epochs // 3
    for epoch in range(epochs):
        if epoch == warm_up:  # codes that say something, then clusters among them
            with torch.no_grad():
                head.reset_centers(net.encoder(x), set_temperature=True, generator=generator)
            schedule = Geometric(0.97, epochs - warm_up - epochs // 10)
            scheduler = TemperatureScheduler(head, schedule)
        z = net.encoder(x)
        loss = (net.decoder(z) - x).square().sum(1).mean()
        if epoch >= warm_up:
            loss = loss + weight * head.loss(z)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if epoch >= warm_up:
            scheduler.step()
    with torch.no_grad():
        z = net.encoder(x)
        error = (net.decoder(z) - x).square().sum(1).mean().item()
    return Code(head.predict(z), error, head.usage(z).warning is not None)


def _network(n_clusters: int, generator: torch.Generator) -> Network:
    """Perceptrons 2-32-32-2 there and back, their weights drawn by the generator."""
    with torch.random.fork_rng(devices=[]):  # torch draws what is overwritten here and later
        network = Network(_perceptron(), _perceptron(), SoftKMeans(n_clusters, 2))
    for module in (network.encoder, network.decoder):
        for layer in module.children():
            if isinstance(layer, nn.Linear):
                bound = layer.in_features**-0.5  # as torch's own
                for parameter in layer.parameters():
                    parameter.data.uniform_(-bound, bound, generator=generator)
    return network


def _perceptron() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
    )


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
