"""Measurements that need a process of their own; `speed.py` starts it and reads what it prints.

python benchmarks/fresh.py memory entmax15 1000000
python benchmarks/fresh.py fit
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
from memory import resident
from sklearn.datasets import load_digits
from timing import THREADS

import entmeans
from entmeans import EntMeans

N_FEATURES, N_CLUSTERS = 32, 1000


def free_energy_memory(mapping: str, n_points: int) -> float:
    """Peak memory of free_energy, forward and backward, beyond its inputs and gradients, in MB.

    The gradients are outputs.  They are not put in place before: autograd adds a second tensor to
    one that is there, and hands over its own where there is none.
    """
    points = torch.randn(n_points, N_FEATURES).requires_grad_()
    centers = torch.randn(N_CLUSTERS, N_FEATURES).requires_grad_()
    few = torch.randn(1000, N_FEATURES).requires_grad_()
    entmeans.free_energy(few, centers, 1.0, mapping).backward()  # kernels are compiled here
    centers.grad = None
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    entmeans.free_energy(points, centers, 1.0, mapping).backward()
    outputs = sum(t.grad.nbytes for t in (points, centers) if t.grad is not None)
    return resident("VmHWM") - before - outputs / 2**20


def first_fits(later: int = 7) -> list[float]:
    """Seconds of the first fits of this process; what only the first one does is in its time."""
    points = load_digits().data
    seconds = []
    for _ in range(1 + later):
        start = time.perf_counter()
        EntMeans(10, random_state=0).fit(points)
        seconds.append(time.perf_counter() - start)
    return seconds


def measured(*arguments: str, **environment: str) -> float | list[float]:
    """What this script prints, run with these arguments in a new process."""
    run = subprocess.run(
        [sys.executable, __file__, *arguments],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    return json.loads(run.stdout)


def import_seconds(modules: str) -> float:
    """How long a new interpreter takes to import these and end."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", f"import {modules}"], check=True)
    return time.perf_counter() - start


def main() -> None:
    torch.set_num_threads(THREADS)
    kind, *arguments = sys.argv[1:]
    if kind == "memory":
        print(json.dumps(free_energy_memory(arguments[0], int(arguments[1]))))
    else:
        print(json.dumps(first_fits()))


if __name__ == "__main__":
    main()
