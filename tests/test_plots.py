"""The pictures hold what they promise, for every shape of fit, and touch nothing global."""

from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib.image import imread

import entmeans.plots
from entmeans import EntMeans, Step, anneal
from entmeans.plots import (
    PALETTE,
    cluster_colors,
    percent,
    plot_fit,
    plot_freezing,
    plot_recolored,
    three_digits,
)


@pytest.fixture
def coarse(monkeypatch):
    monkeypatch.setattr(entmeans.plots, "PIXELS", 80)


def draw_fit(path, X, k, **parameters):
    model = EntMeans(k, random_state=0, **parameters).fit(X)
    plot_fit(path, model.history_, X, model.labels_, model.cluster_centers_, title="data: clusters")
    return imread(path)


def blobs(n=60, d=3):
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, d)) + 6 * rng.integers(0, 3, (n, 1))


def blobs_in_the_plane():
    points = torch.from_numpy(blobs(d=2))
    return points, anneal(points, points[:3], temperature=0.0).centers


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"mapping": "softmax"},
        {"temperature": 0.0},
        {"temperature": 0.0, "max_iter": 1},
        {"final_temperature": 1.0},
    ],
)
def test_every_kind_of_fit_can_be_drawn(tmp_path, parameters):
    parameters = {"max_iter": 20} | parameters
    assert draw_fit(tmp_path / "fit.png", blobs(), 3, **parameters).std() > 0.05


def test_fit_from_an_infinite_temperature_can_be_drawn(tmp_path):
    X, inf = blobs(), float("inf")
    history = [Step(inf, -inf, 900.0, 1.0, 0.0), Step(0.0, 500.0, 500.0, 1.0, 1.0)]
    plot_fit(tmp_path / "fit.svg", history, X, np.zeros(len(X), int), X[:1])
    assert "<!-- inf -->" in (tmp_path / "fit.svg").read_text()


@pytest.mark.parametrize(
    ("X", "k"),
    [
        (blobs(d=1), 3),
        (blobs(d=2), 1),
        (blobs(n=40), 40),
        (np.full((5, 2), 3.0), 1),
        (blobs().astype(np.float32) + 1e4, 3),
        (blobs() * 1e-9, 3),
    ],
)
def test_every_shape_of_data_can_be_drawn(tmp_path, X, k):
    assert draw_fit(tmp_path / "fit.png", X, k).shape == (780, 1650, 4)


def test_many_points_are_thinned_and_the_picture_says_so(tmp_path):
    X = np.random.default_rng(0).normal(size=(20_000, 2))
    labels = (X[:, 0] > 0).astype(int)
    history = [Step(0.0, 1.0, 1.0, 0.0, 1.0)]
    plot_fit(tmp_path / "fit.svg", history, X, labels, np.array([[-1.0, 0], [1.0, 0]]))
    drawing = (tmp_path / "fit.svg").read_text()
    assert drawing.count("<use ") < 6000
    assert "5,000 of 20,000 rows drawn" in drawing


def test_clusters_can_have_the_colors_of_a_photograph(tmp_path):
    X = np.array([[250.0, 0, 0], [255.0, 0, 0], [0, 0, 250.0], [0, 0, 255.0]])
    history = [Step(0.0, 50.0, 50.0, 0.0, 1.0)]
    colors = np.array([[1.0, 0, 0], [0, 0, 1.0]])
    path = tmp_path / "fit.png"
    plot_fit(path, history, X, np.array([0, 0, 1, 1]), X[::2], colors=colors)
    pixels = imread(path)[..., :3].reshape(-1, 3)
    for color in colors:
        assert (pixels == color).all(-1).any()


def test_recolored_photograph_is_exact(tmp_path):
    colors = np.array([[0.4, 127.6, 300.0], [-5.0, 10.0, 20.0]])
    labels = np.array([0, 1, 1, 1, 0, 0])
    plot_recolored(tmp_path / "a.png", colors, labels, (2, 3))
    pixels = (imread(tmp_path / "a.png")[..., :3] * 255).round()
    assert pixels.shape == (2, 3, 3)
    expected = np.array([[0, 128, 255], [0, 10, 20]])
    assert pixels.reshape(-1, 3).tolist() == expected[labels].tolist()


@pytest.mark.parametrize("mapping", ["entmax15", "softmax", "sparsemax"])
def test_freezing_has_a_panel_for_each_temperature(tmp_path, coarse, mapping):
    points, centers = blobs_in_the_plane()
    plot_freezing(tmp_path / "a.png", points, centers, [100.0, 1.0], mapping)
    picture = imread(tmp_path / "a.png")
    assert picture.shape == (590, 1000, 4)
    assert picture[0, 0, 3] == 0, "the background is transparent"
    hot, cold = picture[150:, :500, :3], picture[150:, 500:, :3]
    assert saturation(cold) > 3 * saturation(hot)


def saturation(pixels):
    return (pixels.max(-1) - pixels.min(-1)).mean()


def test_freezing_ends_at_the_hardening_temperature(tmp_path, coarse):
    points, centers = blobs_in_the_plane()
    plot_freezing(tmp_path / "a.svg", points, centers)
    comments = [line for line in (tmp_path / "a.svg").read_text().splitlines() if "<!--" in line]
    text = "\n".join(comments)
    assert "T = T* = " in text
    assert text.count("100% hard: exactly K-means") == 1


@pytest.mark.parametrize("k", [1, 2, 4])
def test_freezing_of_coinciding_or_single_centers(tmp_path, coarse, k):
    points, _ = blobs_in_the_plane()
    plot_freezing(tmp_path / "a.png", points.float(), points[:1].repeat(k, 1).float(), [1.0, 0.0])


def test_colors_are_distinct_and_the_first_ones_fixed():
    for k in (1, 7, 8, 64):
        colors = cluster_colors(k)
        assert colors.shape == (k, 3)
        assert ((colors >= 0) & (colors <= 1)).all()
        assert len({tuple(color) for color in colors.tolist()}) == k
    first = [int(PALETTE[0][i : i + 2], 16) for i in (1, 3, 5)]
    np.testing.assert_allclose(255 * cluster_colors(64)[0], first, atol=0.01)


def test_more_clusters_than_colors():
    assert cluster_colors(3000).shape == (3000, 3)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1234567.0, "1,230,000"),
        (999.9, "1,000"),
        (61.55, "61.5"),
        (0.5, "0.5"),
        (0.012345, "0.0123"),
        (-3.14159, "-3.14"),
        (3e9, "3e+09"),
        (float("inf"), "inf"),
    ],
)
def test_three_digits(value, text):
    assert three_digits(value) == text


def test_percentages_never_round_up_to_all():
    assert [percent(x) for x in (0, 0.0099, 0.5, 0.99999, 1)] == ["0%", "0%", "50%", "99%", "100%"]


def test_nothing_global_is_read_or_changed(tmp_path):
    before = dict(mpl.rcParams)
    draw_fit(tmp_path / "a.png", blobs(), 3)
    assert dict(mpl.rcParams) == before
    source = Path(entmeans.plots.__file__).read_text(encoding="utf-8")
    assert "pyplot" not in source
    assert "rcParams" not in source
