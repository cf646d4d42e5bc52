"""Tables in, models out: what is read, what is refused, and in which words."""

import csv
import decimal
import json
import math
import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from entmeans import MAPPINGS, EntMeans, Step
from entmeans.io import (
    FORMAT_VERSION,
    Model,
    Scaling,
    load_model,
    save_model,
    write_history,
    write_labels,
)
from entmeans.tables import BUILT_IN, InputError, read_table

FLOWERS = "long,wide,kind\n5.1,3,setosa\n7,3.2,virginica\n6.3,3.3,virginica\n"


@pytest.fixture
def save(tmp_path):
    """Writes text or bytes to a file of that name; gives its path."""

    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def parquet(path, table):
    pq.write_table(table if isinstance(table, pa.Table) else pa.table(table), path)
    return path


def refuses(*words):
    """One line that holds all these words."""
    parts = "".join(f"(?=.*{word})" for word in words)
    return pytest.raises(InputError, match=rf"^{parts}[^\n]*$")


class TestCsv:
    def test_numeric_columns_are_used_and_the_others_reported(self, save):
        table = read_table(save("flowers.csv", FLOWERS))
        assert table.values.tolist() == [[5.1, 3.0], [7.0, 3.2], [6.3, 3.3]]
        assert (table.columns, table.named, table.name) == (["long", "wide"], True, "flowers")
        assert list(table.left_out) == ["kind"]
        assert table.labels is None

    def test_label_column_is_no_feature_and_not_reported(self, save):
        path = save("flowers.csv", FLOWERS)
        table = read_table(path, label_column="kind")
        assert table.labels.tolist() == ["setosa", "virginica", "virginica"]
        assert list(table.left_out) == []
        table = read_table(path, label_column="wide")
        assert (table.columns, table.labels.tolist()) == (["long"], [3.0, 3.2, 3.3])

    def test_columns_come_in_the_order_asked_for(self, save):
        table = read_table(save("a.csv", FLOWERS), columns=["wide", "long"])
        assert table.values[0].tolist() == [3.0, 5.1]
        assert list(table.left_out) == []

    @pytest.mark.parametrize(
        "text",
        ["\n\na,b\n1,2\n", "a;b\n1;2\n", "a\tb\n1\t2\n", "\ufeffa,b\r\n1,2\r\n", '"a",b\n1,2'],
    )
    def test_usual_dialects(self, save, text):
        table = read_table(save("a.csv", text))
        assert (table.columns, table.values.tolist()) == (["a", "b"], [[1.0, 2.0]])

    def test_separators_and_line_breaks_in_quotes(self, save):
        table = read_table(save("a.csv", 'a,"b, c",note\n1,2,"x,\ny"\n'))
        assert (table.columns, table.values.tolist()) == (["a", "b, c"], [[1.0, 2.0]])

    def test_row_numbers_written_by_pandas_are_no_feature(self, tmp_path):
        pd.DataFrame({"a": [1.5, 2.5]}, index=[7, 8]).to_csv(tmp_path / "a.csv")
        table = read_table(tmp_path / "a.csv")
        assert (table.columns, list(table.left_out)) == (["a"], [""])

    @pytest.mark.parametrize(
        "text", ["5.1,3\n4.9,2\n", "5,-3\n4,2\n", "1,1\n4,2\n", "5,x,0.5\n4,y,2\n"]
    )
    def test_a_file_without_header_keeps_its_first_row(self, save, text):
        table = read_table(save("a.csv", text))
        assert not table.named
        assert len(table.values) == 2
        assert set(table.columns) <= {"1", "2", "3"}

    @pytest.mark.parametrize("text", ["1,2\n3,4\n5,6\n", "5\n7\n9\n", "1,a\n2,b\n3,c\n"])
    def test_a_first_row_of_numbers_is_data(self, save, text):
        table = read_table(save("a.csv", text))
        assert (table.named, len(table.values)) == (False, 3)

    def test_numbers_beside_a_text_above_a_number_are_names(self, save):
        table = read_table(save("a.csv", "region,2019,2020\n4,1.5,2\n"))
        assert (table.named, table.columns) == (True, ["region", "2019", "2020"])

    def test_types_are_inferred_from_the_whole_file(self, save):
        text = "a\n" + "1\n" * 600_000 + "2.5\n"
        assert read_table(save("a.csv", text)).values[-1, 0] == 2.5

    def test_a_text_among_numbers_is_named_rather_than_the_column_left_out(self, save):
        ages = "".join(f"{age},x\n" for age in [*range(20, 60), "unknown"])
        with refuses("a.csv", "'age'", "'unknown'", "row 41"):
            read_table(save("a.csv", "age,name\n" + ages))

    @pytest.mark.parametrize("hole", ["", "NA", "nan"])
    def test_missing_value_names_row_and_column(self, save, hole):
        with refuses("a.csv", "row 2", "'b'", "missing"):
            read_table(save("a.csv", f"a,b\n1,2\n3,{hole}\n5,\n"))

    def test_infinite_value_names_row_and_column(self, save):
        with refuses("row 3", "'a'", "infinite"):
            read_table(save("a.csv", "a,b\n1,2\n3,4\ninf,5\n"))

    def test_an_empty_line_in_a_single_column_is_a_missing_value(self, save):
        with refuses("row 2", "'a'", "missing"):
            read_table(save("a.csv", "a\n1\n\n3\n"))

    def test_holes_in_columns_that_are_not_asked_for_do_no_harm(self, save):
        assert read_table(save("a.csv", "a,b\n1,\n3,4\n"), columns=["a"]).values.shape == (2, 1)

    def test_missing_label_names_its_row(self, save):
        with refuses("label", "row 2", "'kind'", "missing"):
            read_table(save("a.csv", "a,kind\n1,x\n2,\n"), label_column="kind")

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("", ["is empty"]),
            ("\n\n", ["is empty"]),
            ("x" * 200_000, ["cannot be read", "field limit"]),
            ("a,b\n", ["no rows"]),
            ("a,b\n1,2\n3\n", ["cannot be read", "Expected 2 columns, got 1"]),
            ("a,a\n1,2\n", ["several columns of one name", "'a'"]),
            ("kind\nx\n", ["no numeric column", "'kind'"]),
        ],
    )
    def test_files_that_are_no_table_are_refused(self, save, text, words):
        with refuses("a.csv", *words):
            read_table(save("a.csv", text))

    def test_other_encodings_are_read_or_refused_in_one_line(self, save):
        table = read_table(save("a.csv", "a,kind\n1,Mähre\n2,x\n".encode("latin-1")))
        assert table.columns == ["a"]


