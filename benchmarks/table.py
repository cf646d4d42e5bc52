"""The table of speed in the README, made from the results of `speed.py`.

    python benchmarks/table.py benchmarks/speed.json README.md [--check]

Replaces what stands between the two marks; ``--check`` writes nothing and fails where the README
is not up to date.  Lines that differ in a detail only are one row: the one closest to its bound.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from timing import Line

BEGIN, END = "<!-- speed: begin -->", "<!-- speed: end -->"
HEADER = ("what", "where", "peer", "ours, ms", "peer, ms", "ratio (spread)", "asked", "verdict")
TITLES = {
    "mapping": "mapping, forward and backward",
    "iteration": "one iteration",
    "fit": "whole fit",
    "free_energy": "free_energy, forward and backward",
    "memory": "memory",
    "linear": "linear in the number of points",
    "start": "start of a process",
}


def rows(lines: list[Line]) -> list[str]:
    """The table in Markdown; blocks have a row of their own as a title."""
    found = [_row(HEADER), "|---|---|---|---:|---:|---|---|---|"]
    chosen = [line for line in lines if line.asked is not None or line.shown]
    for block in dict.fromkeys(line.block for line in chosen):
        found.append(_row([f"**{TITLES[block]}**", *[""] * (len(HEADER) - 1)]))
        found += [_row(_cells(group)) for group in _groups(chosen, block)]
    return found


def _groups(lines: list[Line], block: str) -> list[list[Line]]:
    """Lines of a block that are one row: alike but for a detail."""
    groups: dict[tuple[Any, ...], list[Line]] = {}
    for line in lines:
        if line.block == block:
            key = (line.what, line.where, line.peer, line.asked)
            groups.setdefault(key, []).append(line)
    return list(groups.values())


def _cells(group: list[Line]) -> list[str]:
    worst = max(group, key=lambda line: (line.verdict != "pass", line.share))
    cells = worst.cells()
    if len(group) > 1:
        cells[1] += f" (worst of {len(group)})"
    if not worst.measured:
        cells[-1] = worst.note
    elif worst.verdict == "short":
        cells[-1] = "**short**"
    if worst.differs:
        cells[-1] += f", results differ by {worst.difference:.0e}"
    return cells


def _row(cells: Any) -> str:
    return f"| {' | '.join(cells)} |"


def caption(report: dict[str, Any]) -> str:
    """What the numbers depend on."""
    facts = report["machine"]
    versions = ", ".join(f"{name} {facts[name]}" for name in ("torch", "scikit-learn", "numba"))
    return (
        f"{facts['processor']}, {facts['threads']} threads, float32, medians of "
        f"{report['repeats']}; {versions}; {facts['date']}."
    )


def replaced(text: str, table: str) -> str:
    """The text with this table between the marks."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        sys.exit(f"The text needs a line {BEGIN} and after it a line {END}.")
    return f"{head}{BEGIN}\n{table}\n{END}{tail}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("readme", type=Path)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()

    report = json.loads(arguments.results.read_text())
    if report["quick"]:
        sys.exit(f"{arguments.results} is of a quick run, which only shows that all runs.")
    lines = [Line(**line) for line in report["lines"]]
    text = arguments.readme.read_text()
    new = replaced(text, "\n".join([caption(report), "", *rows(lines)]))
    if not arguments.check:
        arguments.readme.write_text(new)
    elif new != text:
        sys.exit(f"{arguments.readme} does not show {arguments.results}: run {Path(__file__).name}")


if __name__ == "__main__":
    main()
