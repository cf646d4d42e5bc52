"""Threads, processes, memory, and the state of the world outside a fit."""

import ast
import os
import random
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import entmeans
from entmeans import EntMeans, operators
from entmeans.step import CHUNK_ELEMENTS

MAPPINGS = ["softmax", "entmax15", "sparsemax", "hard"]
each_mapping = pytest.mark.parametrize("mapping", MAPPINGS)

# Python 3.12 and later warn of any fork in a process with threads; here forking is the point.
FORK_WARNING = "ignore:This process:DeprecationWarning"


def run(script: str, timeout: float = 60) -> str:
    """What a script prints in a fresh interpreter; a deadlock ends with it and its children."""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-W", FORK_WARNING, "-c", textwrap.dedent(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        printed, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        pytest.fail(f"deadlock: no answer after {timeout} s")
    assert process.returncode == 0, errors
    return printed.strip()


# Row 29: random states and threads


@pytest.mark.parametrize("init", ["k-means++", "random"])
@pytest.mark.parametrize("random_state", [None, 0])
def test_row_29_a_fit_leaves_the_global_random_states_alone(init, random_state):
    X = np.random.default_rng(0).standard_normal((50, 2))

    def states():
        name, keys, *rest = np.random.get_state()  # noqa: NPY002
        return random.getstate(), (name, keys.tolist(), *rest), torch.get_rng_state().tolist()

    before = states()
    model = EntMeans(4, init=init, n_init=2, random_state=random_state).fit(X)
    model.predict(X)
    assert states()[0] == before[0]
    assert states()[2] == before[2]
    if random_state is not None:  # None stands for NumPy's global state, as in scikit-learn
        assert states()[1] == before[1]


