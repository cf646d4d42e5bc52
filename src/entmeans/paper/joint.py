"""C8: clusters that learn from the main loss of a network, against two stages."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..estimators import RBFNetworkClassifier, RBFNetworkRegressor
from ..fit import reference_temperature
from ..functional import inertia, responsibilities
from ..limit import hardening_temperature
from ..nn import RBFNetwork
from .geometries import GEOMETRIES
from .paths import best_fixed_point, distance, scale
from .records import Judgement, Record, Table, Verdict, short, spread

METHOD = (
    "On each data set K-means finds centers of the training rows. From these a network of radial "
    "basis functions (the layer RBFNetwork, entmax15) is trained by its main loss, cross entropy "
    "or squared error: in two stages, with the centers and the width frozen and only the read-out "
    "learning, and jointly, with centers, width and read-out learning together; same epochs, "
    "batches and learning rate. Beside them a perceptron with one hidden layer, about as many "
    "parameters and the same epochs; and, to tell centers from width, two stages with the width "
    "that is best on the rows held out, and a read-out by logistic or ridge regression. The score "
    "is that of rows held out: accuracy, or R squared on diabetes. Whether the loss reaches the "
    "centers is seen from its gradient, at the temperature of the start and at T*/2, and from how "
    "far they end from where K-means put them, in units of the root mean squared radius."
)

RULE = (
    "Needs a gradient at the first temperature that reaches the centers and moves them in every "
    "run, and a gain on some classes. Then it holds, but only under a condition if the gradient "
    "is gone at T*/2, where the network is K-means, or some classes gain nothing. Diabetes is "
    "shown, not judged: the claim is that it can be done."
)

QUICK = {"n_points": 300, "epochs": 60, "data": ("two moons", "spiral", "digits", "diabetes")}

DATA = ("two moons", "spiral", "circles", "digits", "diabetes")
MODELS = ("two stages", "joint", "perceptron")
BEST_WIDTH = "two stages, best width"
TEMPERATURES = (0.25, 1.0, 4.0, 16.0, 64.0)
"""Widths of which the best is taken, as temperatures in units of that of reference."""


class Problem(NamedTuple):
    """Training and held-out rows in float32, and how many centers they get."""

    train: NDArray[Any]
    y: NDArray[Any]
    test: NDArray[Any]
    y_test: NDArray[Any]
    n_centers: int


def measure(
    seeds: Iterable[int],
    *,
    n_points: int = 400,
    epochs: int = 100,
    data: tuple[str, ...] = DATA,
    learning_rate: float = 0.05,
) -> Record:
    """Held-out scores in two stages, jointly and of a perceptron.

    Parameters
    ----------
    seeds : iterable of int
        Of the data, the split, the centers and the training.
    n_points : int
        Rows of each geometry, of which 60 % are trained on.
    epochs : int
    data : tuple of str
        Geometries, "digits" and "diabetes".
    learning_rate : float
        Of the networks of radial basis functions.

    Examples
    --------
    >>> from entmeans.paper.joint import measure
    >>> record = measure([0], n_points=60, epochs=4, data=("two moons",))
    >>> sorted(record["runs"][0]["scores"])
    ['joint', 'perceptron', 'two stages', 'two stages, best width']
    """
    options = {name: value for name, value in locals().items() if name != "seeds"}
    options["data"] = list(data)
    runs, used = [], []
    for seed in seeds:
        used.append(seed)
        for name in data:
            about = {"data": name, "seed": seed}
            runs.append(about | _run(name, n_points, epochs, learning_rate, seed))
    return {"seeds": used, "options": options, "runs": runs}


def judge(record: Record) -> Judgement:
    """Holds if the loss moves the centers and, on classes, the held-out score rises.

    Examples
    --------
    >>> from entmeans.paper.joint import judge, measure
    >>> judge(measure([0, 1], n_points=200, epochs=40, data=("two moons", "spiral"))).verdict
    <Verdict.CONDITION: 'holds under a condition'>
    """
    runs = record["runs"]
    names = record["options"]["data"]
    reached = [run["gradient"] > 0 and run["moved"] > 1e-3 for run in runs]
    gone = [run["gradient_when_hard"] == 0 for run in runs]
    wins = {name: differences(record, name) for name in names}
    classes = [name for name in names if name != "diabetes"]
    better = [float(np.median(wins[name])) > 0 for name in classes]
    if not all(reached) or not any(better):
        verdict = Verdict.FAILS
    else:
        verdict = Verdict.HOLDS if all(better) and not any(gone) else Verdict.CONDITION
    gains = "; ".join(f"{n} {_points(wins[n])}" for n in names)
    return Judgement(
        verdict,
        f"The main loss reaches the centers in {sum(reached)} of {len(reached)} runs, at T*/2 in "
        f"{len(gone) - sum(gone)}. Joint minus two stages, points of accuracy (R² on diabetes), "
        f"medians: {gains}.",
        _findings(record, classes, wins),
        (_score_table(record),),
    )


def _findings(record: Record, classes: list[str], wins: dict[str, list[float]]) -> tuple[str, ...]:
    won = [d > 0 for name in classes for d in wins[name]]
    slower = [run["seconds"]["joint"] / run["seconds"]["two stages"] for run in record["runs"]]
    width = {name: differences(record, name, BEST_WIDTH) for name in classes}
    over = [d > 0 for name in classes for d in width[name]]
    ahead = [name for name in wins if np.median(differences(record, name, "perceptron")) < -0.005]
    inertia_ratio = [run["inertia_ratio"] for run in record["runs"]]
    found = [
        "What it depends on: the temperature must be one at which points are shared. From T* on, "
        "where the network is exactly K-means, the gradient through the responsibilities is 0: "
        "what is learned jointly is a soft clustering, which can be frozen afterwards.",
        "What the main loss alone moves is no longer the best clustering of the points: the "
        f"K-means objective at the centers that were learned is {spread(inertia_ratio)} times "
        "that of K-means. Where clusters must stay compact, add the free energy to the loss "
        "(clustering_weight).",
        f"On classes joint training wins in {sum(won)} of {len(won)} runs, at "
        f"{short(float(np.median(slower)))} times the time of two stages (median).",
        "Over two stages whose width is the best on the very rows held out, which tells what the "
        f"centers add, joint training wins in {sum(over)} of {len(over)} of these runs; points, "
        "medians: " + "; ".join(f"{name} {_points(width[name])}" for name in classes) + ".",
        "A perceptron of about as many parameters is ahead of it on "
        f"{', '.join(ahead) or 'none of these'} by half a point or more (median of differences).",
    ]
    if "diabetes" in wins:
        trained = differences(record, "diabetes", of="trained")
        found.append(
            f"On diabetes, with few and noisy rows, joint training ends {_points(wins['diabetes'])}"
            f" points of R² from two stages on rows held out, and {_points(trained)} on the rows "
            "it was trained on (medians): a better fit need not be a better prediction."
        )
    return tuple(found)


def _points(values: list[float]) -> str:
    return f"{100 * float(np.median(values)):+.1f}"


def differences(
    record: Record, name: str, other: str = "two stages", of: str = "scores"
) -> list[float]:
    """The score of joint training minus that of another model on this data, for each seed."""
    return [run[of]["joint"] - run[of][other] for run in _of(record, name)]


def _of(record: Record, name: str) -> list[Record]:
    return [run for run in record["runs"] if run["data"] == name]


def _run(name: str, n_points: int, epochs: int, learning_rate: float, seed: int) -> Record:
    problem = _problem(name, n_points, seed)
    points = torch.from_numpy(problem.train).double()
    centers = best_fixed_point(points, problem.n_centers, seed, 1)
    model = RBFNetworkRegressor if name == "diabetes" else RBFNetworkClassifier
    scores, trained, seconds, ends = {}, {}, {}, centers
    for stages in ("two stages", "joint"):
        network = model(
            problem.n_centers,
            init=centers.numpy(),
            joint=stages == "joint",
            clustering_weight=0.0,  # the main loss alone
            learning_rate=learning_rate,
            batch_size=min(200, len(points)),
            max_iter=epochs,
            n_iter_no_change=epochs,
            random_state=seed,
        )
        begin = time.perf_counter()
        network.fit(problem.train, problem.y)
        seconds[stages] = time.perf_counter() - begin
        scores[stages] = float(network.score(problem.test, problem.y_test))
        trained[stages] = float(network.score(problem.train, problem.y))
        ends = torch.as_tensor(network.cluster_centers_).double()
    hard = max(hardening_temperature(points, centers).item() / 2, 1e-12)  # learned ones are not 0
    scores["perceptron"], seconds["perceptron"] = _perceptron(problem, epochs, seed)
    scores[BEST_WIDTH] = _best_width(problem, centers)
    return {
        "scores": scores,
        "trained": trained,
        "seconds": seconds,
        "gradient": _gradient(problem, centers, reference_temperature(points, centers), seed),
        "gradient_when_hard": _gradient(problem, centers, hard, seed),
        "inertia_ratio": (inertia(points, ends) / inertia(points, centers)).item(),
        "moved": (distance(ends, centers) / scale(points) ** 0.5).item(),
    }


def _problem(name: str, n_points: int, seed: int) -> Problem:
    from sklearn.datasets import load_diabetes, load_digits
    from sklearn.model_selection import train_test_split

    classes = None
    if name in GEOMETRIES:
        sample = GEOMETRIES[name](n_points, seed=seed)
        x, y, n_centers = sample.points.numpy(), sample.classes.numpy(), 5
        classes = y
    elif name == "digits":
        x, y = load_digits(return_X_y=True)
        x, n_centers, classes = x / 16, 10, y
    else:
        x, y = load_diabetes(return_X_y=True)
        x, n_centers = x / x.std(), 10
    x, x_test, y, y_test = train_test_split(
        x, y, train_size=0.6, random_state=seed, stratify=classes
    )
    return Problem(x.astype(np.float32), y, x_test.astype(np.float32), y_test, n_centers)


def _perceptron(problem: Problem, epochs: int, seed: int) -> tuple[float, float]:
    """Held-out score and seconds of scikit-learn's, one hidden layer, the same epochs."""
    import warnings

    from sklearn.compose import TransformedTargetRegressor
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier, MLPRegressor
    from sklearn.preprocessing import StandardScaler

    regression = problem.y.dtype.kind == "f"
    n_features = problem.train.shape[1]
    n_outputs = 1 if regression else len(np.unique(problem.y))
    n_hidden = round(problem.n_centers * (n_features + n_outputs) / (n_features + n_outputs + 1))
    options: dict[str, Any] = {
        "hidden_layer_sizes": (n_hidden,),
        "learning_rate_init": 0.02,
        "max_iter": epochs,
        "n_iter_no_change": epochs,
        "random_state": seed,
    }
    model = MLPClassifier(**options)
    if regression:
        model = TransformedTargetRegressor(MLPRegressor(**options), transformer=StandardScaler())
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # all models get the same epochs
        model.fit(problem.train, problem.y)
    seconds = time.perf_counter() - begin
    return float(model.score(problem.test, problem.y_test)), seconds


