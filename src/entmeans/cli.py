"""The command line: ``entmeans fit``, ``entmeans predict`` and ``entmeans paper``."""

from __future__ import annotations

import csv
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray

from . import __version__
from .estimators import EntMeans
from .fit import Step
from .functional import statistics
from .mappings import MAPPINGS, get_mapping

try:
    import typer
    from rich import box
    from rich.columns import Columns
    from rich.console import Console, Group
    from rich.panel import Panel
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
    from rich.table import Table as Grid
    from rich.text import Text

    from .io import Model, Scaling, load_model, save_model, write_history, write_labels
    from .plots import percent, plot_fit, plot_recolored, three_digits
    from .tables import BUILT_IN, Table, read_table
except ModuleNotFoundError as error:
    missing = str(error.name).partition(".")[0]
    raise SystemExit(f'The command line needs {missing}: pip install "entmeans[cli]"') from None

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

DATA_HELP = (
    "A .csv, .parquet, .npy or .npz file, or built-in data: "
    f"{', '.join(BUILT_IN)} (the last two: pixels of photographs)."
)

LABEL_WIDTH = len("certificate")

BADGES = {
    "holds": ("●", "green"),
    "holds under a condition": ("◐", "yellow"),
    "does not hold": ("○", "red"),
}


@dataclass(frozen=True)
class Peer:
    """What scikit-learn's ``KMeans`` made of the same data."""

    labels: NDArray[Any]
    inertia: float
    seconds: float


@contextmanager
def _reported() -> Iterator[None]:
    """Bad input ends in one red line and exit code 2; warnings become one yellow line each."""
    console = Console(stderr=True)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # names that it cannot write show "?"
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            yield
    except BrokenPipeError:
        raise
    except (ValueError, OSError) as error:
        _line(console, f"Error: {error}", "red")
        raise typer.Exit(2) from None
    for warning in caught:
        _line(console, f"Warning: {warning.message}", "yellow")


def _line(console: Console, message: str, style: str) -> None:
    console.print(Text(" ".join(message.split()), style=style), soft_wrap=True)


