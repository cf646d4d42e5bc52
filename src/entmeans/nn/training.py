"""What moves a layer: a temperature scheduler, and an optimizer for centers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ..inputs import check_temperature, wide
from ..schedules import Schedule, get_schedule, temperature_at
from .layers import SoftKMeans
from .processes import averaged


class TemperatureScheduler:
    """Sets the temperature of layers by a schedule, as learning-rate schedulers do for optimizers.

    Step i sets the temperature that the layer had when the scheduler was made, times
    ``schedule(i)``: no units, so any scale of data.  What is assigned to it later is overwritten.

    Parameters
    ----------
    module : Module
        A `SoftKMeans`, or a network that holds some.
    schedule : {"geometric", "linear"} or callable
        From the number of a step to a multiple of the first temperature.
    final_temperature : float
        Where cooling ends.

    Examples
    --------
    >>> import entmeans
    >>> layer = entmeans.nn.SoftKMeans(10, 64, temperature=8.0)
    >>> scheduler = entmeans.nn.TemperatureScheduler(layer, entmeans.Geometric(0.5, steps=3))
    >>> temperatures = []
    >>> for epoch in range(4):  # ... train, then
    ...     scheduler.step()
    ...     temperatures.append(layer.temperature.item())
    >>> temperatures
    [4.0, 2.0, 0.0, 0.0]

    In Lightning: ``LambdaCallback(on_train_epoch_end=scheduler.step)``.
    """

    def __init__(
        self,
        module: nn.Module,
        schedule: str | Schedule = "geometric",
        *,
        final_temperature: float = 0.0,
    ) -> None:
        self.layers = [m for m in module.modules() if isinstance(m, SoftKMeans)]
        if not self.layers:
            raise ValueError("module holds no SoftKMeans, whose temperature could be set.")
        if any(layer.learn_temperature for layer in self.layers):
            raise ValueError("a temperature is either learned or scheduled: module learns one.")
        self.schedule = get_schedule(schedule)
        self.final_temperature = check_temperature(final_temperature, "final_temperature")
        self.first = [layer.temperature.item() for layer in self.layers]
        self.n_steps = 0
        self._set()

    def step(self, *_: object) -> None:
        """Go on to the next temperature.  Arguments, as callbacks get some, are ignored."""
        self.n_steps += 1
        self._set()

    def state_dict(self) -> dict[str, Any]:
        """The number of steps and the first temperatures."""
        return {"n_steps": self.n_steps, "first": list(self.first)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where another scheduler was."""
        if len(state_dict["first"]) != len(self.layers):
            raise ValueError(
                f"the state is of {len(state_dict['first'])} layers, the module has "
                f"{len(self.layers)}."
            )
        self.n_steps, self.first = state_dict["n_steps"], list(state_dict["first"])
        self._set()

    def _set(self) -> None:
        for layer, first in zip(self.layers, self.first, strict=True):
            layer.temperature = temperature_at(
                self.n_steps, self.schedule, first, self.final_temperature
            )


class CenterSGD(torch.optim.Optimizer):
    """Gradient descent on the centers of a layer with the step that K-means takes.

    mu_j <- mu_j - lr * g_j / (2 mass_j), where g_j is the gradient of ``layer.loss`` (and of
    whatever else was added to it).  As dF/dmu_j = 2 (mass_j mu_j - moment_j), this is the soft
    Lloyd step moment_j / mass_j on a full batch, and Lloyd's at T = 0.

    mass_j <- decay * mass_j + (mass of the batch): with ``decay=0`` of each batch by itself; with
    1 of all so far, the update of mini-batch K-means (Sculley 2010); between, the moving average of
    learned codebooks (van den Oord et al. 2017).  A factor of the loss cancels; clipping of
    gradients, which the mass knows nothing of, makes the step smaller.

    Parameters
    ----------
    layer : SoftKMeans
        Its `loss`, in the mean or the sum, must be among the losses; from then on its gradients
        bring the mass along.  Keep ``layer.centers`` out of other optimizers, which would move them
        a second time.  Clear gradients by the ``zero_grad`` of this one: that of a module clears
        the mass with the next loss, but neither in a compiled layer nor with
        ``set_to_none=False``.
    lr : float
        1 is the step of K-means.
    decay : float
        Between 0 and 1.  Where batches differ in size, only losses of ``reduction="sum"`` count
        each point once.
    process_group : ProcessGroup, optional
        Where `torch.distributed` is initialized, gradients and masses are averaged over the group
        (default: all processes) before the step, with or without `DistributedDataParallel`: with
        ``reduction="sum"`` the step is that of one process with all points.

    References
    ----------
    Arredondo, Ucan-Puc and Astengo Noguez, arXiv 2603.04625; Sculley, "Web-scale k-means
    clustering", WWW 2010; van den Oord, Vinyals and Kavukcuoglu, "Neural discrete representation
    learning", NeurIPS 2017.

    Examples
    --------
    >>> import torch, entmeans
    >>> points = torch.tensor([[0.0], [1.0], [7.0], [8.0]])
    >>> layer = entmeans.nn.SoftKMeans(2, 1, temperature=0.0)
    >>> _ = layer.centers.data.copy_(torch.tensor([[0.0], [7.0]]))
    >>> optimizer = entmeans.nn.CenterSGD(layer)
    >>> layer.loss(points).backward()
    >>> optimizer.step()
    >>> layer.centers.flatten().tolist()
    [0.5, 7.5]
    """

    def __init__(
        self,
        layer: SoftKMeans,
        lr: float = 1.0,
        *,
        decay: float = 0.0,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        if not isinstance(layer, SoftKMeans):
            raise TypeError(f"layer must be a SoftKMeans, got {type(layer).__name__}.")
        if not lr >= 0:
            raise ValueError(f"lr must be 0 or more, got {lr}.")
        if not 0 <= decay <= 1:
            raise ValueError(f"decay must lie between 0 and 1, got {decay}.")
        layer.mass = wide(layer.centers.new_zeros(layer.n_clusters)).requires_grad_()
        super().__init__([layer.centers, layer.mass], {"lr": lr, "decay": decay})
        self.process_group = process_group

    def __getstate__(self) -> dict[str, Any]:
        # torch knows of no attributes beside its own.  A group cannot be copied, and says so.
        return {**super().__getstate__(), "process_group": self.process_group}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move the centers."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        (group,) = self.param_groups
        centers, batch = group["params"]
        if centers.grad is None:
            return loss
        if batch.grad is None:
            raise RuntimeError(
                "the centers have a gradient but no mass: CenterSGD needs layer.loss(x), the free "
                "energy, among the losses, computed after this optimizer was made and passed by "
                "backward() (and no later CenterSGD of the same layer)."
            )
        gradient = averaged(wide(centers.grad), self.process_group)
        now = averaged(batch.grad.to(gradient), self.process_group)
        if not (gradient.isfinite().all() & now.isfinite().all()):  # one wait for the device
            raise ValueError(
                "the gradient or the mass of the batch is NaN or infinite, and no center has "
                "moved: NaN among the points or in another loss, or a mean over no points, as of "
                'an empty shard (take reduction="sum").'
            )
        state = self.state[batch]  # of float64, as is what `load_state_dict` makes of it
        mass = state["mass"] = group["decay"] * state.get("mass", 0.0) + now
        step = group["lr"] * gradient / (2 * mass).unsqueeze(-1)
        centers.copy_(torch.where(mass.unsqueeze(-1) > 0, centers - step, centers))
        batch.grad = None  # counted, whoever clears the gradient of the centers
        return loss
