"""Real-world files: compressed, split, without a header, with other separators, encodings and names."""

from __future__ import annotations

import bz2
import gzip
import json
import zipfile

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ignite_tf_magic.client.cache_facts import forget
from ignite_tf_magic.data.sources import SourceOptions, read_source
from ignite_tf_magic.data.text_files import TextFormat
from ignite_tf_magic.errors import SourceError
from ignite_tf_magic.session import open_session

CACHE = "FILES_IN"
CSV = b"a,b\n1,x\n2,y\n"


@pytest.fixture(scope="module")
def session(ignite):
    with open_session(ignite.connect_options, report=print) as opened:
        yield opened
        if CACHE in opened.client.cache_names():
            opened.client.destroy_cache(CACHE)
            forget(opened.client, CACHE)


def read(source, **options):
    """Return the values of a source by column, and the reported messages."""
    said = []
    found = {}
    for chunk in read_source(source, SourceOptions(report=said.append, **options)).chunks():
        for name, array in chunk.values.items():
            gone = chunk.nulls.get(name, np.zeros(len(array), bool))
            values = [None if null else value for value, null in zip(array.tolist(), gone, strict=True)]
            found.setdefault(name, []).extend(values)
    return found, said


def zst(content):
    return pa.compress(content, codec="zstd", asbytes=True)


@pytest.mark.parametrize(
    ("suffix", "compress"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".zst", zst)]
)
def test_compressed_files_of_text(tmp_path, suffix, compress):
    contents = {
        "t.csv": CSV,
        "t.tsv": CSV.replace(b",", b"\t"),
        "t.jsonl": b'{"a": 1, "b": "x"}\n{"a": 2, "b": "y"}\n',
    }
    for name, content in contents.items():
        path = tmp_path / f"{name}{suffix}"
        path.write_bytes(compress(content))
        assert read(path) == ({"a": [1, 2], "b": ["x", "y"]}, [])


def test_a_zip_with_one_file(tmp_path):
    for name in ("t.csv", "folder/t.json"):
        with zipfile.ZipFile(tmp_path / "t.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("folder/", "")
            archive.writestr(
                name, CSV if name.endswith("csv") else '[{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]'
            )
            archive.writestr(f"__MACOSX/._{name}", "notes of the Finder")
        assert read(tmp_path / "t.zip") == ({"a": [1, 2], "b": ["x", "y"]}, [])
    with zipfile.ZipFile(tmp_path / "t.zip", "a") as archive:
        archive.writestr("other.csv", CSV)
    with pytest.raises(SourceError, match=r"t\.zip.* holds 2 files; unpack it"):
        read(tmp_path / "t.zip")
    (tmp_path / "t.zip").write_bytes(b"no zip")
    with pytest.raises(SourceError, match=r"t\.zip.* as a zip"):
        read(tmp_path / "t.zip")


def test_a_damaged_compressed_file(tmp_path):
    for content in (gzip.compress(CSV * 10_000)[:-30], b"", b"x"):
        for suffix in (".csv.gz", ".csv.bz2", ".csv.zst", ".jsonl.gz"):
            (tmp_path / f"t{suffix}").write_bytes(content)
            with pytest.raises(SourceError, match=rf"t{suffix}"):
                read(tmp_path / f"t{suffix}")


def test_a_folder_of_parquet_has_its_partitions_as_columns(tmp_path):
    frame = pd.DataFrame({"year": [2020, 2021, 2021], "shop": ["a", "a", None], "v": [1.5, 2.5, 3.5]})
    frame.to_parquet(tmp_path / "hive", partition_cols=["year", "shop"], index=False)
    (tmp_path / "hive" / "_SUCCESS").write_text("")
    found = read(tmp_path / "hive")[0]
    rows = set(zip(*found.values(), strict=True))
    assert rows == {(1.5, 2020, "a"), (2.5, 2021, "a"), (3.5, 2021, None)}
    assert list(found) == ["v", "year", "shop"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match=r"a directory without \.parquet files"):
        read(tmp_path / "empty")


def test_files_of_a_folder_agree_on_types_without_loss(tmp_path):
    pq.write_table(pa.table({"n": [1, 2], "fee": pa.nulls(2)}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"n": [0.5], "fee": [1.25], "new": ["x"]}), tmp_path / "2.parquet")
    assert read(tmp_path)[0] == {"n": [1.0, 2.0, 0.5], "fee": [None, None, 1.25], "new": [None, None, "x"]}
    pq.write_table(pa.table({"n": [2**53 + 1]}), tmp_path / "1.parquet")
    with pytest.raises(SourceError, match="9007199254740993"):
        read(tmp_path)


