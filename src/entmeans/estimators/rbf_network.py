"""RBF networks for classes and numbers, whose centers are clusters and learn with the read-out."""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from numbers import Integral, Real
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import Tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    check_array,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
)
from torch import Tensor
from torch.nn.functional import cross_entropy

from ..fit import anneal, mean_variance, soft_temperature
from ..inputs import ones, wide
from ..mappings import Mapping, get_mapping
from ..nn import RBFNetwork
from ..seeding import kmeans_plusplus
from .arrays import (
    TakesPoints,
    all_or_nothing,
    array_of,
    check_rules,
    check_values,
    given_centers,
    is_auto,
    is_flag,
    is_number,
    like,
    native,
    random_state_of,
    weights_of,
)

BATCH_SIZE = 200
"""The number of samples in a batch, by default; so few are one batch, whose loss is exact."""

EPS = 1e-4
"""Of Adam.  With its usual 1e-8, a center that rests would be driven off by rounding."""

READOUT_RATE = 4.0
"""Logits have a longer way to go than centers: the learning rate of the read-out in that of all."""

FIRST_WIDTH = 2.0
"""The first temperature of the units, in reference temperatures: 2 sigma^2 at the start."""


class Samples(NamedTuple):
    """Points (N, D), targets (N,) or (N, M), and weights (N,) above 0."""

    points: Tensor
    targets: Tensor
    weight: Tensor

    def at(self, rows: Any) -> Samples:
        return Samples(*(values[rows] for values in self))

    def batches(self, size: int, generator: torch.Generator) -> Iterator[Samples]:
        """All samples in random order; in their own where they are one batch."""
        n = len(self.points)
        if size >= n:
            yield self
            return
        order = torch.randperm(n, generator=generator).to(self.points.device)
        yield from (self.at(rows) for rows in order.split(size))


class Task(NamedTuple):
    """What the outputs of a network are for.

    ``losses(outputs, targets)`` is (N,), ``score(outputs, targets, weight)`` a number, the higher
    the better, and ``finish(network)`` gives the outputs of a trained network their units.
    """

    n_outputs: int
    losses: Callable[[Tensor, Tensor], Tensor]
    score: Callable[[Tensor, Tensor, Tensor], float]
    finish: Callable[[RBFNetwork], None] = lambda network: None