class TestColumns:
    def test_unknown_column_is_refused_with_what_is_possible(self, save):
        with refuses("'length'", "'long', 'wide', 'kind'"):
            read_table(save("a.csv", FLOWERS), columns=["long", "length"])

    def test_unknown_label_column_is_refused_with_what_is_possible(self, save):
        with refuses("'species'", "'long', 'wide', 'kind'"):
            read_table(save("a.csv", FLOWERS), label_column="species")

    def test_column_that_is_not_numeric_is_refused_with_an_example(self, save):
        with refuses("'kind'", "not numeric", "'setosa'"):
            read_table(save("a.csv", FLOWERS), columns=["long", "kind"])

    def test_label_among_the_columns_is_refused(self, save):
        with refuses("'wide'", "is the label"):
            read_table(save("a.csv", FLOWERS), columns=["long", "wide"], label_column="wide")

    def test_column_asked_for_twice_is_refused(self, save):
        with refuses("twice", "'long', 'long'"):
            read_table(save("a.csv", FLOWERS), columns=["long", "long"])

    def test_long_lists_of_columns_are_cut(self, save):
        text = ",".join(f"c{j}" for j in range(50)) + "\n" + ",".join("1" * 50) + "\n"
        with refuses("'c0'", "50 in all") as caught:
            read_table(save("a.csv", text), columns=["x"])
        assert len(str(caught.value)) < 200

    def test_truth_values_are_left_out_unless_asked_for(self, save):
        path = save("a.csv", "a,flag\n1,true\n2,false\n")
        assert list(read_table(path).left_out) == ["flag"]
        assert read_table(path, columns=["a", "flag"]).values.tolist() == [[1.0, 1.0], [2.0, 0.0]]


