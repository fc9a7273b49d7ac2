"""Tables that nobody can learn from or predict on: one clear line each, a non-zero exit code, and no folder left."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bayesbinn.sklearn import BinaryNetworkClassifier
from tests.cli.test_deployment import call, done

_draw = random.Random(0)
ROWS = [
    f"{_draw.randint(1, 99)},{_draw.choice(['cook', 'nurse'])},2020-01-{_draw.randint(1, 28):02},{_draw.choice('ab')}\n"
    for _ in range(40)
]
GOOD = "age,job,since,y\n" + "".join(ROWS)
AS_GERMANS_WRITE = "x;w;y\n" + "".join(f"{i % 9},{i};{'uv'[i % 2]};{'ab'[i % 2]}\n" for i in range(10, 40))

TO_LEARN: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "the file is empty: a header line and rows are needed"),
    "blank lines": ("\n\n\n", "the file is empty"),
    "no rows": ("a,y\n", "it has a header but no rows"),
    "few rows": ("a,y\n1,u\n2,v\n", "2 examples: 5 or more are needed"),
    "one class": ("a,y\n" + "1,u\n" * 9, "all labels are 'u': 2 or more classes are needed"),
    "no label column": ("a,b\n" + "1,2\n" * 9, "no column 'y'. There are a, b"),
    "other case": ("a,Y\n" + "1,2\n" * 9, "no column 'y'. There are a, Y"),
    "no labels": ("a,y\n" + "1,\n" * 9, "the label column 'y' is empty"),
    "labels alone": ("y\n" + "u\nv\n" * 9, "'y' is the only column"),
    "a class for each row": ("a,y\n" + "".join(f"{i},c{i}\n" for i in range(20)), "is this the right column?"),
    "infinite cell": ("a,b,y\n" + "1,q,u\n2,r,v\n" * 9 + "inf,q,u\n", "column 'a' is infinite in row 19"),
    "overflow": ("a,b,y\n" + "1,q,u\n2,r,v\n" * 9 + "1e999,q,u\n", "column 'a' is infinite in row 19"),
    "infinite label": ("a,y\n" + "".join(f"{i},{i / 2}\n" for i in range(60)) + "3,inf\n", "is NaN or too large"),
    "two of a name": ("a,a,y\n" + "1,2,u\n3,4,v\n" * 9, "two columns are named 'a'"),
    "no name": ("a,,y\n" + "1,2,u\n3,4,v\n" * 9, "column 2 has no name"),
    "Latin-1": (GOOD.replace("cook", "köchin").encode("latin-1"), "it needs UTF-8 text"),
    "UTF-16": (GOOD.encode("utf-16"), "it needs UTF-8 text"),
    "compressed": (gzip.compress(GOOD.encode()), "it needs UTF-8 text"),
    "short row": (GOOD + "1,cook\n", "row 41: Expected 4 columns, got 2"),
    "long row": (GOOD + "1,cook,2020-01-01,a,9\n", "row 41: Expected 4 columns, got 5"),
    "open quote": (GOOD + '"1,cook,2020-01-01,a\n', "rows of equal length"),
    "decimal commas": (AS_GERMANS_WRITE, "column 'x' holds '1,10': write numbers with a point"),
    "thousands": (
        AS_GERMANS_WRITE.replace(",10", ",100"),
        "such as 1100 if the comma separates thousands, 1.100 if it is a decimal comma",
    ),
    "label with decimal commas": (
        "w;y\n" + "".join(f"{i};{i},5\n" for i in range(20)),
        "the label column 'y' holds '0,5': write numbers with a point",
    ),
    "a word among numbers": (
        "a,b,y\n" + "".join(f"{'old' if i == 50 else i},q{i % 3},{'ab'[i % 2]}\n" for i in range(200)),
        "column 'a' holds 'old'",
    ),
    "long name": (f"{'a' * 2000},y\n" + "x,u\nz,v\n" * 9, "has 2,000 characters: 1,024 are allowed"),
}


@pytest.mark.parametrize("name", TO_LEARN)
def test_a_table_that_cannot_be_learned(name: str, tmp_path: Path) -> None:
    content, message = TO_LEARN[name]
    (tmp_path / "my.csv").write_bytes(content.encode() if isinstance(content, str) else content)
    answer = call("train", tmp_path / "my.csv", "--label", "y", "--out", tmp_path / "run")
    assert answer.code == 2 and message in answer.err and answer.err.count("\n") == 1, answer
    assert "Traceback" not in answer.err and not (tmp_path / "run").exists()


def test_other_files_are_named() -> None:
    answer = call("train", "nothing.csv", "--label", "y")
    assert answer.code == 2 and "nothing.csv: no such file" in answer.err and answer.err.count("\n") == 1


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbf" + GOOD.encode(),
        GOOD.replace(",", ";").encode(),
        GOOD.replace(",", "\t").encode(),
        GOOD.replace("\n", "\r\n").encode(),
        GOOD.replace("\n", "\n\n").encode(),
    ],
    ids=["BOM", "semicolons", "tabs", "CRLF", "blank lines"],
)
def test_other_ways_to_write_a_table_are_the_same_table(content: bytes, tmp_path: Path) -> None:
    from bayesbinn import data

    (tmp_path / "my.csv").write_bytes(content)
    (tmp_path / "good.csv").write_text(GOOD)
    one, other = (data.load(tmp_path / name, label="y", encode=True) for name in ("my.csv", "good.csv"))
    assert one.features == other.features == ("age", "job", "since") and one.classes == ("a", "b")
    assert (one.train_inputs == other.train_inputs).all() and (one.test_targets == other.test_targets).all()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad")
    (folder / "good.csv").write_text(GOOD)
    done("train", folder / "good.csv", "--label", "y", "--out", folder / "run", "--epochs", "1")
    done("pack", folder / "run")
    return folder / "run"


TO_PREDICT: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "new.csv: "),
    "no rows": ("age,job,since\n", "new.csv: it has "),
    "a column missing": ("age,job\n1,cook\n", "no column 'since', which the model was trained on"),
    "other columns": ("a,b,c\n1,cook,2020-01-01\n", "no column 'age'"),
    "other case": ("Age,job,since\n1,cook,2020-01-01\n", "Did you mean 'Age'?"),
    "no header": ("1,cook,2020-01-01\n2,cook,2020-01-01\n", "no column 'age'"),
    "two of a name": ("age,age,job,since\n1,1,cook,2020-01-01\n", "two columns are named 'age'"),
    "Latin-1": ("age,job,since\n1,köchin,2020-01-01\n".encode("latin-1"), "can't decode byte"),
    "UTF-16": (GOOD.encode("utf-16"), "can't decode byte"),
    "short row": ("age,job,since\n1,cook,2020-01-01\n1,cook\n", "row 2"),
    "long row": ("age,job,since\n1,cook,2020-01-01,7\n", "row 1"),
    "decimal comma": ("age;job;since\n1,5;cook;2020-01-01\n", "column 'age' holds '1,5' in row 1: a number is needed"),
    "infinite": ("age,job,since\n1,cook,2020-01-01\ninf,cook,2020-01-01\n", "in row 2"),
    "a word": ("age,job,since\nold,cook,2020-01-01\n", "column 'age' holds 'old' in row 1: a number is needed"),
    "no date": ("age,job,since\n1,cook,yesterday\n", "column 'since' holds 'yesterday' in row 1: a date is needed"),
}


@pytest.mark.parametrize("name", TO_PREDICT)
def test_a_table_that_cannot_be_predicted_on(name: str, run: Path, tmp_path: Path) -> None:
    content, message = TO_PREDICT[name]
    table = tmp_path / "new.csv"
    table.write_bytes(content.encode() if isinstance(content, str) else content)
    for command in (("run", run / "model.safetensors"), ("predict", run)):
        answer = call(*command, table, "--out", tmp_path / "p.csv")
        assert answer.code == 2 and message in answer.err and answer.err.count("\n") == 1, answer
        assert not (tmp_path / "p.csv").exists()


def frame(**columns: object) -> pd.DataFrame:
    base = {"a": np.arange(40.0), "b": np.tile(["u", "v"], 20)}
    return pd.DataFrame({**base, **columns})


LABELS = np.tile([0, 1], 20)
TO_FIT: dict[str, tuple[pd.DataFrame, object, str]] = {
    "no rows": (frame().head(0), LABELS[:0], "0 sample(s)"),
    "one class": (frame(), LABELS * 0, "all rows have one class, 0"),
    "missing label": (frame(), np.array([None, "x"] * 20, object), "the label in row 1 is missing (None)"),
    "NaN label": (frame(), np.where(LABELS, np.nan, 1.0), "every row needs a target"),
    "mixed labels": (frame(), np.array([1, "x"] * 20, object), "y holds int and str"),
    "infinite cell": (frame(c=np.where(np.arange(40) == 7, np.inf, 1.0)), LABELS, "'c' is infinite in row 8"),
    "huge number": (frame(c=[10**400, *range(39)]), LABELS, "'c' is infinite in row 1"),
    "two of a name": (frame().set_axis(["a", "a"], axis=1), LABELS, "two columns are named 'a'"),
    "decimal commas": (frame(c=[f"{i},5" for i in range(40)]), LABELS, "write numbers with a point"),
    "long name": (frame(**{"n" * 2000: LABELS}), LABELS, "has 2,000 characters"),
}


@pytest.mark.parametrize("name", TO_FIT)
def test_a_frame_that_cannot_be_learned(name: str) -> None:
    table, labels, message = TO_FIT[name]
    with pytest.raises(ValueError) as error:  # what scikit-learn's users catch
        BinaryNetworkClassifier(epochs=1, random_state=0).fit(table, labels)
    assert message in str(error.value) and "\n" not in str(error.value) and len(str(error.value)) < 400
