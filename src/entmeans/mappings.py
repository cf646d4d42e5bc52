"""The mappings from scores to responsibilities: softmax, entmax15, sparsemax and their limit, hard.

Each solves, over the probability simplex and for a row of scores ``z``,

    p(z) = argmax_p  <p, z> + H(p)

with its own entropy ``H`` (Blondel, Martins and Niculae 2020).  In K-means ``z = -d / T``: squared
distances over a temperature.  The three soft mappings share one Jacobian, diag(s) - s s' / sum(s),
and differ only in the sensitivity ``s``.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


class Mapping:
    """One mapping: probabilities, their Jacobian, the entropy, and when the result is one-hot.

    Attributes
    ----------
    name : str
        The name that users pass as ``mapping=``.
    one_hot_margin : float
        ``p`` is exactly one-hot if and only if the largest score exceeds the second largest by at
        least this much (``inf``: never).
    """

    name: str
    one_hot_margin: float

    def probabilities(self, scores: Tensor) -> Tensor:
        """The maximizer ``p`` for each row (last dimension) of scores."""
        raise NotImplementedError

    def sensitivity(self, p: Tensor) -> Tensor:
        """The vector ``s`` of the Jacobian dp/dz = diag(s) - s s' / sum(s)."""
        raise NotImplementedError

    def entropy(self, p: Tensor) -> Tensor:
        """``H(p)`` of each row, 0 at every one-hot row."""
        raise NotImplementedError

    def max_entropy(self, n: int) -> float:
        """The largest ``H`` over ``n`` outcomes, reached at ``p = 1/n``."""
        raise NotImplementedError

    def vjp(self, p: Tensor, gradient: Tensor) -> Tensor:
        """The gradient with respect to the scores, from the gradient with respect to ``p``."""
        s = self.sensitivity(p)
        mean = (s * gradient).sum(-1, keepdim=True) / s.sum(-1, keepdim=True)
        return s * (gradient - mean)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class Hard(Mapping):
    """One-hot at the largest score, ties to the lowest index: the limit T -> 0 of every mapping."""

    name = "hard"
    one_hot_margin = 0.0

    def probabilities(self, scores: Tensor) -> Tensor:
        z = _from_the_top(scores)
        one_hot = torch.zeros_like(z).scatter(-1, z.argmax(-1, keepdim=True), 1.0)
        return one_hot.masked_fill(z.isnan(), math.nan)

    def vjp(self, p: Tensor, gradient: Tensor) -> Tensor:
        return torch.zeros_like(gradient)

    def sensitivity(self, p: Tensor) -> Tensor:
        return torch.zeros_like(p)

    def entropy(self, p: Tensor) -> Tensor:
        return torch.zeros_like(p[..., 0])

    def max_entropy(self, n: int) -> float:
        return 0.0


class Softmax(Mapping):
    """Shannon entropy -sum p log p: the normalized Gaussian RBF network.  Never one-hot."""

    name = "softmax"
    one_hot_margin = math.inf

    def probabilities(self, scores: Tensor) -> Tensor:
        z = _from_the_top(scores)
        # Subnormal responsibilities carry no weight and slow every later product several times.
        floor = math.log(torch.finfo(z.dtype).tiny * z.shape[-1])
        p = z.exp().masked_fill(z < floor, 0.0)
        return p / p.sum(-1, keepdim=True)

    def sensitivity(self, p: Tensor) -> Tensor:
        return p

    def entropy(self, p: Tensor) -> Tensor:
        # The logarithm has an infinite slope at 0: keep it out of second derivatives.
        return -(p * torch.where(p > 0, p, 1.0).log()).sum(-1)

    def max_entropy(self, n: int) -> float:
        return math.log(n)


