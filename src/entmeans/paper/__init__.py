"""The experiments of arXiv 2603.04625, repeated and judged; ``entmeans paper`` runs them all."""

from .geometries import GEOMETRIES, Sample, blobs, circles, spiral, two_moons
from .records import Judgement, Record, Table, Verdict

__all__ = [
    "GEOMETRIES",
    "Judgement",
    "Record",
    "Sample",
    "Table",
    "Verdict",
    "blobs",
    "circles",
    "spiral",
    "two_moons",
]
