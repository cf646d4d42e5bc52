"""What a result depends on: processor, threads, versions."""

import os
import platform
from importlib.metadata import version

import torch


def machine_facts() -> dict[str, str | int]:
    packages = ("entmeans", "torch", "numpy", "scikit-learn")
    return {
        "processor": platform.processor() or platform.machine(),
        "processors": os.cpu_count() or 0,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "system": platform.system(),
        **{name: version(name) for name in packages},
    }
