"""Layers, the temperature scheduler, and the optimizer for centers: values, gradients, habits."""

import copy
import io
import itertools
import math
import pickle
import warnings

import numpy as np
import oracle
import pytest
import torch
from cases import MAPPINGS, SOFT
from sklearn.cluster import MiniBatchKMeans
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.testing import assert_close

import entmeans
from entmeans.nn import CenterSGD, CollapseWarning, RBFNetwork, SoftKMeans, TemperatureScheduler

# float64: values of about 1, sums of a few dozen terms.
CLOSE = {"rtol": 1e-12, "atol": 1e-12}

each_mapping = pytest.mark.parametrize("mapping", MAPPINGS)
each_network = pytest.mark.parametrize(
    ("widths", "normalized"),
    [("shared", True), ("shared", False), ("per_center", True), ("per_center", False)],
)


def normal(*shape, seed=0, dtype=torch.float64):
    values = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return values.to(dtype)


def set_(parameter, values):
    with torch.no_grad():
        parameter.copy_(values)


def clusters(k=4, d=3, seed=1, dtype=torch.float64, **options):
    layer = SoftKMeans(k, d, dtype=dtype, **options)
    set_(layer.centers, normal(k, d, seed=seed))
    return layer


def network(widths="shared", normalized=True, k=4, d=3, m=2, dtype=torch.float64, **options):
    made = RBFNetwork(d, k, m, widths=widths, normalized=normalized, dtype=dtype, **options)
    set_(made.clusters.centers, normal(k, d, seed=1))
    set_(made.readout.weight, normal(m, k, seed=2))
    set_(made.readout.bias, normal(m, seed=3))
    if made.log_ratios is not None:
        set_(made.log_ratios, 0.5 * normal(k, seed=4))
    return made


def gradients(module):
    return {name: p.grad for name, p in module.named_parameters()}


# Equal to the functions and to the definitions


@each_mapping
@pytest.mark.parametrize("temperature", [0.0, 0.3, 2.0, math.inf])
def test_outputs_are_those_of_the_definition(mapping, temperature):
    x, layer = normal(17, 3), clusters(temperature=temperature, mapping=mapping)
    d = oracle.squared_distances(x, layer.centers.detach())
    p = oracle.responsibilities(d, temperature, mapping)
    assert_close(layer(x), torch.tensor(p), **CLOSE)
    assert_close(layer.quantize(x), torch.tensor(p) @ layer.centers, **CLOSE)
    assert layer.predict(x).tolist() == oracle.labels(d).tolist()
    weight = normal(17, seed=5).abs()
    terms = oracle.free_energy_terms(d, p, temperature, mapping)
    for reduction in ("mean", "sum", "none"):
        found = layer.loss(x, reduction)
        assert_close(found, torch.tensor(oracle.reduce(terms, np.ones(17), reduction)), **CLOSE)
        found = layer.loss(x, reduction, weight)
        assert_close(found, torch.tensor(oracle.reduce(terms, weight, reduction)), **CLOSE)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@each_mapping
def test_the_optimizer_of_centers_changes_neither_the_loss_nor_its_gradients(mapping, reduction):
    x, weight = normal(9, 3).requires_grad_(), normal(9, seed=2).abs()
    layer = clusters(mapping=mapping)
    inputs = (x, layer.centers)
    alone = layer.loss(x, reduction, weight)
    before = torch.autograd.grad(alone, inputs)
    CenterSGD(layer)
    counted = layer.loss(x, reduction, weight)
    assert counted.dtype == alone.dtype
    assert_close(counted, alone, **CLOSE)
    assert_close(torch.autograd.grad(counted, inputs), before, **CLOSE)
    with torch.no_grad():
        assert_close(
            layer.loss(x, "none"),
            entmeans.free_energy(x, layer.centers, 1.0, mapping, reduction="none"),
            **CLOSE,
        )


@each_network
@pytest.mark.parametrize("mapping", SOFT)
def test_units_are_gaussians_of_their_widths(widths, normalized, mapping):
    x, made = normal(11, 3), network(widths, normalized, mapping=mapping)
    d = oracle.squared_distances(x, made.clusters.centers.detach())
    z = -d / (2 * np.broadcast_to(made.widths.detach().numpy(), 4) ** 2)
    units = torch.tensor(oracle.MAPPINGS[mapping](z) if normalized else np.exp(z))
    assert_close(made.units(x), units, **CLOSE)
    assert_close(made(x), units @ made.readout.weight.T + made.readout.bias, **CLOSE)
    at = (x, made.clusters.centers, made.clusters.temperature, mapping)
    assert_close(made.loss(x, "sum"), entmeans.free_energy(*at, reduction="sum"), **CLOSE)


SHAPES = [(3,), (0, 3), (1, 3), (6, 3), (2, 4, 3), (2, 0, 3), (2, 1, 2, 3)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_leading_dimensions_are_kept(shape):
    x, layer = normal(*shape), clusters()
    flat, lead = x.reshape(-1, 3), shape[:-1]
    assert torch.equal(layer(x), layer(flat).reshape(*lead, 4))
    assert torch.equal(layer.predict(x), layer.predict(flat).reshape(lead))
    for hard in (False, True):
        assert torch.equal(layer.quantize(x, hard), layer.quantize(flat, hard).reshape(shape))
    weight = normal(*lead, seed=7).abs()
    each = layer.loss(flat, "none", weight.flatten())
    assert torch.equal(layer.loss(x, "none", weight), each.reshape(lead))
    assert_close(layer.loss(x, "sum", weight), each.sum(), **CLOSE)
    for widths, normalized in (("shared", True), ("per_center", False), ("per_center", True)):
        made = network(widths, normalized)
        assert_close(made(x), made(flat).reshape(*lead, 2), **CLOSE)
        assert made.loss(x, "none", weight).shape == lead
    (layer(x).sum() + layer.quantize(x).sum() + layer.loss(x, "sum")).backward()
    assert layer.centers.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_a_hard_code_is_the_nearest_center_and_passes_gradients_straight_through(dtype):
    x, layer = normal(2, 5, 3, dtype=dtype).requires_grad_(), clusters(dtype=dtype)
    codes = layer.quantize(x, hard=True)
    labels = layer.predict(x)
    assert codes.dtype == dtype
    assert torch.equal(codes, layer.centers[labels])
    wanted = normal(2, 5, 3, seed=9, dtype=dtype)
    codes.backward(wanted)
    assert torch.equal(x.grad, wanted)
    exact = torch.zeros(4, 3, dtype=torch.float64).index_add(
        0, labels.flatten(), wanted.double().reshape(-1, 3)
    )
    eps = torch.finfo(dtype).eps
    assert_close(layer.centers.grad.double(), exact, rtol=8 * eps, atol=8 * eps)


def test_a_hard_code_ignores_the_temperature():
    x = normal(9, 3)
    codes = [clusters(temperature=t).quantize(x, hard=True) for t in (0.0, 1.0, math.inf)]
    assert torch.equal(codes[0], codes[1])
    assert torch.equal(codes[0], codes[2])


# What modules do


def variants():
    for learn in (False, True):
        yield clusters(learn_temperature=learn, temperature=0.7)
    yield SoftKMeans(4, 3, centers_from_data=True, dtype=torch.float64)
    drawn = SoftKMeans(4, 3, centers_from_data=True, dtype=torch.float64)
    drawn(normal(20, 3))
    yield drawn
    yield network()
    yield network("per_center", False)


def reloaded(module):
    stream = io.BytesIO()
    torch.save(module.state_dict(), stream)
    stream.seek(0)
    torch.manual_seed(99)
    if isinstance(module, RBFNetwork):
        widths = "shared" if module.log_ratios is None else "per_center"
        new = RBFNetwork(3, 4, 2, widths=widths, normalized=module.normalized, dtype=torch.float64)
    else:
        new = SoftKMeans(
            4,
            3,
            learn_temperature=module.learn_temperature,
            centers_from_data=module.centers_from_data,
            dtype=torch.float64,
        )
    new.load_state_dict(torch.load(stream), strict=True)
    return new


COPIES = {
    "state_dict": reloaded,
    "deepcopy": copy.deepcopy,
    "pickle": lambda module: pickle.loads(pickle.dumps(module)),
}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("module", list(variants()), ids=lambda m: f"{type(m).__name__}")
def test_a_copy_computes_the_same_and_shares_nothing(module, how):
    x, module = normal(8, 3, seed=6), copy.deepcopy(module)
    new = COPIES[how](module)
    assert repr(new) == repr(module)
    if module.state_dict().get("centers", x).isnan().any():
        for layer in (module.eval(), new.eval()):
            with pytest.raises(RuntimeError, match="reset_centers"):
                layer(x)
        return
    before = module(x)
    assert torch.equal(new(x), before)
    assert torch.equal(new.loss(x), module.loss(x))
    for parameter in new.parameters():
        set_(parameter, parameter + 1)
    assert torch.equal(module(x), before)


def test_a_layer_whose_centers_move_can_be_copied():
    layer = clusters()
    optimizer = CenterSGD(layer)
    layer.loss(normal(8, 3)).backward()
    for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert_close(copied.loss(normal(5, 3)), layer.loss(normal(5, 3)))
        assert copied.mass is not layer.mass
    optimizer.step()
    assert set(layer.state_dict()) == {"centers", "fixed_temperature"}


def test_states_hold_centers_and_temperature_and_nothing_else():
    assert set(clusters().state_dict()) == {"centers", "fixed_temperature"}
    learned = clusters(learn_temperature=True)
    assert set(learned.state_dict()) == {"centers", "log_temperature"}
    with pytest.raises(RuntimeError, match="log_temperature"):
        clusters().load_state_dict(learned.state_dict())


def test_a_representation_says_what_a_layer_is():
    assert repr(SoftKMeans(5, 2, temperature=0.25)) == (
        "SoftKMeans(n_clusters=5, n_features=2, temperature=0.25, mapping='entmax15', "
        "learn_temperature=False)"
    )
    text = repr(RBFNetwork(2, 5, 3, widths="per_center", normalized=False))
    assert "widths='per_center', normalized=False" in text
    assert "Linear(in_features=5, out_features=3, bias=True)" in text


@pytest.mark.parametrize("make", [clusters, network, lambda: network("per_center", False)])
def test_a_module_can_live_on_the_meta_device(make):
    module = make()
    state = {name: value.clone() for name, value in module.state_dict().items()}
    x, before = normal(6, 3), module(normal(6, 3))
    module.to("meta")
    assert all(value.is_meta for value in module.state_dict().values())
    assert "n_clusters=4, n_features=3" in repr(module)
    assert module(x.to("meta")).shape == before.shape
    module.to_empty(device="cpu")
    module.load_state_dict(state)
    assert torch.equal(module(x), before)


def test_a_module_made_on_the_meta_device_takes_a_state_by_assignment():
    layer, made = clusters(), SoftKMeans(4, 3, device="meta")
    made.load_state_dict(layer.state_dict(), assign=True)
    assert torch.equal(made(normal(5, 3)), layer(normal(5, 3)))


def test_parameters_are_found_and_named():
    made = network("per_center")
    assert set(gradients(made)) == {
        *("clusters.centers", "clusters.log_temperature", "log_ratios"),
        *("readout.weight", "readout.bias"),
    }


# Dtypes


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "make",
    [
        clusters,
        lambda: clusters(learn_temperature=True),
        network,
        lambda: network("per_center"),
        lambda: network("per_center", False),
    ],
)
def test_a_model_in_one_dtype_agrees_with_float64(dtype, make):
    exact = make()
    with torch.no_grad():  # values that the dtype holds, so that only computation rounds
        for parameter in exact.parameters():
            parameter.copy_(parameter.to(dtype))
    module = copy.deepcopy(exact).to(dtype)
    x = normal(7, 3, dtype=dtype).requires_grad_()
    wide = x.detach().double().requires_grad_()
    found, wanted = module(x), exact(wide)
    eps = torch.finfo(dtype).eps
    assert found.dtype == dtype
    assert_close(found.double(), wanted, rtol=0, atol=32 * eps)
    loss, energy = module.loss(x), exact.loss(wide)
    assert loss.dtype == (dtype if eps < 1e-4 else torch.float32)
    # exp(log T) in half precision has an error of eps, as T itself has.
    assert_close(loss.double(), energy, rtol=8 * eps, atol=8 * eps)
    (found.square().sum(dtype=loss.dtype) + loss).backward()
    (wanted.square().sum() + energy).backward()
    for name, value in gradients(module).items():
        assert value.dtype == dtype
        wanted = gradients(exact)[name]
        # Half precision rounds the shares before they are squared, in every term of a sum of 7.
        assert_close(value.double(), wanted, rtol=64 * eps, atol=64 * eps, msg=name)
    assert x.grad.dtype == dtype
    assert_close(x.grad.double(), wide.grad, rtol=64 * eps, atol=64 * eps)