def _show_version(asked: bool) -> None:
    if asked:
        Console().print(f"entmeans {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Soft clusters that freeze into exact K-means.

    [bold]entmeans fit digits -k 10[/bold]  finds clusters in a file or in built-in data;
    [bold]entmeans predict DIR DATA[/bold]  applies them to other data;
    [bold]entmeans paper[/bold]  repeats the experiments that this rests on, and judges them.
    """


@app.command(epilog="Example:  entmeans fit data.csv -k 8 --label-column species --out result")
@_reported()
def fit(
    data: Annotated[str, typer.Argument(metavar="DATA", help=DATA_HELP)],
    clusters: Annotated[int, typer.Option("-k", "--clusters", help="How many clusters.")],
    mapping: Annotated[
        str, typer.Option(help=f"How distances become shares: {', '.join(sorted(MAPPINGS))}.")
    ] = "entmax15",
    temperature: Annotated[
        float | None,
        typer.Option(
            help="Where cooling starts, in squared distance; 0 is plain Lloyd.",
            show_default="chosen from the data",
        ),
    ] = None,
    final_temperature: Annotated[
        float, typer.Option(help="Where cooling ends; 0 is K-means.")
    ] = 0.0,
    columns: Annotated[
        str | None,
        typer.Option(
            help="Columns to use, with commas between; numbers from 1 where there are no names.",
            show_default="all numeric ones",
        ),
    ] = None,
    label_column: Annotated[
        str | None,
        typer.Option(help="Column (or array of an .npz) with true classes, to compare with."),
    ] = None,
    standardize: Annotated[
        bool, typer.Option("--standardize", help="Give every column mean 0 and variance 1 first.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seeds the initial centers.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder for labels.parquet, model.safetensors, history.csv, fit.png and, of a "
            "photograph, recolored.png.",
        ),
    ] = None,
) -> None:
    """Find clusters, watch them freeze, and compare with scikit-learn's default KMeans."""
    console = Console(highlight=False)
    table = read_table(data, _split(columns), label_column)
    _introduce(console, table)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    scaling = Scaling.of(table.values) if standardize else None
    points = scaling.apply(table.values) if scaling else table.values
    estimator = EntMeans(
        clusters,
        mapping=mapping,
        temperature="auto" if temperature is None else temperature,
        final_temperature=final_temperature,
        random_state=seed,
    )
    with Console(stderr=True).status("Loading kernels; the first time they compile, some 20 s"):
        EntMeans(2, random_state=0).fit(np.array([[0.0], [1.0]], points.dtype))
    start = time.perf_counter()
    with _progress(Console(stderr=True)) as on_step:
        estimator._fit(points, on_step=on_step)
    seconds = time.perf_counter() - start
    peer = _scikit_learn(points, clusters, seed)
    comparison = _comparison(estimator, seconds, peer, table.labels)
    report = Group(comparison, Text(), _findings(estimator, points))
    console.print(Panel(report, box=box.ROUNDED, border_style="cyan", padding=(0, 2), width=80))
    if out is not None:
        _write(out, Model(estimator, table.columns, table.named, scaling), table, points)
        console.print(f"Written to {out}", soft_wrap=True)


@app.command(epilog="Example:  entmeans predict result new.csv --proba --out labels.parquet")
@_reported()
def predict(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="What fit --out wrote: the folder or model.safetensors."
        ),
    ],
    data: Annotated[str, typer.Argument(metavar="DATA", help=DATA_HELP)],
    proba: Annotated[
        bool, typer.Option("--proba", help="Also the share of each cluster in each row.")
    ] = False,
    temperature: Annotated[
        float | None,
        typer.Option(
            help="Of the shares, in squared distance; 0 makes them 0 or 1.",
            show_default="where the fit ended",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A .parquet file for label and p0, p1, ...")
    ] = None,
) -> None:
    """Assign the rows of other data to the clusters of a model."""
    console = Console(highlight=False)
    if temperature is not None and not proba:
        raise ValueError("--temperature is for the shares: add --proba.")
    if out is not None and out.suffix != ".parquet":
        raise ValueError(f"--out writes parquet: {out.name} must end in .parquet.")
    loaded = load_model(model)
    estimator = loaded.estimator
    points = loaded.read(data)
    labels = estimator.predict(points)
    shares = estimator.predict_proba(points, temperature) if proba else None
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_labels(out, labels, shares)
        console.print(f"{len(labels):,} rows written to {out}", soft_wrap=True)
        return
    console.print(f"{len(labels):,} rows, and how many of them each cluster gets:")
    console.print(_counts(np.bincount(labels, minlength=estimator.n_clusters)))
    if shares is not None:
        used = estimator.final_temperature if temperature is None else temperature
        tensors = torch.as_tensor(points), torch.as_tensor(estimator.cluster_centers_)
        hard = statistics(*tensors, used, estimator.mapping).hard_mass.item() / len(points)
        console.print(_softness(shares, used, hard), soft_wrap=True)


@app.command(epilog="Example:  entmeans paper --quick --out report")
@_reported()
def paper(
    out: Annotated[
        Path,
        typer.Option(
            metavar="DIR", help="Folder for report.html, report.md, results.json and figures."
        ),
    ] = Path("paper-report"),
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="Smaller experiments, done within a minute once kernels are compiled."
        ),
    ] = False,
    only: Annotated[
        str | None,
        typer.Option(help="Claims to test, as C4,C5.", show_default="all, C1 to C9"),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="How many seeds.", show_default="10; with --quick 3"),
    ] = None,
    first_seed: Annotated[int, typer.Option(min=0, max=2**31, help="The first of them.")] = 0,
) -> None:
    """Repeat the experiments of arXiv 2603.04625, and judge each claim by what is measured.

    A report says what holds, under which condition, and what does not. It takes some minutes on
    two cores.
    """
    from .paper.run import run

    chosen = [] if only is None else [name.strip().upper() for name in only.split(",")]
    n_seeds = seeds or (3 if quick else 10)
    console = Console(highlight=False)
    with _judging(Console(stderr=True)) as on_progress:
        results = run(
            out,
            quick=quick,
            only=chosen,
            seeds=range(first_seed, first_seed + n_seeds),
            command=" ".join(["entmeans", *sys.argv[1:]]),
            on_progress=on_progress,
        )
    console.print(_verdicts(results["claims"]))
    console.print(f"Written to {out / 'report.html'}", soft_wrap=True)


def _split(columns: str | None) -> list[str] | None:
    """Names between commas; one that holds a comma itself stands in quotes."""
    if columns is None:
        return None
    return [name.strip() for name in next(csv.reader([columns], skipinitialspace=True), [])]