class Entmax15(Mapping):
    """Tsallis entropy 4/3 sum(p - p^1.5): p = [z/2 - tau]_+^2, one-hot from a margin of 2."""

    name = "entmax15"
    one_hot_margin = 2.0

    def probabilities(self, scores: Tensor) -> Tensor:
        # tau is at least -1, so a score 2 below the top (x = -1) has no mass.
        x = (_from_the_top(scores) / 2).clamp_min(-1.0)
        tau = torch.full_like(x[..., :1], -1.0)
        # Newton from the left on the convex decreasing ||[x - tau]_+|| - 1 never overshoots; at 10
        # steps it has converged for 100,000 scores.
        for _ in range(10):
            q = (x - tau).clamp_min(0.0)
            square = q.square().sum(-1, keepdim=True)
            tau = tau + (square - square.sqrt()) / q.sum(-1, keepdim=True)
        # The support is settled; on it tau has a closed form.
        support = x > tau
        size = support.sum(-1, keepdim=True)
        inside = torch.where(support, x, 0.0)
        mean = inside.sum(-1, keepdim=True) / size
        spread = torch.where(support, x - mean, 0.0).square().sum(-1, keepdim=True)
        tau = mean - ((1 - spread) / size).sqrt()
        return (x - tau).clamp_min(0.0).square()

    def sensitivity(self, p: Tensor) -> Tensor:
        positive = p > 0  # the root has an infinite slope at 0: keep it out of second derivatives
        return torch.where(positive, torch.where(positive, p, 1.0).sqrt(), p)

    def entropy(self, p: Tensor) -> Tensor:
        return 4 / 3 * (p - p * self.sensitivity(p)).sum(-1)

    def max_entropy(self, n: int) -> float:
        return 4 / 3 * (1 - n**-0.5)


class Sparsemax(Mapping):
    """Gini entropy 1/2 sum(p - p^2): p = [z - tau]_+, one-hot from a margin of 1."""

    name = "sparsemax"
    one_hot_margin = 1.0

    def probabilities(self, scores: Tensor) -> Tensor:
        x = _from_the_top(scores).clamp_min(-1.0)
        # Newton as above may take as many steps as there are scores here, so sort: the support is
        # the longest head of the order in which the last score exceeds its own threshold.
        order = x.sort(-1, descending=True).values
        size = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)
        thresholds = (order.cumsum(-1) - 1) / size
        last = (order > thresholds).sum(-1, keepdim=True) - 1
        support = x > thresholds.gather(-1, last.clamp_min(0))
        inside = torch.where(support, x, 0.0).sum(-1, keepdim=True)
        tau = (inside - 1) / support.sum(-1, keepdim=True)
        return (x - tau).clamp_min(0.0)

    def sensitivity(self, p: Tensor) -> Tensor:
        return (p > 0).to(p.dtype)

    def entropy(self, p: Tensor) -> Tensor:
        return (p - p.square()).sum(-1) / 2

    def max_entropy(self, n: int) -> float:
        return (1 - 1 / n) / 2


HARD = Hard()
MAPPINGS: dict[str, Mapping] = {m.name: m for m in (Softmax(), Entmax15(), Sparsemax(), HARD)}


def built_in(mapping: Mapping) -> bool:
    """Whether the name of the mapping says all about it."""
    return type(MAPPINGS.get(mapping.name)) is type(mapping)


class Differentiable(torch.autograd.Function):
    """Probabilities with the closed-form Jacobian, differentiable any number of times.

    ``run`` gives them from scores, ``pull`` the derivative by the scores from (p, gradient).
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, mapping: Mapping, run: Any, pull: Any) -> Tensor:
        return run(scores)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.mapping, _, ctx.pull = inputs
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (p,) = ctx.saved_tensors
        return ctx.pull(p, gradient), None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:
        (p,) = ctx.saved_tensors
        return ctx.mapping.vjp(p, tangent)  # the Jacobian is symmetric


def probabilities(scores: Tensor, mapping: Mapping) -> Tensor:
    """``mapping.probabilities(scores)``, differentiable."""
    return Differentiable.apply(scores, mapping, mapping.probabilities, mapping.vjp)  # type: ignore[no-untyped-call]


def get_mapping(mapping: str | Mapping) -> Mapping:
    """The mapping of that name; a `Mapping` is returned as it is."""
    if isinstance(mapping, Mapping):
        return mapping
    if isinstance(mapping, str) and mapping in MAPPINGS:
        return MAPPINGS[mapping]
    raise ValueError(f"mapping={mapping!r} is unknown: use one of {', '.join(sorted(MAPPINGS))}.")


def _from_the_top(scores: Tensor) -> Tensor:
    """Scores minus the row maximum; all NaN in a row that holds NaN or has no finite maximum."""
    top = scores.amax(-1, keepdim=True)
    return scores - top + 0 * top