@pytest.mark.parametrize("of_x", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("of_layer", [torch.float64, torch.float32, torch.bfloat16])
def test_mixed_dtypes_take_the_wider(of_x, of_layer):
    x, layer = normal(5, 3, dtype=of_x).requires_grad_(), clusters(dtype=of_layer)
    wider = torch.promote_types(of_x, of_layer)
    computed = torch.promote_types(wider, torch.float32)
    for found in (layer(x), layer.quantize(x), layer.quantize(x, hard=True)):
        assert found.dtype == wider
    assert torch.equal(layer.quantize(x, hard=True), layer.centers[layer.predict(x)].to(wider))
    assert layer.loss(x).dtype == computed
    CenterSGD(layer)
    loss = layer.loss(x)
    assert loss.dtype == computed
    (loss + layer(x).sum() + layer.quantize(x).sum()).backward()
    assert (x.grad.dtype, layer.centers.grad.dtype) == (of_x, of_layer)


@pytest.mark.parametrize(
    "make",
    [
        lambda: clusters(k=4, d=16, dtype=torch.float32),
        lambda: clusters(k=4, d=16, dtype=torch.float32, learn_temperature=True),
        lambda: network(d=16, m=4, dtype=torch.float32),
        lambda: network("per_center", d=16, m=4, dtype=torch.float32),
        lambda: network("per_center", False, d=16, m=4, dtype=torch.float32),
    ],
)
def test_autocast_reaches_the_layers_before_and_after_and_not_the_clusters(make):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), make(), nn.Linear(4, 3))
    layer = model[1].clusters if isinstance(model[1], RBFNetwork) else model[1]
    layer.temperature = 20.0
    x = normal(32, 8, dtype=torch.float32)
    exact = copy.deepcopy(model).double()
    with torch.autocast("cpu", torch.bfloat16):
        encoded = model[0](x)
        middle = model[1](encoded)
        out = model[2](middle)
        loss = layer.loss(encoded)
        codes = layer.quantize(encoded)
    assert encoded.dtype == out.dtype == torch.bfloat16
    assert loss.dtype == codes.dtype == torch.float32
    wanted = exact(x.double())
    # The encoder has 8 bits: its outputs of about 1 are off by 2^-9, squared distances at 16
    # features by some 2^-6 of a temperature of 20, and the layers behind round once more.
    assert_close(out.double(), wanted, rtol=2e-2, atol=2e-2)
    (out.float().square().mean() + loss).backward()
    exact_layer = exact[1].clusters if isinstance(exact[1], RBFNetwork) else exact[1]
    energy = exact_layer.loss(exact[0](x.double()))
    assert_close(loss.double(), energy, rtol=2e-2, atol=2e-2)
    (wanted.square().mean() + energy).backward()
    for name, value in gradients(model).items():
        wanted = gradients(exact)[name]
        assert value.dtype == torch.float32
        assert (value - wanted).norm() <= 5e-2 * wanted.norm() + 1e-3, name


def test_clusters_under_autocast_are_as_exact_as_without():
    x = 100 + normal(50, 16, dtype=torch.float32)  # in bfloat16, 100 and 100.2 are the same
    layer = clusters(d=16, dtype=torch.float32, temperature=20.0)
    set_(layer.centers, layer.centers + 100)
    others = {"": layer.loss, "units": layer, "soft": layer.quantize, "labels": layer.predict}
    plain = {name: call(x) for name, call in others.items()}
    perplexity = layer.usage(x).perplexity
    with torch.autocast("cpu", torch.bfloat16):
        for name, call in others.items():
            assert torch.equal(call(x), plain[name]), name
        assert layer.usage(x).perplexity == perplexity


@pytest.mark.parametrize("which", ["forward", "loss", "units of a network"])
def test_backward_passes_under_autocast_are_as_exact_as_without(which):
    made = network("per_center", d=16, dtype=torch.float32)
    layer = made.clusters
    call = {"forward": layer, "loss": layer.loss, "units of a network": made.units}[which]
    found = []
    for enabled in (False, True):
        x = normal(50, 16, dtype=torch.float32).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            call(x).square().sum().backward()
        found.append(x.grad)
    assert found[0].any()
    assert torch.equal(*found)


# Derivatives


def of_values(module, call):
    """A function of x and of all parameters, and those."""
    names, values = zip(*module.named_parameters(), strict=True)

    def function(x, *parameters):
        return call(functional_call, module, dict(zip(names, parameters, strict=True)), x)

    return function, [value.detach().clone().requires_grad_() for value in values]


class Method(nn.Module):
    """A method of a module as the forward of another."""

    def __init__(self, module, name, *arguments):
        super().__init__()
        self.module, self.name, self.arguments = module, name, arguments

    def forward(self, x):
        return getattr(self.module, self.name)(x, *self.arguments)


def check_derivatives(module, x):
    function, parameters = of_values(module, lambda call, *arguments: call(*arguments))
    inputs = (x.clone().requires_grad_(), *parameters)
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


METHODS = [("forward",), ("loss", "sum"), ("loss", "mean"), ("quantize",)]


