"""Two processes equal one: the same centers on both, and those that all points together give.

Run as a script, this file is one of the processes.
"""

import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

from entmeans.nn import CenterSGD, SoftKMeans

N_STEPS = 4
SHARDS = {"uneven": (37, 5), "one empty": (42, 0)}

# float64; each step adds up the points in another order, and a few steps magnify that little.
CLOSE = {"rtol": 1e-10, "atol": 1e-12}


def normal(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def clusters(temperature=0.5, **options):
    layer = SoftKMeans(4, 2, temperature=temperature, dtype=torch.float64, **options)
    if not options:
        layer.centers.data.copy_(normal(4, 2, seed=1))
    return layer


class Encoded(nn.Module):
    """The loss of encoded points."""

    def __init__(self):
        super().__init__()
        self.encoder, self.clusters = nn.Linear(2, 2, dtype=torch.float64), clusters()
        self.encoder.weight.data.copy_(torch.eye(2) + 0.1 * normal(2, 2, seed=2))
        self.encoder.bias.data.zero_()

    def forward(self, x):
        return self.clusters.loss(self.encoder(x), "sum")


class Plain(nn.Module):
    """The loss of points as they are."""

    def __init__(self, **options):
        super().__init__()
        self.clusters = clusters(**options)

    def forward(self, x):
        return self.clusters.loss(x, "sum")


def train(model, mine, wrap, n, *others, decay=0.5):
    """The centers after each step, and all parameters after the last.

    `DistributedDataParallel` takes the mean over the processes.  One process that stands for n
    divides its loss by n, which for the encoder is the same; for the centers any factor is.
    """
    optimizers = [CenterSGD(model.clusters, decay=decay), *others]
    wrapped, found = wrap(model), []
    for i in range(N_STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        (wrapped(mine(normal(42, 2, seed=10 + i))) / n).backward()
        for optimizer in optimizers:
            optimizer.step()
        found.append(model.clusters.centers.detach().clone())
    return found + [p.detach().clone() for p in model.parameters()]


def centers_alone(mine, wrap, n):
    return train(Plain(), mine, lambda model: model, n)


def hard_centers_alone(mine, wrap, n):
    return train(Plain(temperature=0.0), mine, lambda model: model, n, decay=1.0)


def with_ddp(mine, wrap, n):
    return train(Plain(), mine, wrap, n)


def encoder_by_sgd(mine, wrap, n):
    model = Encoded()
    return train(model, mine, wrap, n, torch.optim.SGD(model.encoder.parameters(), lr=0.01))


def encoder_by_adam(mine, wrap, n):
    model = Encoded()
    return train(model, mine, wrap, n, torch.optim.Adam(model.encoder.parameters(), lr=0.01))


def drawn(mine, wrap, n):
    layer = clusters()
    # One process alone must decide: the generators of the others are not those of the first.
    seed = dist.get_rank() if dist.is_initialized() else 0
    layer.reset_centers(mine(normal(42, 2)), generator=torch.Generator().manual_seed(seed))
    return [layer.centers.detach()]


def revived(mine, wrap, n):
    layer = clusters()
    layer.centers.data[1:3] += 100
    optimizer = CenterSGD(layer, decay=1.0)
    x = normal(42, 2)
    layer.loss(mine(x), "sum").backward()
    optimizer.step()
    moved = layer.revive(mine(x), optimizer)
    mass = optimizer.state[layer.mass]["mass"]  # of two processes, the mean
    return [layer.centers.detach(), moved, mass / mass.sum()]


def drawn_by_the_first_batch(mine, wrap, n):
    model = Plain(centers_from_data=True)
    wrapped = wrap(model)
    with torch.no_grad():
        wrapped(mine(normal(42, 2)))
    return [model.clusters.centers.detach()]


OF_TRAINING = (centers_alone, hard_centers_alone, with_ddp, encoder_by_sgd, encoder_by_adam)
OTHERS = (drawn, revived, drawn_by_the_first_batch)
SCENARIOS = {scenario.__name__: scenario for scenario in (*OF_TRAINING, *OTHERS)}


def work(rank: int, folder: Path) -> None:
    """All scenarios, as one of two processes."""
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'store'}",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=40),
    )
    found = {}
    for name, sizes in SHARDS.items():
        for scenario, function in SCENARIOS.items():

            def mine(x, sizes=sizes):
                return x.split(sizes)[rank]

            found[name, scenario] = function(mine, DistributedDataParallel, 1)
    torch.save(found, folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def of_two(tmp_path_factory):
    """What each of two processes finds."""
    folder = tmp_path_factory.mktemp("processes")
    command = [sys.executable, "-W", "error", __file__]
    logs = [folder / f"{rank}.log" for rank in range(2)]
    running = []
    for rank, log in enumerate(logs):
        with log.open("w") as out:
            arguments = [*command, str(rank), str(folder)]
            running.append(
                subprocess.Popen(
                    arguments, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
                )
            )
    end = time.monotonic() + 120
    try:
        for process in running:
            process.wait(max(0.1, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        pytest.fail("deadlock: no answer after 120 s\n" + "\n".join(map(Path.read_text, logs)))
    finally:
        for process in running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    assert all(p.returncode == 0 for p in running), "\n".join(map(Path.read_text, logs))
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


each_split = pytest.mark.parametrize("shards", SHARDS)


@each_split
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_all_processes_have_the_same_centers_to_the_last_bit(of_two, shards, scenario):
    first, second = (found[shards, scenario] for found in of_two)
    assert len(first) == len(second) > 0
    for a, b in zip(first, second, strict=True):
        assert a.isfinite().all()
        assert torch.equal(a, b)


@each_split
@pytest.mark.parametrize(
    "scenario", [name for name in SCENARIOS if name != "drawn_by_the_first_batch"]
)
def test_two_processes_find_what_one_finds_with_all_points(of_two, shards, scenario):
    alone = SCENARIOS[scenario](lambda x: x, lambda model: model, 2)
    for found, wanted in zip(of_two[0][shards, scenario], alone, strict=True):
        assert_close(found, wanted, **CLOSE)


def test_training_went_somewhere(of_two):
    """Else the tests above would compare what nothing has changed."""
    for scenario in ("centers_alone", "with_ddp", "encoder_by_sgd", "encoder_by_adam"):
        first, *_, last = of_two[0]["uneven", scenario][:N_STEPS]
        assert (last - first).abs().max() > 0.01
    for scenario in ("encoder_by_sgd", "encoder_by_adam"):
        weight, bias, _ = of_two[0]["uneven", scenario][N_STEPS:]
        assert (weight - Encoded().encoder.weight).abs().max() > 1e-3
        assert bias.abs().max() > 1e-3
    assert of_two[0]["uneven", "revived"][1].tolist() == [1, 2]
    assert of_two[0]["uneven", "revived"][2][1:3].tolist() == [0, 0]


@each_split
def test_the_first_batch_of_all_processes_sets_the_centers(of_two, shards):
    (centers,) = of_two[1][shards, "drawn_by_the_first_batch"]
    assert (centers.unsqueeze(1) == normal(42, 2)).all(-1).any(-1).all()


if __name__ == "__main__":
    work(int(sys.argv[1]), Path(sys.argv[2]))
    # Threads of torch may still hold objects of an interpreter that ends, and the process is then
    # aborted ("terminate called without an active exception") when all is done.
    os._exit(0)
