"""Popular data libraries write and read igfs, each through its own file layer."""

from __future__ import annotations

import contextlib
import sys
import uuid

import fsspec
import numpy as np
import pandas as pd
import pytest

from ignite_tf_magic.igfs.filesystem import IgfsFileSystem

FRAME = pd.DataFrame(
    {"number": np.arange(2000), "text": [f"ü {n}" for n in range(2000)], "x": np.linspace(0, 1, 2000)}
)


@pytest.fixture(scope="module")
def fs(ignite, tmp_path_factory):
    home = tmp_path_factory.mktemp("libraries")
    home.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IGNITE_TF_CLUSTER", ",".join(map(str, ignite.connect_options.endpoints)))
        patch.setenv("IGNITE_TF_HOME", str(home))
        patch.setenv("HF_HOME", str(home / "hf"))
        patch.setenv("HF_UPDATE_DOWNLOAD_COUNTS", "0")
        patch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
        IgfsFileSystem.clear_instance_cache()
        with contextlib.closing(fsspec.filesystem("igfs").volume):
            yield fsspec.filesystem("igfs")
        IgfsFileSystem.clear_instance_cache()


@pytest.fixture
def top(fs):
    """A directory that does not exist yet: object stores have none."""
    path = f"/libraries-{uuid.uuid4().hex[:8]}"
    yield f"igfs://{path}"
    fs.rm(path, recursive=True)


def test_pandas(fs, top):
    FRAME.to_csv(f"{top}/a/table.csv.gz", index=False)
    pd.testing.assert_frame_equal(pd.read_csv(f"{top}/a/table.csv.gz"), FRAME)
    FRAME.to_parquet(f"{top}/b/table.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet(f"{top}/b/table.parquet"), FRAME)
    FRAME.to_json(f"{top}/c/table.json", orient="records", lines=True)
    assert len(pd.read_json(f"{top}/c/table.json", lines=True)) == 2000


def test_pyarrow(fs, top):
    import pyarrow as pa
    from pyarrow import dataset, parquet

    table, path = (
        pa.table({"number": list(range(2000)), "part": [n % 3 for n in range(2000)]}),
        fs._strip_protocol(top),
    )
    parquet.write_table(table, f"{path}/one.parquet", filesystem=fs)
    assert parquet.read_table(f"{path}/one.parquet", filesystem=fs) == table
    dataset.write_dataset(table, f"{path}/many", filesystem=fs, format="parquet", partitioning=["part"])
    found = dataset.dataset(f"{path}/many", filesystem=fs, format="parquet", partitioning=["part"])
    assert found.count_rows(filter=dataset.field("part") == 1) == 667


@pytest.mark.skipif(sys.version_info < (3, 11), reason="zarr 3 needs Python 3.11")
def test_zarr(fs, top):
    import zarr

    data = np.arange(10_000).reshape(100, 100)
    group = zarr.open_group(f"{top}/group.zarr", mode="w")
    array = group.create_array("sub/data", shape=data.shape, chunks=(30, 30), dtype=data.dtype)
    array[:] = data
    array[5:8] = -1
    data[5:8] = -1
    found = zarr.open_group(f"{top}/group.zarr", mode="r")
    np.testing.assert_array_equal(found["sub/data"][:], data)
    assert [name for name, _ in found.groups()] == ["sub"]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="zarr 3 needs Python 3.11")
def test_xarray(fs, top):
    import xarray

    given = xarray.Dataset(
        {"t": (("time", "x"), np.random.default_rng(0).random((20, 30)))}, {"time": np.arange(20)}
    )
    given.to_zarr(f"{top}/set.zarr", zarr_format=3, consolidated=False)
    given.assign_coords(time=np.arange(20, 40)).to_zarr(
        f"{top}/set.zarr", append_dim="time", consolidated=False
    )
    with xarray.open_zarr(f"{top}/set.zarr", consolidated=False) as found:
        assert found.sizes == {"time": 40, "x": 30}
        np.testing.assert_array_equal(found["t"].values[20:], given["t"].values)


def test_duckdb(fs, top):
    import duckdb

    with duckdb.connect() as connection:
        connection.register_filesystem(fs)
        connection.execute(f"copy (select range n, n % 7 part from range(5000)) to '{top}/d/t.parquet'")
        (total,) = connection.execute(f"select sum(n) from read_parquet('{top}/d/*.parquet')").fetchone()
        connection.execute(f"copy (select * from range(10)) to '{top}/d/t.csv'")
        (lines,) = connection.execute(f"select count(*) from read_csv('{top}/d/t.csv')").fetchone()
    assert (total, lines) == (sum(range(5000)), 10)


def test_polars(fs, top):
    import polars

    given = polars.from_pandas(FRAME)
    with fsspec.open(f"{top}/t.parquet", "wb") as file:
        given.write_parquet(file)
    with fsspec.open(f"{top}/t.parquet", "rb") as file:
        assert polars.read_parquet(file).equals(given)
    with fsspec.open(f"{top}/t.csv", "wb") as file:
        given.write_csv(file)
    with fsspec.open(f"{top}/t.csv", "rb") as file:
        assert polars.read_csv(file).equals(given)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # dask's own
@pytest.mark.nightly
def test_dask(fs, top):
    """Nightly. Shorter: test_pandas"""
    import dask.bag
    import dask.bytes
    import dask.dataframe

    here = {"scheduler": "threads"}
    lines = [f"line {n}" for n in range(100)]
    dask.bag.from_sequence(lines, npartitions=4).to_textfiles(f"{top}/lines/*.txt", compute_kwargs=here)
    assert dask.bag.read_text(f"{top}/lines/*.txt").map(str.strip).compute(scheduler="threads") == lines
    dask.dataframe.from_pandas(FRAME, npartitions=3).to_parquet(f"{top}/frame", compute_kwargs=here)
    found = dask.dataframe.read_parquet(f"{top}/frame").compute(scheduler="threads")
    pd.testing.assert_frame_equal(found, FRAME, check_dtype=False)


def test_datasets(fs, top):
    import datasets

    given = datasets.Dataset.from_dict({"a": list(range(100)), "b": [f"ü {n}" for n in range(100)]})
    given.save_to_disk(f"{top}/saved", num_shards=3)
    assert datasets.load_from_disk(f"{top}/saved").to_dict() == given.to_dict()
    given.to_parquet(f"{top}/rows/part.parquet")
    streamed = datasets.load_dataset(
        "parquet", data_files=f"{top}/rows/*.parquet", split="train", streaming=True
    )
    assert list(streamed) == list(given)


def test_safetensors(fs, top):
    from safetensors import numpy

    given = {"a": np.random.default_rng(0).random((100, 100)), "b": np.arange(5)}
    fs.pipe(f"{top}/w.safetensors", numpy.save(given))
    found = numpy.load(fs.cat(f"{top}/w.safetensors"))
    assert set(found) == set(given)
    for name, values in given.items():
        np.testing.assert_array_equal(found[name], values)
