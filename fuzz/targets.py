"""One function a parser: it takes any bytes, and lets nothing but a `FamrError` go unnoticed.

The same functions serve the coverage-guided fuzzer (`fuzz/run.py`) and the property tests (`tests/test_fuzz.py`).
"""

from __future__ import annotations

import functools
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from famr.errors import FamrError

Target = Callable[[bytes], None]


@contextmanager
def written(content: bytes, name: str) -> Iterator[Path]:
    """The content as a file, in memory where the system has such a place."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
    try:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        yield path
    finally:
        shutil.rmtree(folder)


def samples_csv(content: bytes) -> None:
    """A file of samples, as `famr forget --samples` takes it."""
    from famr.data.request import read_samples

    with written(content, "samples.csv") as path, suppress(FamrError):
        names = read_samples(path)
        assert names
        assert all(name and name == name.strip() for name in names)


def samples_txt(content: bytes) -> None:
    """The same, one name a line."""
    from famr.data.request import read_samples

    with written(content, "samples.txt") as path, suppress(FamrError):
        assert all(read_samples(path))


def request_json(content: bytes) -> None:
    """The request in a run folder."""
    from famr.data.request import Request
    from famr.runs.folder import read_unlearning

    with written(content, "unlearning/request.json") as path, suppress(FamrError):
        path.with_name("run.json").write_text("{}", encoding="utf-8")
        request, _ = read_unlearning(path.parents[1])
        assert isinstance(request, Request)
        request.describe()


def run_json(content: bytes) -> None:
    """The record of a run, and what a further run reads from it."""
    from famr.runs.folder import earlier_runs

    with written(content, "unlearning/run.json") as path, suppress(FamrError):
        path.with_name("request.json").write_text('{"kind": "class", "classes": ["a"]}', encoding="utf-8")
        earlier_runs(path.parents[1])


def seal(content: bytes) -> None:
    """COMPLETE.json."""
    from famr.storage.digests import check_complete

    with written(content, "COMPLETE.json") as path, suppress(FamrError):
        check_complete(path.parent)


def safetensors(content: bytes) -> None:
    """A weights file with its header."""
    from famr.models.weights import read_weights

    with written(content, "weights.safetensors") as path, suppress(FamrError):
        for tensor in read_weights(path).values():
            assert tensor.numel() * tensor.element_size() <= len(content)


def header(content: bytes) -> None:
    """The header alone, as its parser takes it."""
    from famr.models.headers import parse_header

    with suppress(ValueError):
        assert isinstance(parse_header(content), dict)


def archive(content: bytes) -> None:
    """The list of contents of a `.pth`."""
    from famr.models.headers import check_archive

    with written(content, "weights.pth") as path, suppress(ValueError):
        check_archive(path)


def metadata_csv(content: bytes) -> None:
    """metadata.csv beside class folders."""
    from famr.data import open_data

    with written(content, "metadata.csv") as path, suppress(FamrError):
        (path.parent / "cat").mkdir()
        (path.parent / "cat/0.png").write_bytes(one_picture())
        data = open_data(f"folder:{path.parent}", whole=True)
        assert all(len(values) == 1 for values in data.train.all_columns.values())


def image(content: bytes) -> None:
    """An image file, decoded to its pixels."""
    from famr.data import open_data

    with written(content, "image.png") as path, suppress(FamrError):
        pixels = open_data(f"folder:{path.parent}", whole=True).train.pixels(0, 3)
        assert pixels.shape[0] == 3


@functools.cache
def one_picture() -> bytes:
    """The smallest PNG."""
    import io

    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (1, 1)).save(file, "PNG")
    return file.getvalue()


TARGETS: dict[str, Target] = {
    each.__name__: each
    for each in (
        samples_csv,
        samples_txt,
        request_json,
        run_json,
        seal,
        safetensors,
        header,
        archive,
        metadata_csv,
        image,
    )
}


def seeds(name: str) -> list[bytes]:
    """What a fuzzer starts from: small inputs that its parser takes, beside what earlier runs have kept."""
    tensor = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    text = json.dumps({"a": tensor, "__metadata__": {"format": "pt"}}).encode()
    request = {"kind": "samples", "samples": ["a.png", 3]}
    made: dict[str, list[bytes]] = {
        "samples_csv": [b"id,x\na.png,1\n\n", b"a\nb\n", b'file_name\n"a,b"\n'],
        "samples_txt": [b"a.png\n3\n", "é\r\n".encode()],
        "request_json": [
            json.dumps(request).encode(),
            b'{"kind": "concept", "column": "c", "value": "v"}',
            b'{"kind": "class", "classes": ["a"]}',
        ],
        "run_json": [
            json.dumps(
                {"drift": 1.0, "classes": [], "earlier": [{"request": request, "classes": [], "drift": 1}]}
            ).encode(),
            b'{"drift": 0, "data": {"spec": "folder:{run}/../d"}, "original": {"model": "{elsewhere}/m"}}',
        ],
        "seal": [b'{"algorithm": "sha256", "files": {"a": "00"}}'],
        "safetensors": [len(text).to_bytes(8, "little") + text + bytes(4)],
        "header": [text],
        "archive": [b"PK\x05\x06" + bytes(18)],
        "metadata_csv": [b"file_name,c\ncat/0.png,v\n"],
        "image": [one_picture()],
    }
    return made[name]
