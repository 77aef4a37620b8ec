"""Anything at all, given to what reads strangers' files: famr answers, or says no in its own words."""

from __future__ import annotations

import io
import json
import shutil
import tempfile
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from fuzz.run import CORPUS
from fuzz.targets import TARGETS, seeds
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from PIL import Image

import famr
from famr.data import Data
from famr.data.images import Images
from famr.errors import FamrError, RequestError
from famr.models.labels import match_labels
from famr.models.loading import read_config
from small import save_small

BOUNDED = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
TEXT = st.text(max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize("name", TARGETS)
def test_the_fuzzers_corpus_does_no_harm(name: str) -> None:
    kept = [file.read_bytes() for file in sorted((CORPUS / name).iterdir())]
    assert len(kept) >= len(seeds(name))
    for content in kept:
        TARGETS[name](content)


@pytest.mark.parametrize("name", TARGETS)
def test_any_bytes_are_answered(name: str) -> None:
    """Bytes at random, and good inputs with some of their bytes changed, cut or doubled."""
    good = seeds(name)

    @BOUNDED
    @given(st.binary(max_size=60) | changed(good))
    def try_it(content: bytes) -> None:
        TARGETS[name](content)

    try_it()


@st.composite
def changed(draw: st.DrawFn, good: list[bytes]) -> bytes:
    content = bytearray(draw(st.sampled_from(good)))
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(0, len(content) - 1)))
        kind = draw(st.sampled_from(["flip", "cut", "double", "insert"]))
        if kind == "flip" and content:
            content[place] = draw(st.integers(0, 255))
        elif kind == "cut":
            del content[place : place + draw(st.integers(1, 8))]
        elif kind == "double":
            content[place:place] = content[place : place + 40]
        else:
            content[place:place] = draw(st.binary(max_size=8))
    return bytes(content)


@pytest.mark.parametrize("name", ["request_json", "run_json", "seal", "header"])
def test_any_json_is_answered(name: str) -> None:
    keys = {"request_json": ["kind", "classes", "samples", "column", "value"], "seal": ["files"]}
    known = keys.get(name, ["drift", "classes", "earlier", "data", "original", "dtype", "shape"])

    @BOUNDED
    @given(JSON | st.dictionaries(st.sampled_from(known), JSON))
    def try_it(value: Any) -> None:
        TARGETS[name](json.dumps(value).encode())

    try_it()


@BOUNDED
@given(
    st.lists(TEXT, max_size=4),
    st.lists(TEXT | st.integers(), max_size=4),
    st.none() | st.tuples(TEXT, TEXT),
    st.none() | st.tuples(TEXT, TEXT),
)
def test_a_request_is_refused_or_comes_back_from_json(
    classes: list[str], samples: list[str | int], concept: tuple[str, str] | None, style: tuple[str, str] | None
) -> None:
    try:
        request = famr.Request(classes=classes, samples=samples, concept=concept, style=style)
    except RequestError:
        return
    assert famr.Request.from_json(json.loads(json.dumps(request.to_json()))) == request
    request.describe()


def data_of(labels: list[str]) -> Data:
    images = Images.from_source(
        lambda _row: Image.new("RGB", (1, 1)), [str(row) for row in range(len(labels))], torch.arange(len(labels))
    )
    return Data("made up", tuple(labels), images, None)


@BOUNDED
@given(
    st.lists(TEXT, min_size=1, max_size=5),
    st.none() | st.lists(TEXT, min_size=1, max_size=5),
    st.booleans(),
    st.randoms(),
)
def test_labels_are_refused_or_every_image_keeps_its_name(
    ours: list[str], theirs: list[str] | None, by_name: bool, random: Any
) -> None:
    if theirs is not None and random.random() < 0.5:
        theirs = random.sample(ours, len(ours))
    data = data_of(ours)
    model = famr.Classifier(torch.nn.Linear(1, 2), None if theirs is None else tuple(theirs))
    try:
        model, matched = match_labels(model, data, by_name=by_name)
    except FamrError:
        return
    assert model.labels == matched.labels
    names = [matched.labels[target] for target in matched.train.targets.tolist()]
    assert names == ours