class TestParquet:
    def test_every_kind_of_number_is_used(self, tmp_path):
        table = {
            "i": pa.array([1, 2], pa.int8()),
            "f": pa.array([0.5, 1.5], pa.float32()),
            "d": pa.array([decimal.Decimal("1.25"), decimal.Decimal("2.5")]),
            "when": pa.array([0, 1], pa.timestamp("s")),
        }
        read = read_table(parquet(tmp_path / "a.parquet", table))
        assert read.values.tolist() == [[1.0, 0.5, 1.25], [2.0, 1.5, 2.5]]
        assert list(read.left_out) == ["when"]

    def test_categories_serve_as_labels(self, tmp_path):
        frame = pd.DataFrame({"a": [1.0, 2.0], "kind": pd.Categorical(["x", "y"])}, index=[5, 6])
        frame.to_parquet(tmp_path / "a.parquet")
        read = read_table(tmp_path / "a.parquet", label_column="kind")
        assert (read.columns, read.labels.tolist()) == (["a"], ["x", "y"])

    def test_missing_integer_is_refused(self, tmp_path):
        path = parquet(tmp_path / "a.parquet", {"a": pa.array([1, None, 3])})
        with refuses("row 2", "'a'", "missing"):
            read_table(path)

    def test_folder_names_add_no_columns(self, tmp_path):
        folder = tmp_path / "year=2020"
        folder.mkdir()
        assert read_table(parquet(folder / "a.parquet", {"a": [1.0]})).columns == ["a"]