class RBFNetworkEstimator(TakesPoints):
    """What the classifier and the regressor share: all but the meaning of y."""

    def __init__(
        self,
        n_centers: int = 10,
        *,
        mapping: str | Mapping = "entmax15",
        widths: Literal["shared", "per_center"] = "shared",
        normalized: bool = True,
        init: Any = "k-means++",
        clustering_weight: float = 0.1,
        joint: bool = True,
        learning_rate: float = 0.05,
        batch_size: Literal["auto"] | int = "auto",
        max_iter: int = 100,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        tol: float = 1e-4,
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
        device: torch.device | str | None = None,
    ) -> None:
        self.n_centers = n_centers
        self.mapping = mapping
        self.widths = widths
        self.normalized = normalized
        self.init = init
        self.clustering_weight = clustering_weight
        self.joint = joint
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.random_state = random_state
        self.verbose = verbose
        self.device = device

    @all_or_nothing
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train the network.

        Parameters
        ----------
        X : array, frame or tensor of shape (n_samples, n_features)
        y : array or tensor of shape (n_samples,); for a regressor also (n_samples, n_outputs)
        sample_weight : array of shape (n_samples,), optional
            Weights >= 0.  In the draw of the centers and in the losses, a weight of k equals k
            copies of the sample; 0 leaves it out.

        Returns
        -------
        self
        """
        self._check_parameters()
        points = self._points(X, "X", reset=True)
        targets = self._targets(y, points)
        weight = ones(weights_of(sample_weight, points), points)
        device = points.device if self.device is None else self.device
        samples = Samples(*(v.to(device) for v in (points, targets.to(points.device), weight)))
        samples = samples.at(samples.weight > 0)
        random_state = random_state_of(self.random_state)
        held = None
        if self.early_stopping:
            samples, held = self._split(samples, random_state)
        generator = torch.Generator().manual_seed(int(random_state.randint(2**31 - 1)))
        task = self._task(samples)
        network = self._first_network(samples, task.n_outputs, generator)
        with torch.enable_grad():
            self._train(network, task, samples, held, generator)
        task.finish(network)
        self.network_ = network.eval()
        self.cluster_centers_ = like(
            X, network.clusters.centers.detach().to(points.device, copy=True)
        )
        widths = network.widths.detach()
        self.widths_ = like(X, widths.to(points.device)) if widths.ndim else widths.item()
        return self

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The mean accuracy of a classifier, R^2 of a regressor."""
        weight = None if sample_weight is None else array_of(sample_weight)
        X = array_of(X) if isinstance(X, Tensor) else X  # frames name their features
        return super().score(X, array_of(y), weight)  # type: ignore[misc]

    @abstractmethod
    def _targets(self, y: Any, points: Tensor) -> Tensor:
        """What to learn, one row for each point."""

    @abstractmethod
    def _task(self, samples: Samples) -> Task:
        """How to learn it from these samples."""

    @torch.no_grad()
    def _outputs(self, X: Any) -> Tensor:
        """What the network says about each sample, (n_samples, M), on the device of ``X``."""
        check_is_fitted(self, "network_")
        points = self._points(X, "X", reset=False)
        return self.network_(points.to(self.network_.clusters.centers.device)).to(points.device)

    def _first_network(
        self, samples: Samples, n_outputs: int, generator: torch.Generator
    ) -> RBFNetwork:
        """The network before training: its outputs are 0."""
        points, _, weight = samples
        centers = self._first_centers(samples, generator)
        with torch.random.fork_rng(devices=[]):  # torch draws what is overwritten here
            network = RBFNetwork(
                points.shape[1],
                self.n_centers,
                n_outputs,
                mapping=self.mapping,
                widths=self.widths,
                normalized=self.normalized,
                dtype=points.dtype,
            )
        network.to(points.device)
        temperature = FIRST_WIDTH * soft_temperature(points, centers, self.mapping, weight)
        with torch.no_grad():
            network.clusters.centers.copy_(centers)
            network.clusters.temperature = max(temperature, torch.finfo(points.dtype).tiny)
            network.readout.weight.zero_()
            network.readout.bias.zero_()
        return network

    def _first_centers(self, samples: Samples, generator: torch.Generator) -> Tensor:
        points, _, weight = samples
        if not isinstance(self.init, str):
            values = self.init
            if hasattr(values, "fit"):
                values = values.cluster_centers_
            return given_centers(values, "n_centers", self.n_centers, points)
        centers = kmeans_plusplus(points, self.n_centers, weight, generator=generator)
        if self.init == "anneal":
            centers = anneal(points, centers, mapping=self.mapping, sample_weight=weight).centers
        return centers

    def _split(
        self, samples: Samples, random_state: np.random.RandomState
    ) -> tuple[Samples, Samples]:
        """Samples to train on, and those held out for early stopping."""
        from sklearn.model_selection import train_test_split  # as slow to import as the metrics

        n, classes = len(samples.points), None
        if isinstance(self, ClassifierMixin):
            classes = samples.targets.numpy(force=True)
        try:
            kept, held = train_test_split(
                np.arange(n),
                test_size=self.validation_fraction,
                random_state=random_state,
                stratify=classes,
            )
            if len(held) < 2:
                raise ValueError("at least 2 are needed.")
        except ValueError as error:
            raise ValueError(
                f"validation_fraction={self.validation_fraction} of n_samples={n} cannot be held "
                f"out for early stopping: {error}"
            ) from None
        return samples.at(kept), samples.at(held)

    def _train(
        self,
        network: RBFNetwork,
        task: Task,
        samples: Samples,
        held: Samples | None,
        generator: torch.Generator,
    ) -> None:
        """Adam on mini-batches, for max_iter epochs or until nothing improves."""
        optimizer = self._optimizer(network, samples)
        slower = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 1 - i / self.max_iter)
        factor = self.clustering_weight / network.clusters.temperature.item()
        forward: Callable[[Tensor], Tensor] = network
        # The weights of all samples, not those of a batch, say what a batch counts.
        samples = samples._replace(weight=samples.weight / samples.weight.mean())
        if not self.joint:
            forward = network.readout
            samples = samples._replace(points=network.units(samples.points).detach())
        size = BATCH_SIZE if isinstance(self.batch_size, str) else int(self.batch_size)
        self.loss_curve_: list[float] = []
        scores: list[float] = []
        best, stale, best_state = -math.inf, 0, None
        for epoch in range(1, self.max_iter + 1):
            losses = []
            for batch in samples.batches(size, generator):
                points, targets, weight = batch
                loss = (task.losses(forward(points), targets) * weight).mean()
                if self.joint and factor:
                    loss = loss + factor * network.loss(points, "sum", weight) / len(points)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.detach() * len(points))
            slower.step()
            value = torch.stack(losses).sum().item() / len(samples.points)
            if not math.isfinite(value):
                raise ValueError(
                    f"The loss became {value} in epoch {epoch}: lower learning_rate="
                    f"{self.learning_rate}, or scale the data."
                )
            self.loss_curve_.append(value)
            if held is not None:
                with torch.no_grad():
                    scores.append(task.score(network(held.points), held.targets, held.weight))
            if self.verbose:
                print_epoch(epoch, value, scores)
            reached = scores[-1] if scores else -value
            stale = 0 if reached >= best + self.tol else stale + 1
            if reached > best:
                best = reached
                if held is not None:
                    best_state = copy.deepcopy(network.state_dict())
            if stale >= self.n_iter_no_change:
                break
        if best_state is not None:
            network.load_state_dict(best_state)
        self.n_iter_ = len(self.loss_curve_)
        self.validation_scores_ = scores if held is not None else None
        self.best_validation_score_ = best if held is not None else None

    def _optimizer(self, network: RBFNetwork, samples: Samples) -> torch.optim.Optimizer:
        """Adam, with a learning rate for each kind of parameter."""
        centers, rate = network.clusters.centers, self.learning_rate
        readout = [*network.readout.parameters()]
        groups: list[dict[str, Any]] = [{"params": readout, "lr": READOUT_RATE * rate}]
        if self.joint:
            learned = {id(centers), *map(id, readout)}
            groups.append({"params": [p for p in network.parameters() if id(p) not in learned]})
            # Adam moves by its learning rate, whatever the gradient, unless that is close to eps:
            # both in units of the data make it free of scale.
            scale = math.sqrt(mean_variance(samples.points, samples.weight)) or 1.0
            groups.append({"params": [centers], "lr": rate * scale, "eps": EPS / scale})
        return torch.optim.Adam(groups, lr=rate, eps=EPS)

    def _check_parameters(self) -> None:
        counts = [(n, getattr(self, n)) for n in ("n_centers", "max_iter", "n_iter_no_change")]
        flags = [(n, getattr(self, n)) for n in ("normalized", "joint", "early_stopping")]
        rules: list[tuple[str, bool, str]] = [
            *((n, is_number(v, Integral, 1), "an integer of 1 or more") for n, v in counts),
            *((n, is_flag(v), "True or False") for n, v in flags),
            (
                "widths",
                isinstance(self.widths, str) and self.widths in ("shared", "per_center"),
                '"shared" or "per_center"',
            ),
            (
                "init",
                self.init in ("k-means++", "anneal")
                if isinstance(self.init, str)
                else self.init is not None
                and (not hasattr(self.init, "fit") or hasattr(self.init, "cluster_centers_")),
                '"k-means++", "anneal", an array of centers, or an estimator with '
                "cluster_centers_, so a fitted one (in sklearn.frozen.FrozenEstimator, if it is to "
                "survive clone)",
            ),
            (
                "clustering_weight",
                is_number(self.clustering_weight, Real, 0) and self.clustering_weight < math.inf,
                "a finite number of 0 or more",
            ),
            (
                "learning_rate",
                is_number(self.learning_rate, Real, 0) and 0 < self.learning_rate < math.inf,
                "a finite number above 0",
            ),
            (
                "batch_size",
                is_auto(self.batch_size) or is_number(self.batch_size, Integral, 1),
                '"auto" or an integer of 1 or more',
            ),
            (
                "validation_fraction",
                is_number(self.validation_fraction, Real, 0) and 0 < self.validation_fraction < 1,
                "a number between 0 and 1",
            ),
            ("tol", is_number(self.tol, Real, 0), "a number of 0 or more"),
            ("device", is_device(self.device), "None or a device of torch"),
        ]
        check_rules(self, rules)
        get_mapping(self.mapping)


