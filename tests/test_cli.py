"""The command line as its users meet it: reports, files, errors, any kind of terminal."""

import os
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from matplotlib.image import imread
from rich.console import Console
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from typer.testing import CliRunner

import entmeans.cli
import entmeans.tables
from entmeans import EntMeans, Step
from entmeans.cli import app
from entmeans.io import load_model
from entmeans.tables import read_table


def run(*arguments, code=0):
    """Screen and error output of a command that ends with this exit code."""
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.stdout, result.stderr


def fails(*arguments):
    """The one line that a command with bad input writes."""
    _, error = run(*arguments, code=2)
    line = error.removesuffix("\n")
    assert line.startswith("Error: ")
    assert "\n" not in line
    return line


def rows(screen):
    """The report as a mapping from the label of a row to the rest of it, lines joined."""
    found, label = {}, ""
    for line in re.findall(r"^│  (.*?) *│$", screen, re.MULTILINE):
        if match := re.match(r"(\S+) {2,}(.*)", line):
            label, line = match.groups()
        found[label] = " ".join([found.get(label, ""), line.strip()]).strip()
    return found


@pytest.fixture
def table(tmp_path):
    """Three blobs as a csv file with a column of text and one of classes."""
    rng = np.random.default_rng(0)
    kind = np.repeat([0, 1, 2], 20)
    points = rng.normal(size=(60, 2)) + 9 * kind[:, None]
    path = tmp_path / "blobs.csv"
    lines = [f"{x},{y},note,{'abc'[k]}" for (x, y), k in zip(points, kind, strict=True)]
    path.write_text("\n".join(["x,y,remark,kind", *lines]))
    return path


@pytest.fixture
def two_places(tmp_path):
    """Eighteen rows in two places: of three centers two must coincide."""
    np.save(tmp_path / "two.npy", np.repeat([[1.0], [2.0]], 9, axis=0))
    return tmp_path / "two.npy"


class TestReport:
    def test_shows_inertia_and_scores_beside_scikit_learn(self):
        screen, error = run("fit", "wine", "-k", 4, "--seed", 3)
        X, y = read_table("wine").values, read_table("wine").labels
        ours, theirs = EntMeans(4, random_state=3).fit(X), KMeans(4, random_state=3).fit(X)
        report = rows(screen)
        assert f"{ours.inertia_:,.1f}" in report["inertia"]
        assert f"{theirs.inertia_:,.1f}" in report["inertia"]
        for name, score in (
            ("ARI", adjusted_rand_score),
            ("NMI", normalized_mutual_info_score),
        ):
            a, b = score(y, ours.labels_), score(y, theirs.labels_)
            assert report[name].split() == [f"{a:.3f}", f"{b:.3f}", f"{a - b:+.3f}"]
        assert re.fullmatch(r"[\d.]+ s +[\d.]+ s +[\d.]+x (slower|faster)", report["time"])
        assert report["iterations"] == f"{ours.n_iter_}, {ours.stop_reason_}"
        sizes = ", ".join(str(size) for size in np.bincount(ours.labels_))
        assert report["clusters"] == f"4 of {sizes} rows"
        assert screen.startswith("wine  178 rows, 13 columns")
        assert error == ""

    @pytest.mark.parametrize(
        ("theirs", "words", "color"),
        [(100.0, "the same", None), (80.0, "25% higher", "yellow"), (125.0, "20% lower", "green")],
    )
    def test_difference_is_honest_in_both_directions(self, theirs, words, color):
        text = entmeans.cli._inertia_difference(100.0, theirs)
        assert (text.plain, str(text.style) or None) == (words, color)

    def test_without_classes_there_are_no_scores(self, table):
        report = rows(run("fit", table, "-k", 3)[0])
        assert {"inertia", "time", "clusters", "T*", "certificate"} <= report.keys()
        assert not {"ARI", "NMI"} & report.keys()

    def test_left_out_columns_are_named(self, table):
        assert (
            "Left out, not numeric or without a name: remark, kind" in run("fit", table, "-k", 3)[0]
        )
        screen, _ = run("fit", table, "-k", 3, "--label-column", "kind")
        assert "a name: remark\n" in screen
        assert rows(screen)["ARI"].split()[:2] == ["1.000", "1.000"]
        assert "Left out" not in run("fit", table, "-k", 3, "--columns", "y, x")[0]

    def test_many_clusters_are_summed_up(self):
        sizes = np.bincount(EntMeans(20, random_state=0).fit(read_table("wine").values).labels_)
        report = rows(run("fit", "wine", "-k", 20)[0])
        median = int(np.median(sizes))
        expected = f"20 of {sizes.min()} to {sizes.max()} rows, median {median}"
        assert report["clusters"] == expected

    def test_warnings_are_one_line_each(self, two_places):
        screen, error = run("fit", two_places, "-k", 3)
        assert re.fullmatch(r"Warning: .*distinct clusters \(2\).*\n", error)
        assert "certificate" in screen

    def test_data_without_names_is_called_so(self, two_places):
        assert "18 rows, 1 column (without names)" in run("fit", two_places, "-k", 2)[0]

    def test_seed_decides_the_result(self):
        same, again, other = (
            rows(run("fit", "digits", "-k", 10, "--seed", seed)[0])["clusters"]
            for seed in (1, 1, 2)
        )
        assert same == again != other


