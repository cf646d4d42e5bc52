"""All experiments in a row: measured, judged, drawn and written down."""

from __future__ import annotations

import datetime
import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from matplotlib import rc_context
from matplotlib.figure import Figure

from .. import __version__
from ..inputs import check_count
from ..kernels import implementation
from . import figures as drawings
from . import (
    freezing,
    joint,
    manifolds,
    objective,
    rates,
    sparsity,
    stability,
    trajectories,
    update,
)
from .frames import all_frames
from .records import Judgement, Record
from .report import render_html, render_markdown

LARGEST_SEED = 2**31
"""K-means draws its starts by multiples of a seed, which must stay below 2^63."""

PACKAGES = ("torch", "numpy", "numba", "scikit-learn", "scipy", "matplotlib")


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, and the module that measures, judges and draws it.

    Attributes
    ----------
    id, title, statement : str
        The statement is in our words.
    experiment : module
        METHOD, QUICK, ``measure`` and ``judge``.
    draw : callable
        From the record of the experiment to figures by name.
    """

    id: str
    title: str
    statement: str
    experiment: Any
    draw: Callable[[Record], dict[str, Figure]]


CLAIMS = {
    claim.id: claim
    for claim in (
        Claim(
            "C1",
            "The objective",
            "The soft objective converges to that of K-means as T falls to 0, uniformly in the "
            "centers, and minimizers converge to minimizers.",
            objective,
            drawings.objective.draw,
        ),
        Claim(
            "C2",
            "The update",
            "One gradient step on the centers, with the right learning rate for each of them, is "
            "exactly the centroid update; in the limit it is exactly Lloyd's.",
            update,
            drawings.update.draw,
        ),
        Claim(
            "C3",
            "Trajectories",
            "In the limit the whole trajectories of training coincide with those of K-means.",
            trajectories,
            drawings.trajectories.draw,
        ),
        Claim(
            "C4",
            "Monotone collapse",
            "Soft centers collapse onto fixed points of K-means, monotonically as T falls, on "
            "blobs, two moons, a spiral and circles.",
            freezing,
            drawings.freezing.draw,
        ),
        Claim(
            "C5",
            "Rates",
            "With softmax the convergence is exponential in 1 / T; with entmax-1.5 it is "
            "polynomial, O(T).",
            rates,
            drawings.rates.draw,
        ),
        Claim(
            "C6",
            "Stability",
            "Softmax is numerically unstable at low temperature; entmax-1.5 is stable.",
            stability,
            drawings.stability.draw,
        ),
        Claim(
            "C7",
            "Sparsity",
            "Entmax-1.5 keeps the Voronoi partition and gives sparse assignments, at O(K log K) "
            "for each point, and the sparsity lowers later cost.",
            sparsity,
            drawings.sparsity.draw,
        ),
        Claim(
            "C8",
            "Joint training",
            "Clustering can be trained jointly with a network, by the main loss of the network.",
            joint,
            drawings.joint.draw,
        ),
        Claim(
            "C9",
            "Geometric limits",
            "The method keeps the geometric limits of K-means: curved manifolds are not "
            "separated, and trajectories are rougher there.",
            manifolds,
            drawings.manifolds.draw,
        ),
    )
}

Progress = Callable[[Claim, float, Judgement | None], None]
"""Called with a claim, the share of its seeds that are done, and at last the judgement."""


def run(
    out: str | Path,
    *,
    quick: bool = False,
    only: Sequence[str] = (),
    seeds: Sequence[int] = tuple(range(10)),
    command: str = "",
    on_progress: Progress = lambda claim, share, judgement: None,
) -> Record:
    """Measure and judge claims, and write results.json, figures, report.html and report.md.

    Parameters
    ----------
    out : str or Path
        A folder, made if it is not there; files of an earlier run in it are written over.
    quick : bool
        Smaller experiments: the same verdicts in about a minute.
    only : sequence of str
        Such as ``["C4", "C5"]``; none means all.
    seeds : sequence of int
    command : str
        How this was called, for the report.
    on_progress : callable

    Returns
    -------
    dict
        What results.json holds.
    """
    only, seeds = list(dict.fromkeys(only)), list(seeds)
    unknown = [name for name in only if name not in CLAIMS]
    if unknown:
        raise ValueError(f"unknown claims {', '.join(unknown)}: use some of {', '.join(CLAIMS)}.")
    if not seeds:
        raise ValueError("at least one seed is needed.")
    for seed in seeds:
        check_count(seed, "a seed", 0)
    if max(seeds) > LARGEST_SEED or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must differ and be at most {LARGEST_SEED}, got {seeds}.")
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{out} is a file: name a folder to write to.")
    folder.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    claims: list[Record] = []
    records: dict[str, Record] = {}
    for claim in (claim for name, claim in CLAIMS.items() if not only or name in only):
        start = time.perf_counter()
        with torch.inference_mode(False), torch.enable_grad():
            records[claim.id] = measure(claim, seeds, quick, on_progress)
        judgement = claim.experiment.judge(records[claim.id])
        claims.append(
            {
                "id": claim.id,
                "title": claim.title,
                "statement": claim.statement,
                "method": claim.experiment.METHOD,
                "rule": claim.experiment.RULE,
                "seconds": round(time.perf_counter() - start, 2),
                **asdict(judgement),
            }
        )
        on_progress(claim, 1.0, judgement)
    results = {
        "entmeans": __version__,
        "date": datetime.date.today().isoformat(),
        "command": command,
        "settings": {"quick": quick, "seeds": list(seeds), "only": list(only)},
        "machine": machine(),
        "versions": versions(),
        "seconds": round(time.perf_counter() - begin, 1),
        "claims": claims,
        "experiments": records,
    }
    return write(folder, results)


def write(folder: Path, results: Record) -> Record:
    """Draw what was measured and write all files; returns what results.json holds."""
    results = rounded(results)  # what is drawn is what is written
    (folder / "figures").mkdir(exist_ok=True)
    texts: dict[str, str] = {}
    for claim in results["claims"]:
        drawn = CLAIMS[claim["id"]].draw(results["experiments"][claim["id"]])
        claim["figures"] = list(drawn)
        texts |= {name: save(figure, folder / "figures" / name) for name, figure in drawn.items()}
    files = {
        "results.json": json.dumps(results, allow_nan=False),
        "report.html": render_html(results, texts, all_frames(results["settings"]["quick"])),
        "report.md": render_markdown(results, {name: f"figures/{name}.svg" for name in texts}),
    }
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return results


def measure(claim: Claim, seeds: Iterable[int], quick: bool, on_progress: Progress) -> Record:
    """The record of one claim."""
    todo = list(seeds)

    def watched() -> Iterator[int]:
        for i, seed in enumerate(todo):
            on_progress(claim, i / len(todo), None)
            yield seed

    return claim.experiment.measure(watched(), **(claim.experiment.QUICK if quick else {}))


def rounded(value: Any) -> Any:
    """Numbers with six significant digits, however deep they lie."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, (list, tuple)) else value


def save(figure: Figure, path: Path) -> str:
    """Write a figure as .svg and .png, and return the text of the former."""
    figure.savefig(path.with_suffix(".png"), dpi=150)
    with rc_context({"svg.hashsalt": path.name}):  # the same bytes for the same numbers
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    return path.with_suffix(".svg").read_text(encoding="utf-8")


def machine() -> dict[str, str | int]:
    """What times depend on."""
    return {
        "processor": processor(),
        "cores": os.cpu_count() or 0,
        "threads": torch.get_num_threads(),
        "system": platform.system(),
        "implementation": implementation(torch.zeros(1, 1)),
    }


def processor() -> str:
    """The model name; `platform` knows only the architecture on Linux."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def versions() -> dict[str, str]:
    """Of Python and of the packages that decide numbers."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # a torch built from source has no record of itself
            continue
    return found