class RBFNetworkClassifier(RBFNetworkEstimator, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier whose clusters and classes are learned together: an RBF network.

    Minimizes the cross-entropy of a linear read-out of soft cluster memberships, plus
    ``clustering_weight`` times the free energy of the clusters, over the centers, the widths and
    the read-out at once.  So a center is where it helps to tell classes apart and is still the
    center of a cluster.

    Parameters
    ----------
    n_centers : int
        K, the number of units.  Beyond the number of distinct samples, units coincide.
    mapping : {"entmax15", "softmax", "sparsemax"} or Mapping
        From scores -d/T to responsibilities.
    widths : {"shared", "per_center"}
        One learned width, or one for each center.
    normalized : bool
        Whether units are responsibilities, whose sum is 1, or Gaussians.
    init : {"k-means++", "anneal"}, array of shape (n_centers, n_features) or fitted estimator
        The first centers: drawn from the samples; then moved by `anneal`; given; or the
        ``cluster_centers_`` of a fitted `EntMeans`, in ``sklearn.frozen.FrozenEstimator`` where it
        is to survive ``clone``.
    clustering_weight : float
        The factor of the free energy, counted in the first temperature: it has no units.
    joint : bool
        False is the classical training in two stages: centers and widths stay as they are at first,
        and only the read-out learns.  The first stage is ``init``: "anneal" runs K-means,
        "k-means++" only its draw.
    learning_rate : float
        Of Adam, falling linearly to 0 over ``max_iter`` epochs; four times that for the read-out.
        For centers, in units of the root of the mean variance of the features: the scale of ``X``
        does not matter.
    batch_size : "auto" or int
        "auto" is 200.  So few samples, or fewer, are one batch, and then the fit depends neither
        on their order nor on copies in place of weights (to rounding).
    max_iter : int
        The largest number of epochs.
    early_stopping : bool
        Hold out a share of the samples, stop when their score no longer improves, and keep the
        network with the best.  Else the loss of the training decides when to stop.
    validation_fraction : float
        The share that is held out; of a classifier, of each class.
    n_iter_no_change : int
        The number of epochs without an improvement by ``tol`` after which training stops.
    tol : float
    random_state : int, RandomState or None
        Seeds the draws of centers, batches and held-out samples.  The global generators are left
        alone.
    verbose : int
        Above 0: print a line for each epoch.
    device : device or str, optional
        Where to train.  Default: where ``X`` is.

    Attributes
    ----------
    classes_ : array of shape (n_classes,)
    network_ : entmeans.nn.RBFNetwork
        For points in the units of ``X``: ``network_(torch_X)`` are the logits of the classes,
        ``network_.units(torch_X)`` the memberships.
    cluster_centers_ : array of shape (n_centers, n_features)
    widths_ : float, or array of shape (n_centers,)
        sigma, a distance in the units of ``X``; the temperature is 2 sigma^2.
    n_iter_ : int
        Epochs run.
    loss_curve_ : list of float
        The loss in each epoch.
    validation_scores_ : list of float, or None without early stopping
        The accuracy on the held-out samples after each epoch.
    best_validation_score_ : float or None
    n_features_in_ : int
    feature_names_in_ : array of shape (n_features_in_,)
        Only where ``X`` names its features.

    Notes
    -----
    ``X`` may be a NumPy array, a pandas or polars frame, or a torch tensor; probabilities and
    centers are arrays for the first and tensors on the same device for the last.  Predicted
    classes are arrays too, or tensors for tensors unless the classes are not numbers.
    Floating-point dtypes are kept (tensors of float16 and bfloat16 become float32), all else
    becomes float64.

    Centers that learn fit noise more easily than those that stay: for few or noisy samples compare
    with ``joint=False``, or use fewer centers.

    References
    ----------
    Moody and Darken, "Fast learning in networks of locally-tuned processing units", Neural
    Computation 1989, for the two stages.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from entmeans import RBFNetworkClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = RBFNetworkClassifier(n_centers=6, random_state=0).fit(X, y)
    >>> model.score(X, y) > 0.9, model.cluster_centers_.shape
    (True, (6, 4))
    """

    def predict(self, X: Any) -> Any:
        """The most probable class of each sample, (n_samples,)."""
        chosen = self._outputs(X).argmax(1)
        classes = native(self.classes_)
        if isinstance(X, Tensor) and classes.dtype.kind in "biuf":
            return torch.from_numpy(classes).to(X.device)[chosen]
        return self.classes_[chosen.numpy(force=True)]

    def predict_proba(self, X: Any) -> Any:
        """The probability of each class, in the order of ``classes_``, (n_samples, n_classes)."""
        return like(X, self._outputs(X).softmax(1))

    def _targets(self, y: Any, points: Tensor) -> Tensor:
        y = column_or_1d(targets_of(self, y, points, dtype=None), warn=True)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        return torch.from_numpy(labels)

    def _task(self, samples: Samples) -> Task:
        return Task(len(self.classes_), class_losses, accuracy)


class RBFNetworkRegressor(RBFNetworkEstimator, RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """A regressor whose clusters and read-out are learned together: an RBF network.

    Minimizes the mean squared error of a linear read-out of soft cluster memberships, each output
    counted in its variance, plus ``clustering_weight`` times the free energy of the clusters, over
    the centers, the widths and the read-out at once.

    Parameters are those of `RBFNetworkClassifier`, and so are the attributes, but for
    ``classes_``: ``network_(torch_X)`` are the predictions, and ``validation_scores_`` are R^2.
    ``y`` may have several columns, and predictions have its shape: one number for each sample, or
    a row (n_samples, n_outputs).

    Examples
    --------
    >>> import numpy as np
    >>> from entmeans import RBFNetworkRegressor
    >>> X = np.linspace(0, 6, 100)[:, None]
    >>> y = np.sin(X).ravel()
    >>> model = RBFNetworkRegressor(n_centers=8, max_iter=300, random_state=0).fit(X, y)
    >>> model.score(X, y) > 0.95, model.predict(X).shape
    (True, (100,))
    """

    def predict(self, X: Any) -> Any:
        """The expected target of each sample, (n_samples,) or (n_samples, n_outputs)."""
        outputs = self._outputs(X)
        return like(X, outputs.squeeze(1) if self._one_number else outputs)

    def _targets(self, y: Any, points: Tensor) -> Tensor:
        y = targets_of(self, y, points, dtype=np.float64)
        self._one_number = y.ndim == 1
        targets = torch.tensor(y.reshape(len(y), -1))
        check_values(targets, "y", small=False)
        largest, kind = targets.abs().amax().item(), torch.finfo(points.dtype)
        if largest > kind.max or 0 < largest < kind.tiny:
            raise ValueError(
                f"y holds values up to {largest:.3g}, out of the range of {points.dtype}, in which "
                "X is: scale y, or use float64."
            )
        return targets.to(points.dtype)

    def _task(self, samples: Samples) -> Task:
        _, targets, weight = samples
        share = wide(weight / weight.sum())
        mean = share @ wide(targets)  # (M,)
        scale = (share @ (wide(targets) - mean).square()).sqrt()
        mean, scale = mean.to(targets), torch.where(scale > 0, scale, 1.0).to(targets)

        def losses(outputs: Tensor, targets: Tensor) -> Tensor:
            return (outputs - (targets - mean) / scale).square().mean(1)

        def score(outputs: Tensor, targets: Tensor, weight: Tensor) -> float:
            from sklearn.metrics import r2_score  # as in `accuracy`

            arrays = (v.numpy(force=True) for v in (targets, outputs * scale + mean))
            return float(r2_score(*arrays, sample_weight=weight.numpy(force=True)))

        @torch.no_grad()
        def finish(network: RBFNetwork) -> None:
            network.readout.weight.mul_(scale.unsqueeze(1))
            network.readout.bias.mul_(scale).add_(mean)

        return Task(len(mean), losses, score, finish)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def class_losses(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets, reduction="none")


def accuracy(outputs: Tensor, targets: Tensor, weight: Tensor) -> float:
    # With the metrics come preprocessing, progress bars, and rich where that is installed: for
    # those who stop early, not for all who import an estimator.
    from sklearn.metrics import accuracy_score

    arrays = (v.numpy(force=True) for v in (targets, outputs.argmax(1)))
    return float(accuracy_score(*arrays, sample_weight=weight.numpy(force=True)))


def targets_of(estimator: Any, y: Any, points: Tensor, dtype: Any) -> NDArray[Any]:
    """``y`` as an array of finite values, one or one row for each point."""
    if y is None:
        raise ValueError(
            f"{type(estimator).__name__} requires y to be passed, but the target y is None."
        )
    y = check_array(array_of(y), dtype=dtype, ensure_2d=False, input_name="y", order="C")
    check_consistent_length(points, y)
    return y


def is_device(value: Any) -> bool:
    try:
        return value is None or bool(torch.device(value))
    except (RuntimeError, TypeError):
        return False


def print_epoch(epoch: int, loss: float, scores: list[float]) -> None:
    """The line that ``verbose`` prints for an epoch."""
    score = f"  validation score {scores[-1]:.4f}" if scores else ""
    print(f"epoch {epoch}  loss {loss:.6g}{score}")  # noqa: T201
