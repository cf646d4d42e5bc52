"""What a result depends on: processor, threads, versions, date."""

import datetime
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

PACKAGES = (
    "entmeans",
    "torch",
    "numpy",
    "scikit-learn",
    "numba",
    "entmax",
    "faiss-cpu",
    "fast_pytorch_kmeans",
    "torch_kmeans",
)


def machine_facts() -> dict[str, str | int]:
    return {
        "processor": processor(),
        "processors": os.cpu_count() or 0,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "system": platform.system(),
        "date": datetime.date.today().isoformat(),
        **versions(),
    }


def processor() -> str:
    """The model name; `platform` knows only the architecture on Linux."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def versions() -> dict[str, str]:
    """Of those packages that are installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # a peer that this benchmark does not need
            continue
    return found