@each_mapping
@pytest.mark.parametrize("temperature", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("method", METHODS, ids=lambda m: " ".join(m))
def test_derivatives_of_a_layer_are_those_of_finite_differences(mapping, temperature, method):
    layer = clusters(3, 2, temperature=temperature, mapping=mapping, learn_temperature=True)
    check_derivatives(Method(layer, *method), normal(3, 2, seed=21))


@each_network
@pytest.mark.parametrize("mapping", SOFT)
@pytest.mark.parametrize("temperature", [0.1, 1.0, 10.0])
def test_derivatives_of_a_network_are_those_of_finite_differences(
    widths, normalized, mapping, temperature
):
    made = network(widths, normalized, k=3, d=2, m=1, mapping=mapping)
    made.clusters.temperature = temperature
    check_derivatives(made, normal(3, 2, seed=21))


def test_the_loss_of_a_network_leaves_its_widths_alone():
    made = network("per_center")
    made.loss(normal(5, 3)).backward()
    assert made.clusters.centers.grad.abs().sum() > 0
    assert made.clusters.log_temperature.grad is None
    assert made.log_ratios.grad is None


# Temperatures of all sizes


SIZES = (1e-12, 1e-6, 1e-3, 1.0, 1e3, 1e6, 1e12)
TYPES = (torch.float64, torch.float32, torch.bfloat16)
each_type = pytest.mark.parametrize("dtype", TYPES, ids=str)


def assert_finite(*values, where):
    for value in values:
        assert value is not None, where
        assert value.isfinite().all(), (where, value)


def derivatives_are_finite(layer, x, where, energy=True):
    for attached in (False, True):
        layer.zero_grad()
        x.grad = None
        p, codes, loss = layer(x), layer.quantize(x), layer.loss(x)
        assert_finite(p, codes, where=where)
        if energy:
            assert_finite(loss, where=where)
        # Sharper than the mean: weights that differ, so that no derivative vanishes by symmetry.
        pull = torch.linspace(-1, 1, p.numel(), dtype=p.dtype).reshape(p.shape)
        ((p * pull).sum() + codes.square().sum() + loss).backward()
        assert_finite(x.grad, *(q.grad for q in layer.parameters()), where=where)
        if not attached:
            CenterSGD(layer)


@each_type
@each_mapping
def test_fixed_temperatures_of_all_sizes_give_finite_values_and_gradients(dtype, mapping):
    for t in (0.0, *SIZES, math.inf):
        x = normal(7, 3, dtype=dtype).requires_grad_()
        layer = clusters(dtype=dtype, temperature=t, mapping=mapping)
        # At infinity the free energy is minus infinity, by definition; its gradients are finite.
        derivatives_are_finite(layer, x, (t, mapping), energy=t < math.inf)
        assert_close(layer(x).double().sum(-1), torch.ones(7).double(), rtol=0, atol=2e-2)


@each_type
@each_mapping
def test_learned_temperatures_of_all_sizes_give_finite_values_and_gradients(dtype, mapping):
    for log in (*map(math.log, SIZES), -700.0, -200.0, -60.0, 60.0, 200.0, 700.0):
        x = normal(7, 3, dtype=dtype).requires_grad_()
        layer = clusters(dtype=dtype, mapping=mapping, learn_temperature=True)
        set_(layer.log_temperature, torch.tensor(log))
        assert 0 < layer.temperature.item() < math.inf
        derivatives_are_finite(layer, x, (log, mapping))


@pytest.mark.parametrize("mapping", SOFT)
@pytest.mark.parametrize("log", [-60.0, -20.0])
def test_a_tie_at_low_temperature_pulls_at_no_temperature(mapping, log):
    layer = clusters(mapping=mapping, learn_temperature=True, dtype=torch.float32)
    set_(layer.centers[1], layer.centers[0])
    set_(layer.log_temperature, torch.tensor(log))
    x = layer.centers.detach()[:1] + 0.1
    assert_close(layer(x)[0, :2], torch.full((2,), 0.5))
    layer(x)[0, 0].backward()
    assert layer.log_temperature.grad == 0


@each_type
@each_network
def test_widths_of_all_sizes_are_positive_and_give_finite_gradients(dtype, widths, normalized):
    for mapping in SOFT:
        for log in (*map(math.log, SIZES), -700.0, -200.0, -60.0, 60.0, 200.0, 700.0):
            x = normal(7, 3, dtype=dtype).requires_grad_()
            made = network(widths, normalized, dtype=dtype, mapping=mapping)
            set_(made.clusters.log_temperature, torch.tensor(log))
            assert (made.widths > 0).all()
            assert_finite(made.widths, made(x), where=log)
            made(x).square().sum().backward()
            assert_finite(x.grad, *gradients(made).values(), where=(log, mapping))


def test_row_38_no_step_makes_a_width_zero_or_negative():
    made = network("per_center", False)
    optimizer = torch.optim.SGD(made.parameters(), lr=1e6)
    for i in range(5):
        made(normal(9, 3, seed=i)).square().sum().backward()
        optimizer.step()
        assert (made.widths > 0).all()
        assert made.widths.isfinite().all()


def test_row_38_each_center_can_have_a_width_of_its_own():
    x = torch.linspace(-4, 4, 81, dtype=torch.float64).unsqueeze(-1)
    made = RBFNetwork(1, 2, 1, widths="per_center", normalized=False, dtype=torch.float64)
    set_(made.clusters.centers, torch.tensor([[-2.0], [2.0]]))
    set_(made.readout.weight, torch.ones(1, 2))
    set_(made.readout.bias, torch.zeros(1))
    y = torch.exp(-(x + 2).square() / (2 * 0.3**2)) + torch.exp(-(x - 2).square() / (2 * 1.2**2))
    optimizer = torch.optim.Adam(made.parameters(), lr=0.05)
    for _ in range(300):
        optimizer.zero_grad()
        (made(x) - y).square().mean().backward()
        optimizer.step()
    assert made.widths.tolist() == pytest.approx([0.3, 1.2], rel=0.1)


@pytest.mark.parametrize("mapping", SOFT)
def test_row_15_a_learned_temperature_never_leaves_its_range(mapping):
    layer = clusters(learn_temperature=True, mapping=mapping, dtype=torch.float32)
    optimizer = torch.optim.SGD(layer.parameters(), lr=100.0)
    x = normal(9, 3, dtype=torch.float32)
    for sign in (1, 1, 1, -1, -1, -1):
        optimizer.zero_grad()
        (sign * layer(x).square().sum()).backward()
        optimizer.step()
        assert 0 < layer.temperature.item() < math.inf
        assert layer(x).isfinite().all()


# Transforms of torch.func


def test_vmap_over_batches_and_over_single_points_equals_a_loop():
    x, layer = normal(3, 5, 3), clusters(learn_temperature=True)
    for call in (layer, layer.loss, layer.quantize, layer.predict, network("per_center")):
        assert_close(vmap(call)(x), torch.stack([call(part) for part in x]), **CLOSE)
        assert_close(vmap(call)(x[0]), torch.stack([call(point) for point in x[0]]), **CLOSE)


@pytest.mark.parametrize("learn", [False, True])
def test_an_ensemble_of_temperatures_equals_its_members(learn):
    x, temperatures = normal(6, 3), (0.1, 1.0, 10.0)
    members = [
        clusters(seed=i, temperature=t, learn_temperature=learn) for i, t in enumerate(temperatures)
    ]
    parameters, buffers = stack_module_state(members)
    module = Method(clusters(learn_temperature=learn), "loss")
    prefix = {"module." + n: v for group in (parameters, buffers) for n, v in group.items()}

    def energy(state):
        return functional_call(module, state, x)

    at_once = vmap(energy)(prefix)
    assert_close(at_once, torch.stack([m.loss(x) for m in members]), **CLOSE)
    at_once.sum().backward()
    for i, member in enumerate(members):
        member.loss(x).backward()
        for name, value in gradients(member).items():
            assert_close(parameters[name].grad[i], value, **CLOSE)


@pytest.mark.parametrize("attached", [False, True])
def test_gradients_of_each_sample_equal_a_loop(attached):
    layer, x = clusters(learn_temperature=True), normal(6, 3)
    if attached:
        CenterSGD(layer)
    module = Method(layer, "loss")
    state = {name: p.detach() for name, p in module.named_parameters()}

    def energy(parameters, point):
        return functional_call(module, parameters, point.unsqueeze(0))

    each = vmap(grad(energy), (None, 0))(state, x)
    for i in range(6):
        layer.zero_grad()
        layer.loss(x[i : i + 1]).backward()
        for name, value in gradients(layer).items():
            assert_close(each["module." + name][i], value, **CLOSE)
    if attached:  # nothing of a transform stays behind in the layer
        assert torch._C._functorch.is_batchedtensor(layer.mass) is False


def test_gradients_flow_back_through_vmap():
    layer, x = clusters(), normal(3, 5, 3)
    vmap(layer.loss)(x).sum().backward()
    at_once, layer.centers.grad = layer.centers.grad, None
    sum(layer.loss(part) for part in x).backward()
    assert_close(at_once, layer.centers.grad, **CLOSE)


# Compiled and exported


@pytest.fixture
def compiled():
    """A function that compiles another, whole, and counts how often it had to."""
    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager")

    def compile_(function):
        return torch.compile(function, fullgraph=True, backend=counter), counter

    yield compile_
    torch.compiler.reset()


def compare(function, module, layer, sizes, found_of):
    """Values and gradients of a compiled function, at several sizes and temperatures."""
    fast, counter = found_of
    for i, n in enumerate(sizes):
        x = normal(n, 3, seed=i)
        results = []
        for call in (function, fast):
            module.zero_grad()
            value = call(x)
            value.sum().backward()
            results.append([value.detach(), *(g.clone() for g in gradients(module).values())])
        assert_close(*results, **CLOSE)
        if i == 1:  # once for the first size, once for all others
            compilations = counter.frame_count
        layer.temperature = 0.5 + i
    assert counter.frame_count == compilations


def test_a_compiled_layer_needs_no_second_compilation_for_sizes_and_temperatures(compiled):
    layer = clusters()

    def function(x):
        return layer(x).square().sum() + layer.loss(x) + layer.quantize(x).square().sum()

    compare(function, layer, layer, (8, 13, 21, 34), compiled(function))


def test_a_compiled_layer_follows_a_learned_temperature(compiled):
    layer = clusters(learn_temperature=True, mapping="softmax")

    def function(x):
        return layer(x).square().sum() + layer.loss(x, "sum")

    compare(function, layer, layer, (8, 13, 21), compiled(function))


@pytest.mark.parametrize(("widths", "normalized"), [("shared", True), ("per_center", False)])
def test_a_compiled_network_equals_the_plain_one(compiled, widths, normalized):
    made = network(widths, normalized)
    if made.log_ratios is None:
        function = made
    else:  # both kinds of units in one compilation
        other = network(widths, True)

        def function(x):
            return made(x) + other(x).detach()

    compare(function, made, made.clusters, (8, 13, 21), compiled(function))


def test_the_optimizer_of_centers_moves_those_of_a_compiled_layer(compiled):
    layer, other = clusters(), clusters()
    optimizer, plain = CenterSGD(layer, decay=0.5), CenterSGD(other, decay=0.5)
    fast, counter = compiled(layer.loss)
    for i, n in enumerate((8, 13, 21, 34)):
        for loss, step in ((fast, optimizer), (other.loss, plain)):
            step.zero_grad()
            for part in (normal(n, 3, seed=i), normal(n + 1, 3, seed=i + 10)):
                loss(part, "sum").backward()
            step.step()
        if i == 0:
            compilations = counter.frame_count
        assert_close(layer.centers, other.centers, **CLOSE)
        layer.temperature = other.temperature = 1 / (i + 1)
    assert counter.frame_count == compilations


# Inductor imports what torch itself has deprecated.
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_inductor_compiles_a_layer():
    torch.compiler.reset()
    layer, x = clusters(dtype=torch.float32), normal(12, 3, dtype=torch.float32)
    value = torch.compile(lambda x: layer.loss(x) + layer(x).square().sum(), fullgraph=True)(x)
    value.backward()
    found, layer.centers.grad = layer.centers.grad, None
    plain = layer.loss(x) + layer(x).square().sum()
    plain.backward()
    assert_close(value, plain)
    assert_close(found, layer.centers.grad)


@pytest.mark.parametrize("make", [clusters, network, lambda: network("per_center", False)])
def test_an_exported_program_serves_batches_of_any_size(make, tmp_path):
    module = make().eval()
    batch = torch.export.Dim("batch", min=1, max=1000)
    program = torch.export.export(module, (normal(5, 2, 3),), dynamic_shapes={"x": {0: batch}})
    torch.export.save(program, tmp_path / "program.pt2")
    loaded = torch.export.load(tmp_path / "program.pt2").module()
    for n in (1, 5, 17):
        x = normal(n, 2, 3, seed=n)
        assert_close(loaded(x), module(x), **CLOSE)


# CenterSGD


@each_mapping
@pytest.mark.parametrize("temperature", [0.0, 0.5, 5.0])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_full_batch_is_the_step_of_k_means(mapping, temperature, reduction, weighted):
    x = normal(40, 3)
    weight = normal(40, seed=2).abs() if weighted else None
    layer = clusters(temperature=temperature, mapping=mapping)
    optimizer = CenterSGD(layer)
    for _ in range(3):
        at = (x, layer.centers.detach().clone(), temperature, mapping, weight)
        wanted = entmeans.statistics(*at).centers(at[1])
        optimizer.zero_grad()
        layer.loss(x, reduction, weight).backward()
        optimizer.step()
        assert_close(layer.centers.detach(), wanted, **CLOSE)


def test_full_batches_at_temperature_zero_are_lloyds_algorithm():
    x, layer = normal(60, 2, seed=3), clusters(4, 2, temperature=0.0)
    set_(layer.centers, x[:4])
    wanted, labels, history = oracle.lloyd(x, x[:4], np.ones(60))
    optimizer = CenterSGD(layer)
    for inertia in history:
        optimizer.zero_grad()
        loss = layer.loss(x, "sum")
        assert loss.item() == pytest.approx(inertia)
        loss.backward()
        optimizer.step()
    assert_close(layer.centers.detach(), torch.tensor(wanted), **CLOSE)
    assert layer.predict(x).tolist() == labels.tolist()


def test_mini_batches_are_those_of_scikit_learn():
    x, layer = normal(800, 3, seed=4), clusters(6, temperature=0.0)
    set_(layer.centers, x[:6])
    peer = MiniBatchKMeans(6, init=x[:6].numpy(), n_init=1, reassignment_ratio=0)
    optimizer = CenterSGD(layer, decay=1.0)
    for batch in x.split(17):
        peer.partial_fit(batch.numpy())
        optimizer.zero_grad()
        layer.loss(batch, "sum").backward()
        optimizer.step()
        assert_close(layer.centers.detach(), torch.tensor(peer.cluster_centers_), rtol=0, atol=1e-9)


@pytest.mark.parametrize("decay", [0.3, 0.99])
def test_a_decay_is_the_moving_average_of_learned_codebooks(decay):
    layer = clusters(4, 2, temperature=0.0)
    optimizer = CenterSGD(layer, decay=decay)
    centers = layer.centers.detach().tolist()
    n, m = [0.0] * 4, [[0.0, 0.0] for _ in range(4)]
    for i in range(20):
        batch = normal(9, 2, seed=i)
        labels = oracle.labels(oracle.squared_distances(batch, centers)).tolist()
        for j in range(4):
            mine = [x for x, label in zip(batch.tolist(), labels, strict=True) if label == j]
            n[j] = decay * n[j] + (1 - decay) * len(mine)
            for f in range(2):
                m[j][f] = decay * m[j][f] + (1 - decay) * sum(x[f] for x in mine)
                centers[j][f] = m[j][f] / n[j] if n[j] else centers[j][f]
        optimizer.zero_grad()
        layer.loss(batch, "sum").backward()
        optimizer.step()
        # The mean of few points, subtracted and divided twenty times over.
        assert_close(layer.centers.tolist(), centers, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("factor", [1.0, 0.5, 1 / 3])
def test_accumulated_gradients_equal_one_batch(reduction, factor):
    x, accumulated, whole = normal(24, 3), clusters(), clusters()
    for layer, parts in ((accumulated, x.split(8)), (whole, [x])):
        optimizer = CenterSGD(layer, decay=0.5)
        for _ in range(3):
            optimizer.zero_grad()
            for part in parts:
                (factor * layer.loss(part, reduction)).backward()
            optimizer.step()
    assert_close(accumulated.centers, whole.centers, **CLOSE)


def test_losses_added_before_backward_equal_one_batch():
    x, layer, whole = normal(24, 3), clusters(), clusters()
    optimizer, other = CenterSGD(layer), CenterSGD(whole)
    sum(layer.loss(part, "sum") for part in x.split(7)).backward()
    whole.loss(x, "sum").backward()
    optimizer.step()
    other.step()
    assert_close(layer.centers, whole.centers, **CLOSE)


def test_other_losses_move_the_centers_in_units_of_their_mass():
    x, layer = normal(24, 3), clusters()
    optimizer = CenterSGD(layer, lr=0.5)
    before = layer.centers.detach().clone()
    found = entmeans.statistics(x, before, 1.0)
    (layer.loss(x, "sum") + layer.centers.pow(3).sum()).backward()
    optimizer.step()
    mass = found.mass.unsqueeze(-1)
    gradient = 2 * (mass * before - found.moment) + 3 * before.square()
    assert_close(layer.centers.detach(), before - 0.5 * gradient / (2 * mass), **CLOSE)


def test_schedulers_of_learning_rates_work():
    layer, x = clusters(), normal(24, 3)
    optimizer = CenterSGD(layer)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for i in range(3):
        before = layer.centers.detach().clone()
        whole = entmeans.statistics(x, before, 1.0).centers(before)
        optimizer.zero_grad()
        layer.loss(x).backward()
        optimizer.step()
        scheduler.step()
        assert_close(layer.centers.detach(), torch.lerp(before, whole, 0.5**i), **CLOSE)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_a_saved_optimizer_goes_on_as_if_nothing_had_happened(dtype):
    batches = [normal(400, 3, seed=i, dtype=dtype) for i in range(4)]

    def train(layer, optimizer, some):
        for batch in some:
            optimizer.zero_grad()
            layer.loss(batch, "sum").backward()
            optimizer.step()

    layer = clusters(dtype=dtype)
    optimizer = CenterSGD(layer, lr=0.9, decay=0.9)
    train(layer, optimizer, batches[:2])
    stream = io.BytesIO()
    torch.save((layer.state_dict(), optimizer.state_dict()), stream)
    stream.seek(0)
    states = torch.load(stream)
    train(layer, optimizer, batches[2:])
    resumed = clusters(dtype=dtype, seed=9)
    other = CenterSGD(resumed)
    resumed.load_state_dict(states[0])
    other.load_state_dict(states[1])
    train(resumed, other, batches[2:])
    assert other.param_groups[0]["lr"] == 0.9
    assert torch.equal(resumed.centers, layer.centers)


def test_a_closure_is_called_with_gradients_and_its_loss_returned():
    layer, x, plain = clusters(), normal(9, 3), clusters()
    optimizer = CenterSGD(layer)

    def closure():
        optimizer.zero_grad()
        loss = layer.loss(x)
        loss.backward()
        return loss

    assert_close(optimizer.step(closure), plain.loss(x), **CLOSE)
    at = plain.centers.detach()
    assert_close(layer.centers.detach(), entmeans.statistics(x, at, 1.0).centers(at), **CLOSE)


@pytest.mark.parametrize("of_model", [False, True])
def test_gradients_may_be_cleared_between_the_loss_and_its_backward_pass(of_model):
    layer, x, once = clusters(), normal(9, 3), clusters()
    optimizer, other = CenterSGD(layer), CenterSGD(once)
    loss = layer.loss(x)  # Lightning computes the loss first
    (layer if of_model else optimizer).zero_grad()
    loss.backward()
    optimizer.step()
    once.loss(x).backward()
    other.step()
    assert torch.equal(layer.centers, once.centers)


def test_without_its_loss_a_step_says_what_is_missing():
    layer = clusters()
    optimizer = CenterSGD(layer)
    optimizer.step()  # nothing to do
    layer(normal(5, 3)).square().sum().backward()
    with pytest.raises(RuntimeError, match=r"needs layer\.loss"):
        optimizer.step()
    with pytest.raises(ValueError, match='use "mean" or "sum"'):
        layer.loss(normal(5, 3), "none")
    with torch.no_grad():
        assert layer.loss(normal(5, 3), "none").shape == (5,)


def test_losses_without_backward_pass_leave_no_trace():
    layer, once, x = clusters(), clusters(), normal(9, 3)
    optimizer, other = CenterSGD(layer), CenterSGD(once)
    layer.loss(normal(50, 3, seed=5))  # a batch that was skipped
    layer.loss(x).backward()
    once.loss(x).backward()
    optimizer.step()
    other.step()
    assert torch.equal(layer.centers, once.centers)
    optimizer.zero_grad()
    optimizer.step()
    assert torch.equal(layer.centers, once.centers)


@pytest.mark.parametrize("decay", [0.0, 0.5, 1.0])
def test_centers_without_mass_stay(decay):
    layer, x = clusters(3, 2, temperature=0.1), normal(20, 2)
    set_(layer.centers, torch.tensor([[0.0, 0.0], [90.0, 90.0], [1.0, 1.0]]))
    optimizer = CenterSGD(layer, decay=decay)
    for _ in range(3):
        optimizer.zero_grad()
        layer.loss(x).backward()
        optimizer.step()
    assert layer.centers[1].tolist() == [90.0, 90.0]
    assert layer.centers.isfinite().all()


def test_a_grad_scaler_scales_the_mass_too():
    x = normal(9, 3, dtype=torch.float32)
    layer, plain = (clusters(dtype=torch.float32) for _ in range(2))
    optimizer, other = CenterSGD(layer, decay=0.5), CenterSGD(plain, decay=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for overflow in (0.0, math.inf, 0.0):
        before = layer.centers.detach().clone()
        optimizer.zero_grad()
        scaler.scale(
            layer.loss(x) + (layer.centers[0] * overflow).sum() if overflow else layer.loss(x)
        ).backward()
        scaler.step(optimizer)
        scaler.update()
        if overflow:
            assert torch.equal(layer.centers, before)
            continue
        other.zero_grad()
        plain.loss(x).backward()
        other.step()
    # The scale is a power of two.
    assert_close(layer.centers, plain.centers)


def test_two_optimizers_train_an_encoder_and_its_centers():
    torch.manual_seed(0)
    encoder, layer = nn.Linear(5, 3).double(), clusters(temperature=0.5)
    rest, of_centers = torch.optim.Adam(encoder.parameters(), 0.01), CenterSGD(layer, decay=0.5)
    x, losses = normal(64, 5), []
    for _ in range(10):
        for optimizer in (rest, of_centers):
            optimizer.zero_grad()
        losses.append(layer.loss(encoder(x)))
        losses[-1].backward()
        for optimizer in (rest, of_centers):
            optimizer.step()
    assert all(b < a for a, b in itertools.pairwise(losses))


# TemperatureScheduler


def test_a_scheduler_sets_multiples_of_the_first_temperatures():
    model = nn.Sequential(clusters(temperature=8.0), nn.Sequential(clusters(temperature=0.5)))
    scheduler = TemperatureScheduler(model, entmeans.Geometric(0.5, steps=3))
    found = []
    for _ in range(5):
        found.append((model[0].temperature.item(), model[1][0].temperature.item()))
        scheduler.step("arguments", "of a callback")
    assert found == [(8.0, 0.5), (4.0, 0.25), (2.0, 0.125), (0.0, 0.0), (0.0, 0.0)]


@pytest.mark.parametrize("schedule", ["geometric", "linear", lambda i: 1 + i])
def test_schedules_are_those_of_a_fit(schedule):
    layer = clusters(temperature=3.0)
    scheduler = TemperatureScheduler(layer, schedule)
    named = {"geometric": entmeans.Geometric(), "linear": entmeans.Linear()}
    for i in range(20):
        assert layer.temperature.item() == 3.0 * named.get(schedule, schedule)(i)
        scheduler.step()


def test_a_schedule_may_start_elsewhere_than_at_one_and_at_infinity():
    layer = clusters(temperature=3.0)
    TemperatureScheduler(layer, lambda i: 2.0)
    assert layer.temperature.item() == 6.0
    layer.temperature = math.inf
    scheduler = TemperatureScheduler(layer, entmeans.Geometric(0.5, steps=1))
    assert layer.temperature.item() == math.inf
    scheduler.step()
    assert layer.temperature.item() == 0.0


def test_a_schedule_ends_at_its_final_temperature():
    layer = clusters(temperature=8.0)
    scheduler = TemperatureScheduler(layer, entmeans.Geometric(0.5, 2), final_temperature=3.0)
    found = []
    for _ in range(4):
        found.append(layer.temperature.item())
        scheduler.step()
    assert found == [8.0, 4.0, 3.0, 3.0]
    with pytest.raises(ValueError, match="final_temperature"):
        TemperatureScheduler(layer, final_temperature=-1.0)


def test_a_saved_scheduler_goes_on_where_it_was():
    layer, resumed = clusters(temperature=8.0), clusters(temperature=1.0)
    scheduler = TemperatureScheduler(layer, entmeans.Geometric(0.5))
    for _ in range(3):
        scheduler.step()
    other = TemperatureScheduler(resumed, entmeans.Geometric(0.5))
    other.load_state_dict(pickle.loads(pickle.dumps(scheduler.state_dict())))
    assert resumed.temperature.item() == 1.0
    for each in (scheduler, other):
        each.step()
    assert resumed.temperature.item() == layer.temperature.item() == 0.5
    pair = TemperatureScheduler(nn.Sequential(clusters(), clusters()))
    with pytest.raises(ValueError, match="1 layers, the module has 2"):
        pair.load_state_dict(scheduler.state_dict())


def test_what_has_no_temperature_to_set_cannot_be_scheduled():
    with pytest.raises(ValueError, match="no SoftKMeans"):
        TemperatureScheduler(nn.Linear(2, 2))
    for module in (clusters(learn_temperature=True), network()):
        with pytest.raises(ValueError, match="learned or scheduled"):
            TemperatureScheduler(module)
    with pytest.raises(ValueError, match="geometric, linear"):
        TemperatureScheduler(clusters(), "cosine")
    for bad in (math.nan, -1.0):
        with pytest.raises(ValueError, match="must give 0 or more"):
            TemperatureScheduler(clusters(), lambda i, bad=bad: bad)


def test_training_while_it_cools_ends_at_k_means():
    x = torch.cat([normal(30, 2, seed=i) * 0.1 + 3 * i for i in range(3)])
    layer = clusters(3, 2, temperature=20.0)
    scheduler = TemperatureScheduler(layer, entmeans.Geometric(0.7, steps=20))
    optimizer = CenterSGD(layer)
    for _ in range(25):
        optimizer.zero_grad()
        layer.loss(x).backward()
        optimizer.step()
        scheduler.step()
    means = torch.stack([part.mean(0) for part in x.split(30)])
    order = layer.centers.detach()[:, 0].argsort()
    assert_close(layer.centers.detach()[order], means, **CLOSE)


@pytest.mark.filterwarnings("ignore")  # of the trainer's own: data loaders, devices, its imports
def test_a_lightning_trainer_runs_optimizer_and_scheduler_and_goes_on_where_it_was(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lightning = pytest.importorskip("lightning")
    from lightning.pytorch.callbacks import LambdaCallback

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.clusters = clusters(temperature=8.0)
            self.seen = []

        def training_step(self, batch):
            (x,) = batch
            self.seen.append(self.clusters.temperature.item())
            return self.clusters.loss(x, "sum")

        def configure_optimizers(self):
            return CenterSGD(self.clusters, decay=1.0)

    x = normal(48, 3)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), batch_size=16)

    def trained(max_epochs, checkpoint=None):
        model = Model()
        scheduler = TemperatureScheduler(model, entmeans.Geometric(0.5, steps=3))
        cooling = LambdaCallback(
            on_train_epoch_end=scheduler.step,
            on_save_checkpoint=lambda _, __, state: state.update(cooling=scheduler.state_dict()),
            on_load_checkpoint=lambda _, __, state: scheduler.load_state_dict(state["cooling"]),
        )
        trainer = lightning.Trainer(
            max_epochs=max_epochs,
            accelerator="cpu",
            callbacks=[cooling],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(model, loader, ckpt_path=checkpoint)
        trainer.save_checkpoint(tmp_path / "last.ckpt")
        return model

    whole = trained(5)
    assert whole.seen == [t for t in (8.0, 4.0, 2.0, 0.0, 0.0) for _ in range(3)]
    trained(2)
    resumed = trained(5, tmp_path / "last.ckpt")
    assert resumed.seen == whole.seen[6:]
    assert torch.equal(resumed.clusters.centers, whole.clusters.centers)
    layer = clusters()
    optimizer = CenterSGD(layer, decay=1.0)
    for t in (8.0, 4.0, 2.0, 0.0, 0.0):
        layer.temperature = t
        for batch in x.split(16):
            optimizer.zero_grad()
            layer.loss(batch, "sum").backward()
            optimizer.step()
    assert_close(whole.clusters.centers, layer.centers, **CLOSE)


# Usage and revival


def test_usage_is_that_of_loops():
    x, layer = normal(5, 6, 3), clusters(temperature=2.0)
    usage = layer.usage(x)
    p = layer(x).detach().reshape(-1, 4).tolist()
    mass = [math.fsum(row[j] for row in p) for j in range(4)]
    entropy = -math.fsum(m / 30 * math.log(m / 30) for m in mass)
    assert usage.mass.tolist() == pytest.approx(mass)
    assert usage.perplexity == pytest.approx(math.exp(entropy))
    flat = x.reshape(-1, 3)
    assert usage.spread == pytest.approx((flat - flat.mean(0)).square().sum(-1).mean().item())
    assert usage.warning is None


def blobs(offset=0.0):
    corners = torch.tensor([[0.0, 0.0], [0.0, 6.0], [6.0, 0.0], [6.0, 6.0]]).double()
    return (corners.repeat_interleave(25, 0) + normal(100, 2)) + offset


@pytest.mark.parametrize("offset", [0.0, 30.0, 1000.0])
@pytest.mark.parametrize("temperature", [0.0, 1.0, 30.0, math.inf])
@each_mapping
def test_healthy_data_give_no_alarm(offset, temperature, mapping):
    x, layer = blobs(offset), clusters(4, 2, temperature=temperature, mapping=mapping)
    set_(layer.centers, x[12::25])
    usage = layer.usage(x)
    assert usage.warning is None
    assert usage.perplexity == pytest.approx(4, rel=0.05)
    one = clusters(1, 2)
    one.reset_centers(x)
    assert one.usage(x).warning is None


def test_row_35_dead_codes_are_reported_and_revived():
    x, layer = blobs(), clusters(4, 2, temperature=0.5)
    set_(layer.centers, torch.tensor([[3.0, 3.0], [60.0, 0.0], [0.0, 70.0], [80.0, 80.0]]))
    optimizer = torch.optim.Adam(layer.parameters(), 0.01)
    for _ in range(3):
        optimizer.zero_grad()
        layer.loss(x).backward()
        optimizer.step()
    assert layer.centers.grad[1:].abs().max() == 0
    usage = layer.usage(x)
    assert usage.perplexity == 1
    assert isinstance(usage.warning, CollapseWarning)
    with pytest.warns(CollapseWarning, match=r"Center 0 has 100\.0% of the mass"):
        warnings.warn(usage.warning, stacklevel=1)
    assert layer.revive(x, optimizer).tolist() == [1, 2, 3]
    assert (layer.centers[1:].unsqueeze(1) == x).all(-1).any(-1).all()
    for _ in range(100):
        optimizer.zero_grad()
        layer.loss(x).backward()
        optimizer.step()
    after = layer.usage(x)
    assert after.warning is None
    assert after.perplexity > 3


def test_row_39_an_encoder_that_shrinks_is_reported_while_its_loss_falls():
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)).double()
    x, layer = normal(128, 8), clusters(4, 2, temperature=1.0)
    layer.reset_centers(encoder(x), generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.Adam([*encoder.parameters(), *layer.parameters()], 0.02)
    losses, warned = [], []
    for _ in range(100):
        optimizer.zero_grad()
        losses.append(layer.loss(encoder(x)))
        losses[-1].backward()
        optimizer.step()
        warned.append(layer.usage(encoder(x)).warning)
    assert warned[0] is None
    assert losses[-1] < losses[0]
    assert isinstance(warned[-1], CollapseWarning)
    assert "have shrunk to one" in str(warned[-1])


@pytest.mark.parametrize(("n", "alarm"), [(98, False), (100, True)])
def test_99_percent_of_the_mass_are_everything(n, alarm):
    layer = clusters(2, 1, temperature=0.0)
    set_(layer.centers, torch.tensor([[0.0], [5.0]]))
    x = torch.cat([torch.linspace(-1, 1, n), torch.tensor([5.0])]).double().unsqueeze(1)
    assert ("Center 0 has" in str(layer.usage(x).warning)) == alarm


@pytest.mark.parametrize(("temperature", "alarm"), [(900.0, False), (1100.0, True)])
def test_a_thousandth_of_the_temperature_is_one_point(temperature, alarm):
    x, layer = torch.tensor([[-1.0], [1.0]]).double(), clusters(2, 1, temperature=temperature)
    set_(layer.centers, x)
    assert ("too hot" in str(layer.usage(x).warning)) == alarm


@pytest.mark.parametrize("temperature", [1.0, math.inf])
def test_centers_that_are_all_but_equal_are_reported(temperature):
    x, layer = blobs(), clusters(4, 2, temperature=temperature)
    set_(layer.centers, 3 + 1e-3 * normal(4, 2))
    usage = layer.usage(x)
    assert usage.perplexity == pytest.approx(4, rel=1e-2)
    assert "centers have become one" in str(usage.warning)


@pytest.mark.parametrize("x", [torch.empty(0, 3), torch.full((4, 3), math.nan)])
def test_usage_of_no_points_says_so(x):
    assert "no points" in str(clusters().usage(x.double()).warning)
    layer = clusters()
    set_(layer.centers[2], torch.full((3,), math.nan))
    assert "in the centers" in str(layer.usage(normal(9, 3)).warning)


def test_points_that_are_all_but_equal_are_reported_at_temperature_zero_too():
    layer = clusters(1, 2, temperature=0.0)
    for x in (torch.ones(9, 2).double(), 1 + 1e-4 * normal(9, 2)):
        assert "have shrunk" in str(layer.usage(x).warning)


def test_revival_touches_dead_centers_only_and_all_that_is_known_of_them():
    x, layer = normal(40, 3), clusters(temperature=0.5)
    set_(layer.centers[2], torch.full((3,), 50.0))
    adam, sgd = torch.optim.Adam(layer.parameters(), 1e-9, amsgrad=True), CenterSGD(layer, decay=1)
    for _ in range(3):
        adam.zero_grad()
        sgd.zero_grad()
        (layer.loss(x) + layer.centers.square().sum()).backward()
        adam.step()
    sgd.state[layer.mass]["mass"] = torch.arange(1.0, 5.0).double()
    before = layer.centers.detach().clone()
    known = {k: v.clone() for k, v in adam.state[layer.centers].items()}
    far = entmeans.nearest(x, before).distances.argmax()
    assert layer.revive(x, adam, sgd).tolist() == [2]
    assert torch.equal(layer.centers[2], x[far])
    alive = [0, 1, 3]
    assert torch.equal(layer.centers[alive], before[alive])
    state = adam.state[layer.centers]
    assert state["step"] == known["step"] == 3
    for name in ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"):
        assert state[name][2].tolist() == [0, 0, 0]
        assert torch.equal(state[name][alive], known[name][alive])
        assert known[name][2].abs().min() > 0
    assert sgd.state[layer.mass]["mass"].tolist() == [1, 2, 0, 4]
    assert layer.revive(x, adam, sgd).tolist() == []


def test_revival_follows_a_share_of_the_mass():
    x, layer = normal(400, 2), clusters(3, 2, temperature=1.0, mapping="softmax")
    set_(layer.centers, torch.tensor([[0.0, 0.0], [0.5, 0.0], [6.0, 6.0]]))
    share = (layer(x).sum(0) / 400)[2].item()
    assert 0 < share < 0.01
    assert layer.revive(x).tolist() == []
    assert layer.revive(x, min_share=0.01).tolist() == [2]


@pytest.mark.parametrize("how", ["set to none", "in place"])
def test_a_module_that_clears_its_gradients_clears_the_mass_of_a_skipped_step(how):
    x, layer = normal(30, 3), clusters()
    optimizer = CenterSGD(layer)
    wanted = entmeans.statistics(x, layer.centers.detach(), 1.0).centers(layer.centers.detach())
    layer.loss(10 + x).backward()
    if how == "set to none":
        nn.Sequential(layer).zero_grad()
    else:
        optimizer.zero_grad(set_to_none=False)
    layer.loss(x).backward()
    optimizer.step()
    assert_close(layer.centers.detach(), wanted, **CLOSE)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda v: pickle.loads(pickle.dumps(v))])
