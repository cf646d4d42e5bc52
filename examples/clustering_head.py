"""A clustering head: an autoencoder of digits that learns to cluster while it learns to encode.

Its clusters agree with the classes better than those of K-means on pixels.  So do those of
K-means on the embedding of the same autoencoder, trained for as long without the head: what the
head adds is that clusters become tighter and come with the network.
"""

import copy

import torch
from scipy.optimize import linear_sum_assignment
from sklearn.datasets import load_digits
from sklearn.metrics import adjusted_rand_score, confusion_matrix, normalized_mutual_info_score
from torch import Tensor, nn

import entmeans

K, D, EPOCHS, N_NEIGHBORS = 10, 10, 30, 5


def measure(labels: Tensor, x: Tensor, centers: Tensor) -> Tensor:
    """Accuracy, ARI, NMI, and the share of the spread that is left within clusters."""
    found, true = labels.numpy(), load_digits().target
    table = confusion_matrix(true, found)
    best = linear_sum_assignment(table, maximize=True)  # one cluster for each class
    spread = (x - x.mean(0)).square().sum()
    return torch.tensor(
        [
            table[best].sum() / len(true),
            adjusted_rand_score(true, found),
            normalized_mutual_info_score(true, found),
            entmeans.inertia(x, centers) / spread,
        ]
    )


def train(
    net: nn.ModuleDict,
    pixels: Tensor,
    near: Tensor,
    generator: torch.Generator,
    head: entmeans.nn.SoftKMeans | None = None,
) -> None:
    """Encode neighbors alike, decode a neighbor, and cluster if there is a head."""
    parts = [net] if head is None else [net, head]
    optimizer = torch.optim.Adam(nn.ModuleList(parts).parameters(), lr=0.002)
    if head is not None:  # soft for 25 epochs, then K-means
        cooling = entmeans.Geometric(0.85, steps=EPOCHS - 5)
        scheduler = entmeans.nn.TemperatureScheduler(head, cooling)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(pixels), generator=generator).split(256):
            pick = torch.randint(N_NEIGHBORS, batch.shape, generator=generator)
            neighbor = pixels[near[batch, pick]]  # (256, 64)
            z, z_neighbor = net["encoder"](pixels[batch]), net["encoder"](neighbor)  # (256, D)
            loss = (net["decoder"](z) - neighbor).square().sum(1).mean()
            loss = loss + (z - z_neighbor).square().sum(1).mean()
            if head is not None:
                loss = loss + head.loss(z)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if head is not None:
            scheduler.step()


def run(pixels: Tensor, seed: int) -> Tensor:
    """Measures (3, 4): of pixels, of the embedding trained without a head, and with one."""
    torch.manual_seed(seed)  # for the weights
    generator = torch.Generator().manual_seed(seed)
    near = torch.cdist(pixels, pixels).topk(N_NEIGHBORS + 1, largest=False).indices[:, 1:]
    raw = entmeans.anneal(pixels, entmeans.kmeans_plusplus(pixels, K, generator=generator))

    encoder = [nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, D)]
    decoder = [nn.Linear(D, 256), nn.ReLU(), nn.Linear(256, 64)]
    net = nn.ModuleDict({"encoder": nn.Sequential(*encoder), "decoder": nn.Sequential(*decoder)})
    train(net, pixels, near, generator)
    z = net["encoder"](pixels).detach()  # (1797, D)
    start = entmeans.anneal(z, entmeans.kmeans_plusplus(z, K, generator=generator)).centers

    without = copy.deepcopy(net)
    train(without, pixels, near, generator)
    z_without = without["encoder"](pixels).detach()
    two = entmeans.anneal(z_without, start)

    first = entmeans.reference_temperature(z, start)
    head = entmeans.nn.SoftKMeans(K, D, temperature=first)
    head.centers.data.copy_(start)
    train(net, pixels, near, generator, head)
    z = net["encoder"](pixels).detach()
    warning = head.usage(z).warning  # where clusters, or points, have become one
    if warning is not None:
        raise warning
    return torch.stack(
        [
            measure(raw.labels, pixels, raw.centers),
            measure(two.labels, z_without, two.centers),
            measure(head.predict(z), z, head.centers.detach()),
        ]
    )


def main(n_seeds: int = 3) -> dict[str, dict[str, float]]:
    """Means over seeds."""
    pixels = torch.tensor(load_digits().data / 16, dtype=torch.float32)  # (1797, 64)
    means = torch.stack([run(pixels, seed) for seed in range(n_seeds)]).mean(0)
    measures = "accuracy", "ARI", "NMI", "within"
    return {
        name: dict(zip(measures, row, strict=True))
        for name, row in zip(("pixels", "two stages", "joint"), means.tolist(), strict=True)
    }


if __name__ == "__main__":
    for name, row in main().items():
        print(name, row)
