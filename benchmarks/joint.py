"""Do clusters and classes learned together beat two stages?  Test accuracy, same centers at first.

    python benchmarks/joint.py [--data digits letter fashion-mnist] [--seeds 10] [--json FILE]

For each seed a split, K-means on its training rows, and from these centers two RBF networks for
each mapping: with the centers frozen (only the read-out learns) and with all learned together, for
the same epochs of the same size at the same learning rate.  Beside them a multilayer perceptron
with one hidden layer, as many parameters and the same epochs, and scikit-learn's SVC and
LogisticRegression on the same features.  Prints a table in Markdown: mean and standard deviation
over the seeds, and the mean seconds of a fit (K-means included, where it is part of it).

letter and fashion-mnist are read from ``letter.npz`` and ``fashion-mnist.npz`` (arrays X and y) in
the folder ``ENTMEANS_DATA``, and left out where they are not there.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from facts import machine_facts
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from torch import nn

from entmeans import RBFNetworkClassifier

MAPPINGS = ("entmax15", "softmax")
MODELS = (
    *(f"{mapping}, {stages}" for mapping in MAPPINGS for stages in ("two stages", "joint")),
    *("perceptron", "LogisticRegression", "SVC"),
)
BATCH_SIZE = 200
LEARNING_RATE = 0.05
LEARNING_RATE_MLP = 0.02  # of 0.002 to 0.05 the best for it on average, on two seeds beside these


class Problem(NamedTuple):
    """Numbers of centers, epochs of training, and how a seed splits the data."""

    n_centers: tuple[int, ...]
    epochs: int


PROBLEMS = {
    "digits": Problem((10, 20, 40), 100),
    "letter": Problem((100,), 30),
    "fashion-mnist": Problem((100,), 20),
}


class Split(NamedTuple):
    train: np.ndarray
    test: np.ndarray
    y: np.ndarray
    y_test: np.ndarray


def arrays_of(name: str) -> tuple[np.ndarray, np.ndarray] | None:
    if name == "digits":
        return load_digits(return_X_y=True)
    path = Path(os.environ.get("ENTMEANS_DATA", "")) / f"{name}.npz"
    if not path.is_file():
        return None
    with np.load(path) as arrays:
        return arrays["X"], arrays["y"]


def split_of(name: str, X: np.ndarray, y: np.ndarray, seed: int) -> Split:
    """Features in float32: pixels from 0 to 1, else standardized."""
    if name == "fashion-mnist":  # 10,000 of the 60,000 training rows, and the test set
        rows = np.random.default_rng(seed).permutation(60_000)[:10_000]
        train, test, y, y_test = X[rows], X[60_000:], y[rows], y[60_000:]
    else:
        train, test, y, y_test = train_test_split(
            X, y, train_size=0.6, random_state=seed, stratify=y
        )
    if name == "letter":
        scaler = StandardScaler().fit(train)
        train, test = scaler.transform(train), scaler.transform(test)
    else:
        train, test = train / X.max(), test / X.max()
    return Split(train.astype(np.float32), test.astype(np.float32), y, y_test)


def mlp_accuracy(split: Split, n_centers: int, epochs: int, seed: int) -> tuple[float, float]:
    """Accuracy and seconds of a perceptron with as many parameters as the RBF network."""
    start = time.perf_counter()
    n_features, n_classes = split.train.shape[1], int(split.y.max()) + 1
    n_hidden = round(n_centers * (n_features + n_classes) / (n_features + n_classes + 1))
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(n_features, n_hidden), nn.ReLU(), nn.Linear(n_hidden, n_classes))
    X, y = torch.from_numpy(split.train), torch.from_numpy(split.y).long()
    optimizer = torch.optim.Adam(net.parameters(), lr=LEARNING_RATE_MLP)
    slower = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 1 - i / epochs)
    for _ in range(epochs):
        for rows in torch.randperm(len(X)).split(BATCH_SIZE):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(X[rows]), y[rows]).backward()
            optimizer.step()
        slower.step()
    seconds = time.perf_counter() - start
    with torch.no_grad():
        chosen = net(torch.from_numpy(split.test)).argmax(1).numpy()
    return float((chosen == split.y_test).mean()), seconds


def fitted(model: object, split: Split) -> tuple[float, float]:
    """Accuracy and seconds of a model of scikit-learn."""
    start = time.perf_counter()
    model.fit(split.train, split.y)
    seconds = time.perf_counter() - start
    return float(model.score(split.test, split.y_test)), seconds


def runs_of(split: Split, problem: Problem, seed: int) -> Iterator[tuple[str, float, float]]:
    """What was fitted, its accuracy, and its seconds."""
    for k in problem.n_centers:
        start = time.perf_counter()
        centers = KMeans(k, n_init=1, random_state=seed).fit(split.train).cluster_centers_
        before = time.perf_counter() - start
        for mapping in MAPPINGS:
            for stages, joint in (("two stages", False), ("joint", True)):
                model = RBFNetworkClassifier(
                    k,
                    mapping=mapping,
                    init=centers,
                    joint=joint,
                    learning_rate=LEARNING_RATE,
                    batch_size=BATCH_SIZE,
                    max_iter=problem.epochs,
                    n_iter_no_change=problem.epochs,
                    random_state=seed,
                )
                accuracy, seconds = fitted(model, split)
                yield f"K = {k} | {mapping}, {stages}", accuracy, before + seconds
        yield f"K = {k} | perceptron", *mlp_accuracy(split, k, problem.epochs, seed)
    yield " | LogisticRegression", *fitted(LogisticRegression(max_iter=2000), split)
    yield " | SVC", *fitted(SVC(), split)


def cell(run: dict[str, list[float]]) -> str:
    """Mean test accuracy and its deviation, and mean seconds."""
    accuracy, seconds = np.array(run["accuracy"]), np.mean(run["seconds"])
    return f"{accuracy.mean():.3f} ± {accuracy.std():.3f}, {seconds:#.2g} s"


def table_lines(results: dict[str, dict[str, dict[str, list[float]]]]) -> Iterator[str]:
    """A row for each model, a column for each problem and number of centers."""
    columns = [(name, k) for name in results for k in PROBLEMS[name].n_centers]
    yield f"| model | {' | '.join(f'{name}, K = {k}' for name, k in columns)} |"
    yield "|---|" + "---|" * len(columns)
    for model in MODELS:
        runs = (
            results[name].get(f"K = {k} | {model}") or results[name][f" | {model}"]
            for name, k in columns
        )
        yield f"| {model} | {' | '.join(map(cell, runs))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="+", choices=PROBLEMS, default=[*PROBLEMS])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--json", type=Path, help="also write every run here")
    arguments = parser.parse_args()

    results: dict[str, dict[str, dict[str, list[float]]]] = {}
    warm = load_digits(return_X_y=True)
    for mapping in MAPPINGS:  # the first fit of all compiles the kernels
        RBFNetworkClassifier(mapping=mapping, max_iter=1).fit(np.float32(warm[0]), warm[1])
    for name in arguments.data:
        arrays = arrays_of(name)
        if arrays is None:
            print(f"{name} is not in ENTMEANS_DATA: left out.", file=sys.stderr)
            continue
        runs = results.setdefault(name, {})
        for seed in range(arguments.seeds):
            split = split_of(name, *arrays, seed)
            for model, accuracy, seconds in runs_of(split, PROBLEMS[name], seed):
                run = runs.setdefault(model, {"accuracy": [], "seconds": []})
                run["accuracy"].append(accuracy)
                run["seconds"].append(seconds)
            print(f"{name}: {seed + 1} of {arguments.seeds} seeds done", file=sys.stderr)
    print("\n".join(table_lines(results)))
    if arguments.json:
        facts = {"machine": machine_facts(), "seeds": arguments.seeds, "runs": results}
        arguments.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