def test_an_optimizer_is_copied_with_its_layer(copied):
    x, layer = normal(30, 3), clusters()
    optimizer = CenterSGD(layer, decay=0.5)
    layer.loss(x).backward()
    optimizer.step()
    pair = copied((layer, optimizer))
    for one, moves in [(layer, optimizer), pair]:
        moves.zero_grad()
        one.loss(2 * x).backward()
        moves.step()
    assert torch.equal(pair[0].centers, layer.centers)
    assert pair[0].centers is not layer.centers


def test_a_grad_scaler_goes_on_after_an_overflow_whoever_clears_gradients():
    x, layer = normal(30, 3), clusters()
    scaler, optimizer = torch.amp.GradScaler("cpu"), CenterSGD(layer, decay=0.5)
    wanted = entmeans.statistics(x, layer.centers.detach(), 1.0).centers(layer.centers.detach())
    for factor in (math.inf, 1.0):
        layer.zero_grad()
        scaler.scale(layer.loss(x) * factor).backward()
        scaler.step(optimizer)
        scaler.update()
    assert_close(layer.centers.detach(), wanted, **CLOSE)


@pytest.mark.parametrize(
    ("bad", "other"),
    [
        (normal(0, 3), 0.0),
        (torch.full((2, 3), math.nan, dtype=torch.float64), 0.0),
        (normal(2, 3), math.nan),
    ],
)
def test_gradients_that_are_no_numbers_are_refused_and_change_nothing(bad, other):
    x, layer = normal(30, 3), clusters()
    optimizer = CenterSGD(layer, decay=0.5)
    layer.loss(x).backward()
    optimizer.step()
    centers, mass = layer.centers.detach().clone(), optimizer.state[layer.mass]["mass"].clone()
    optimizer.zero_grad()
    (layer.loss(bad) + other * layer.centers.sum()).backward()
    with pytest.raises(ValueError, match="no center has moved"):
        optimizer.step()
    assert torch.equal(layer.centers, centers)
    assert torch.equal(optimizer.state[layer.mass]["mass"], mass)