@pytest.fixture
def threads():
    """A function that sets the number of torch threads until the end of the test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize(("mapping", "dtype"), [("entmax15", np.float32), ("hard", np.float64)])
def test_row_29_the_number_of_threads_changes_no_label(mapping, dtype, threads):
    X = np.random.default_rng(0).standard_normal((8_000, 8)).astype(dtype)  # large enough to share
    fits = []
    for n in (1, 2):
        threads(n)
        fits.append(EntMeans(10, mapping=mapping, max_iter=4, random_state=0).fit(X))
        assert torch.get_num_threads() == n
    np.testing.assert_array_equal(fits[0].labels_, fits[1].labels_)
    assert fits[0].n_iter_ == fits[1].n_iter_
    rel = 1e-12 if dtype is np.float64 else 1e-6
    assert fits[0].inertia_ == pytest.approx(fits[1].inertia_, rel=rel)


# Row 31: memory


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that any operator makes."""

    def __init__(self):
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        for value in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(value, torch.Tensor):
                self.largest = max(self.largest, value.untyped_storage().nbytes() // value.itemsize)
        return result


N, K = 10_000, 200
BOUND = CHUNK_ELEMENTS + 5 * K
"""Well below N K = 2,000,000, and room for what is as large as the points."""


def problem(d: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(N, d, generator=generator)
    return points, points[:K] + 0.01, torch.rand(N, generator=generator)


def backward(points, centers, mapping):
    points.requires_grad_()
    centers.requires_grad_()
    entmeans.free_energy(points, centers, 0.1, mapping).backward()
    assert points.grad.shape == points.shape
    assert centers.grad.shape == centers.shape


CALLS = {
    "anneal": lambda x, c, w, m: entmeans.anneal(x, c, mapping=m, sample_weight=w, max_iter=2),
    "statistics": lambda x, c, w, m: entmeans.statistics(x, c, 0.1, m, w),
    "free energy": lambda x, c, w, m: entmeans.free_energy(x, c, 0.1, m, w),
    "free energy, backward": lambda x, c, w, m: backward(x, c, m),
    "inertia": lambda x, c, w, m: entmeans.inertia(x, c, w),
    "nearest": lambda x, c, w, m: entmeans.nearest(x, c),
    "hardening temperature": lambda x, c, w, m: entmeans.hardening_temperature(x, c, m, w),
    "bounds": lambda x, c, w, m: entmeans.free_energy_bounds(x, c, 0.1, m, w),
    "fixed point": lambda x, c, w, m: entmeans.is_fixed_point(x, c, 0.1, m, w),
    "k-means++": lambda x, c, w, m: entmeans.kmeans_plusplus(x, 5, w, n_local_trials=100),
    "fit": lambda x, c, w, m: EntMeans(K, mapping=m, init=c, max_iter=2).fit(x, sample_weight=w),
    "predict": lambda x, c, w, m: EntMeans.from_centers(c).predict(x),
    "score": lambda x, c, w, m: EntMeans.from_centers(c).score(x, sample_weight=w),
}


@pytest.fixture
def formulas(monkeypatch):
    """The operators as plain functions, so that a watch sees inside."""
    for operator, formula in operators.FORMULAS.items():
        monkeypatch.setattr(operators, operator._name, formula)


@pytest.mark.filterwarnings("ignore:Number of distinct clusters")
@pytest.mark.parametrize("d", [3, 5])  # distances from differences, and from a matrix product
@pytest.mark.parametrize("call", CALLS)
def test_row_31_nothing_of_size_n_times_k_is_ever_made(call, d, formulas):
    points, centers, weight = problem(d)
    with Largest() as watch:
        CALLS[call](points, centers, weight, "entmax15")
    assert 0 < watch.largest <= BOUND


def test_row_31_the_watch_sees_what_is_too_large(formulas):
    points, centers, _ = problem(3)
    with Largest() as watch:
        entmeans.squared_distances(points, centers)
    assert watch.largest == N * K


def test_row_31_the_largest_tensor_does_not_grow_with_n(formulas):
    seen = []
    for n in (100_000, 400_000):
        points = torch.zeros(1, 1).expand(n, 1)
        with Largest() as watch:
            entmeans.statistics(points, torch.arange(20.0).unsqueeze(1), 0.0)
        seen.append(watch.largest)
    assert seen[0] <= CHUNK_ELEMENTS
    assert seen[1] == max(seen[0], 400_000)  # the weights of 1


@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="reads Linux's /proc")
def test_row_31_peak_memory_stays_far_below_n_times_k():
    """Resident memory: small tensors kept between large ones fragment the heap to any size."""
    script = r"""
        import re
        import numpy as np, torch
        import entmeans
        torch.set_num_threads(1)

        def megabytes(name):
            with open("/proc/self/status") as status:
                return int(re.search(name + r":\s+(\d+) kB", status.read())[1]) / 1024

        def peak(function):
            with open("/proc/self/clear_refs", "w") as reset:
                reset.write("5")  # the peak becomes what is resident now
            before = megabytes("VmRSS")
            function()
            return megabytes("VmHWM") - before

        def backward():
            points = torch.from_numpy(X).requires_grad_()
            entmeans.free_energy(points, points[:400].detach() + 1e-3, 0.0).backward()

        X = np.random.default_rng(0).standard_normal((60_000, 4))
        model = entmeans.EntMeans(400, init=X[:400] + 1e-3, temperature=0, max_iter=1)
        model.fit(X[:2_000])  # warm up
        model.score(X[:2_000])  # torch imports its compiler with the first operator
        calls = {
            "fit": lambda: model.fit(X),
            "predict": lambda: model.predict(X),
            "score": lambda: model.score(X),
            "backward": backward,
            "transform": lambda: model.transform(X),
        }
        print({name: peak(call) for name, call in calls.items()})
    """
    peaks = ast.literal_eval(run(script))
    result = 60_000 * 400 * 8 / 2**20  # 183 MB
    assert peaks.pop("transform") > 0.8 * result  # the watch sees what is large
    assert max(peaks.values()) < 0.4 * result, peaks


# Row 32: processes and threads after a fit


FITTED = """
    import os
    import numpy as np, torch
    from entmeans import EntMeans
    torch.set_num_threads(2)
    X = np.random.default_rng(0).standard_normal((20_000, 16))
    model = EntMeans(20, random_state=0, max_iter=3).fit(X)  # wakes torch's thread pool
    expected = model.predict(X)
"""


def run_after_fit(script: str) -> str:
    return run(textwrap.dedent(FITTED) + textwrap.dedent(script))


def test_row_32_a_forked_process_predicts_and_fits():
    script = """
        child = os.fork()
        if child == 0:
            code = 1
            try:
                same = np.array_equal(model.predict(X), expected)
                again = EntMeans(20, random_state=0, max_iter=3).fit(X)
                code = 0 if same and np.array_equal(again.labels_, model.labels_) else 2
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert np.array_equal(model.predict(X), expected)
        print(os.waitstatus_to_exitcode(status))
    """
    assert run_after_fit(script) == "0"


def test_row_32_workers_of_a_data_loader_predict():
    script = """
        from torch.utils.data import DataLoader, Dataset

        class Labels(Dataset):
            def __len__(self):
                return 16

            def __getitem__(self, i):
                return int(model.predict(X[i : i + 1])[0]), int(model.predict(X)[i])

        loader = DataLoader(Labels(), batch_size=4, num_workers=2, multiprocessing_context="fork")
        found = torch.cat([torch.stack(batch, 1) for batch in loader])
        print((found == torch.from_numpy(expected[:16]).unsqueeze(1)).all().item())
    """
    assert run_after_fit(script) == "True"


@pytest.mark.parametrize("mapping", ["entmax15", "hard"])
def test_row_32_ten_threads_use_one_model_at_once(mapping, threads):
    threads(2)
    X = np.random.default_rng(0).standard_normal((2_000, 8))
    model = EntMeans(6, mapping=mapping, random_state=0).fit(X)
    labels, proba = model.predict(X), model.predict_proba(X, 0.5)
    with ThreadPoolExecutor(10) as pool:
        jobs = [pool.submit(model.predict, X) for _ in range(10)]
        jobs += [pool.submit(model.predict_proba, X, 0.5) for _ in range(10)]
        results = [job.result(timeout=60) for job in jobs]
    for found in results[:10]:
        np.testing.assert_array_equal(found, labels)
    for found in results[10:]:
        np.testing.assert_array_equal(found, proba)


def test_row_32_ten_threads_fit_at_once():
    X = np.random.default_rng(0).standard_normal((500, 4))
    expected = [EntMeans(5, random_state=seed).fit(X).cluster_centers_ for seed in range(10)]
    with ThreadPoolExecutor(10) as pool:
        fits = list(pool.map(lambda seed: EntMeans(5, random_state=seed).fit(X), range(10)))
    for model, centers in zip(fits, expected, strict=True):
        np.testing.assert_array_equal(model.cluster_centers_, centers)


# Row 33: work per step


class Count(TorchDispatchMode):
    """How many operators run, and how many wait for a value from the device."""

    def __init__(self):
        super().__init__()
        self.operators = self.waits = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        self.operators += 1
        self.waits += function is torch.ops.aten._local_scalar_dense.default
        return function(*arguments, **(keywords or {}))


def counted(k: int, steps: int, mapping: str) -> Count:
    points = torch.randn(1_000, 3, generator=torch.Generator().manual_seed(0))
    with Count() as count:
        result = entmeans.anneal(
            points, points[:k], mapping=mapping, temperature=1.0, tol=0, max_iter=steps
        )
    assert len(result.history) == steps
    return count


@each_mapping
def test_row_33_a_step_has_no_loop_over_clusters_and_hardly_waits(mapping):
    few, many, longer = (counted(k, steps, mapping) for k, steps in ((4, 3), (100, 3), (4, 5)))
    assert many.operators == few.operators
    assert many.waits == few.waits
    assert (longer.waits - few.waits) / 2 <= 8  # a record of 5 values, at worst one by one


# Row 34: dependencies


def test_row_34_importing_the_library_loads_only_what_it_needs():
    optional = "polars matplotlib typer rich safetensors entmax hypothesis PIL"
    script = f"""
        import sys
        import entmeans
        print("sklearn" in sys.modules, [m for m in {optional.split()} if m in sys.modules])
        entmeans.EntMeans
        print("sklearn" in sys.modules, [m for m in {optional.split()} if m in sys.modules])
    """
    assert run(script).splitlines() == ["False []", "True []"]