class TestCertificate:
    verified = "at T <= T* the soft network and K-means are the same map: verified on these"

    @pytest.mark.parametrize("mapping", ["entmax15", "sparsemax"])
    def test_is_given_where_it_is_true(self, mapping):
        report = rows(run("fit", "wine", "-k", 3, "--mapping", mapping)[0])
        assert report["certificate"] == f"{self.verified} 178 rows"
        assert float(report["T*"].replace(",", "")) > 0

    def test_is_computed_not_claimed(self, monkeypatch):
        def liar(self, *arguments, **keywords):
            fit(self, *arguments, **keywords)
            self.hardening_temperature_ *= 2
            return self

        fit = EntMeans._fit
        monkeypatch.setattr(EntMeans, "_fit", liar)
        assert rows(run("fit", "wine", "-k", 3)[0])["certificate"].startswith("FAILED")

    def test_single_precision(self, tmp_path):
        np.save(tmp_path / "a.npy", read_table("digits").values.astype(np.float32))
        report = rows(run("fit", tmp_path / "a.npy", "-k", 10)[0])
        assert report["certificate"] == f"{self.verified} 1,797 rows"

    def test_columns_stored_one_after_the_other(self, tmp_path):
        np.save(tmp_path / "a.npy", np.asfortranarray(read_table("digits").values))
        report = rows(run("fit", tmp_path / "a.npy", "-k", 10)[0])
        assert report["certificate"] == f"{self.verified} 1,797 rows"

    def test_softmax_has_none(self):
        report = rows(run("fit", "wine", "-k", 3, "--mapping", "softmax")[0])
        assert report["certificate"] == "none: softmax never becomes exactly hard at any T > 0"
        assert report["T*"] == "0"

    def test_a_tie_leaves_none_and_is_told(self, two_places):
        report = rows(run("fit", two_places, "-k", 3)[0])
        assert report["certificate"] == "none for T > 0: a row is equally near to two centers"
        assert report["T*"] == "0"

    def test_one_cluster_and_hard_mapping_are_hard_at_every_temperature(self):
        for options in (("-k", 1), ("-k", 3, "--mapping", "hard")):
            report = rows(run("fit", "wine", *options)[0])
            assert (report["T*"], report["certificate"]) == (
                "infinite",
                f"{self.verified} 178 rows",
            )

    def test_final_temperature_above_it_is_told(self):
        report = rows(run("fit", "iris", "-k", 3, "--final-temperature", 2)[0])
        assert re.fullmatch(
            r"[\d.]+, below the final temperature 2: there \d+% of the rows are hard", report["T*"]
        )
        assert report["certificate"].startswith(self.verified)


