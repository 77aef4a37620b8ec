"""Requests, and files that list samples."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from famr.data.request import Request, read_samples
from famr.errors import RequestError

EVERY_KIND = [
    Request(classes=["dog"]),
    Request(classes=["rose", "Cat"]),
    Request(samples=[0, 5, "train/dog/7.png"]),
    Request(concept=("style", "photo")),
    Request(style=("style", "oil")),
]


@pytest.mark.parametrize("request_", [{"samples": [3, "3"]}, {"samples": ["a", "b", "a"]}, {"classes": ["dog", "dog"]}])
def test_duplicate_samples_are_refused(request_):
    (named,) = request_.values()
    with pytest.raises(RequestError, match="something twice") as caught:
        Request(**request_)
    assert f"twice: {named[0]}." in caught.value.what
    assert caught.value.fix == "Name each once."


def test_a_request_names_one_kind_of_thing():
    with pytest.raises(RequestError, match="classes and concept") as caught:
        Request(classes=["dog"], concept=("style", "oil"))
    assert caught.value.exit_code == 2
    assert "one request after the other" in str(caught.value)


@pytest.mark.parametrize("field", ["classes", "samples"])
def test_a_single_text_instead_of_a_list_is_refused(field):
    with pytest.raises(RequestError, match="must be a list") as caught:
        Request(**{field: "dog"})
    assert "'dog'" in caught.value.what
    assert caught.value.fix == "['dog']"


@pytest.mark.parametrize("request_", [*EVERY_KIND, Request()], ids=Request.describe)
def test_a_request_round_trips_through_json(request_):
    assert Request.from_json(json.loads(json.dumps(request_.to_json()))) == request_


def test_a_request_has_a_short_description():
    described = [request.describe() for request in EVERY_KIND]
    assert described == ["class dog", "classes rose, Cat", "3 samples", "concept style=photo", "style style=oil"]
    assert Request().describe() == "the given images"
    assert Request(samples=("a",)).describe() == "1 sample"
    kinds = [request.kind for request in [*EVERY_KIND, Request()]]
    assert kinds == ["class", "class", "samples", "concept", "style", "images"]


def test_a_text_file_has_one_sample_per_line(tmp_path):
    (tmp_path / "samples.txt").write_bytes(b"\xef\xbb\xbf7\r\n\r\n  train/dog/1.png \r\na,b.png\r\n")
    assert read_samples(tmp_path / "samples.txt") == ["7", "train/dog/1.png", "a,b.png"]


@pytest.mark.parametrize("column", ["id", "index", "file_name", "path", "sample", " Path "])
def test_a_csv_names_samples_in_a_column_of_a_usual_name(tmp_path, column):
    (tmp_path / "samples.csv").write_text(f'reason,{column}\nasked,7\n"a, b",8\n,9\n,\n\n')
    assert read_samples(tmp_path / "samples.csv") == ["7", "8", "9"]


def test_a_csv_of_one_column_needs_no_header(tmp_path):
    (tmp_path / "samples.csv").write_text("7\n8\n")
    assert read_samples(tmp_path / "samples.csv") == ["7", "8"]
    (tmp_path / "samples.csv").write_text("index\n7\n8\n")
    assert read_samples(tmp_path / "samples.csv") == ["7", "8"]


def unreadable(path: Path) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read_samples(path)
    assert caught.value.exit_code == 2
    assert str(path) in str(caught.value.where)
    assert f"where: {caught.value.where}" in str(caught.value)
    assert caught.value.fix
    return caught.value


def test_a_csv_of_unusual_columns_is_refused(tmp_path):
    (tmp_path / "samples.csv").write_text("name,reason\n7,asked\n")
    error = unreadable(tmp_path / "samples.csv")
    assert "columns name, reason" in str(error.where)
    assert "file_name" in str(error.fix)


@pytest.mark.parametrize("row", ["asked", "asked,", "asked, "])
def test_a_csv_row_without_its_sample_is_refused(tmp_path, row):
    (tmp_path / "samples.csv").write_text(f"reason,id\nasked,7\n{row}\n")
    assert str(unreadable(tmp_path / "samples.csv").where).endswith("row 2")


@pytest.mark.parametrize("name", ["samples.txt", "samples.csv"])
def test_a_file_without_samples_is_refused(tmp_path, name):
    (tmp_path / name).write_text("\n \n")
    assert "names no samples" in unreadable(tmp_path / name).what


def test_a_missing_file_of_samples_is_named(tmp_path):
    assert "no such file" in unreadable(tmp_path / "nowhere.txt").what
    assert "no such file" in unreadable(tmp_path).what


def test_a_file_of_samples_that_is_not_utf8_is_refused(tmp_path):
    (tmp_path / "samples.txt").write_bytes("naïf.png".encode("latin-1"))
    assert "not UTF-8" in unreadable(tmp_path / "samples.txt").what
