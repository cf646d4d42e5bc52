"""`entmeans paper`: one quick run, its verdicts, files and page; bad input; the README."""

import json
import re
from pathlib import Path

import pytest
from matplotlib.image import imread
from typer.testing import CliRunner

from entmeans.cli import app
from entmeans.paper.report import verdict_rows
from entmeans.paper.run import CLAIMS, rounded, run

ROOT = Path(__file__).parents[1]
VERDICTS = {
    "C1": "holds",
    "C2": "holds under a condition",
    "C3": "holds under a condition",
    "C4": "does not hold",
    "C5": "holds under a condition",
    "C6": "holds under a condition",
    "C7": "holds under a condition",
    "C8": "holds under a condition",
    "C9": "holds",
}

# one process runs the quick run, once for all tests of it
quick = pytest.mark.xdist_group("paper")


def command(*arguments, code=0):
    """Screen and error output of the command, which ends with this exit code."""
    result = CliRunner().invoke(app, ["paper", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.stdout, result.stderr


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A folder with a quick run of all claims, and what the screen said."""
    folder = tmp_path_factory.mktemp("report")
    screen, progress = command("--quick", "--out", folder)
    return folder, screen, progress


@pytest.fixture(scope="module")
def results(report):
    return json.loads((report[0] / "results.json").read_text())


@quick
def test_a_quick_run_reaches_the_verdicts(results):
    assert {claim["id"]: claim["verdict"] for claim in results["claims"]} == VERDICTS
    assert results["settings"] == {"quick": True, "seeds": [0, 1, 2], "only": []}
    assert set(results["versions"]) >= {"python", "torch", "numpy", "scikit-learn"}
    assert results["machine"]["cores"] >= 1


@quick
@pytest.mark.parametrize("name", CLAIMS)
def test_verdicts_follow_from_what_was_written_down(name, results):
    assert CLAIMS[name].experiment.judge(results["experiments"][name]).verdict == VERDICTS[name]


@quick
def test_the_screen_shows_progress_and_a_table(report):
    _, screen, progress = report
    judged = [line for line in progress.splitlines() if not line.endswith("...")]
    assert [line.partition(" ")[0] for line in judged] == list(CLAIMS)
    for name, verdict in VERDICTS.items():
        assert re.search(rf"{name} .* {verdict.split()[0]}", screen)
    assert "report.html" in screen


@quick
def test_every_figure_is_written_in_both_formats_and_shows_something(report, results):
    named = [figure for claim in results["claims"] for figure in claim["figures"]]
    assert len(named) >= 9
    folder = report[0] / "figures"
    assert {path.stem for path in folder.iterdir()} == set(named)
    for name in named:
        assert (folder / f"{name}.svg").read_text().startswith("<?xml")
        assert imread(folder / f"{name}.png").std() > 0.02


@quick
def test_the_page_needs_no_network(report):
    page = (report[0] / "report.html").read_text()
    targets = re.findall(r"""\b(?:src|href|action)=["']?([^"'\s>]*)""", page)
    assert targets
    assert all(target.startswith(("#", "data:")) for target in targets)
    assert not re.search(r"@import|url\((?!['\"]?data:)", page)
    assert not re.search(r"fetch\(|XMLHttpRequest|import\(", page)
    assert len(page) < 6e6


@quick
def test_both_reports_begin_with_the_verdicts(report, results):
    text = (report[0] / "report.md").read_text()
    first = re.search(r"(?:^\|.*\n)+", text, flags=re.M).group()
    assert all(claim["id"] in first and claim["verdict"] in first for claim in results["claims"])
    images = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)
    assert images
    assert all((report[0] / image).is_file() for image in images)
    page = (report[0] / "report.html").read_text()
    table = page[page.index("<table") : page.index("</table>")]
    assert all(claim["verdict"] in table for claim in results["claims"])


def test_only_some_claims_and_other_seeds(tmp_path):
    found = run(tmp_path, quick=True, only=["C2"], seeds=[20, 21])
    assert [claim["id"] for claim in found["claims"]] == ["C2"]
    assert found["claims"][0]["verdict"] == VERDICTS["C2"]
    assert found["experiments"]["C2"]["seeds"] == [20, 21]
    assert (tmp_path / "report.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "C2,C12"], r"unknown claims C12: use some of C1, C2, .*, C9\."),
        (["--only", "entmax"], "unknown claims ENTMAX"),
        (["--only", ""], "unknown claims"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(arguments, message, tmp_path):
    _, error = command(*arguments, "--out", tmp_path / "new", code=2)
    assert re.fullmatch(rf"Error: .*{message}.*\n", error)
    assert not (tmp_path / "new").exists()


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("mine")
    _, error = command("--quick", "--only", "C2", "--out", tmp_path / "file", code=2)
    assert error.startswith("Error: ")
    assert error.count("\n") == 1
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    ("seeds", "message"),
    [
        ([], "at least one seed"),
        (iter([]), "at least one seed"),
        ([1.5], "a seed must be an integer of 0 or more"),
        ([-1], "a seed must be an integer of 0 or more"),
        ([0, 0], "seeds must differ"),
        ([2**40], "at most 2147483648"),
    ],
)
def test_bad_seeds_are_named_before_anything_is_measured(seeds, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        run(tmp_path / "new", seeds=seeds)
    assert not (tmp_path / "new").exists()


def test_numbers_are_written_with_six_digits():
    value = {"a": [1 / 3, 2, True, None, "text"], "b": ({"c": 1e-17 / 3},)}
    assert rounded(value) == {"a": [0.333333, 2, True, None, "text"], "b": [{"c": 3.33333e-18}]}


@pytest.fixture(scope="module")
def published():
    """The full run that README and docs quote."""
    return json.loads((ROOT / "docs" / "paper" / "results.json").read_text())


def test_the_published_run_is_a_full_one_with_the_same_verdicts(published):
    assert not published["settings"]["quick"]
    assert len(published["settings"]["seeds"]) >= 10
    assert {claim["id"]: claim["verdict"] for claim in published["claims"]} == VERDICTS
    for name, claim in CLAIMS.items():
        assert claim.experiment.judge(published["experiments"][name]).verdict == VERDICTS[name]


def test_readme_and_report_quote_the_published_run(published):
    table = verdict_rows(published)
    assert table in (ROOT / "README.md").read_text()
    assert table in (ROOT / "docs" / "paper" / "report.md").read_text()