class TestFiles:
    def test_everything_is_written_and_nothing_else_touched(self, table, tmp_path):
        folder = tmp_path / "new" / "result"
        screen, _ = run("fit", table, "-k", 3, "--out", folder)
        assert f"Written to {folder}" in screen
        names = {"labels.parquet", "model.safetensors", "history.csv", "fit.png"}
        assert {path.name for path in folder.iterdir()} == names
        (folder / "labels.parquet").write_text("old")
        (folder / "mine.txt").write_text("keep")
        run("fit", table, "-k", 3, "--out", folder)
        assert {path.name for path in folder.iterdir()} == names | {"mine.txt"}
        assert (folder / "mine.txt").read_text() == "keep"
        labels = pq.read_table(folder / "labels.parquet")["label"].to_numpy()
        estimator = load_model(folder).estimator
        points = read_table(table).values
        assert np.array_equal(labels, EntMeans(3, random_state=0).fit(points).labels_)
        assert np.array_equal(labels, estimator.predict(points))
        assert imread(folder / "fit.png").std() > 0.05

    def test_photograph_is_recolored(self, tmp_path, monkeypatch):
        photograph = read_table("china")
        small = photograph.values.reshape(427, 640, 3)[::10, ::10]
        little = entmeans.tables.Table(
            small.reshape(-1, 3), photograph.columns, True, "china", image_shape=small.shape[:2]
        )
        monkeypatch.setattr(entmeans.cli, "read_table", lambda *_: little)
        pictures = {}
        for options in ((), ("--standardize",)):
            run("fit", "china", "-k", 4, "--out", tmp_path, *options)
            picture = imread(tmp_path / "recolored.png")[..., :3]
            assert picture.shape == small.shape
            assert len(np.unique(picture.reshape(-1, 3), axis=0)) == 4
            pictures[options] = np.abs(255 * picture - small).mean()
        assert max(pictures.values()) < 40, "the colors are those of the photograph"

    def test_standardized_model_standardizes_what_it_predicts(self, tmp_path):
        run("fit", "wine", "-k", 3, "--standardize", "--out", tmp_path)
        run("predict", tmp_path, "wine", "--out", tmp_path / "again.parquet")
        first, again = (pq.read_table(tmp_path / f"{n}.parquet") for n in ("labels", "again"))
        assert first.equals(again)
        X = read_table("wine").values
        assert np.isclose(
            load_model(tmp_path).estimator.inertia_,
            EntMeans(3, random_state=0).fit((X - X.mean(0)) / X.std(0)).inertia_,
        )

    def test_a_file_in_place_of_the_folder_is_refused(self, table):
        assert str(table) in fails("fit", table, "-k", 3, "--out", table)