class TestArrays:
    @pytest.mark.parametrize(
        ("stored", "read"),
        [
            (np.float32, np.float32),
            (np.float64, np.float64),
            (np.float16, np.float32),
            (">f4", np.float32),
            (">f8", np.float64),
            (np.uint8, np.float64),
            (np.int64, np.float64),
            (bool, np.float64),
        ],
    )
    def test_floats_keep_their_precision_and_integers_become_doubles(self, tmp_path, stored, read):
        np.save(tmp_path / "a.npy", np.array([[0, 1], [1, 0], [1, 1]], stored))
        table = read_table(tmp_path / "a.npy")
        assert table.values.dtype == read
        assert table.values.dtype.isnative
        assert table.values.tolist() == [[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]
        assert (table.columns, table.named) == (["1", "2"], False)

    def test_columns_by_number(self, tmp_path):
        np.save(tmp_path / "a.npy", np.arange(8.0).reshape(2, 4))
        table = read_table(tmp_path / "a.npy", columns=["4", "1"], label_column="2")
        assert table.values.tolist() == [[3.0, 0.0], [7.0, 4.0]]
        assert table.labels.tolist() == [1.0, 5.0]
        assert read_table(tmp_path / "a.npy", label_column="2").columns == ["1", "3", "4"]
        with refuses("'0'", "'1', '2', '3', '4'"):
            read_table(tmp_path / "a.npy", columns=["0"])

    def test_fortran_order(self, tmp_path):
        np.save(tmp_path / "a.npy", np.asfortranarray(np.arange(6.0).reshape(3, 2)))
        assert read_table(tmp_path / "a.npy").values.tolist() == [[0, 1], [2, 3], [4, 5]]

    @pytest.mark.parametrize(
        ("array", "words"),
        [
            (np.zeros(5), [r"shape \(5,\)", r"array.reshape\(-1, 1\)"]),
            (np.zeros((5, 2, 2)), [r"shape \(5, 2, 2\)", r"array.reshape\(len\(array\), -1\)"]),
            (np.zeros((5, 2), complex), ["complex128", "numbers"]),
            (np.full((5, 2), "x"), ["<U1", "numbers"]),
            (np.zeros((0, 2)), ["no rows"]),
            (np.array([[1.0, 2.0], [np.nan, 1.0]]), ["row 2", "'1'", "missing"]),
            (np.array([[1.0, 2.0], [1.0, -np.inf]]), ["row 2", "'2'", "infinite"]),
        ],
    )
    def test_arrays_that_are_no_points_are_refused(self, tmp_path, array, words):
        np.save(tmp_path / "a.npy", array)
        with refuses("a.npy", *words):
            read_table(tmp_path / "a.npy")

    def test_npz_with_points_and_labels(self, tmp_path):
        np.savez(tmp_path / "a.npz", X=np.eye(3), y=[0, 1, 1], fine=["a", "b", "c"])
        assert read_table(tmp_path / "a.npz").labels.tolist() == [0, 1, 1]
        assert read_table(tmp_path / "a.npz", label_column="fine").labels.tolist() == [
            "a",
            "b",
            "c",
        ]
        with refuses("'other'", "'y', 'fine'"):
            read_table(tmp_path / "a.npz", label_column="other")

    def test_npz_with_a_single_array_of_any_name(self, tmp_path):
        np.savez(tmp_path / "a.npz", data=np.eye(3, dtype=np.float32))
        table = read_table(tmp_path / "a.npz")
        assert (table.values.dtype, table.labels) == (np.float32, None)

    def test_npz_without_known_points_is_refused(self, tmp_path):
        np.savez(tmp_path / "a.npz", train=np.eye(3), test=np.eye(3))
        with refuses("'train', 'test'", "X"):
            read_table(tmp_path / "a.npz")

    def test_labels_of_another_length_are_refused(self, tmp_path):
        np.savez(tmp_path / "a.npz", X=np.eye(3), y=[0, 1])
        with refuses("'y'", r"\(3,\)", r"\(2,\)"):
            read_table(tmp_path / "a.npz")

    @pytest.mark.parametrize("name", ["a.npy", "a.npz"])
    def test_pickles_are_never_opened(self, tmp_path, name):
        class Bomb:
            def __reduce__(self):
                return (Path.touch, (tmp_path / "exploded",))

        array = np.empty((1, 1), object)
        array[0, 0] = Bomb()
        if name == "a.npy":
            np.save(tmp_path / name, array, allow_pickle=True)
        else:
            np.savez(tmp_path / name, X=array)
        with refuses(name, "cannot be read"):
            read_table(tmp_path / name)
        (tmp_path / name).write_bytes(pickle.dumps(Bomb()))
        with refuses(name, "cannot be read"):
            read_table(tmp_path / name)
        assert not (tmp_path / "exploded").exists()


class TestSources:
    @pytest.mark.parametrize(
        ("name", "shape", "classes"),
        [
            ("digits", (1797, 64), 10),
            ("iris", (150, 4), 3),
            ("wine", (178, 13), 3),
            ("breast_cancer", (569, 30), 2),
        ],
    )
    def test_built_in_tables(self, name, shape, classes):
        table = read_table(name)
        assert (table.values.shape, table.name, table.named) == (shape, name, True)
        assert len(set(table.labels.tolist())) == classes
        assert table.image_shape is None

    @pytest.mark.parametrize("name", ["china", "flower"])
    def test_photographs_are_pixels(self, name):
        table = read_table(name)
        assert table.image_shape == (427, 640)
        assert (table.values.shape, table.labels) == ((427 * 640, 3), None)
        assert (table.values.min(), table.values.max()) == (0.0, 255.0)

    def test_some_channels_are_no_picture(self):
        assert read_table("china", columns=["red", "blue"]).image_shape is None

    def test_unknown_source_is_refused_with_what_is_possible(self):
        with refuses("'digit'", ".csv, .parquet, .npy, .npz", ", ".join(BUILT_IN)):
            read_table("digit")

    def test_folder_is_refused(self, tmp_path):
        with refuses("neither a file"):
            read_table(tmp_path)

    def test_unknown_format_is_refused_with_what_is_possible(self, save):
        with refuses("a.xlsx", "'.xlsx'", ".csv, .parquet, .npy, .npz"):
            read_table(save("a.xlsx", "x"))

    def test_suffix_in_capitals(self, save):
        assert read_table(save("A.CSV", FLOWERS)).name == "A"

    @pytest.mark.parametrize("name", ["a.parquet", "a.npy", "a.npz"])
    @pytest.mark.parametrize("content", [b"", b"neither this nor that" * 9])
    def test_other_content_is_refused(self, save, name, content):
        with refuses(name, "cannot be read"):
            read_table(save(name, content))

    @pytest.mark.parametrize("name", ["a.parquet", "a.npy", "a.npz"])
    def test_truncated_files_are_refused(self, tmp_path, name):
        path = tmp_path / name
        if name == "a.parquet":
            parquet(path, {"a": [1.0, 2.0]})
        else:
            (np.save if name == "a.npy" else np.savez)(path, np.ones((50, 2)))
        path.write_bytes(path.read_bytes()[:-60])
        with refuses(name, "cannot be read"):
            read_table(path)


class TestScaling:
    def test_standardized_values_have_mean_0_and_variance_1(self):
        values = np.random.default_rng(0).normal(5, [1, 30], (100, 2))
        scaled = Scaling.of(values).apply(values)
        np.testing.assert_allclose(scaled.mean(0), 0, atol=1e-14)
        np.testing.assert_allclose(scaled.std(0), 1, rtol=1e-14)
        np.testing.assert_allclose(Scaling.of(values).undo(scaled), values, rtol=1e-14)

    def test_constant_feature_becomes_0(self):
        values = np.full((7, 1), 0.1)
        assert Scaling.of(values).scale.tolist() == [1.0]
        np.testing.assert_allclose(Scaling.of(values).apply(values), 0, atol=1e-16)

    def test_single_precision_stays(self):
        values = np.ones((3, 2), np.float32)
        assert Scaling.of(values).apply(values).dtype == np.float32


def fitted(dtype=np.float64, **parameters):
    X = np.random.default_rng(0).normal(size=(40, 2)).astype(dtype)
    return X, EntMeans(3, random_state=0, **parameters).fit(X)


class TestModels:
    @pytest.mark.parametrize("mapping", MAPPINGS)
    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_loaded_model_predicts_the_same(self, tmp_path, mapping, dtype):
        X, estimator = fitted(dtype, mapping=mapping, final_temperature=0.25)
        path = save_model(tmp_path, Model(estimator, ["a", "b"]))
        assert path == tmp_path / "model.safetensors"
        for where in (tmp_path, path):
            loaded = load_model(where)
            again = loaded.estimator
            assert (loaded.columns, loaded.named, loaded.scaling) == (["a", "b"], True, None)
            assert again.cluster_centers_.dtype == dtype
            assert np.array_equal(again.cluster_centers_, estimator.cluster_centers_)
            assert np.array_equal(again.predict(X), estimator.labels_)
            assert np.array_equal(again.predict_proba(X), estimator.predict_proba(X))
            assert again.get_params()["mapping"] == mapping
            assert (again.n_clusters, again.temperature) == (3, "auto")
            assert again.inertia_ == estimator.inertia_
            assert again.hardening_temperature_ == estimator.hardening_temperature_

    def test_infinite_hardening_temperature_survives(self, tmp_path):
        estimator = EntMeans(1, temperature=2.5).fit([[0.0], [1.0]])
        save_model(tmp_path, Model(estimator, ["a"]))
        assert load_model(tmp_path).estimator.hardening_temperature_ == math.inf
        assert load_model(tmp_path).estimator.temperature == 2.5

    def test_tensors_can_be_saved(self, tmp_path):
        X, _ = fitted()
        estimator = EntMeans(3, random_state=0).fit(torch.from_numpy(X))
        save_model(tmp_path / "a.safetensors", Model(estimator, ["a", "b"]))
        loaded = load_model(tmp_path / "a.safetensors").estimator
        assert np.array_equal(loaded.predict(X), estimator.labels_.numpy())

    def test_own_mapping_cannot_be_saved(self, tmp_path):
        class Mine(type(MAPPINGS["softmax"])):
            pass

        _, estimator = fitted(mapping=Mine())
        with refuses("mappings", "'entmax15'"):
            save_model(tmp_path, Model(estimator, ["a", "b"]))
        assert not list(tmp_path.iterdir())

    def test_scaling_is_applied_to_what_is_read(self, tmp_path):
        table = read_table("wine")
        scaling = Scaling.of(table.values)
        points = scaling.apply(table.values)
        estimator = EntMeans(3, random_state=0).fit(points)
        save_model(tmp_path, Model(estimator, table.columns, table.named, scaling))
        loaded = load_model(tmp_path)
        assert np.array_equal(loaded.read("wine"), points)
        assert np.array_equal(loaded.estimator.predict(loaded.read("wine")), estimator.labels_)

    def test_missing_model_is_refused(self, tmp_path):
        with refuses("there is no model", "model.safetensors"):
            load_model(tmp_path)
        with refuses("there is no model", "'nowhere'"):
            load_model("nowhere")

    def test_truncated_and_foreign_files_are_refused(self, tmp_path):
        path = save_model(tmp_path, Model(fitted()[1], ["a", "b"]))
        whole = path.read_bytes()
        for content in (whole[:-8], whole[:20], b"", b"PK not a model", pickle.dumps({"a": 1})):
            path.write_bytes(content)
            with refuses("model.safetensors", "damaged, or no model"):
                load_model(tmp_path)
        save_file({"weights": torch.ones(2)}, path)
        with refuses("no model written by entmeans"):
            load_model(tmp_path)
        save_file({"weights": torch.ones(2)}, path, {"entmeans": "[1]"})
        with refuses("no model written by entmeans"):
            load_model(tmp_path)

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"format_version": FORMAT_VERSION + 1}, ["format 2", "9.9", "upgrade"]),
            ({"mapping": "tanh"}, ["damaged", "tanh"]),
            ({"temperature": "hot"}, ["damaged", "hot"]),
            ({"temperature": None}, ["damaged"]),
            ({"n_clusters": 4}, ["damaged", "shape"]),
            ({"columns": ["a"]}, ["damaged", "shape"]),
            ({"columns": None}, ["damaged"]),
        ],
    )
    def test_impossible_headers_are_refused(self, tmp_path, change, words):
        path = save_model(tmp_path, Model(fitted()[1], ["a", "b"]))
        about = header(path) | {"entmeans_version": "9.9"} | change
        save_file({"centers": torch.zeros(3, 2)}, path, {"entmeans": json.dumps(about)})
        with refuses("model.safetensors", *words):
            load_model(tmp_path)

    @pytest.mark.parametrize(
        "tensors",
        [
            {},
            {"centers": torch.full((3, 2), math.nan)},
            {"centers": torch.zeros(3, 2), "mean": torch.zeros(2)},
            {"centers": torch.zeros(3, 2), "mean": torch.zeros(2), "scale": torch.zeros(2)},
            {"centers": torch.zeros(3, 2), "mean": torch.zeros(5), "scale": torch.ones(5)},
        ],
    )
    def test_impossible_tensors_are_refused(self, tmp_path, tensors):
        path = save_model(tmp_path, Model(fitted()[1], ["a", "b"]))
        about = json.dumps(header(path))
        save_file({"x": torch.zeros(1)} | tensors, path, {"entmeans": about})
        with refuses("model.safetensors", "damaged"):
            load_model(tmp_path)


