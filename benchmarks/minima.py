"""How good are the minima?  Mean inertia of EntMeans() and of scikit-learn's KMeans, same seeds.

    python benchmarks/minima.py [--seeds 5] [--json results.json]

Prints a table in Markdown; below 1 the ratio is in favor of EntMeans.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
from data import small_sets
from facts import machine_facts
from sklearn.cluster import KMeans

from entmeans import EntMeans


def models(n_clusters: int, seed: int) -> dict[str, KMeans | EntMeans]:
    return {
        "KMeans, n_init=1": KMeans(n_clusters, n_init=1, random_state=seed),
        "KMeans, n_init=10": KMeans(n_clusters, n_init=10, random_state=seed),
        "EntMeans()": EntMeans(n_clusters, random_state=seed),
    }


def measure(points: np.ndarray, n_clusters: int, seeds: int) -> dict[str, dict[str, list[float]]]:
    """Inertia, seconds and steps of each model, for each seed."""
    runs: dict[str, dict[str, list[float]]] = {}
    for seed in range(seeds):
        for name, model in models(n_clusters, seed).items():
            start = time.perf_counter()
            model.fit(points)
            run = runs.setdefault(name, {"inertia": [], "seconds": [], "steps": []})
            run["seconds"].append(time.perf_counter() - start)
            run["inertia"].append(float(model.inertia_))
            run["steps"].append(int(model.n_iter_))
    return runs


def row(name: str, runs: dict[str, dict[str, list[float]]]) -> tuple[str, list[float]]:
    """The line of one data set, and its inertias as ratios to KMeans with one start."""
    means = [np.mean(run["inertia"]) for run in runs.values()]
    best = min(means)
    cells = [f"**{m:,.6g}**" if m == best else f"{m:,.6g}" for m in means]
    ratios = [float(m / means[0]) for m in means]
    return f"| {name} | {' | '.join(cells)} | {ratios[2]:.4f} |", ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also write every run here")
    arguments = parser.parse_args()

    print(
        "| mean inertia | KMeans, n_init=1 | KMeans, n_init=10 | EntMeans() | ratio to n_init=1 |"
    )
    print("|---|---|---|---|---|")
    results, ratios = {}, []
    for name, points, n_clusters in small_sets():
        results[name] = measure(points, n_clusters, arguments.seeds)
        line, ratio = row(name, results[name])
        ratios.append(ratio)
        print(line, flush=True)
    one, ten, ours = np.mean(ratios, axis=0)
    print(f"| mean of the ratios | {one:.4f} | {ten:.4f} | {ours:.4f} | {ours:.4f} |")
    if arguments.json:
        report = {"machine": machine_facts(), "seeds": arguments.seeds, "results": results}
        arguments.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
