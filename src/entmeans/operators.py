"""The formulas as operators of torch, ``torch.ops.entmeans``: with derivatives, under vmap, traced.

What mappings.py and step.py say serves every device; kernels take its place where they can.
Derivatives are operators too, and formulas where they have to be differentiated again.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from . import step
from .inputs import ones, wide, widest
from .mappings import MAPPINGS, Differentiable, Mapping, get_mapping
from .mappings import probabilities as differentiable

if TYPE_CHECKING:
    from torch._library.custom_ops import CustomOpDef

FORMULAS: dict[Any, Callable[..., Any]] = {}
"""The formula of each operator."""


def batched(op: Any) -> Callable[..., Any]:
    """How an operator runs under `torch.func.vmap`: one item of the batch after the other."""

    def rule(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> Any:
        def item(i: int) -> Any:
            return op(
                *(
                    a if d is None else a.select(d, i)
                    for a, d in zip(arguments, in_dims, strict=True)
                )
            )

        found = [item(i) for i in range(info.batch_size)]
        if isinstance(found[0], Tensor):
            return torch.stack(found), 0
        stacked = tuple(torch.stack(parts) for parts in zip(*found, strict=True))
        return stacked, (0,) * len(stacked)

    return rule


def operator(formula: Callable[..., Any], schema: str) -> CustomOpDef:
    """The operator of the name of the formula."""
    name = f"entmeans::{formula.__name__.removesuffix('_formula')}"
    exact = in_full_precision(formula)
    made = torch.library.custom_op(name, exact, mutates_args=(), schema=schema)
    FORMULAS[made] = exact
    return made


def in_full_precision(formula: Callable[..., Any]) -> Callable[..., Any]:
    """The formula, whose matrix products `torch.autocast` would take in half precision."""

    @wraps(formula)
    def run(*arguments: Any) -> Any:
        with torch.autocast(arguments[0].device.type, enabled=False):
            return formula(*arguments)

    return run


def built_in(mapping: Mapping) -> bool:
    """Whether the name of the mapping says all about it."""
    return type(MAPPINGS.get(mapping.name)) is type(mapping)


def serving(op: Any, mapping: Mapping) -> tuple[Callable[..., Any], Any]:
    """What to call and the mapping to call it with: operators know the built-in ones, by name."""
    return (op, mapping.name) if built_in(mapping) else (FORMULAS[op], mapping)


def _inputs(ctx: Any) -> tuple[Tensor, ...]:
    """The tensors among the arguments."""
    return ctx.saved_tensors[: len(ctx.tensors)]


class _Differentiated(torch.autograd.Function):
    """An operator, with its derivatives in both modes and under the transforms of `torch.func`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(op: Any, *arguments: Any) -> Any:
        return op(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.op, *arguments = inputs
        SAVE[ctx.op](ctx, tuple(arguments), output)
        ctx.arguments = [None if isinstance(a, Tensor) else a for a in arguments]
        ctx.tensors = [i for i, a in enumerate(arguments) if isinstance(a, Tensor)]
        # vmap takes what is saved for one mode to be saved for the other as well.
        kept = KEPT[ctx.op](output) if ctx.op in KEPT else ()
        ctx.save_for_forward(*(arguments[i] for i in ctx.tensors), *kept)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        return None, *BACKWARD[ctx.op](ctx, *gradients)

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Tensor | None) -> Any:
        """J v from the formula, as the derivative of J' u by u along v."""
        arguments = _of_tensors(lambda *a: a, ctx.arguments, ctx.tensors, *_inputs(ctx))
        every: list[Tensor] = []
        along = [i for i, t in enumerate(tangents) if t is not None]

        def formula(*values: Tensor) -> tuple[Tensor, ...]:
            found = _of_tensors(FORMULAS[ctx.op], arguments, along, *values)
            every[:] = (found,) if isinstance(found, Tensor) else found
            return tuple(every[k] for k in MOVING[ctx.op])

        found, pull = torch.func.vjp(formula, *(arguments[i] for i in along))[:2]
        push = torch.func.vjp(lambda *u: pull(u), *map(torch.zeros_like, found))[1]
        moved = [torch.zeros_like(e) if e.is_floating_point() else None for e in every]
        for k, value in zip(MOVING[ctx.op], push(tuple(tangents[i] for i in along)), strict=True):
            moved[k] = value
        return moved[0] if len(moved) == 1 else tuple(moved)