def test_npy(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(6, dtype=np.float32).reshape(3, 2))
    assert read(tmp_path / "a.npy")[0] == {"value": [[0, 1], [2, 3], [4, 5]]}
    np.save(tmp_path / "a.npy", np.array([(1, 0.5)], [("n", "i4"), ("x", "f8")]))
    assert read(tmp_path / "a.npy")[0] == {"n": [1], "x": [0.5]}
    np.save(tmp_path / "a.npy", np.array([{}], object))
    with pytest.raises(SourceError, match=r"a\.npy.*fixed-width strings"):
        read(tmp_path / "a.npy")


def test_json_is_an_array_or_one_object_a_line(tmp_path):
    rows = [{"a": 1, "b": "ü"}, {"a": 2**60 + 1, "b": None}]
    contents = {
        "array": json.dumps(rows, indent=2),
        "lines": "\n".join(map(json.dumps, rows)),
        "mark": "\ufeff" + json.dumps(rows, ensure_ascii=False),
    }
    for content in contents.values():
        (tmp_path / "t.json").write_text(content, encoding="utf-8")
        assert read(tmp_path / "t.json")[0] == {"a": [1, 2**60 + 1], "b": ["ü", None]}
    (tmp_path / "t.json").write_text(json.dumps(rows[0], indent=2))
    with pytest.raises(
        SourceError, match="A file of JSON is one array of objects, or has one object in each line"
    ):
        read(tmp_path / "t.json")
    (tmp_path / "t.json").write_text('[{"a": 1}, {"a": 1e400}]')
    with pytest.raises(SourceError, match="1e400 is too large"):
        read(tmp_path / "t.json")
    (tmp_path / "t.json").write_text('[{"a": 1}, 7]')
    with pytest.raises(SourceError, match="row 1.*not a JSON object: '7'"):
        read(tmp_path / "t.json")


HEADLESS = "39, State-gov, <=50K\n50, ?, >50K\n"


def test_a_file_without_a_header_loses_no_row(tmp_path):
    path = tmp_path / "adult.data"
    path.write_text(HEADLESS)
    with pytest.raises(
        SourceError, match=r" seems to be a row: a column would be called '39'\. Pass --no-header"
    ):
        read(path)
    text = TextFormat(header=False, na=[" ?"])
    assert read(path, text=text)[0] == {"f0": [39, 50], "f1": [" State-gov", None], "f2": [" <=50K", " >50K"]}
    text = TextFormat(names=["age", "work", "income"], kinds={"age": "float"})
    assert read(path, text=text)[0]["age"] == [39.0, 50.0]
    with pytest.raises(SourceError, match="3 values, where 2 are expected"):
        read(path, text=TextFormat(names=["age", "work"]))


def test_names_in_place_of_a_header(tmp_path):
    (tmp_path / "t.csv").write_text("2019,2020\n1,2\n")
    assert read(tmp_path / "t.csv", text=TextFormat(header=True))[0] == {"2019": [1], "2020": [2]}
    named = TextFormat(header=True, names=["a", "b"])
    assert read(tmp_path / "t.csv", text=named)[0] == {"a": [1], "b": [2]}
    (tmp_path / "t.csv").write_text("a,a\n1,2\n")
    with pytest.raises(SourceError, match=r"found twice: a; rename one .*--header --names"):
        read(tmp_path / "t.csv")
    assert read(tmp_path / "t.csv", text=named)[0] == {"a": [1], "b": [2]}


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "latin-1", "utf-8-sig"])
def test_encodings(tmp_path, encoding):
    (tmp_path / "t.csv").write_bytes("größe;b\n1;ü\n".encode(encoding))
    (tmp_path / "t.jsonl").write_bytes('{"größe": 1, "b": "ü"}\n'.encode(encoding))
    text = TextFormat(encoding=encoding)
    for name in ("t.csv", "t.jsonl"):
        assert read(tmp_path / name, text=text)[0] == {"größe": [1], "b": ["ü"]}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a,b\n1,ü\n".encode("utf-16"), "--encoding utf-16"),
        ("a,b\n1,ü\n".encode("latin-1"), "--encoding latin-1"),
        ('{"größe": 1}\n'.encode("latin-1"), "--encoding latin-1"),
    ],
)
def test_another_encoding_is_named(tmp_path, content, words):
    for suffix in (".csv", ".jsonl"):
        (tmp_path / f"t{suffix}").write_bytes(content)
        if content.startswith(b"{") and suffix == ".csv":
            continue
        with pytest.raises(SourceError, match=words):
            read(tmp_path / f"t{suffix}")
    with pytest.raises(SourceError, match="unknown encoding: latin-99"):
        read(tmp_path / "t.csv", text=TextFormat(encoding="latin-99"))