def _introduce(console: Console, table: Table) -> None:
    n, d = table.values.shape
    line = Text.assemble(
        (table.name, "bold"), f"  {n:,} rows, {d:,} {'column' if d == 1 else 'columns'}"
    )
    if not table.named:
        line.append(" (without names)")
    elif d <= 12:
        line.append(f": {', '.join(table.columns)}")
    console.print(line)
    if table.left_out:
        names = [name or "(without a name)" for name in table.left_out]
        more = f" and {len(names) - 10} more" if len(names) > 10 else ""
        left_out = f"Left out, not numeric or without a name: {', '.join(names[:10])}{more}"
        console.print(Text(left_out, style="yellow"))


@contextmanager
def _progress(console: Console) -> Iterator[Callable[[Step], None]]:
    """A live bar that fills as rows freeze; nothing where there is no terminal."""
    progress = Progress(
        BarColumn(bar_width=12, style="grey50", complete_style="cyan", finished_style="bold cyan"),
        TextColumn("{task.fields[state]}"),
        console=console,
        disable=not console.is_terminal,
        transient=True,  # until there is a step: an error leaves no bar behind
    )
    with progress:
        bar = progress.add_task("freezing", total=1.0, state="choosing where to start")

        def on_step(step: Step) -> None:
            progress.live.transient = False
            state = (
                f"{percent(step.hard_share):>4} hard  T {three_digits(step.temperature):<6} "
                f"free energy {_short(step.free_energy)}  inertia {_short(step.inertia)}"
            )
            progress.update(bar, completed=step.hard_share, state=state)

        yield on_step


@contextmanager
def _judging(console: Console) -> Iterator[Callable[[Any, float, Any], None]]:
    """A live bar for each claim, and its verdict; without a terminal a line when it is judged."""
    progress = Progress(
        TextColumn("{task.fields[name]}"),
        BarColumn(bar_width=16, style="grey50", complete_style="cyan", finished_style="cyan"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[state]}"),
        console=console,
        disable=not console.is_terminal,
    )
    bars: dict[str, TaskID] = {}
    with progress:

        def on_progress(claim: Any, share: float, judgement: Any) -> None:
            if claim.id not in bars:
                name = f"{claim.id} {claim.title:<16}"
                bars[claim.id] = progress.add_task("", total=1.0, name=name, state="")
                if progress.disable:
                    console.print(f"{claim.id} {claim.title} ...")
            state = "" if judgement is None else _badge(judgement.verdict)
            progress.update(bars[claim.id], completed=share, state=state)
            if judgement is not None and progress.disable:
                console.print(f"{claim.id} {claim.title}: {judgement.verdict}")

        yield on_progress


def _badge(verdict: str) -> str:
    """Told apart by color, shape and words."""
    mark, color = BADGES[verdict]
    return f"[{color}]{mark} {verdict}[/{color}]"


def _verdicts(claims: list[dict[str, Any]]) -> Grid:
    grid = Grid(box=box.SIMPLE_HEAD, header_style="bold", padding=(0, 1))
    grid.add_column("claim", no_wrap=True)
    grid.add_column("verdict")
    grid.add_column("measured")
    for claim in claims:
        grid.add_row(
            f"{claim['id']} {claim['title']}", _badge(claim["verdict"]), Text(claim["measured"])
        )
    return grid


def _scikit_learn(points: NDArray[Any], n_clusters: int, seed: int) -> Peer:
    from sklearn.cluster import KMeans

    peer = KMeans(n_clusters, random_state=seed)
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peer.fit(points)
    return Peer(peer.labels_, float(peer.inertia_), time.perf_counter() - start)


def _comparison(
    estimator: EntMeans, seconds: float, peer: Peer, truth: NDArray[Any] | None
) -> Grid:
    grid = Grid.grid(padding=(0, 4, 0, 0))
    grid.add_column(style="bold", min_width=LABEL_WIDTH)
    for heading in ("EntMeans", "scikit-learn KMeans", "difference"):
        grid.add_column(Text(heading, style="bold"), justify="right")
    grid.show_header = True
    ours, theirs = estimator.inertia_, peer.inertia
    grid.add_row("inertia", _number(ours), _number(theirs), _inertia_difference(ours, theirs))
    ratio = seconds / peer.seconds
    pace = f"{ratio:.1f}x slower" if ratio >= 1 else f"{1 / ratio:.1f}x faster"
    grid.add_row("time", f"{seconds:.2f} s", f"{peer.seconds:.2f} s", pace)
    if truth is not None:
        from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

        classes = np.unique(truth, return_inverse=True)[1]
        for name, score in (
            ("ARI", adjusted_rand_score),
            ("NMI", normalized_mutual_info_score),
        ):
            a, b = (score(classes, labels) for labels in (estimator.labels_, peer.labels))
            grid.add_row(name, f"{a:.3f}", f"{b:.3f}", f"{a - b:+.3f}")
    return grid