class TestPredict:
    @pytest.fixture
    def folder(self, table, tmp_path):
        run("fit", table, "-k", 3, "--label-column", "kind", "--out", tmp_path / "result")
        return tmp_path / "result"

    def test_prints_counts(self, folder, table):
        screen, error = run("predict", folder, table)
        assert screen.startswith("60 rows")
        assert re.findall(r"(\d+): (\d+)", screen) == [("0", "20"), ("1", "20"), ("2", "20")]
        assert error == ""

    def test_empty_clusters_count_0(self, folder, tmp_path):
        (tmp_path / "one.csv").write_text("y,x\n0,0\n")
        counts = re.findall(r"\d+: (\d+)", run("predict", folder, tmp_path / "one.csv")[0])
        assert sorted(counts) == ["0", "0", "1"]

    def test_model_file_itself_will_do(self, folder, table):
        assert run("predict", folder / "model.safetensors", table) == run("predict", folder, table)

    @pytest.mark.parametrize(("options", "temperature"), [((), 0.0), (("--temperature", 60), 60.0)])
    def test_prints_how_soft_the_shares_are(self, folder, table, options, temperature):
        screen, _ = run("predict", folder, table, "--proba", *options)
        model = load_model(folder)
        largest = model.estimator.predict_proba(model.read(table), temperature).max(1)
        hard = int(100 * (largest == 1).mean())
        assert screen.endswith(
            f"At T = {temperature:.3g} the largest share is {largest.mean():.3f} on average; "
            f"{hard}% of the rows are exactly hard.\n"
        )

    def test_writes_labels_and_shares(self, folder, table, tmp_path):
        out = tmp_path / "deep" / "shares.parquet"
        screen, _ = run("predict", folder, table, "--proba", "--temperature", 60, "--out", out)
        assert screen == f"60 rows written to {out}\n"
        written = pq.read_table(out)
        assert written.column_names == ["label", "p0", "p1", "p2"]
        shares = np.stack([written[f"p{j}"].to_numpy() for j in range(3)], 1)
        np.testing.assert_allclose(shares.sum(1), 1, rtol=1e-12)
        assert np.array_equal(shares.argmax(1), written["label"].to_numpy())

    def test_temperature_without_shares_is_refused(self, folder, table):
        assert "add --proba" in fails("predict", folder, table, "--temperature", 1)

    def test_negative_temperature_is_refused(self, folder, table):
        assert "temperature" in fails("predict", folder, table, "--proba", "--temperature", -1)

    def test_other_formats_are_refused(self, folder, table):
        assert "must end in .parquet" in fails("predict", folder, table, "--out", "labels.csv")
        assert not Path("labels.csv").exists()

    def test_other_columns_are_refused(self, folder):
        line = fails("predict", folder, "iris")
        assert line == (
            "Error: iris does not fit the model, which needs 2 numeric columns: it has no 'x', 'y'."
        )

    def test_missing_and_foreign_models_are_refused(self, folder, table, tmp_path):
        assert "no model" in fails("predict", tmp_path, table)
        (folder / "model.safetensors").write_bytes(b"x" * 100)
        assert "damaged" in fails("predict", folder, table)


class TestErrors:
    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (("nowhere.csv", "-k", 2), "'nowhere.csv' is neither a file nor built-in data"),
            (("iris", "-k", 0), "n_clusters=0"),
            (("iris", "-k", 151), "n_samples=150 should be >= n_clusters=151"),
            (("iris", "-k", 3, "--mapping", "relu"), "mapping='relu' is unknown: use one of"),
            (("iris", "-k", 3, "--temperature", -1), "temperature=-1.0 is not valid"),
            (("iris", "-k", 3, "--final-temperature", "nan"), "final_temperature=nan"),
            (("iris", "-k", 3, "--columns", "length"), "iris has no column 'length'"),
            (("iris", "-k", 3, "--columns", ""), "no numeric column"),
            (("iris", "-k", 3, "--label-column", "kind"), "iris has no column 'kind'"),
        ],
    )
    def test_bad_input_is_one_line(self, arguments, words):
        assert words in fails("fit", *arguments)

    def test_long_errors_stay_on_one_line(self, tmp_path):
        name = "x" * 200 + ".csv"
        assert name in fails("fit", tmp_path / name, "-k", 2)

    @pytest.mark.parametrize(
        "arguments", [("fit", "iris"), ("fit", "iris", "-k", "few"), ("melt",)]
    )
    def test_wrong_usage_is_no_traceback(self, arguments):
        _, error = run(*arguments, code=2)
        assert "Usage: " in error

    def test_names_with_commas_stand_in_quotes(self, tmp_path):
        (tmp_path / "a.csv").write_text('"a, b",c,d\n1,2,x\n3,4,y\n')
        screen, _ = run("fit", tmp_path / "a.csv", "-k", 2, "--columns", '"a, b",c')
        assert "2 rows, 2 columns" in screen