def _best_width(problem: Problem, centers: torch.Tensor) -> float:
    """The best held-out score over widths, with a read-out that other optimizers train."""
    from sklearn.linear_model import LogisticRegression, Ridge

    regression = problem.y.dtype.kind == "f"
    train, test = (torch.from_numpy(x).double() for x in (problem.train, problem.test))
    reference = reference_temperature(train, centers)
    scores = []
    for relative in TEMPERATURES:
        units, unseen = (
            responsibilities(x, centers, relative * reference, "entmax15").numpy()
            for x in (train, test)
        )
        readout = Ridge(1e-3) if regression else LogisticRegression(C=100.0, max_iter=1000)
        scores.append(float(readout.fit(units, problem.y).score(unseen, problem.y_test)))
    return max(scores)


def _gradient(problem: Problem, centers: torch.Tensor, temperature: float, seed: int) -> float:
    """The norm of the gradient of the main loss by the centers, for a read-out that is drawn."""
    points = torch.from_numpy(problem.train).double()
    targets = torch.from_numpy(problem.y)
    n_outputs = 1 if targets.is_floating_point() else int(targets.max()) + 1
    with torch.random.fork_rng(devices=[]):  # torch draws what is overwritten here
        network = RBFNetwork(points.shape[1], len(centers), n_outputs, dtype=points.dtype)
    generator = torch.Generator().manual_seed(seed)
    network.readout.weight.data.normal_(generator=generator)
    network.readout.bias.data.zero_()
    network.clusters.centers.data.copy_(centers)
    network.clusters.temperature = temperature
    outputs = network(points)
    if targets.is_floating_point():
        loss = torch.nn.functional.mse_loss(outputs.squeeze(1), targets)
    else:
        loss = torch.nn.functional.cross_entropy(outputs, targets.long())
    (gradient,) = torch.autograd.grad(loss, network.clusters.centers)
    return gradient.norm().item()


def _score_table(record: Record) -> Table:
    rows = []
    for name in record["options"]["data"]:
        runs, gain = _of(record, name), differences(record, name)
        rows.append(
            (
                name,
                *(spread(r["scores"][m] for r in runs) for m in (*MODELS, BEST_WIDTH)),
                spread(gain),
                f"{sum(d > 0 for d in gain)} of {len(gain)}",
                spread(r["moved"] for r in runs),
                *(short(float(np.median([r["seconds"][m] for r in runs]))) for m in MODELS),
            )
        )
    columns = (
        "data",
        *MODELS,
        BEST_WIDTH,
        "joint - two stages",
        "joint wins",
        "centers moved / radius",
        *(f"seconds, {m}" for m in MODELS),
    )
    return Table("Held-out scores: median (quartiles) over seeds", columns, tuple(rows))