def test_whoever_clears_gradients_the_mass_of_a_batch_counts_once():
    x, layer = normal(30, 3), clusters(temperature=0.5)
    optimizer = CenterSGD(layer)
    for _ in range(3):
        layer.zero_grad()  # of the layer, which does not know about the optimizer
        layer.loss(x).backward()
        expected = entmeans.statistics(x, layer.centers, layer.temperature).centers(layer.centers)
        optimizer.step()
        assert_close(layer.centers.detach(), expected.detach(), **CLOSE)


def test_another_loss_does_not_move_a_center_without_mass():
    x, layer = normal(30, 3), clusters(temperature=0.5)
    set_(layer.centers[1], torch.full((3,), 50.0))
    optimizer = CenterSGD(layer)
    (layer.loss(x) + layer.centers.sum()).backward()
    optimizer.step()
    assert layer.centers[1].tolist() == [50, 50, 50]
    assert layer.centers.isfinite().all()


def test_a_layer_in_float16_keeps_temperatures_beyond_its_range():
    for temperature in (1e-9, 1e5):
        for layer in (
            SoftKMeans(3, 2, temperature=temperature).half(),
            SoftKMeans(3, 2, temperature=temperature, dtype=torch.float16),
        ):
            assert layer.centers.dtype == torch.float16
            assert layer.temperature.item() == pytest.approx(temperature)