class TestHelp:
    def test_version(self):
        assert run("--version")[0] == f"entmeans {entmeans.__version__}\n"

    def test_help_names_commands_options_and_examples(self):
        assert "entmeans fit digits -k 10" in run("--help")[0]
        screen = " ".join(run("fit", "--help")[0].split())
        for word in (
            "--mapping",
            "--standardize",
            "--out",
            "breast_cancer",
            "Example: entmeans fit",
        ):
            assert word in screen
        assert "Example: entmeans predict" in " ".join(run("predict", "--help")[0].split())


class TestTerminals:
    def test_piped_output_is_plain_even_where_it_must_be_ascii(self):
        command, environment = entmeans_command("fit", "digits", "-k", "10")
        environment["PYTHONIOENCODING"] = "ascii"
        done = subprocess.run(command, env=environment, capture_output=True, check=True)
        assert done.stderr == b""
        assert b"\x1b" not in done.stdout
        screen = " ".join(done.stdout.decode("ascii").replace("|", " ").split())
        assert f"{TestCertificate.verified} 1,797 rows" in screen

    @pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
    def test_terminal_shows_clusters_freezing(self):
        import pty

        command, environment = entmeans_command("fit", "iris", "-k", "3")
        ours, theirs = pty.openpty()
        with subprocess.Popen(command, env=environment, stdout=theirs, stderr=theirs) as process:
            os.close(theirs)
            screen = b"".join(iter(lambda: read(ours), b"")).decode()
        os.close(ours)
        assert process.returncode == 0
        assert re.search(r"100% hard  T 0 +free energy 78\.8\d*  inertia 78\.8\d*", screen)
        assert COLOR.search(screen)

    @pytest.mark.parametrize("no_color", [True, False])
    def test_bar_shows_each_step_and_obeys_no_color(self, monkeypatch, no_color):
        for name in ("NO_COLOR", "FORCE_COLOR"):
            monkeypatch.delenv(name, raising=False)
        if no_color:
            monkeypatch.setenv("NO_COLOR", "1")
        console = Console(file=StringIO(), force_terminal=True, width=80, color_system="standard")
        with entmeans.cli._progress(console) as on_step:
            on_step(Step(1234.5, -12345678.0, 23456789.0, 1.0, 0.999))
        screen = console.file.getvalue()
        line = " 99% hard  T 1,230  free energy -12,345,678  inertia 23,456,789"
        assert line in screen
        assert (COLOR.search(screen) is None) == no_color

    def test_bar_is_silent_without_a_terminal(self):
        console = Console(file=StringIO())
        with entmeans.cli._progress(console) as on_step:
            on_step(Step(1.0, 1.0, 1.0, 1.0, 0.5))
        assert console.file.getvalue().strip() == ""

    def test_missing_extra_is_one_line(self):
        names = ["rich", "pyarrow", "safetensors", "matplotlib", "typer"]
        done = subprocess.run(
            [sys.executable, "-c", WITHOUT, *names], capture_output=True, text=True
        )
        assert done.returncode != 0
        lines = [f'The command line needs {name}: pip install "entmeans[cli]"' for name in names]
        assert done.stdout.splitlines() == lines[:-1]
        assert done.stderr.splitlines() == lines[-1:]


COLOR = re.compile(r"\x1b\[(\d;)?3\d(;\d+)*m")

WITHOUT = """
import sys
*names, last = sys.argv[1:]
for name in names:
    sys.modules[name] = None
    try:
        import entmeans.cli
    except SystemExit as end:
        print(end)
    del sys.modules[name]
sys.modules[last] = None
import entmeans.cli
"""


def entmeans_command(*arguments):
    """The installed command in a process of its own, and an environment without wishes."""
    command = [str(Path(sys.executable).with_name("entmeans")), *arguments]
    wishes = {"FORCE_COLOR", "NO_COLOR", "COLUMNS", "PYTHONIOENCODING"}
    kept = {name: value for name, value in os.environ.items() if name not in wishes}
    return command, kept | {"TERM": "xterm-256color", "OMP_NUM_THREADS": "1"}


def read(terminal):
    try:
        return os.read(terminal, 4096)
    except OSError:  # the other end has closed
        return b""