def header(path):
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return json.loads(file.metadata()["entmeans"])


class TestDataForAModel:
    """Columns go by name where both sides have names, otherwise by number."""

    def model(self, columns, named=True):
        return Model(EntMeans.from_centers(np.eye(len(columns))), columns, named)

    def test_by_name_in_any_order_among_others(self, save):
        path = save("a.csv", "kind,wide,extra,long\nx,1,,2\ny,3,4,5\n")
        assert self.model(["long", "wide"]).read(path).tolist() == [[2.0, 1.0], [5.0, 3.0]]

    def test_missing_name_is_refused(self, save):
        with refuses("a.csv", "2 numeric columns", "no 'length'"):
            self.model(["long", "length"]).read(save("a.csv", FLOWERS))

    def test_missing_value_is_refused(self, save):
        with refuses("row 1", "'b'", "missing"):
            self.model(["a", "b"]).read(save("a.csv", "a,b\n1,\n"))

    def test_by_number_where_one_side_has_no_names(self, save, tmp_path):
        np.save(tmp_path / "a.npy", np.array([[2.0, 1.0]]))
        assert self.model(["long", "wide"]).read(tmp_path / "a.npy").tolist() == [[2.0, 1.0]]
        path = save("b.csv", "x,y\n2,1\n")
        assert self.model(["1", "2"], named=False).read(path).tolist() == [[2.0, 1.0]]

    def test_chosen_numbers_are_chosen_again(self, tmp_path):
        np.save(tmp_path / "a.npy", np.arange(4.0).reshape(1, 4))
        assert self.model(["4", "2"], named=False).read(tmp_path / "a.npy").tolist() == [[3.0, 1.0]]

    @pytest.mark.parametrize("width", [1, 3])
    @pytest.mark.parametrize("named", [True, False])
    def test_another_width_is_refused(self, tmp_path, width, named):
        np.save(tmp_path / "a.npy", np.zeros((2, width)))
        with refuses("a.npy", "2 numeric columns", f"has {width}"):
            self.model(["1", "2"], named).read(tmp_path / "a.npy")


class TestResults:
    def test_labels_and_responsibilities(self, tmp_path):
        p = np.array([[0.25, 0.75], [1.0, 0.0]], np.float32)
        write_labels(tmp_path / "a.parquet", np.array([1, 0]), p)
        table = pq.read_table(tmp_path / "a.parquet")
        assert table.column_names == ["label", "p0", "p1"]
        assert table["label"].to_pylist() == [1, 0]
        assert table["p1"].to_pylist() == [0.75, 0.0]
        assert table["p1"].type == pa.float32()
        write_labels(tmp_path / "a.parquet", np.array([1, 0]))
        assert pq.read_table(tmp_path / "a.parquet").column_names == ["label"]

    def test_history_keeps_every_digit(self, tmp_path):
        _, estimator = fitted()
        write_history(tmp_path / "history.csv", estimator.history_)
        with (tmp_path / "history.csv").open(newline="") as file:
            head, *rows = csv.reader(file)
        assert head == ["step", *Step._fields]
        assert [int(row[0]) for row in rows] == list(range(1, estimator.n_iter_ + 1))
        assert [Step(*map(float, row[1:])) for row in rows] == estimator.history_