def test_the_loss_of_a_network_moves_its_centers_by_the_step_of_k_means():
    x, network = normal(30, 3), RBFNetwork(3, 4, 1, dtype=torch.float64)
    optimizer = CenterSGD(network.clusters)
    network.loss(x).backward()
    at = network.clusters.centers, network.clusters.temperature
    expected = entmeans.statistics(x, *at).centers(network.clusters.centers).detach()
    optimizer.step()
    assert_close(network.clusters.centers.detach(), expected, **CLOSE)
    assert network.clusters.log_temperature.grad is None


def test_hard_units_which_learn_nothing_are_refused():
    with pytest.raises(ValueError, match="hard"):
        RBFNetwork(2, 3, 1, mapping="hard")
    RBFNetwork(2, 3, 1, mapping="hard", normalized=False)  # Gaussians have no mapping


# Rows 24 and 37: batches, padding, similarity


@pytest.mark.parametrize("filling", [0.0, 1e4, 1e30, math.inf, math.nan])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("d", [1, 3, 5])
@pytest.mark.parametrize("attached", [False, True])
def test_row_24_padding_has_no_influence_whatever_it_holds(filling, reduction, d, attached):
    lengths, layer = (3, 5, 0, 1), clusters(d=d, learn_temperature=True)
    if attached:
        CenterSGD(layer)
    x, mask = normal(4, 5, d), torch.arange(5) < torch.tensor(lengths).unsqueeze(-1)
    bare = torch.cat([row[:n] for row, n in zip(x, lengths, strict=True)]).requires_grad_()
    padded = torch.where(mask.unsqueeze(-1), x, filling).requires_grad_()
    results = []
    for points, weight in ((bare, None), (padded, mask.double())):
        layer.zero_grad()
        loss = layer.loss(points, reduction, weight)
        loss.backward()
        results.append([loss.detach(), *gradients(layer).values()])
    assert_close(*results, **CLOSE)
    assert_close(padded.grad[mask], bare.grad, **CLOSE)
    assert (padded.grad[~mask] == 0).all()
    with torch.no_grad():
        each = layer.loss(padded, "none", mask.double())
    assert (each[~mask] == 0).all()


