"""Loading, new heads, and folders that the libraries read without famr."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import conftest
import famr
from famr.data import Data
from famr.errors import CheckpointError, RequestError
from famr.models.layers import head_tensors
from famr.storage.digests import file_digest

LABELS = tuple(str(digit) for digit in range(10))
SMALL_VIT = {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 2}


def timm_vit(_folder: Path) -> famr.Classifier:
    return famr.new_model("timm:vit_tiny_patch16_224", LABELS, from_scratch=True, arguments=SMALL_VIT)


def timm_resnet(_folder: Path) -> famr.Classifier:
    return shrunk(famr.new_model("timm:test_resnet", LABELS, from_scratch=True))


def hf_vit(folder: Path) -> famr.Classifier:
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    config = ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        image_size=16,
        patch_size=4,
        num_labels=3,
    )
    ViTForImageClassification(config).save_pretrained(folder)
    ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(folder)
    return famr.new_model(f"hf:{folder}", LABELS)


def torchvision_shufflenet(_folder: Path) -> famr.Classifier:
    return shrunk(famr.new_model("torchvision:shufflenet_v2_x0_5", LABELS, from_scratch=True))


def shrunk(model: famr.Classifier) -> famr.Classifier:
    """The same network on 32-pixel images, so that a test takes seconds."""
    assert model.preprocessing is not None
    return replace(model, preprocessing=replace(model.preprocessing, resize=32, crop=(32, 32)))


FRESH = {
    "timm": "import timm; model = timm.create_model('local-dir:' + folder, pretrained=True); read = model",
    "transformers": "from transformers import AutoModelForImageClassification as A; "
    "model = A.from_pretrained(folder); read = lambda x: model(x).logits",
    "torchvision": "import json, torchvision; from safetensors.torch import load_file; "
    "config = json.load(open(folder + '/config.json')); "
    "model = torchvision.models.get_model(config['architecture'], num_classes=config['num_classes']); "
    "model.load_state_dict(load_file(folder + '/model.safetensors')); read = model",
}


class Written(NamedTuple):
    """An unlearned model, its folder and that of the original, and images to compare both on."""

    source: Path
    before: str
    folder: Path
    original: famr.Classifier
    result: famr.Unlearned
    images: torch.Tensor


MAKES = (timm_vit, timm_resnet, hf_vit, torchvision_shufflenet)


@pytest.fixture(scope="module")
def written(digits: Data, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Written]:
    """One unlearned model of each library, from a briefly trained original that was saved and loaded."""
    few = digits.train.take(torch.arange(160))
    assert digits.test is not None
    held_out = digits.test.take(torch.arange(20))
    splits = famr.split(replace(digits, train=few, test=held_out), famr.Request(classes=["3"]))
    method = famr.FAMR(strength=100.0, epochs=2, fisher_images=20)
    models = {}
    for make in MAKES:
        folder = tmp_path_factory.mktemp(make.__name__)
        start = make(folder / "start")
        source = famr.fit(start, few, famr.Training(epochs=1, batch_size=32), device="cpu").save(folder / "original")
        before = file_digest(source / "model.safetensors")
        original = replace(famr.load_model(str(source)), preprocessing=start.preprocessing)  # small images still
        result = famr.forget(original, splits, method, device="cpu", monitor=famr.Monitor(track_retain=False))
        size = original.require_preprocessing()
        images = torch.randn(8, size.channels, *size.crop, generator=torch.Generator().manual_seed(0))
        models[make.__name__] = Written(source, before, result.save(folder / "unlearned"), original, result, images)
    return models


@pytest.fixture(scope="module")
def without_famr(written: dict[str, Written], tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """Logits computed by each library in a process that cannot import famr."""
    folder = tmp_path_factory.mktemp("fresh")
    save_file({name: model.images for name, model in written.items()}, folder / "images.safetensors")
    script = (
        "import sys; sys.modules['famr'] = None; import torch; "
        "from safetensors.torch import load_file as load, save_file as save; "
        f"images, logits = load({str(folder / 'images.safetensors')!r}), {{}}\n"
    )
    for name, model in written.items():
        script += f"folder = {str(model.folder)!r}; {FRESH[model.original.architecture.library]}; model.eval(); "
        script += f"logits[{name!r}] = read(images[{name!r}]).detach()\n"
    script += f"save(logits, {str(folder / 'logits.safetensors')!r})"
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    return load_file(folder / "logits.safetensors")


@pytest.mark.parametrize("name", [make.__name__ for make in MAKES])
def test_a_forgotten_model_loads_in_its_own_library_bit_for_bit(
    name: str, written: dict[str, Written], without_famr: dict[str, torch.Tensor]
) -> None:
    source, before, folder, original, result, images = written[name]
    assert original.labels == LABELS
    before_and_after = zip(original.module.named_parameters(), result.module.parameters(), strict=True)
    changed = [name for (name, old), new in before_and_after if not torch.equal(old, new)]
    assert changed
    assert not any(name.startswith(("head.", "fc.", "classifier.")) for name in changed)
    for buffer_name, buffer in original.module.named_buffers():
        assert torch.equal(buffer, result.module.get_buffer(buffer_name)), buffer_name
    with torch.no_grad():
        ours = result.model.logits(images)
        assert torch.equal(ours, famr.load_model(str(folder)).logits(images))
        assert not torch.equal(ours, original.logits(images))
    assert torch.equal(ours, without_famr[name])
    assert file_digest(source / "model.safetensors") == before


def test_a_timm_folder_also_loads_in_transformers(original: famr.Classifier, original_run: Path) -> None:
    from transformers import AutoModelForImageClassification

    images = torch.randn(8, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    wrapped = AutoModelForImageClassification.from_pretrained(original_run).eval()
    with torch.no_grad():
        assert torch.equal(wrapped(images).logits, original.logits(images))
    assert [wrapped.config.id2label[index] for index in range(10)] == list(LABELS)


def test_a_bare_module_is_saved_and_read_back_with_its_code(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    batch = [(torch.randn(4, 3, 2, 2), torch.tensor([0, 1, 2, 0]))]
    folder = famr.forget(module, forget=batch, device="cpu").save(tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"bare nn\.Module"):
        famr.load_model(str(folder))
    again = famr.load_model(str(folder), module=nn.Sequential(nn.Flatten(), nn.Linear(12, 3)))
    assert not torch.equal(again.module[1].weight, module[1].weight)  # type: ignore[index]
    assert again.module[1].weight.shape == (3, 12)  # type: ignore[index]


def test_a_new_head_depends_on_its_seed_and_the_body_is_kept(original_run: Path) -> None:
    names = ("cat", "dog")
    first, again, other = (famr.new_model(str(original_run), names, seed=seed) for seed in (1, 1, 2))
    old = famr.load_model(str(original_run))
    head = head_tensors(first.architecture)
    assert head == {"head.weight", "head.bias"}
    for name, tensor in first.module.state_dict().items():
        if name in head:
            assert tensor.shape[0] == 2
        else:
            assert torch.equal(tensor, old.module.state_dict()[name]), name
    assert first.digest() == again.digest() != other.digest()


def test_the_old_head_is_kept_for_the_same_classes(original_run: Path) -> None:
    assert famr.new_model(str(original_run), LABELS).digest() == famr.load_model(str(original_run)).digest()


def test_local_weights_set_the_number_of_classes(original: famr.Classifier, original_run: Path, tmp_path: Path) -> None:
    torch.save({"state_dict": original.module.state_dict()}, tmp_path / "weights.pth")
    for file in (original_run / "model.safetensors", tmp_path / "weights.pth"):
        model = famr.load_model("timm:vit_tiny_patch16_224", weights=file, arguments=conftest.SMALL_VIT)
        assert model.digest() == original.digest()
        assert model.labels is None
        assert model.class_count() == 10


def test_half_precision_weights_are_read_into_full_precision(original: famr.Classifier, tmp_path: Path) -> None:
    half = {name: tensor.half() for name, tensor in original.module.state_dict().items()}
    save_file(half, tmp_path / "half.safetensors")
    model = famr.load_model(
        "timm:vit_tiny_patch16_224", weights=tmp_path / "half.safetensors", arguments=conftest.SMALL_VIT
    )
    for name, tensor in model.module.state_dict().items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, half[name].float())


def wrong_weights(original: famr.Classifier) -> dict[str, dict[str, torch.Tensor]]:
    good = original.module.state_dict()
    return {
        "missing": {name: tensor for name, tensor in good.items() if name != "norm.bias"},
        "unexpected": {**good, "extra.weight": torch.zeros(2)},
        "another shape": {**good, "norm.bias": torch.zeros(7)},
        "NaN": {**good, "norm.bias": torch.full_like(good["norm.bias"], float("nan"))},
        "no head": {name: tensor for name, tensor in good.items() if not name.startswith("head")},
    }


@pytest.mark.parametrize("fault", ["missing", "unexpected", "another shape", "NaN", "no head"])
def test_weights_that_do_not_fit_are_refused_by_name(original: famr.Classifier, tmp_path: Path, fault: str) -> None:
    save_file(wrong_weights(original)[fault], tmp_path / "w.safetensors")
    with pytest.raises(CheckpointError, match=fault) as caught:
        famr.load_model("timm:vit_tiny_patch16_224", weights=tmp_path / "w.safetensors", arguments=conftest.SMALL_VIT)
    named = {"missing": "norm.bias", "unexpected": "extra.weight", "another shape": "norm.bias", "NaN": "norm.bias"}
    assert named.get(fault, "vit_tiny") in str(caught.value.where)
    assert caught.value.exit_code == 4


def test_a_run_folder_with_a_missing_tensor_is_refused(original_run: Path, tmp_path: Path) -> None:
    tensors = load_file(original_run / "model.safetensors")
    del tensors["head.bias"]
    (tmp_path / "run").mkdir()
    save_file(tensors, tmp_path / "run/model.safetensors")
    (tmp_path / "run/config.json").write_bytes((original_run / "config.json").read_bytes())
    with pytest.raises(CheckpointError, match=r"head\.bias"):
        famr.load_model(str(tmp_path / "run"))


def test_transformers_may_not_fill_a_missing_head_at_random(tmp_path: Path) -> None:
    hf_vit(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(
        {n: t for n, t in tensors.items() if "classifier" not in n}, tmp_path / "model.safetensors", {"format": "pt"}
    )
    with pytest.raises(CheckpointError, match="missing keys") as caught:
        famr.load_model(f"hf:{tmp_path}")
    assert "classifier" in str(caught.value.where)


def test_files_that_hold_no_weights_get_one_clear_error(original_run: Path, tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (print, ("code in a checkpoint was run",))

    cut = (original_run / "model.safetensors").read_bytes()[:-100]
    files = {
        "cut.safetensors": (cut, "damaged"),
        "empty.safetensors": (b"", "damaged"),
        "noise.pth": (b"\x00\x01noise", "damaged"),
        "code.pth": (pickle.dumps(Bomb()), "damaged"),
        "pointer.safetensors": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS"),
        "weights.h5": (b"", "end in"),
    }
    for name, (content, words) in files.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(CheckpointError, match=words) as caught:
            famr.load_model("timm:test_vit", weights=tmp_path / name)
        assert name in str(caught.value.where)


def test_a_pickle_with_code_is_never_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (print, ("code in a checkpoint was run",))

    torch.save({"state_dict": Bomb()}, tmp_path / "bomb.pth")
    with pytest.raises(CheckpointError):
        famr.load_model("timm:test_vit", weights=tmp_path / "bomb.pth")
    assert "was run" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("spec", "error", "words"),
    [
        ("timm:vit_tiny_patch16_223", RequestError, "vit_tiny_patch16_224"),
        ("torchvision:resnet17", RequestError, "resnet18"),
        ("nowhere/at/all", CheckpointError, "no such model"),
        ("keras:vgg", CheckpointError, "no such model"),
    ],
)
def test_an_unknown_model_is_refused_with_the_nearest_names(spec: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error) as caught:
        famr.load_model(spec)
    assert words in str(caught.value)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        famr.load_model(str(tmp_path))
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(CheckpointError, match="not JSON"):
        famr.load_model(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"hello": 1}), encoding="utf-8")
    with pytest.raises(CheckpointError):
        famr.load_model(str(tmp_path))


def test_preprocessing_of_an_hf_checkpoint_agrees_with_its_processor(tmp_path: Path, digits: Data) -> None:
    from transformers import AutoImageProcessor

    model = hf_vit(tmp_path)
    processor = AutoImageProcessor.from_pretrained(tmp_path)
    assert model.preprocessing is not None
    image = digits.train.decode(0).convert("RGB").resize((40, 30))
    theirs = processor(image, return_tensors="pt")["pixel_values"]
    ours = model.preprocessing.normalise(
        model.preprocessing.fit(torch.from_numpy(__import__("numpy").array(image)).permute(2, 0, 1)[None])
    )
    assert ours.shape == theirs.shape
    assert float((ours - theirs).abs().max()) < 3 / 255 / 0.5


def test_generic_hf_label_names_count_as_none(tmp_path: Path) -> None:
    hf_vit(tmp_path)
    assert famr.load_model(f"hf:{tmp_path}").labels is None


@pytest.mark.parametrize("change", [{"do_rescale": False}, {"do_resize": False}, {"rescale_factor": 1 / 127.5}])
def test_a_processor_that_famr_does_not_reproduce_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    hf_vit(tmp_path)
    file = tmp_path / "preprocessor_config.json"
    stored = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**stored, **change}), encoding="utf-8")
    with pytest.raises(CheckpointError, match="image processor"):
        famr.load_model(f"hf:{tmp_path}")


def test_tied_weights_are_restored(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
            self.two.weight = self.one.weight

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.two(self.one(images))  # type: ignore[no-any-return]

    result = famr.forget(Tied(), forget=[(torch.randn(3, 4), torch.arange(3))], device="cpu")
    folder = result.save(tmp_path / "run")
    again = famr.load_model(str(folder), module=Tied()).module
    assert torch.equal(again.two.weight, result.module.two.weight)  # type: ignore[union-attr]


def test_evaluation_leaves_each_submodule_in_its_own_mode(original: famr.Classifier, digits: Data) -> None:
    from famr.engine.inference import accuracy_on_images

    module = original.copy()
    module.module.train()
    module.module.norm.eval()  # type: ignore[union-attr,operator]
    modes = [part.training for part in module.module.modules()]
    accuracy_on_images(module, digits.train.take(torch.arange(8)), torch.device("cpu"))
    assert [part.training for part in module.module.modules()] == modes
