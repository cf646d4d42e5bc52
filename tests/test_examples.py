"""The examples do what they say, to the numbers they return."""

import math
import runpy
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "examples"


def result_of(name: str) -> Any:
    return runpy.run_path(str(FOLDER / f"{name}.py"))["main"]()


def test_every_example_is_tested() -> None:
    tested = {name.removeprefix("test_") for name in globals()}
    assert {path.stem for path in FOLDER.glob("*.py")} <= tested


def test_clustering_head() -> None:
    found = result_of("clustering_head")
    for measure in ("accuracy", "ARI", "NMI"):
        assert found["joint"][measure] > found["pixels"][measure] + 0.03
        assert abs(found["joint"][measure] - found["two stages"][measure]) < 0.05
    assert found["joint"]["within"] < 0.9 * found["two stages"]["within"]


def test_rbf_digits() -> None:
    found = result_of("rbf_digits")
    assert found["joint"] > found["two stages"] + 0.01
    assert found["two stages"] > 0.92


def test_codebook() -> None:
    found = result_of("codebook")
    with_, without = found["with revive"], found["without"]
    assert with_["error after"] < 0.5 * without["error after"]
    assert with_["error after"] < 0.15 * with_["error before"]
    assert with_["perplexity after"] > 50
    assert without["perplexity after"] < 10


def test_sets() -> None:
    found = result_of("sets")
    assert found["agreement before"] < 0.6
    assert found["agreement after"] > 0.95
    assert found["scale of noise"] < 0.4 * found["scale of groups"]


def test_learned_temperature() -> None:
    found = result_of("learned_temperature")
    hot, cold = found["from 10 times too hot"], found["from 10 times too cold"]
    # 4,000 coordinates give a variance to 1 / sqrt(2000) = 2.2 %, one standard deviation.
    assert math.isclose(hot, found["truth"], rel_tol=0.07)
    assert math.isclose(hot, cold, rel_tol=0.02)
    assert found["free energy alone"] > 1e6 * found["truth"]