def test_row_24_centers_are_not_drawn_from_padding():
    layer = SoftKMeans(3, 2, centers_from_data=True, dtype=torch.float64)
    x, mask = normal(4, 5, 2), (torch.arange(5) < 3).expand(4, 5)
    x[~mask] = math.nan
    layer.loss(x, sample_weight=mask.double())
    assert (layer.centers.unsqueeze(1) == x[mask]).all(-1).any(-1).all()


def test_row_24_weights_may_be_masks():
    x, layer, mask = normal(2, 5, 3), clusters(), torch.arange(10).reshape(2, 5) % 3 > 0
    assert_close(layer.loss(x, sample_weight=mask), layer.loss(x[mask]), **CLOSE)


def test_row_24_everything_follows_a_move():
    for module in (clusters(), clusters(learn_temperature=True), network("per_center")):
        module.to(torch.float32)
        assert {value.dtype for value in module.state_dict().values()} == {torch.float32}
        module.to("meta")
        tensors = [*module.parameters(), *module.buffers()]
        assert all(value.is_meta for value in tensors)


def test_row_37_similarity_is_squared_euclidean_distance():
    layer = clusters(2, 3)
    set_(layer.centers, torch.tensor([[2.0, 2.1, 2.0], [2.0, 2.0, 2.0]]))
    x = torch.ones(3).double()
    assert layer.predict(x) == 1
    assert layer(x)[1] > layer(x)[0]


def test_row_37_softness_shows_at_the_default_temperature_and_mapping():
    x, layer = normal(200, 2), SoftKMeans(4, 2, dtype=torch.float64)
    layer.reset_centers(x, generator=torch.Generator().manual_seed(0))
    assert layer.temperature == 1
    largest = layer(x).amax(-1)
    assert (largest < 0.9).double().mean() > 0.3
    assert (largest == 1).double().mean() > 0.05  # it is sparse, too


# Centers from data


