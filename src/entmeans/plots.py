"""Pictures: the course of a fit, soft clusters freezing into cells, a photograph in K colors.

Figures are built object by object: nothing of matplotlib's global state is read or changed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import imsave
from matplotlib.patches import FancyBboxPatch
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray
from torch import Tensor

from .fit import Step, anneal
from .functional import responsibilities, squared_distances, statistics
from .limit import critical_temperature, hardening_temperature
from .mappings import Mapping
from .schedules import Constant

PALETTE = ("#3b75af", "#ee8a3c", "#14806f", "#e07bab", "#6cc5ec", "#b8412c", "#e8c547")
"""Softened from Okabe and Ito: distinct for every kind of color vision, also by lightness."""

INK, MUTED, FAINT = "#1f2933", "#727e8b", "#dfe4e9"
"""Text, text that is legible on white and on black pages, and lines behind the data."""

MAX_DOTS = 5000
PIXELS = 500
PALE = np.array([0.93, 0.0, 0.0])
"""Oklab of the light gray of points that belong to no cluster in particular."""

LMS = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)

Floats = NDArray[np.float64]


def plot_fit(
    path: str | Path,
    history: Sequence[Step],
    points: NDArray[Any],
    labels: NDArray[Any],
    centers: NDArray[Any],
    *,
    title: str = "",
    colors: Floats | None = None,
) -> None:
    """Draw a fit: energies and hard rows as the temperature falls, and the clusters it found.

    Parameters
    ----------
    path : str or Path
        The file to write; its suffix gives the format.
    history : sequence of Step
    points : ndarray, shape (N, D)
        Shown in their first two principal components; of more than 5,000 a seeded draw is shown,
        and the picture says so.
    labels : ndarray of int, shape (N,)
    centers : ndarray, shape (K, D)
    title : str
    colors : ndarray, shape (K, 3), optional
        RGB between 0 and 1.  Default: `cluster_colors`.
    """
    figure = new_figure(11.0, 5.2)
    figure.text(0.045, 0.94, title, color=INK, size=13, weight="bold")
    energies = figure.add_axes((0.08, 0.4, 0.38, 0.42))
    hard = figure.add_axes((0.08, 0.13, 0.38, 0.19), sharex=energies)
    _draw_energies(energies, history)
    _draw_hard_share(hard, history)
    clusters = figure.add_axes((0.535, 0.13, 0.44, 0.69))
    _draw_clusters(clusters, points, labels, centers, colors)
    figure.savefig(path, dpi=150)


def plot_recolored(
    path: str | Path, colors: NDArray[Any], labels: NDArray[Any], shape: tuple[int, int]
) -> None:
    """Write a photograph in which every pixel has the color of its cluster.

    Parameters
    ----------
    path : str or Path
        The .png file to write, pixel for pixel.
    colors : ndarray, shape (K, 3)
        Red, green and blue from 0 to 255.
    labels : ndarray of int, shape (height * width,)
    shape : (height, width)
    """
    rounded = np.asarray(colors).round().clip(0, 255).astype(np.uint8)
    imsave(path, rounded[labels].reshape(*shape, 3))


def plot_freezing(
    path: str | Path,
    points: Tensor,
    centers: Tensor,
    temperatures: Sequence[float] | None = None,
    mapping: str | Mapping = "entmax15",
) -> None:
    """Draw soft clusters in the plane as they freeze into the cells of K-means.

    One panel for each temperature, where soft K-means runs to rest from the given centers.  Every
    place is painted in the colors of the clusters mixed by responsibility, paler the less one of
    them prevails; the walls of the cells appear with the share of points that are hard.

    Parameters
    ----------
    path : str or Path
        The file to write; its suffix gives the format.  The background is transparent and the
        text is legible on white and on black.
    points : Tensor, shape (N, 2)
    centers : Tensor, shape (K, 2)
        At rest at T = 0.
    temperatures : sequence of float, optional
        In units of squared distance.  Default: four from just below the critical temperature on
        down, then T*, the highest temperature at which every point is hard.
    mapping : {"entmax15", "softmax", "sparsemax"} or Mapping

    Examples
    --------
    >>> import tempfile, torch, entmeans
    >>> from entmeans.plots import plot_freezing
    >>> points = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 9.0], [9.0, 9.0]])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     plot_freezing(f"{folder}/freezing.png", points, points[1:], temperatures=[9.0, 1.0])
    """
    points, centers = points.detach().cpu(), centers.detach().cpu()
    hardening = float(hardening_temperature(points, centers, mapping))
    if temperatures is None:
        critical = float(critical_temperature(points, len(centers), mapping))
        end = hardening if math.isfinite(hardening) else 0.0
        soft = np.geomspace(max(0.8 * critical, 8 * end), max(0.08 * critical, 2 * end), 4)
        temperatures = [*soft.tolist(), end]
    n = len(temperatures)
    figure = new_figure(2.5 * n, 2.95)
    figure.patch.set_alpha(0.0)
    for i, temperature in enumerate(temperatures):
        rest = anneal(
            points,
            centers,
            Constant(),
            mapping,
            temperature=temperature,
            final_temperature=temperature,
        ).centers
        now = statistics(points, rest, temperature, mapping)
        share = float(now.hard_mass) / len(points)
        axes = figure.add_axes(((i + 0.04) / n, 0.02, 0.92 / n, 0.8))
        _draw_cells(axes, points, rest, temperature, mapping, share)
        name = "T = T*" if temperature == hardening > 0 else "T"
        caption: dict[str, Any] = {"transform": axes.transAxes, "color": MUTED, "size": 9.5}
        axes.text(0, 1.11, f"{name} = {three_digits(temperature)}", weight="bold", **caption)
        all_hard = "100% hard: exactly K-means"
        axes.text(0, 1.03, all_hard if share == 1 else f"{percent(share)} hard", **caption)
    figure.savefig(path, dpi=200)


def cluster_colors(n_clusters: int) -> Floats:
    """Colors for K clusters, shape (K, 3): the palette, then each the farthest from all before.

    Examples
    --------
    >>> from entmeans.plots import cluster_colors
    >>> cluster_colors(12).shape
    (12, 3)
    """
    chosen = [*_to_oklab(np.array([to_rgb(color) for color in PALETTE]))]
    lightness, *ab = np.meshgrid([0.45, 0.58, 0.7, 0.8], *[np.linspace(-0.16, 0.16, 17)] * 2)
    candidates = np.stack([lightness, *ab], -1).reshape(-1, 3)
    candidates = candidates[np.hypot(candidates[:, 1], candidates[:, 2]) < 0.17]
    distance = np.full(len(candidates), np.inf)
    for j in range(n_clusters - 1):
        distance = np.minimum(distance, ((candidates - chosen[j]) ** 2).sum(-1))
        if j + 1 >= len(chosen):
            chosen.append(candidates[distance.argmax()])
    return _from_oklab(np.array(chosen[:n_clusters]))


def three_digits(value: float) -> str:
    """A number with three significant digits, in plain notation where that is short.

    Examples
    --------
    >>> from entmeans.plots import three_digits
    >>> three_digits(1172.4), three_digits(0.0603), three_digits(2.5e-9), three_digits(0.0)
    ('1,170', '0.0603', '2.5e-09', '0')
    """
    if not 1e-4 <= abs(value) < 1e7:
        return f"{value:.3g}"
    digits = 2 - math.floor(math.log10(abs(value)))
    text = f"{round(value, digits):,.{max(digits, 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def percent(share: float) -> str:
    """A share as a percentage, rounded down, so that 100% means all.

    Examples
    --------
    >>> from entmeans.plots import percent
    >>> percent(0.9999), percent(1.0)
    ('99%', '100%')
    """
    return f"{math.floor(100 * share)}%"


def _draw_energies(axes: Axes, history: Sequence[Step]) -> None:
    steps = np.arange(1, len(history) + 1)
    inertia = np.array([step.inertia for step in history])
    free_energy = np.array([step.free_energy for step in history])
    free_energy[~np.isfinite(free_energy)] = np.nan  # at an infinite temperature
    axes.fill_between(steps, free_energy, inertia, color=PALETTE[4], alpha=0.2, linewidth=0)
    line: dict[str, Any] = {"linewidth": 2, "marker": "o", "markersize": 3.5}
    axes.plot(steps, inertia, color=PALETTE[1], label="inertia", **line)
    axes.plot(steps, free_energy, color=PALETTE[0], label="free energy", **line)
    axes.tick_params(labelbottom=False)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    _shade_hard_steps(axes, history)
    axes.legend(frameon=False, labelcolor=INK, loc="upper right", fontsize=9)
    dress(axes, "The free energy meets the inertia")


def _draw_hard_share(axes: Axes, history: Sequence[Step]) -> None:
    steps = np.arange(1, len(history) + 1)
    share = [step.hard_share for step in history]
    axes.fill_between(steps, share, color=PALETTE[4], alpha=0.45, linewidth=0)
    axes.plot(steps, share, color=PALETTE[0], linewidth=2)
    axes.set_ylim(0, 1.08)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    n, soft = len(history), _n_soft(history)
    last = n - 1 if soft == n else max(soft - 2, 0)
    few = max(2, round(6 * soft / n))
    chosen = {round(i) for i in np.linspace(0, last, few)} | ({soft} if soft < n else set())
    ticks = sorted(chosen)
    axes.set_xticks([i + 1 for i in ticks], [three_digits(history[i].temperature) for i in ticks])
    axes.set_xlabel("temperature, step by step", color=MUTED, size=9)
    _shade_hard_steps(axes, history)
    dress(axes, "Rows that are exactly hard")


def _shade_hard_steps(axes: Axes, history: Sequence[Step]) -> None:
    n, soft = len(history), _n_soft(history)
    axes.set_xlim(0.5, n + 0.5)
    if soft < n:
        band: dict[str, Any] = {"color": FAINT, "alpha": 0.5, "linewidth": 0, "zorder": 0}
        axes.axvspan(soft + 0.5, n + 0.5, label="T = 0: K-means", **band)


def _n_soft(history: Sequence[Step]) -> int:
    return sum(step.temperature > 0 for step in history)


def _draw_clusters(
    axes: Axes,
    points: NDArray[Any],
    labels: NDArray[Any],
    centers: NDArray[Any],
    colors: Floats | None,
) -> None:
    n, k = len(points), len(centers)
    shown = np.random.default_rng(0).permutation(n)[:MAX_DOTS]
    mean = points.mean(0, dtype=np.float64)
    planar, variance = _principal(points, mean)
    colors = cluster_colors(k) if colors is None else colors
    dots = (points[shown] - mean) @ planar
    middles = (centers - mean) @ planar
    axes.scatter(dots[:, 0], dots[:, 1], s=9, color=colors[labels[shown]], alpha=0.6, linewidths=0)
    x, y = middles.T
    axes.scatter(x, y, s=150, color=colors, edgecolors="white", linewidths=1.5)
    name: dict[str, Any] = {"color": "white", "size": 8, "weight": "bold", "ha": "center"}
    for j in range(k if k <= 30 else 0):
        axes.text(x[j], y[j], str(j), va="center_baseline", **name)
    axes.set_xlabel(
        f"first principal component ({variance[0]:.0%} of the variance)", color=MUTED, size=9
    )
    axes.set_ylabel(f"second ({variance[1]:.0%})", color=MUTED, size=9)
    drawn = "" if n <= MAX_DOTS else f", {MAX_DOTS:,} of {n:,} rows drawn"
    dress(axes, f"{k} clusters{drawn}")


def _principal(points: NDArray[Any], mean: Floats) -> tuple[Floats, Floats]:
    """The first two principal axes (D, 2) and their shares of the variance; 0 where D is 1."""
    blocks = np.array_split(points, 1 + len(points) // 10_000)
    variance, axes = np.linalg.eigh(sum((x - mean).T @ (x - mean) for x in blocks))
    share = variance / max(variance.sum(), np.finfo(float).tiny)
    if len(share) == 1:
        return np.array([[1.0, 0.0]]), np.array([1.0, 0.0])
    return axes[:, :-3:-1], share[:-3:-1]


def dress(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", color=INK, size=10.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(color=FAINT, labelcolor=MUTED, labelsize=8.5)
    axes.grid(color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)


def _draw_cells(
    axes: Axes,
    points: Tensor,
    centers: Tensor,
    temperature: float,
    mapping: str | Mapping,
    share: float,
) -> None:
    low, high = points.amin(0), points.amax(0)
    half = 0.55 * float((high - low).amax())
    x, y = ((low + high) / 2).tolist()
    side = torch.linspace(-half, half, PIXELS, dtype=points.dtype)
    places = torch.cartesian_prod(side, side).flip(-1) + (low + high) / 2  # row by row
    extent = (x - half, x + half, y - half, y + half)
    p = responsibilities(places, centers, temperature, mapping).double().numpy()
    colors = cluster_colors(len(centers))
    image = mixture(p, colors).reshape(PIXELS, PIXELS, 3)
    drawn: list[Artist] = [
        axes.imshow(image, extent=extent, origin="lower", interpolation="bilinear"),
        *_draw_walls(axes, places, centers, extent, share),
        axes.scatter(
            points[:, 0], points[:, 1], s=4.5, color=INK, alpha=0.55, linewidths=0, zorder=2
        ),
    ]
    rings: dict[str, Any] = {"edgecolors": "white", "linewidths": 1.8, "zorder": 3}
    axes.scatter(centers[:, 0], centers[:, 1], s=70, color=colors, **rings)
    axes.set_axis_off()
    corners = FancyBboxPatch(
        (0.05, 0.05),
        0.9,
        0.9,
        boxstyle="round,pad=0.05",
        transform=axes.transAxes,
        fill=False,
        linewidth=0,
    )
    axes.add_patch(corners)
    for artist in drawn:
        artist.set_clip_path(corners)


def _draw_walls(
    axes: Axes, places: Tensor, centers: Tensor, extent: tuple[float, ...], opacity: float
) -> list[Artist]:
    """The lines on which two centers are equally near."""
    distances = squared_distances(places, torch.unique(centers, dim=0)).T
    walls: list[Artist] = []
    for j, own in enumerate(distances if len(distances) > 1 else ()):
        lead = own - torch.cat([distances[:j], distances[j + 1 :]]).amin(0)
        if opacity > 0 and lead.amin() < 0 < lead.amax():
            line = axes.contour(
                lead.reshape(PIXELS, PIXELS).numpy(),
                [0.0],
                extent=extent,
                colors="white",
                linewidths=1.1,
                alpha=opacity,
            )
            walls.append(line)
    return walls


def mixture(p: Floats, colors: Floats) -> Floats:
    """Colors (n, 3) mixed by responsibilities (n, K), and the paler the smaller the largest one."""
    mixed = p @ _to_oklab(colors)
    doubt = (1 - p.max(-1, keepdims=True)) / max(1 - 1 / len(colors), 0.5)
    return _from_oklab(mixed + 0.75 * doubt**0.7 * (PALE - mixed))


def new_figure(width: float, height: float) -> Figure:
    """A figure of that many inches with a canvas of its own."""
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure


def _to_oklab(rgb: Floats) -> Floats:
    """sRGB (..., 3) in Oklab (Ottosson 2020), where a mixture looks like what lies between."""
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    lab: Floats = np.cbrt(linear @ LMS.T) @ LAB.T
    return lab


def _from_oklab(lab: Floats) -> Floats:
    linear = ((lab @ np.linalg.inv(LAB).T) ** 3 @ np.linalg.inv(LMS).T).clip(0, 1)
    gamma = 1.055 * linear ** (1 / 2.4) - 0.055
    rgb: Floats = np.where(linear <= 0.0031308, 12.92 * linear, gamma)
    return rgb
