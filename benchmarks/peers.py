"""The peers: one function each, on the same points and centers, held to the same threads."""

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import entmax
import faiss
import fast_pytorch_kmeans
import numpy as np
import torch
import torch_kmeans
from memory import resident
from sklearn.cluster import KMeans, MiniBatchKMeans
from threadpoolctl import threadpool_limits
from timing import THREADS
from torch import Tensor

UNIT_TEMPERATURE = 0.4
"""T of torch_kmeans.SoftKMeans on unit vectors: it weighs with exp(5 cos), and d = 2 - 2 cos."""


def limit_threads() -> None:
    """The same number of threads for torch, OpenMP and BLAS, for the life of the process."""
    torch.set_num_threads(THREADS)
    faiss.omp_set_num_threads(THREADS)
    threadpool_limits(THREADS)


def lloyd(points: np.ndarray, centers: np.ndarray, **limits: float) -> KMeans:
    return KMeans(len(centers), init=centers, n_init=1, algorithm="lloyd", **limits).fit(points)


def elkan(points: np.ndarray, centers: np.ndarray) -> KMeans:
    return KMeans(len(centers), init=centers, n_init=1, algorithm="elkan").fit(points)


def mini_batch(points: np.ndarray, centers: np.ndarray) -> MiniBatchKMeans:
    return MiniBatchKMeans(len(centers), init=centers, n_init=1, random_state=0).fit(points)


def faiss_fit(points: np.ndarray, centers: np.ndarray, steps: int) -> faiss.Kmeans:
    """All points, without the subsampling that faiss would do by default."""
    sizes = {"min_points_per_centroid": 1, "max_points_per_centroid": len(points)}
    model = faiss.Kmeans(points.shape[1], len(centers), niter=steps, **sizes)
    model.train(points, init_centroids=centers)
    return model


def fast_pytorch_fit(points: Tensor, centers: Tensor, steps: int) -> Tensor:
    model = fast_pytorch_kmeans.KMeans(len(centers), max_iter=steps, tol=-1)
    model.fit_predict(points, centroids=centers.clone())
    return model.centroids


def torch_kmeans_fit(points: Tensor, centers: Tensor, steps: int) -> Tensor:
    model = torch_kmeans.KMeans(num_init=1, max_iter=steps, tol=0, verbose=False)
    return model(points[None], k=len(centers), centers=centers[None].clone()).centers[0]


def torch_soft_fit(points: Tensor, centers: Tensor, steps: int) -> Tensor:
    """On unit vectors: normalizing them itself, it multiplies with an N x N matrix."""
    model = torch_kmeans.SoftKMeans(
        num_init=1, max_iter=steps, tol=0, normalize=None, verbose=False
    )
    return model(points[None], k=len(centers), centers=centers[None].clone()).centers[0]


def naive_free_energy(points: Tensor, centers: Tensor, temperature: float) -> Tensor:
    """Softmax: -T logsumexp(-d/T), all N x K distances recorded by autograd."""
    d = torch.cdist(points, centers).square()
    return -temperature * torch.logsumexp(-d / temperature, dim=1).mean()


def entmax_free_energy(points: Tensor, centers: Tensor, temperature: float) -> Tensor:
    """<p, d> - T H(p) with p of the package entmax, differentiated through p."""
    d = torch.cdist(points, centers).square()
    p = entmax.entmax15(-d / temperature, dim=1)
    entropy = 4 / 3 * (p - p.pow(1.5)).sum(1)
    return ((p * d).sum(1) - temperature * entropy).mean()


def attempted(call: Callable[[], Tensor]) -> tuple[Tensor | None, str]:
    """What a call returns, or None and why it cannot run here."""
    try:
        with _memory_left():
            return call(), ""
    except Exception as error:  # whatever it is, the line of that peer reports it
        reason = str(error).strip().partition("\n")[0]
        return None, f"cannot run: {type(error).__name__}: {reason[:120]}"


@contextmanager
def _memory_left(share: float = 0.8) -> Iterator[None]:
    """Make an allocation beyond that share of the free memory an error, not the end of all."""
    free = int(Path("/proc/meminfo").read_text().split("MemAvailable:")[1].split()[0]) / 1024
    before = resource.getrlimit(resource.RLIMIT_AS)
    limit = int((resident("VmSize") + share * free) * 2**20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
