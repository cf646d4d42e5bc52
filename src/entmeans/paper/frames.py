"""What the slider of the report shows, computed beforehand: clusters at a row of temperatures."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..functional import responsibilities, statistics
from ..limit import hardening_temperature
from ..plots import cluster_colors, mixture
from .geometries import GEOMETRIES
from .paths import cooling, scale
from .records import Record

SHOWN = ("entmax15", "softmax")
"""The mappings that can be chosen."""

N_CLUSTERS = 5

COLDEST_SHOWN = 3e-4
"""In units of the scale of the data: no eye sees what is shared below it."""

SHADES = 128
"""Colors of a picture, chosen for each."""


def all_frames(quick: bool = False) -> Record:
    """Frames of every geometry and mapping, at full size or smaller ones.

    Examples
    --------
    >>> from entmeans.paper.frames import all_frames
    >>> sorted(all_frames(quick=True)["geometries"])
    ['blobs', 'circles', 'spiral', 'two moons']
    """
    n_points, n_temperatures, pixels = (100, 12, 48) if quick else (300, 32, 96)
    options = {"n_points": n_points, "n_temperatures": n_temperatures, "pixels": pixels}
    return {
        "colors": [_css(color) for color in cluster_colors(N_CLUSTERS)],
        "geometries": {
            geometry: {mapping: frames(geometry, mapping, **options) for mapping in SHOWN}
            for geometry in GEOMETRIES
        },
    }


def frames(geometry: str, mapping: str, n_points: int, n_temperatures: int, pixels: int) -> Record:
    """The path of `cooling` to T*, and K-means at its end, as pictures and numbers.

    Returns
    -------
    dict
        Points and centers in the unit square, y downward; T*, energies and temperatures in units
        of the scale of the data; for each frame temperature, centers, free energy, inertia, the
        share of hard points, and a picture of responsibilities as mixtures of colors.
    """
    cold = cooling(geometry, n_points, N_CLUSTERS, n_temperatures, mapping, 0)
    points, size = cold.points, scale(cold.points)
    order = _by_angle(points, cold.end)
    hardening = hardening_temperature(points, cold.end, mapping).item() / size
    lowest = max(hardening, COLDEST_SHOWN)
    soft = [(t, c) for t, c in zip(cold.temperatures, cold.path, strict=True) if t > lowest]
    if hardening > 0:
        soft.append((hardening, cold.end))
    middle, half = (points.amin(0) + points.amax(0)) / 2, 0.55 * (points.amax(0) - points.amin(0))
    plane = middle, half.amax()
    return {
        "points": _in_unit_square(points, *plane),
        "hardening_temperature": hardening,
        "frames": [
            _frame(points, centers[order], t * size, mapping, size, plane, pixels)
            for t, centers in [*soft, (0.0, cold.end)]
        ],
    }


def _frame(
    points: Tensor,
    centers: Tensor,
    temperature: float,
    mapping: str,
    size: float,
    plane: tuple[Tensor, Tensor],
    pixels: int,
) -> Record:
    found = statistics(points, centers, temperature, mapping)
    n = len(points)
    return {
        "temperature": temperature / size,
        "centers": _in_unit_square(centers, *plane),
        "free_energy": found.free_energy.item() / n / size,
        "inertia": found.inertia.item() / n / size,
        "hard": found.hard_mass.item() / n,
        "picture": _picture(centers, temperature, mapping, plane, pixels),
    }


def _picture(
    centers: Tensor, temperature: float, mapping: str, plane: tuple[Tensor, Tensor], pixels: int
) -> str:
    """The colors of the clusters mixed by responsibility at every place, as the URI of a PNG."""
    middle, half = plane
    side = (torch.arange(pixels, dtype=centers.dtype) + 0.5) / pixels * 2 - 1
    places = torch.cartesian_prod(-side, side).flip(-1) * half + middle  # from the top left
    p = responsibilities(places, centers, temperature, mapping).numpy()
    colors = mixture(p, cluster_colors(len(centers))).reshape(pixels, pixels, 3)
    image = Image.fromarray((255 * colors).round().astype(np.uint8))
    buffer = io.BytesIO()
    image.quantize(SHADES).save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _in_unit_square(places: Tensor, middle: Tensor, half: Tensor) -> list[list[float]]:
    square = (places - middle) / (2 * half) * places.new_tensor([1.0, -1.0]) + 0.5
    return [[round(v, 4) for v in place] for place in square.tolist()]


def _by_angle(points: Tensor, centers: Tensor) -> Tensor:
    """An order of the clusters that is the same for both mappings, so that colors are."""
    x, y = (centers - points.mean(0)).unbind(1)
    return torch.atan2(y, x).argsort()


def _css(color: Any) -> str:
    return "#" + "".join(f"{round(255 * channel):02x}" for channel in color)
