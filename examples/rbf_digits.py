"""A radial-basis-function network on digits: two stages against joint training.

The classic recipe puts centers where K-means puts them and then trains the read-out alone.  Trained
jointly, centers and width move to where the classes are told apart: the same 20 units do better.
"""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor
from torch.nn.functional import cross_entropy

import entmeans

K = 20


def train(network: entmeans.nn.RBFNetwork, parameters: list[Tensor], x: Tensor, y: Tensor) -> None:
    optimizer = torch.optim.Adam(parameters, lr=0.03)
    for _ in range(500):
        loss = cross_entropy(network(x), y)  # logits (N, 10)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main() -> dict[str, float]:
    torch.manual_seed(0)
    digits = load_digits()
    x = torch.tensor(digits.data / 16, dtype=torch.float32)  # (1797, 64)
    y = torch.tensor(digits.target)
    rows = train_test_split(range(len(x)), train_size=0.6, stratify=y, random_state=0)
    fit, test = (torch.tensor(r) for r in rows)

    network = entmeans.nn.RBFNetwork(n_features=64, n_centers=K, n_outputs=10)
    network.reset_centers(x[fit], generator=torch.Generator().manual_seed(0))  # k-means++, width
    with torch.no_grad():
        annealed = entmeans.anneal(x[fit], network.clusters.centers)
        network.clusters.centers.copy_(annealed.centers)  # (20, 64)

    def accuracy() -> float:
        with torch.no_grad():
            return (network(x[test]).argmax(1) == y[test]).float().mean().item()

    # The second stage goes on where the first has stopped learning, so that it cannot win by
    # training for longer: the read-out alone gets as many steps again.
    readout = list(network.readout.parameters())
    train(network, readout, x[fit], y[fit])
    once = {k: v.clone() for k, v in network.state_dict().items()}
    train(network, readout, x[fit], y[fit])
    two_stages, width = accuracy(), network.widths.item()
    network.load_state_dict(once)
    train(network, list(network.parameters()), x[fit], y[fit])
    return {
        "two stages": two_stages,
        "joint": accuracy(),
        "width before": width,
        "width after": network.widths.item(),
    }


if __name__ == "__main__":
    print(main())
