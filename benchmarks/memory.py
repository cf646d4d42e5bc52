"""How much memory does a fit take beyond its data?  Peak resident memory, one process a fit.

    python benchmarks/memory.py

Linux only: the peak is the kernel's own (VmHWM), reset when the data is in place.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import numpy as np
from data import china

from entmeans import EntMeans

LIMIT = 300  # MB
FITS = {
    "273,280 x 3 pixels, K = 64": lambda: (china(), 64),
    "100,000 x 64, K = 100": lambda: (
        np.random.default_rng(0).normal(size=(100_000, 64)),
        100,
    ),
}


def resident(field: str) -> float:
    """A field of the process's status in MB."""
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0]) / 1024


def fit(name: str) -> float:
    """Peak resident memory of the fit above what the process held before it, in MB."""
    points, n_clusters = FITS[name]()
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    EntMeans(n_clusters, random_state=0).fit(points)
    return resident("VmHWM") - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fit", choices=FITS, help="one fit in this process")
    name = parser.parse_args().fit
    if name is not None:
        print(fit(name))
        return
    short = False
    for name in FITS:
        run = subprocess.run(
            [sys.executable, __file__, "--fit", name], check=True, capture_output=True, text=True
        )
        peak = float(run.stdout)
        short |= peak > LIMIT
        print(
            f"{name}: {peak:.0f} MB above the data, {'short' if peak > LIMIT else 'pass'} ({LIMIT})"
        )
    sys.exit(short)


if __name__ == "__main__":
    main()