@pytest.mark.parametrize("separator", [";", "\t", ","])
def test_separators_are_found_and_said(tmp_path, separator):
    (tmp_path / "t.csv").write_text(f'"a;1,5"{separator}b\n1{separator}x\n')
    found, said = read(tmp_path / "t.csv")
    assert found == {"a;1,5": [1], "b": ["x"]}
    assert len(said) == (separator != ",")
    assert all(repr(separator) in line and "--separator" in line for line in said)


PRICES = "Name;Preis;Ort\r\nA;1,50;08001\r\nB;-2;08002\r\nC;;08003\r\n"


def test_decimal_commas(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(PRICES)
    found, said = read(path)
    assert found["Preis"] == ["1,50", "-2", None]
    assert [line for line in said if "decimal" in line] == [
        "column 'Preis' of t.csv is text; if its commas are decimal points: --decimal ','"
    ]
    found, said = read(path, text=TextFormat(decimal=","))
    assert found == {"Name": ["A", "B", "C"], "Preis": [1.5, -2.0, None], "Ort": ["08001", "08002", "08003"]}
    assert not [line for line in said if "decimal" in line]
    with pytest.raises(SourceError, match=r"'1,50' is not a number; .*--decimal ','"):
        read(path, text=TextFormat(kinds={"Preis": "float"}))


def test_a_point_is_no_decimal_point_where_a_comma_is(tmp_path):
    (tmp_path / "t.csv").write_text("a;b\n1.234;1,5\n1,5;x\n")
    assert read(tmp_path / "t.csv", text=TextFormat(decimal=","))[0]["a"] == ["1.234", "1,5"]


def test_the_index_that_to_csv_writes_is_named_and_dropped_only_when_asked(tmp_path):
    pd.DataFrame({"x": [1.5, 2.5]}).to_csv(tmp_path / "t.csv")
    found, said = read(tmp_path / "t.csv")
    assert found == {"Unnamed: 0": [0, 1], "x": [1.5, 2.5]}
    assert said == ["column 'Unnamed: 0' seems to be a frame's index; --drop 'Unnamed: 0' leaves it out"]
    assert read(tmp_path / "t.csv", drop=["Unnamed: 0"]) == ({"x": [1.5, 2.5]}, [])
    pd.DataFrame({"x": [1.5, 2.5]}, index=[4, 2]).to_parquet(tmp_path / "t.parquet")
    found, said = read(tmp_path / "t.parquet")
    assert found == {"x": [1.5, 2.5], "__index_level_0__": [4, 2]}
    assert ["--drop '__index_level_0__'" in line for line in said] == [True]
    with pytest.raises(SourceError, match=r"no column 'y' to drop; it has Unnamed: 0, x"):
        read(tmp_path / "t.csv", drop=["y"])


def test_columns_of_any_name_are_found(session, tmp_path):
    said = []
    session.report = said.append
    (tmp_path / "t.csv").write_text('sepal.length,my "x",select,Two Words,größe,Mixed,id\n1.5,a,3,b,4,5,7\n')
    session.load(CACHE, tmp_path / "t.csv", key="id", replace=True)
    (line,) = said
    assert "sepal.length is sepal_length" in line
    result = session.query(
        f'SELECT sepal_length, "my _x_", "select", "Two Words", größe, MIXED, id, mixed + 1 AS more FROM {CACHE}'
    )
    assert result.rows == ((1.5, "a", 3, "b", 4, 5, 7, 6),)
    names = ["sepal_length", "my _x_", "select", "Two Words", "größe", "Mixed", "id", "MORE"]
    assert [column.name for column in result.columns] == names
    with pytest.raises(SourceError, match="found twice: a_b"):
        read({"a.b": [1], "a_b": [2]})
    assert read({"a.b": [1], "x": [2]}, key=["a.b"])[0] == {"x": [2]}


def test_cells_of_16_megabytes(session, tmp_path):
    cell = "ü" * (8 << 20)
    (tmp_path / "t.csv").write_text(f"n,text\n1,{cell}\n2,short\n")
    session.load(CACHE, tmp_path / "t.csv", replace=True)
    rows = [session.client.cache(CACHE).get(key).fields for key in (0, 1)]
    assert rows[1] == {"n": 2, "text": "short"}
    assert rows[0]["text"] == cell
