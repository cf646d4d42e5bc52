"""A learned codebook: digits in 4 words of 6 bits each, by a vector-quantizing autoencoder.

`quantize(hard=True)` puts the nearest code in the place of each quarter of a digit and is straight
through to the encoder; `loss` commits the encoder to its codes; `CenterSGD` is their moving
average; `revive` puts codes that nobody uses where they are missed, else most of them stay dead.
"""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import entmeans

K, D = 64, 8


def train(pictures: Tensor, revive: bool) -> dict[str, float]:
    torch.manual_seed(0)
    quarters = pictures.reshape(-1, 2, 4, 2, 4).transpose(2, 3).reshape(-1, 4, 16)  # (N, 4, 16)
    encoder = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, D))
    decoder = nn.Sequential(nn.Flatten(), nn.Linear(4 * D, 128), nn.ReLU(), nn.Linear(128, 64))
    codebook = entmeans.nn.SoftKMeans(K, D, temperature=0.0)  # hard; codes drawn far from the data
    codes = entmeans.nn.CenterSGD(codebook, decay=0.99)
    others = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=0.002)

    def report(when: str) -> dict[str, float]:
        with torch.no_grad():
            z = encoder(quarters)  # (N, 4, D)
            output = decoder(codebook.quantize(z, hard=True))  # (N, 64)
            return {
                f"error {when}": (output - pictures).square().mean().item(),
                f"perplexity {when}": codebook.usage(z).perplexity,  # of K = 64
            }

    before = report("before")
    for epoch in range(30):
        for batch in torch.randperm(len(pictures)).split(128):
            z = encoder(quarters[batch])
            output = decoder(codebook.quantize(z, hard=True))
            error = (output - pictures[batch]).square().sum(1).mean()
            loss = error + codebook.loss(z)  # to codes and encoder: commitment
            others.zero_grad()
            codes.zero_grad()
            loss.backward()
            others.step()
            codes.step()
        if revive and epoch < 25:  # the last ones settle
            with torch.no_grad():
                codebook.revive(encoder(quarters), codes, min_share=0.1 / K)
    return before | report("after")


def main() -> dict[str, dict[str, float]]:
    pictures = torch.tensor(load_digits().data / 16, dtype=torch.float32)  # (1797, 64)
    return {
        "with revive": train(pictures, revive=True),
        "without": train(pictures, revive=False),
    }


if __name__ == "__main__":
    print(main())