@BOUNDED
@given(st.lists(st.integers(-3, 30) | TEXT, max_size=4), st.integers(1, 20))
def test_samples_are_refused_or_exactly_those_are_forgotten(samples: list[int | str], count: int) -> None:
    data = data_of([f"class {row}" for row in range(count)])
    try:
        splits = famr.split(data, famr.Request(samples=samples))
    except RequestError:
        return
    assert len(splits.forget) == len(samples)
    assert splits.retain is not None
    assert sorted([*splits.forget.ids, *splits.retain.ids]) == sorted(data.train.ids)


NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=()), min_size=1, max_size=20)
CONTENTS = st.sampled_from([b"", b"text", *(seeds("image") * 3)])


@BOUNDED
@given(
    st.lists(
        st.tuples(st.lists(NAMES, max_size=3), NAMES, st.sampled_from(["", ".png", ".JPG", ".gif"]), CONTENTS),
        max_size=5,
    )
)
def test_any_folder_tree_is_opened_or_refused(files: list[tuple[list[str], str, str, bytes]]) -> None:
    root = Path(tempfile.mkdtemp())
    try:
        for folders, name, suffix, content in files:
            try:
                place = root.joinpath(*folders) / (name + suffix)
                assume(place.resolve().is_relative_to(root.resolve()))
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(content)
            except (OSError, UnicodeEncodeError):  # no name for a file here
                continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            read_all(root)
    finally:
        shutil.rmtree(root)


def read_all(root: Path) -> None:
    try:
        data = famr.open_data(f"folder:{root}", whole=True)
    except FamrError:
        return
    everything = data.everything()
    assert len(set(everything.ids)) == len(everything)
    for position in range(len(everything)):
        with suppress(FamrError):
            assert everything.pixels(position, 3).shape[0] == 3


def encoded(kind: str) -> bytes:
    file = io.BytesIO()
    Image.linear_gradient("L").resize((9, 7)).convert("RGB").save(file, kind)
    return file.getvalue()


@pytest.mark.parametrize("kind", ["BMP", "GIF", "JPEG", "PPM", "TIFF", "WEBP"])
def test_damaged_images_of_every_format_are_read_or_refused(kind: str) -> None:
    @BOUNDED
    @given(changed([encoded(kind)]))
    def try_it(content: bytes) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's remarks on damaged files
            TARGETS["image"](content)

    try_it()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = save_small(tmp_path_factory.mktemp("fuzz") / "model")
    (made / "COMPLETE.json").unlink()
    return made


@settings(BOUNDED, max_examples=60)
@given(
    st.dictionaries(
        st.sampled_from(
            ["architecture", "num_classes", "label_names", "model_args", "pretrained_cfg", "library", "global_pool"]
        ),
        JSON | st.dictionaries(st.sampled_from(["img_size", "depth", "input_size", "mean", "crop_mode"]), JSON),
        min_size=1,
        max_size=2,
    )
)
@example(changes={"model_args": -1})
@example(changes={"model_args": [[]]})
@example(changes={"label_names": [None, 1, []]})
def test_any_config_of_a_model_is_read_or_refused(folder: Path, changes: dict[str, Any]) -> None:
    file = folder / "config.json"
    good = file.read_text(encoding="utf-8")
    try:
        file.write_text(json.dumps({**json.loads(good), **changes}), encoding="utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            labels = famr.load_model(str(folder)).labels
            assert all(isinstance(label, str) for label in labels or ())
    except FamrError:
        pass
    finally:
        file.write_text(good, encoding="utf-8")


@BOUNDED
@given(st.binary(max_size=40) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_config_file_is_read_or_refused(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "config.json").write_bytes(content)
        with suppress(FamrError):
            assert isinstance(read_config(Path(place)), dict)