def test_drawn_centers_are_decided_by_the_generator_alone():
    x = normal(4, 25, 3)
    found = []
    for seed in (0, 0, 1):
        layer = clusters()
        layer.reset_centers(x, generator=torch.Generator().manual_seed(seed))
        found.append(layer.centers.detach())
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    flat = x.reshape(-1, 3)
    drawn = entmeans.kmeans_plusplus(flat, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(found[0], drawn)
    layer = clusters()
    state = torch.get_rng_state()
    layer.reset_centers(x)
    layer.revive(x)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("learn", [False, True])
@pytest.mark.parametrize("mapping", SOFT)
def test_drawn_centers_bring_a_temperature_where_it_is_asked_for(mapping, learn):
    x, layer = 100 * normal(5, 20, 3), clusters(mapping=mapping, learn_temperature=learn)
    layer.reset_centers(x)
    assert layer.temperature == 1
    layer.reset_centers(x, set_temperature=True)
    d = oracle.squared_distances(x.reshape(-1, 3), layer.centers.detach())
    wanted = {"softmax": 0.5}.get(mapping, 1.5) * d.min(1).mean()
    assert layer.temperature.item() == pytest.approx(wanted, rel=1e-12, abs=1e-300)
    layer.reset_centers(x.new_ones(9, 3), set_temperature=True)  # of no spread
    assert 0 <= layer.temperature.item() < 1e-300
    assert (layer.temperature > 0) == learn


@pytest.mark.parametrize("normalized", [True, False])
def test_a_network_with_a_center_on_each_point_can_learn(normalized):
    x, made = normal(4, 3), network(normalized=normalized)
    made.reset_centers(x)
    variances = (x - x.mean(0)).square().sum(-1).mean()
    assert made.temperatures.item() == pytest.approx(variances.item())
    made(x + 0.3).sum().backward()
    assert made.clusters.centers.grad.any()


def test_a_network_draws_centers_and_finds_a_width():
    x = normal(100, 3)
    for widths in ("shared", "per_center"):
        made = network(widths)
        made.reset_centers(x, generator=torch.Generator().manual_seed(0))
        reference = entmeans.reference_temperature(x, made.clusters.centers.detach())
        wanted = math.sqrt(reference / 2)
        assert made.widths.tolist() == pytest.approx(wanted if widths == "shared" else [wanted] * 4)
    made.reset_centers(torch.ones(9, 3))  # of no spread
    assert (made.widths > 0).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_centers_are_not_put_where_there_is_no_number(bad):
    x, layer = normal(9, 3), clusters()
    x[4, 1] = bad
    before = layer.centers.detach().clone()
    for call in (layer.reset_centers, layer.revive):
        with pytest.raises(ValueError, match="NaN or infinity"):
            call(x)
    assert torch.equal(layer.centers, before)


@pytest.mark.parametrize("first", ["forward", "loss", "quantize", "predict", "usage"])
def test_the_first_training_batch_sets_the_centers(first):
    layer = SoftKMeans(4, 3, centers_from_data=True)
    x = normal(2, 10, 3, dtype=torch.float32)
    assert layer.centers.isnan().all()
    with pytest.raises(RuntimeError, match="call reset_centers, or run one batch"):
        getattr(layer.eval(), first)(x)
    getattr(layer.train(), first)(x)
    centers = layer.centers.detach().clone()
    assert (centers.unsqueeze(1) == x.reshape(-1, 3)).all(-1).any(-1).all()
    layer(normal(30, 3, seed=5, dtype=torch.float32))
    layer.eval()(x)
    assert torch.equal(layer.centers, centers)


def test_a_state_says_whether_centers_are_still_to_be_drawn():
    x = normal(20, 3, dtype=torch.float32)
    waiting, drawn = (SoftKMeans(4, 3, centers_from_data=True) for _ in range(2))
    drawn(x)
    other = SoftKMeans(4, 3, centers_from_data=True)
    other.load_state_dict(drawn.state_dict())
    assert torch.equal(other.eval()(x), drawn(x))
    other.load_state_dict(waiting.state_dict())
    with pytest.raises(RuntimeError, match="reset_centers"):
        other(x)
    other.train()(x)
    assert other.centers.isfinite().all()
    drawn.reset_parameters()
    assert drawn.centers.isnan().all()
    drawn(x)
    assert drawn.centers.isfinite().all()


def test_centers_that_are_set_by_hand_are_not_drawn_again():
    layer = SoftKMeans(4, 3, centers_from_data=True)
    layer.centers.data.copy_(normal(4, 3, seed=1))
    centers = layer.centers.detach().clone()
    layer.eval()(normal(9, 3, dtype=torch.float32))
    layer.train()(normal(9, 3, dtype=torch.float32))
    assert torch.equal(layer.centers, centers)


def test_without_centers_a_layer_is_not_compiled(compiled):
    layer = SoftKMeans(4, 3, centers_from_data=True)
    fast, _ = compiled(layer)
    with pytest.raises(Exception, match="run one batch"):
        fast(normal(5, 3, dtype=torch.float32))


# Errors


BAD = {
    "n_clusters": lambda: SoftKMeans(0, 3),
    "n_features": lambda: SoftKMeans(3, 2.5),
    "temperature must be 0 or more": lambda: SoftKMeans(3, 2, temperature=-1.0),
    "temperature must be one number": lambda: SoftKMeans(3, 2, temperature="hot"),
    "mapping='gauss' is unknown": lambda: SoftKMeans(3, 2, mapping="gauss"),
    "must start between 0 and infinity, got 0": lambda: SoftKMeans(
        3, 2, temperature=0, learn_temperature=True
    ),
    "widths='both' is unknown": lambda: RBFNetwork(2, 3, 1, widths="both"),
    "lr must be 0 or more": lambda: CenterSGD(clusters(), lr=-1),
    "lr must be 0 or more, got nan": lambda: CenterSGD(clusters(), lr=math.nan),
    "decay must lie between 0 and 1": lambda: CenterSGD(clusters(), decay=1.5),
    "layer must be a SoftKMeans, got RBFNetwork": lambda: CenterSGD(network()),
    "reduction='max' is unknown": lambda: clusters().loss(normal(5, 3), "max"),
    "must have shape (5,), one weight for each point, got (4,)": lambda: clusters().loss(
        normal(5, 3), sample_weight=torch.ones(4)
    ),
    "must have shape (2, 5), one weight for each point, got (5, 2)": lambda: network().loss(
        normal(2, 5, 3), sample_weight=torch.ones(5, 2)
    ),
}


@pytest.mark.parametrize("message", BAD)
def test_a_bad_argument_gets_one_clear_error(message):
    with pytest.raises((ValueError, TypeError)) as caught:
        BAD[message]()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("shape", [(), (2,), (5, 4), (3, 5)], ids=str)
def test_points_of_other_features_get_one_clear_error(shape):
    x, layer = normal(*shape), clusters()
    calls = [
        getattr(layer, name)
        for name in ("forward", "loss", "quantize", "predict", "reset_centers", "revive", "usage")
    ]
    for call in (*calls, network(), network("per_center", False), network().loss):
        with pytest.raises(ValueError, match=r"x must have shape \(\.\.\., 3\), n_features last"):
            call(x)


@pytest.mark.parametrize("value", [-1.0, math.nan, "hot", torch.ones(2)])
def test_a_temperature_that_is_none_cannot_be_set(value):
    layer = clusters(temperature=2.0)
    with pytest.raises((ValueError, TypeError), match="temperature must be"):
        layer.temperature = value
    assert layer.temperature == 2
    learned = clusters(learn_temperature=True)
    for limit in (0.0, math.inf):
        with pytest.raises(ValueError, match="must lie between 0 and infinity"):
            learned.temperature = limit


def test_no_points_have_no_centers():
    for call in (clusters().reset_centers, clusters().revive):
        with pytest.raises(ValueError, match="empty"):
            call(normal(0, 3))


def test_optimizers_in_a_list_are_refused_before_a_center_moves():
    layer = clusters()
    with pytest.raises(TypeError, match="each by itself"):
        layer.revive(normal(9, 3), [CenterSGD(layer)])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_centers_in_half_precision_are_revived(dtype):
    x, layer = normal(20, 3, dtype=dtype), clusters(dtype=dtype, temperature=0.5)
    set_(layer.centers[2], torch.full((3,), 50.0))
    assert layer.revive(x).tolist() == [2]
    assert (layer.centers[2] == x).all(-1).any()


@pytest.mark.parametrize("temperature", [1e-6, 1e6])
def test_a_learned_temperature_in_float16_leaves_the_range_of_float16(temperature):
    layer = SoftKMeans(3, 2, temperature=temperature, learn_temperature=True, dtype=torch.float16)
    assert layer.temperature.item() == pytest.approx(temperature, rel=5e-3)


@pytest.mark.parametrize(
    ("of_x", "of_network"),
    [
        (torch.float64, torch.float32),
        (torch.float32, torch.float64),
        (torch.float32, torch.bfloat16),
    ],
)
@each_network
def test_a_network_takes_points_of_another_dtype(widths, normalized, of_x, of_network):
    x, made = normal(9, 3), network(widths, normalized)
    found = copy.deepcopy(made).to(of_network)(x.to(of_x))
    assert found.dtype == of_network
    assert_close(found.double(), made(x), atol=5e-2, rtol=5e-2)