def _inertia_difference(ours: float, theirs: float) -> Text:
    if np.isclose(ours, theirs, rtol=1e-9, atol=0):
        return Text("the same")
    gap = 100 * abs(ours - theirs) / theirs if theirs else float("inf")
    if ours < theirs:
        return Text(f"{three_digits(gap)}% lower", style="green")
    return Text(f"{three_digits(gap)}% higher", style="yellow")


def _findings(estimator: EntMeans, points: NDArray[Any]) -> Grid:
    grid = Grid.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="bold", min_width=LABEL_WIDTH)
    grid.add_column(overflow="fold")
    sizes = np.bincount(estimator.labels_, minlength=estimator.n_clusters)
    grid.add_row("clusters", _sizes(sizes))
    grid.add_row("iterations", f"{estimator.n_iter_}, {estimator.stop_reason_}")
    grid.add_row("T*", _hardening(estimator))
    grid.add_row("certificate", _certificate(estimator, points))
    return grid


def _sizes(sizes: NDArray[np.intp]) -> str:
    k = len(sizes)
    if k <= 16:
        return f"{k} of {', '.join(f'{size:,}' for size in sizes)} rows"
    return f"{k} of {sizes.min():,} to {sizes.max():,} rows, median {int(np.median(sizes)):,}"


def _hardening(estimator: EntMeans) -> str:
    hardening, final = estimator.hardening_temperature_, estimator.final_temperature
    if final <= hardening:
        return "infinite" if hardening == float("inf") else three_digits(hardening)
    return (
        f"{three_digits(hardening)}, below the final temperature {three_digits(final)}: there "
        f"{percent(estimator.history_[-1].hard_share)} of the rows are hard"
    )


def _certificate(estimator: EntMeans, points: NDArray[Any]) -> Text:
    """Whether the soft network and K-means are the same map at T*, found out by computing both."""
    mapping, hardening = get_mapping(estimator.mapping), estimator.hardening_temperature_
    if mapping.name == "softmax":
        return Text("none: softmax never becomes exactly hard at any T > 0", style="yellow")
    if hardening == 0:
        return Text("none for T > 0: a row is equally near to two centers", style="yellow")
    x = torch.from_numpy(np.require(points, requirements=["C", "W"]))
    centers = torch.from_numpy(estimator.cluster_centers_)
    soft = statistics(x, centers, hardening, mapping)
    hard = statistics(x, centers, 0.0, mapping)
    same = torch.equal(soft.mass, hard.mass) and torch.equal(soft.moment, hard.moment)
    if not (same and soft.hard_mass.item() == len(points)):
        return Text("FAILED: at T* the soft network and K-means differ on these rows", style="red")
    return Text(
        f"at T <= T* the soft network and K-means are the same map: verified on these "
        f"{len(points):,} rows",
        style="green",
    )


def _write(folder: Path, model: Model, table: Table, points: NDArray[Any]) -> None:
    estimator = model.estimator
    labels, centers = estimator.labels_, estimator.cluster_centers_
    write_labels(folder / "labels.parquet", labels)
    save_model(folder, model)
    write_history(folder / "history.csv", estimator.history_)
    colors = None
    if table.image_shape is not None:
        rgb = model.scaling.undo(centers) if model.scaling else centers
        plot_recolored(folder / "recolored.png", rgb, labels, table.image_shape)
        colors = (rgb / 255).clip(0, 1)
    mapping = get_mapping(estimator.mapping).name
    title = f"{table.name}: {len(centers)} clusters, {mapping}"
    plot_fit(
        folder / "fit.png", estimator.history_, points, labels, centers, title=title, colors=colors
    )


def _counts(sizes: NDArray[np.intp]) -> Columns:
    width = len(str(len(sizes) - 1))
    return Columns(
        [f"{j:>{width}}: {size:<9,}" for j, size in enumerate(sizes)], padding=(0, 3), equal=True
    )


def _softness(shares: NDArray[Any], temperature: float, hard: float) -> str:
    largest = shares.max(1).mean()
    return (
        f"At T = {three_digits(temperature)} the largest share is {largest:.3f} on average; "
        f"{percent(hard)} of the rows are exactly hard."
    )


def _number(value: float) -> str:
    return f"{value:,.1f}" if 1000 <= abs(value) < 1e12 else f"{value:.6g}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e12 else f"{value:.5g}"
