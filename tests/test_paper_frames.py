"""Frames of the slider: plain values that say what the library says, and pictures of them."""

import base64
import io
import json
import random

import numpy as np
import pytest
import torch
from PIL import Image

import entmeans
from entmeans.paper import GEOMETRIES
from entmeans.paper.frames import COLDEST_SHOWN, N_CLUSTERS, SHOWN, Plane, all_frames, frames
from entmeans.paper.paths import cooling, scale
from entmeans.plots import cluster_colors

SIZES = {"n_points": 60, "n_temperatures": 16, "pixels": 24}

each = pytest.mark.parametrize("mapping", SHOWN)
everywhere = pytest.mark.parametrize("geometry", GEOMETRIES)


def column(found, name):
    return [frame[name] for frame in found["frames"]]


def image_of(uri):
    kind, _, data = uri.partition(",")
    assert kind in ("data:image/png;base64", "data:image/jpeg;base64")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")).astype(float)


@each
def test_frames_are_plain_and_the_same_again(mapping):
    found = frames("blobs", mapping, **SIZES)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    cooling.cache_clear()
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    random.seed(5)
    expected = torch.rand(3), np.random.rand(3), random.random()  # noqa: NPY002
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    random.seed(5)
    assert frames("blobs", mapping, **SIZES) == found
    assert torch.equal(torch.rand(3), expected[0])
    assert (np.random.rand(3) == expected[1]).all()  # noqa: NPY002
    assert random.random() == expected[2]


@everywhere
@each
def test_temperatures_fall_to_zero_where_soft_is_hard(geometry, mapping):
    found = frames(geometry, mapping, **SIZES)
    temperatures = column(found, "temperature")
    assert all(np.diff(temperatures) < 0)
    assert temperatures[-1] == 0
    assert temperatures[-2] > COLDEST_SHOWN
    last = found["frames"][-1]
    assert last["hard"] == 1
    assert last["doubt"] == 0
    assert last["free_energy"] == last["inertia"]
    assert all(np.array(column(found, "free_energy")) <= column(found, "inertia"))


@everywhere
def test_from_the_hardening_temperature_on_entmax_is_exactly_k_means(geometry):
    found = frames(geometry, "entmax15", **SIZES)
    star = found["hardening_frame"]
    assert found["frames"][star]["temperature"] == found["hardening_temperature"]
    for i, frame in enumerate(found["frames"]):
        assert (frame["hard"] == 1) == (i >= star)
        assert (frame["doubt"] == 0) == (i >= star)
        if i >= star:
            assert frame["centers"] == found["frames"][-1]["centers"]
            assert frame["free_energy"] == frame["inertia"]
    assert 0 < star < len(found["frames"]) - 2  # some above T*, some between it and 0


@everywhere
def test_softmax_is_soft_at_every_temperature_above_zero(geometry):
    found = frames(geometry, "softmax", **SIZES)
    assert found["hardening_temperature"] == 0
    assert found["hardening_frame"] is None
    assert set(column(found, "hard")[:-1]) == {0}
    assert min(column(found, "doubt")[:-1]) > 0


@each
def test_frames_say_what_the_library_says(mapping):
    found = frames("circles", mapping, **SIZES)
    cold = cooling("circles", 60, N_CLUSTERS, 16, mapping, 0)
    size = scale(cold.points)
    for i in (0, 2, 4):
        frame, temperature = found["frames"][i], cold.temperatures[i]
        stats = entmeans.statistics(cold.points, cold.path[i], temperature * size, mapping)
        assert frame["temperature"] == pytest.approx(temperature, rel=1e-12)
        for name in ("free_energy", "inertia"):
            assert frame[name] * 60 * size == pytest.approx(getattr(stats, name).item(), rel=1e-9)
        assert frame["hard"] == stats.hard_mass.item() / 60
        p = entmeans.responsibilities(cold.points, cold.path[i], temperature * size, mapping)
        assert frame["doubt"] == pytest.approx(1 - p.amax(1).min().item(), abs=1e-12)
        assert [one == "1" for one in frame["hard_points"]] == [
            mapping != "softmax" and row.amax() == 1 for row in p
        ]


@each
@everywhere
def test_the_share_of_hard_points_is_that_of_those_marked(geometry, mapping):
    found = frames(geometry, mapping, **SIZES)
    for frame in found["frames"]:
        assert frame["hard_points"].count("1") / 60 == pytest.approx(frame["hard"], abs=1e-12)
        assert len(frame["hard_points"]) == len(found["points"]) == 60


def test_places_are_shares_of_the_square_from_the_top_left():
    plane = Plane(torch.tensor([1.0, 2.0]), torch.tensor(4.0), pixels=1)
    corners = torch.tensor([[-3.0, 6.0], [5.0, -2.0], [1.0, 2.0], [1.0, 4.0]])
    assert plane.in_unit_square(corners) == [[0, 0], [1, 1], [0.5, 0.5], [0.5, 0.25]]
    assert plane.places().tolist() == [[-1, 4], [3, 4], [-1, 0], [3, 0]]


@each
@everywhere
def test_points_and_centers_lie_within_the_picture(geometry, mapping):
    found = frames(geometry, mapping, **SIZES)
    places = np.array(found["points"])
    assert ((places > 0.04) & (places < 0.96)).all()
    for centers in column(found, "centers"):
        assert np.shape(centers) == (N_CLUSTERS, 2)
        assert ((np.array(centers) > 0) & (np.array(centers) < 1)).all()


@everywhere
@each
def test_at_zero_each_center_lies_in_its_own_color(geometry, mapping):
    found = frames(geometry, mapping, **SIZES)
    image = image_of(found["frames"][-1]["picture"])
    assert image.shape == (24, 24, 3)
    colors = 255 * cluster_colors(N_CLUSTERS)
    for (x, y), color in zip(found["frames"][-1]["centers"], colors, strict=True):
        assert image[int(24 * y), int(24 * x)] == pytest.approx(color, abs=12)


def test_hot_pictures_are_paler_than_cold_ones():
    found = frames("two moons", "entmax15", **SIZES)
    first, last = (image_of(found["frames"][i]["picture"]) for i in (0, -1))
    assert np.ptp(first, axis=2).mean() < 0.6 * np.ptp(last, axis=2).mean()


def test_both_mappings_color_the_same_clusters_alike():
    found = [frames("blobs", mapping, **SIZES)["frames"][-1]["centers"] for mapping in SHOWN]
    assert np.array(found[0]) == pytest.approx(np.array(found[1]), abs=1e-4)


def test_all_frames_are_small_enough_for_a_page():
    quick = all_frames(quick=True)
    assert list(quick["geometries"]) == list(GEOMETRIES)
    assert all(list(found) == list(SHOWN) for found in quick["geometries"].values())
    shown = [tuple(int(color[i : i + 2], 16) for i in (1, 3, 5)) for color in quick["colors"]]
    assert np.array(shown) == pytest.approx(255 * cluster_colors(N_CLUSTERS), abs=0.51)
    assert len(json.dumps(quick)) < 5e5
    one = frames("blobs", "softmax", n_points=300, n_temperatures=56, pixels=96)
    assert 30 <= len(one["frames"]) <= 45
    assert len(json.dumps(one)) < 2.5e5  # of eight such sets
