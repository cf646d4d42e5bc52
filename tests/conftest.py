"""One torch thread per test process: pytest-xdist already runs one process per core."""

import hashlib
import os
from pathlib import Path

import torch

torch.set_num_threads(1)

# Numba asks whether the file of a function has changed, not those that it imports: kernels compiled
# from other sources than these must not be found.
ROOT = Path(__file__).parents[1]
SOURCES = sorted(ROOT.glob("src/entmeans/kernels/*.py"))
DIGEST = hashlib.sha256(b"".join(path.read_bytes() for path in SOURCES)).hexdigest()[:16]
os.environ.setdefault("NUMBA_CACHE_DIR", str(ROOT / ".pytest_cache" / f"numba-{DIGEST}"))