# torch reads the signature at every call, which takes as long as a small step.
_Differentiated.forward.__signature__ = inspect.signature(  # type: ignore[attr-defined]
    _Differentiated.forward
)


def differentiated(op: Any) -> Callable[..., Any]:
    """The operator for tensors of any kind of differentiation; a formula is as it is."""
    if op not in SAVE or torch.compiler.is_compiling():
        return op  # the compiler knows reverse mode, as operators do
    return partial(_Differentiated.apply, op)


def map_scores_formula(scores: Tensor, mapping: str) -> Tensor:
    return MAPPINGS[mapping].probabilities(scores).contiguous()


def map_scores_vjp_formula(p: Tensor, gradient: Tensor, mapping: str) -> Tensor:
    return MAPPINGS[mapping].vjp(p, gradient).contiguous()


map_scores = operator(map_scores_formula, "(Tensor scores, str mapping) -> Tensor")
map_scores_vjp = operator(
    map_scores_vjp_formula, "(Tensor p, Tensor gradient, str mapping) -> Tensor"
)
squared_distances = operator(step.squared_distances, "(Tensor points, Tensor centers) -> Tensor")
responsibilities = operator(
    step.responsibilities,
    "(Tensor points, Tensor centers, Tensor temperature, str mapping) -> Tensor",
)
nearest = operator(step.nearest, "(Tensor points, Tensor centers) -> (Tensor, Tensor, Tensor)")
free_energy = operator(
    step.free_energy,
    "(Tensor points, Tensor centers, Tensor? weight, Tensor temperature, str mapping)"
    " -> (Tensor, Tensor)",
)
statistics = operator(
    step.statistics,
    "(Tensor points, Tensor centers, Tensor? weight, Tensor temperature, str mapping)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
statistics_vjp = operator(
    step.statistics_vjp,
    "(Tensor points, Tensor centers, Tensor? weight, Tensor temperature, str mapping,"
    " Tensor? to_mass, Tensor? to_moment, Tensor? to_distortion, Tensor to_energies)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
)


@map_scores.register_fake
def _(scores: Tensor, mapping: str) -> Tensor:
    return scores.new_empty(scores.shape)


@map_scores_vjp.register_fake
def _(p: Tensor, gradient: Tensor, mapping: str) -> Tensor:
    return p.new_empty(p.shape)


@map_scores.register_vmap
def _(info: Any, in_dims: tuple[int, None], scores: Tensor, mapping: str) -> tuple[Tensor, int]:
    return map_scores(scores.movedim(in_dims[0], 0), mapping), 0


def _save_probabilities(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.mapping = get_mapping(inputs[1])
    ctx.save_for_backward(output)


def probabilities_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    (p,) = ctx.saved_tensors
    return pulled_back(p, gradient, ctx.mapping), None


def pulled_back(p: Tensor, gradient: Tensor, mapping: Mapping) -> Tensor:
    """`Mapping.vjp`, by formulas that can be differentiated again where that is asked for."""
    if torch.is_grad_enabled() or not built_in(mapping):
        return mapping.vjp(p, gradient)
    return map_scores_vjp(p, gradient, mapping.name)


map_scores.register_autograd(probabilities_backward, setup_context=_save_probabilities)


def probabilities(scores: Tensor, mapping: Mapping) -> Tensor:
    """``mapping.probabilities(scores)``, differentiable in both modes: the operator is in one."""
    if not built_in(mapping):
        return differentiable(scores, mapping)
    if torch.compiler.is_compiling():
        return map_scores(scores, mapping.name)
    run, pull = partial(map_scores, mapping=mapping.name), partial(pulled_back, mapping=mapping)
    return Differentiable.apply(scores, mapping, run, pull)  # type: ignore[no-untyped-call]


# A length is an int, to which tracing would pin the size of a batch; a shape may hold a symbol.
@squared_distances.register_fake
@responsibilities.register_fake
def _(points: Tensor, centers: Tensor, *_: Any) -> Tensor:
    return points.new_empty(points.shape[0], centers.shape[0])


@nearest.register_fake
def _(points: Tensor, centers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    near = points.new_empty(points.shape[0])
    return near.new_empty(points.shape[0], dtype=torch.int64), near, torch.empty_like(near)


@free_energy.register_fake
def _(points: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return points.new_empty(points.shape[0]), points.new_empty((), dtype=widest(points.device))


@statistics.register_fake
def _(points: Tensor, centers: Tensor, *_: Any) -> tuple[Tensor, ...]:
    k, d = centers.shape
    sizes = (k,), (k, d), (k,), (2,), (k,), (2,)
    return tuple(points.new_empty(size, dtype=widest(points.device)) for size in sizes)


@statistics_vjp.register_fake
def _(
    points: Tensor, centers: Tensor, weight: Tensor | None, temperature: Tensor, *_: Any
) -> tuple[Tensor, ...]:
    to_weight = points.new_empty(points.shape[0])
    to_points, to_centers = (t.new_empty(t.shape) for t in (points, centers))
    return to_points, to_centers, to_weight, torch.empty_like(temperature)


def statistics_pulled_back(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`statistics_vjp`, to be differentiated again where that is asked for."""
    if isinstance(arguments[4], Mapping):
        return step.statistics_vjp(*arguments)
    pull = differentiated(statistics_vjp) if torch.is_grad_enabled() else statistics_vjp
    return pull(*arguments)


def statistics_vjp_backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
    """From the formula, which autograd differentiates as often as asked for."""
    formula = partial(_of_tensors, step.statistics_vjp, ctx.arguments, ctx.tensors)
    found = iter(torch.func.vjp(formula, *ctx.saved_tensors)[1](gradients))
    return tuple(next(found) if i in ctx.tensors else None for i in range(len(ctx.arguments)))


def _of_tensors(
    formula: Callable[..., Any], arguments: list[Any], places: list[int], *tensors: Tensor
) -> Any:
    """The formula of its arguments, with the tensors in their places."""
    given = list(arguments)
    for i, value in zip(places, tensors, strict=True):
        given[i] = value
    return formula(*given)


def save_inputs(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.mapping = inputs
    # vmap does not know what to do with a None among them.
    ctx.save_for_backward(*(t for t in tensors if t is not None))
    ctx.set_materialize_grads(False)


def saved_inputs(ctx: Any) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    points, centers, *weight, temperature = ctx.saved_tensors
    return points, centers, weight[0] if weight else None, temperature


def free_energy_backward(
    ctx: Any, to_terms: Tensor | None, to_sum: Tensor | None
) -> tuple[Tensor | None, ...]:
    points, centers, weight, temperature = saved_inputs(ctx)
    if to_terms is None and to_sum is None:
        return None, None, None, None, None
    given = weight
    factor = wide(points.new_ones(())) if to_sum is None else to_sum
    if to_terms is not None:
        given = to_terms if to_sum is None else to_terms + to_sum * ones(weight, points)
        factor = torch.ones_like(factor)
    energies = torch.stack([wide(factor), torch.zeros_like(wide(factor))])
    to_points, to_centers, to_weight, to_temperature = statistics_pulled_back(
        points, centers, given, temperature, ctx.mapping, None, None, None, energies
    )
    if to_terms is not None:
        to_weight = torch.zeros_like(to_weight) if to_sum is None else to_weight * to_sum
    return to_points, to_centers, None if weight is None else to_weight, to_temperature, None


def statistics_backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
    if all(g is None for g in gradients[:4]):
        return None, None, None, None, None
    points, centers, weight, temperature = saved_inputs(ctx)
    k, d = centers.shape
    like = wide(centers[:0])
    *through, energies = gradients[:4]
    if any(g is not None for g in through):
        sizes = (k,), (k, d), (k,)
        through = [
            like.new_zeros(n) if g is None else g for g, n in zip(through, sizes, strict=True)
        ]
    energies = like.new_zeros(2) if energies is None else energies
    to_points, to_centers, to_weight, to_temperature = statistics_pulled_back(
        points, centers, weight, temperature, ctx.mapping, *through, energies
    )
    return to_points, to_centers, None if weight is None else to_weight, to_temperature, None


def squared_distances_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
    points, centers = ctx.saved_tensors
    return by_distances(points, centers, gradient)


@in_full_precision
def by_distances(points: Tensor, centers: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Derivatives by points and centers from those by all distances (N, K)."""
    shift = step.common_shift(centers)
    x, mu = points - shift, centers - shift
    to_points = 2 * (c.sum(-1, keepdim=True) * x - c @ mu)
    return to_points, 2 * (c.sum(0).unsqueeze(-1) * mu - c.T @ x)


def save_responsibilities(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.mapping = inputs
    ctx.save_for_backward(*tensors, *KEPT[responsibilities](output))
    ctx.set_materialize_grads(False)


def responsibilities_backward(
    ctx: Any, gradient: Tensor | None
) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
    if gradient is None:
        return None, None, None, None
    points, centers, temperature, p = ctx.saved_tensors
    # At T = 0, where each mapping is the hard one: no derivative passes a one-hot share in any.
    by_score = pulled_back(p, gradient, get_mapping(ctx.mapping))
    drift = -by_score / step.positive(temperature, p)
    to_temperature = None
    if ctx.needs_input_grad[-2]:
        d = differentiated(squared_distances)(points, centers)
        # The drifts of a row sum to 0; without what its distances share, ties cannot overflow.
        slope = -drift * (d - d.detach().amin(-1, keepdim=True)) / temperature
        turns = torch.where(drift == 0, 0.0, slope).sum(-1)
        to_temperature = step.weighted_sum(turns, None).to(temperature.dtype)
    return *by_distances(points, centers, drift), to_temperature, None


def save_nearest(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs, *KEPT[nearest](output))
    ctx.mark_non_differentiable(output[0])
    ctx.set_materialize_grads(False)


def nearest_backward(
    ctx: Any, _: None, to_near: Tensor | None, to_margins: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """A margin pulls at two distances; which is the second is found again where that matters."""
    points, centers, labels = ctx.saved_tensors
    pulls = []
    if to_margins is not None:
        to_near = -to_margins if to_near is None else to_near - to_margins
        pulls.append((_seconds(points, centers, labels), to_margins))
    if to_near is not None:
        pulls.append((labels, to_near))
    to_points, to_centers = torch.zeros_like(points), torch.zeros_like(wide(centers))
    for label, gradient in pulls:
        pull = 2 * gradient.unsqueeze(-1) * (points - centers[label])
        to_points = to_points + pull
        to_centers = to_centers.index_add(0, label, -wide(pull))
    return to_points, to_centers.to(centers.dtype)


def _seconds(points: Tensor, centers: Tensor, labels: Tensor) -> Tensor:
    """The second nearest center of each point (N,); the nearest where there is no other."""
    shift = step.common_shift(centers)

    def second(x: Tensor, label: Tensor) -> tuple[Tensor]:
        _, gaps, _ = step.distances(x - shift, centers - shift)
        return (gaps.detach().scatter(-1, label.unsqueeze(-1), math.inf).argmin(-1),)

    chunks = map(second, step.rows(points, centers), step.rows(labels, centers))
    return step.joined(chunks, len(points))[0]


KEPT: dict[Any, Callable[..., tuple[Tensor, ...]]] = {
    responsibilities: lambda output: (output,),
    nearest: lambda output: (output[0],),
}
"""What of its output an operator keeps, after its inputs."""

SAVE: dict[Any, Callable[..., None]] = {
    squared_distances: lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    responsibilities: save_responsibilities,
    nearest: save_nearest,
    free_energy: save_inputs,
    statistics: save_inputs,
    statistics_vjp: lambda ctx, inputs, output: ctx.save_for_backward(
        *(a for a in inputs if isinstance(a, Tensor))
    ),
}
"""What an operator keeps for its backward pass."""

BACKWARD: dict[Any, Callable[..., tuple[Tensor | None, ...]]] = {
    squared_distances: squared_distances_backward,
    responsibilities: responsibilities_backward,
    nearest: nearest_backward,
    free_energy: free_energy_backward,
    statistics: statistics_backward,
    statistics_vjp: statistics_vjp_backward,
}

MOVING: dict[Any, tuple[int, ...]] = {
    squared_distances: (0,),
    responsibilities: (0,),
    nearest: (1, 2),
    free_energy: (0, 1),
    statistics: (0, 1, 2, 3),
    statistics_vjp: (0, 1, 2, 3),
}
"""Which of the outputs have derivatives."""

for _op, _backward in BACKWARD.items():
    if _op is not statistics_vjp:  # differentiated again, it is never traced
        _op.register_autograd(_backward, setup_context=SAVE[_op])
for _op in FORMULAS:
    if _op is not map_scores:
        _op.register_vmap(batched(_op))
