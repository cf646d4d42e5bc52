"""What the slider of the report shows, computed beforehand: clusters at a row of temperatures."""

from __future__ import annotations

import base64
import io
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..functional import nearest, responsibilities, statistics
from ..limit import hardening_temperature
from ..mappings import get_mapping
from ..plots import cluster_colors, mixture
from .geometries import GEOMETRIES
from .paths import cooling, scale
from .records import Record

SHOWN = ("entmax15", "softmax")
"""The mappings that can be chosen."""

N_CLUSTERS = 5

COLDEST_SHOWN = 3e-4
"""In units of the scale of the data: no eye sees what is shared below it."""

FROZEN_STRIDE = 3
"""At T <= T* nothing moves any more: of the temperatures there every third is enough."""

QUALITY = 88
"""Of pictures as JPEG."""


SAMPLES = 2
"""Of a pixel in each direction, whose mean it shows, lest walls have steps."""


class Plane(NamedTuple):
    """The square of the plane that is shown: its middle (2,), half of its side, and its pixels."""

    middle: Tensor
    half: Tensor
    pixels: int

    def places(self) -> Tensor:
        """Samples of the pixels (n, 2), row by row from the top left."""
        n = SAMPLES * self.pixels
        side = (np.arange(n) + 0.5) / n * 2 - 1
        y, x = np.meshgrid(-side, side, indexing="ij")
        square = torch.from_numpy(np.stack([x.ravel(), y.ravel()], 1))
        return square.to(self.middle) * self.half + self.middle

    def in_unit_square(self, places: Tensor) -> list[list[float]]:
        """Places (n, 2) as shares of the side, from the left and from the top."""
        shares = (places - self.middle) / (2 * self.half) * places.new_tensor([1.0, -1.0]) + 0.5
        return [[round(share, 4) for share in place] for place in shares.tolist()]


def all_frames(quick: bool = False) -> Record:
    """Frames of every geometry and mapping; in a quick run fewer, with fewer points and pixels.

    Examples
    --------
    >>> from entmeans.paper.frames import all_frames
    >>> sorted(all_frames(quick=True)["geometries"])
    ['blobs', 'circles', 'spiral', 'two moons']
    """
    n_points, n_temperatures, pixels = (100, 20, 64) if quick else (300, 56, 96)
    return {
        "colors": [_css(color) for color in cluster_colors(N_CLUSTERS)],
        "geometries": {
            geometry: {
                mapping: frames(geometry, mapping, n_points, n_temperatures, pixels)
                for mapping in SHOWN
            }
            for geometry in GEOMETRIES
        },
    }


def frames(geometry: str, mapping: str, n_points: int, n_temperatures: int, pixels: int) -> Record:
    """The path of `cooling` as pictures and numbers, with T* where there is one, and T = 0.

    Returns
    -------
    dict
        Points and centers in the unit square, y downward; T*, energies and temperatures in units
        of the scale of the data; "hardening_frame", the frame at T*, or None where T* is 0; for
        each frame temperature, centers, free energy and inertia (means over the points), the share
        of points that are exactly hard, "1" for each of those and "0" for each other, the doubt
        (the most that any point gives to centers other than its nearest), and a picture of the
        responsibilities as mixtures of colors.
    """
    cold = cooling(geometry, n_points, N_CLUSTERS, n_temperatures, mapping, 0)
    points, size = cold.points, scale(cold.points)
    hardening = hardening_temperature(points, cold.end, mapping).item() / size
    shown = [(t, c) for t, c in zip(cold.temperatures, cold.path, strict=True) if t > COLDEST_SHOWN]
    soft = [(t, c) for t, c in shown if t > hardening]
    star = [(hardening, cold.end)] if hardening > 0 else []
    frozen = [(t, c) for t, c in shown if t < hardening][FROZEN_STRIDE - 1 :: FROZEN_STRIDE]
    low, high = points.amin(0), points.amax(0)
    plane = Plane((low + high) / 2, 0.55 * (high - low).amax(), pixels)
    places = plane.places()
    order = _by_angle(points, cold.end)
    return {
        "points": plane.in_unit_square(points),
        "hardening_temperature": hardening,
        "hardening_frame": len(soft) if star else None,
        "frames": [
            _frame(points, centers[order], t * size, mapping, size)
            | _shown(plane, places, centers[order], t * size, mapping)
            for t, centers in (*soft, *star, *frozen, (0.0, cold.end))
        ],
    }


def _frame(
    points: Tensor, centers: Tensor, temperature: float, mapping: str, size: float
) -> Record:
    found = statistics(points, centers, temperature, mapping)
    margins = nearest(points, centers).margins
    # by the margin, as in `statistics`: a softmax that rounds to one-hot is no hard one
    hard = margins >= (get_mapping(mapping).one_hot_margin * temperature if temperature > 0 else 0)
    p = responsibilities(points, centers, temperature, mapping)
    others = p.sort(1).values[:, :-1].sum(1)  # small, where 1 minus the largest would round to 0
    n = len(points)
    return {
        "temperature": temperature / size,
        "free_energy": found.free_energy.item() / n / size,
        "inertia": found.inertia.item() / n / size,
        "hard": found.hard_mass.item() / n,
        "hard_points": "".join("1" if one else "0" for one in hard.tolist()),
        "doubt": others.max().item(),
    }


def _shown(
    plane: Plane, places: Tensor, centers: Tensor, temperature: float, mapping: str
) -> Record:
    """Centers, and the colors of the clusters mixed by responsibility as the URI of a picture."""
    p = responsibilities(places, centers, temperature, mapping).numpy()
    n, k = plane.pixels, len(centers)
    p = p.reshape(n, SAMPLES, n, SAMPLES, k).mean((1, 3))  # (pixels, pixels, K)
    image = Image.fromarray((255 * mixture(p, cluster_colors(k))).round().astype(np.uint8))
    # blends are smooth, which is short as JPEG; cells are flat, which is short as PNG, and sharp
    blends, cells = _uri(image, "jpeg", quality=QUALITY, subsampling=0), _uri(image, "png")
    picture = min(blends, cells, key=len)
    return {"centers": plane.in_unit_square(centers), "picture": picture}


def _uri(image: Image.Image, form: str, **options: int) -> str:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return f"data:image/{form};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _by_angle(points: Tensor, centers: Tensor) -> Tensor:
    """An order of the clusters that is the same for both mappings, so that colors are."""
    x, y = (centers - points.mean(0)).unbind(1)
    return torch.atan2(y, x).argsort()


def _css(color: Any) -> str:
    return "#" + "".join(f"{round(255 * channel):02x}" for channel in color)
