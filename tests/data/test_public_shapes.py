"""Files in the formats of public data sets, generated with a few rows each."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ignite_tf_magic.client.cache_facts import forget
from ignite_tf_magic.data.text_files import TextFormat
from ignite_tf_magic.errors import SourceError
from ignite_tf_magic.session import open_session

CACHE = "PUBLIC_SHAPES"


@dataclass(frozen=True)
class Shape:
    """A data set's file.

    Attributes:
        content: Its bytes, or a frame for a Parquet file.
        first: The columns of the first loaded row, under their SQL names.
        rows: The number of loaded rows.
        option: The option that the first error names; empty if the file loads without one.
        given: That option with its value.
    """

    name: str
    content: bytes | pd.DataFrame | pa.Table
    first: Mapping[str, Any]
    rows: int
    option: str = ""
    given: Mapping[str, Any] = field(default_factory=dict)


def text(*lines: str, encoding: str = "utf-8") -> bytes:
    return "\n".join([*lines, ""]).encode(encoding)


def npz(**arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def zipped(name: str, content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, content)
    return file.getvalue()


IMAGES = np.arange(3 * 28 * 28, dtype=np.uint8).reshape(3, 28, 28)
SHAPES = [
    Shape(
        "iris.csv",
        text("5.1,3.5,1.4,0.2,Iris-setosa", "4.9,3.0,1.4,0.2,Iris-setosa"),
        {"f0": 5.1, "f4": "Iris-setosa"},
        2,
        "--no-header",
        {"text": TextFormat(header=False)},
    ),
    Shape(
        "winequality-red.csv",
        text('"fixed acidity";"volatile acidity";"pH";"quality"', "7.4;0.7;3.51;5", "7.8;0.88;3.2;5"),
        {"fixed acidity": 7.4, "volatile acidity": 0.7, "pH": 3.51, "quality": 5},
        2,
    ),
    Shape(
        "adult.csv",
        text("age, workclass, fnlwgt, income", "39, State-gov, 77516, <=50K", "50, ?, 83311, >50K"),
        {"age": 39, "workclass": " State-gov", "fnlwgt": 77516, "income": " <=50K"},
        2,
    ),
    Shape(
        "titanic.csv",
        text(
            "PassengerId,Survived,Pclass,Name,Sex,Age,Fare,Cabin,Embarked",
            '1,0,3,"Braund, Mr. Owen Harris",male,22,7.25,,S',
            '2,1,1,"Cumings, Mrs. John (""Florence"")",female,,71.2833,C85,C',
        ),
        {"PassengerId": 1, "Name": "Braund, Mr. Owen Harris", "Age": 22, "Fare": 7.25, "Cabin": None},
        2,
    ),
    Shape(
        "housing.csv",
        text(
            "longitude,latitude,total_bedrooms,median_house_value,ocean_proximity",
            "-122.23,37.88,129.0,452600.0,NEAR BAY",
            "-122.22,37.86,,358500.0,<1H OCEAN",
        ),
        {"longitude": -122.23, "total_bedrooms": 129.0, "ocean_proximity": "NEAR BAY"},
        2,
    ),
    Shape(
        "penguins.csv",
        text(
            "species,island,bill_length_mm,body_mass_g,sex",
            "Adelie,Torgersen,39.1,3750,MALE",
            "Adelie,Dream,,,",
        ),
        {"species": "Adelie", "bill_length_mm": 39.1, "body_mass_g": 3750, "sex": "MALE"},
        2,
    ),
    Shape(
        "ratings.csv",
        text("userId,movieId,rating,timestamp", "1,1,4.0,964982703", "1,3,4.5,964981247"),
        {"userId": 1, "movieId": 1, "rating": 4.0, "timestamp": 964982703},
        2,
    ),
    Shape(
        "movies.csv",
        text("movieId,title,genres", '1,"Misérables, Les (1995)",Drama|War', "2,Heat (1995),Action"),
        {"movieId": 1, "title": "Misérables, Les (1995)", "genres": "Drama|War"},
        2,
    ),
    Shape(
        "u.data.tsv",
        text("196\t242\t3\t881250949", "186\t302\t3\t891717742"),
        {"f0": 196, "f3": 881250949},
        2,
        "--no-header",
        {"text": TextFormat(header=False)},
    ),
    Shape(
        "mnist.npz",
        npz(x_train=IMAGES, y_train=np.arange(3), x_test=IMAGES[:2], y_test=np.arange(2)),
        {"label": 0},
        3,
    ),
    Shape("medmnist.npz", npz(images=IMAGES, labels=np.arange(3).reshape(3, 1)), {}, 3),
    Shape(
        "creditcard.csv",
        text('"Time","V1","V2","Amount","Class"', '0,-1.3598,-0.0727,149.62,"0"', '0,1.1918,0.2661,2.69,"0"'),
        {"Time": 0, "V1": -1.3598, "Amount": 149.62, "Class": 0},
        2,
    ),
    Shape(
        "yellow_tripdata_2024-01.parquet",
        pd.DataFrame(
            {
                "VendorID": np.array([2, 1], np.int32),
                "tpep_pickup_datetime": np.array(["2024-01-01T00:57:55", "2024-01-01T00:03:00"], "M8[us]"),
                "passenger_count": [1.0, None],
                "store_and_fwd_flag": ["N", None],
                "fare_amount": [17.7, 10.0],
            }
        ),
        {"VendorID": 2, "passenger_count": 1.0, "store_and_fwd_flag": "N", "fare_amount": 17.7},
        2,
    ),
    Shape(
        "ag_news.csv",
        text(
            '"3","Wall St. Bears Claw Back","Short-sellers, Wall Street\'s dwindling\\band"',
            '"4","a","b ""c"""',
        ),
        {"f0": 3, "f1": "Wall St. Bears Claw Back", "f2": "Short-sellers, Wall Street's dwindling\\band"},
        2,
        "--no-header",
        {"text": TextFormat(header=False)},
    ),
    Shape(
        "imdb.parquet",
        pd.DataFrame({"text": ["I rented <br />it\n", "x" * 5000], "label": [0, 1]}),
        {"text": "I rented <br />it\n", "label": 0},
        2,
    ),
    Shape(
        "squad.parquet",
        pa.table(
            {
                "id": ["5733be28", "5733be29"],
                "question": ["To whom?", "What?"],
                "answers": [
                    {"text": ["Saint"], "answer_start": [515]},
                    {"text": ["a", "b"], "answer_start": [1, 2]},
                ],
            }
        ),
        {"id": "5733be28", "question": "To whom?"},
        2,
    ),
    Shape(
        "cifar10.parquet",
        pa.table({"img": [{"bytes": b"\x89PNG\x00", "path": None}] * 2, "label": [0, 9]}),
        {"label": 0},
        2,
    ),
    Shape(
        "Video_Games_5.json.gz",
        gzip.compress(
            text(
                json.dumps({"overall": 5.0, "verified": True, "reviewText": "ok", "asin": "0700026657"}),
                json.dumps({"overall": 4.0, "verified": False, "vote": "3", "asin": "0700026658"}),
            )
        ),
        {"overall": 5.0, "verified": True, "reviewText": "ok", "asin": "0700026657", "vote": None},
        2,
    ),
    Shape(
        "yelp_business.json",
        text(
            json.dumps({"business_id": "a", "stars": 4.5, "attributes": {"WiFi": "no"}, "is_open": 1}),
            json.dumps({"business_id": "b", "stars": 3.0, "attributes": None, "is_open": 0}),
        ),
        {"business_id": "a", "stars": 4.5, "is_open": 1},
        2,
    ),
    Shape(
        "airline-passengers.csv",
        text('"Month","Passengers"', '"1949-01",112', '"1949-02",118'),
        {"Month": "1949-01", "Passengers": 112},
        2,
    ),
    Shape(
        "AirQualityUCI.csv",
        text(
            "Date;Time;CO(GT);PT08.S1(CO);T",
            "10/03/2004;18.00.00;2,6;1360;13,6",
            "10/03/2004;19.00.00;2;1292;13,3",
        ),
        {"Date": "10/03/2004", "CO(GT)": "2,6", "PT08_S1(CO)": 1360},
        2,
    ),
    Shape(
        "household_power_consumption.csv",
        text("Date;Time;Global_active_power", "16/12/2006;17:24:00;4.216", "16/12/2006;17:25:00;?"),
        {"Date": "16/12/2006", "Global_active_power": "4.216"},
        2,
    ),
    Shape(
        "abalone.csv",
        text("M,0.455,0.365,0.095,0.514,15", "F,0.53,0.42,0.135,0.677,9"),
        {"f0": "M", "f1": 0.455, "f5": 15},
        2,
        "--no-header",
        {"text": TextFormat(header=False)},
    ),
    Shape(
        "diamonds.csv",
        text(
            '"","carat","cut","depth","table","x"',
            '"1",0.23,"Ideal",61.5,55,3.95',
            '"2",0.21,"Premium",59.8,61,3.89',
        ),
        {"Unnamed: 0": 1, "carat": 0.23, "cut": "Ideal", "table": 55, "x": 3.95},
        2,
    ),
    Shape(
        "mtcars.csv",
        text('"","mpg","cyl","disp"', '"Mazda RX4",21,6,160', '"Datsun 710",22.8,4,108'),
        {"Unnamed: 0": "Mazda RX4", "mpg": 21.0, "cyl": 6},
        2,
    ),
    Shape(
        "gapminder.tsv",
        text("country\tcontinent\tyear\tlifeExp\tpop", "Côte d'Ivoire\tAfrica\t1952\t40.477\t2977019"),
        {"country": "Côte d'Ivoire", "year": 1952, "lifeExp": 40.477, "pop": 2977019},
        1,
    ),
    Shape(
        "time_series_covid19_confirmed_global.csv",
        text("Province/State,Country/Region,Lat,Long,1/22/20,1/23/20", ",Afghanistan,33.9,67.7,0,0"),
        {"Province/State": None, "Country/Region": "Afghanistan", "Lat": 33.9, "1/22/20": 0},
        1,
    ),
    Shape(
        "spam.csv",
        text("v1,v2,,,", 'ham,"Go until jurong, £900",,,', "spam,Free entry,,,", encoding="latin-1"),
        {"v1": "ham", "v2": "Go until jurong, £900", "Unnamed: 2": None},
        2,
        "--encoding",
        {"text": TextFormat(encoding="latin-1")},
    ),
    Shape(
        "fashion-mnist_train.csv",
        text("label," + ",".join(f"pixel{n}" for n in range(1, 785)), "2," + ",".join(["0"] * 784)),
        {"label": 2, "pixel1": 0, "pixel784": 0},
        1,
    ),
    Shape(
        "kddcup.data_10_percent.csv.gz",
        gzip.compress(text("0,tcp,http,SF,181,5450,normal.", "0,udp,http,SF,239,486,normal.")),
        {"f0": 0, "f1": "tcp", "f6": "normal."},
        2,
        "--no-header",
        {"text": TextFormat(header=False)},
    ),
    Shape(
        "bike-sharing.zip",
        zipped("hour.csv", text("instant,dteday,season,cnt", "1,2011-01-01,1,16", "2,2011-01-01,1,40")),
        {"instant": 1, "dteday": "2011-01-01", "season": 1, "cnt": 16},
        2,
    ),
]


@pytest.fixture(scope="module")
def session(ignite):
    with open_session(ignite.connect_options, report=str) as opened:
        yield opened
        opened.client.destroy_cache(CACHE)
        forget(opened.client, CACHE)


@pytest.mark.parametrize("shape", SHAPES, ids=[shape.name for shape in SHAPES])
def test_it_loads_with_at_most_one_option_which_the_error_names(shape, session, tmp_path):
    path = tmp_path / shape.name
    if isinstance(shape.content, bytes):
        path.write_bytes(shape.content)
    elif isinstance(shape.content, pa.Table):
        pq.write_table(shape.content, path)
    else:
        shape.content.to_parquet(path)
    if shape.option:
        with pytest.raises(SourceError, match=shape.option):
            session.load(CACHE, path, replace=True)
    session.load(CACHE, path, replace=True, **shape.given)
    result = session.query(f"SELECT * FROM {CACHE} ORDER BY _KEY")
    names = [column.name for column in result.columns]
    assert len(result) == shape.rows
    found = dict(zip(names, result.rows[0], strict=True))
    assert {name: found[name] for name in shape.first} == shape.first
