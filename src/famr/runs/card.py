"""The model card of a run folder: README.md with Hugging Face front matter."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from famr.metrics.tables import COLUMNS, in_percent

if TYPE_CHECKING:
    from famr.config import FAMR
    from famr.data.request import Request
    from famr.metrics.scores import Scores
    from famr.models import Classifier
    from famr.training import Trained
    from famr.unlearn.forget import Unlearned


def plain(text: str) -> str:
    """User text that cannot act as Markdown, HTML or a line of its own.

    >>> plain("a|b <script>\\n# c")
    'a\\\\|b \\\\<script\\\\> \\\\# c'
    """
    spaced = "".join(character if character.isprintable() else " " for character in text)
    return "".join(f"\\{character}" if character in "\\`*_{}[]()<>#|~$!" else character for character in spaced)


def _yaml(value: Any) -> str:
    """A value as JSON, which YAML takes as it is, with what could be markup or is not seen written as an escape.

    >>> print(_yaml(["<b>", "a\\nb", "é"]))
    ["\\U0000003cb\\U0000003e", "a\\nb", "é"]
    """
    text = json.dumps(value, ensure_ascii=False)
    return "".join(c if c.isprintable() and c not in "<>" else f"\\U{ord(c):08x}" for c in text)


def _front_matter(model: Classifier, tags: list[str], facts: Mapping[str, Any] | None = None) -> str:
    """The block that the Hub reads."""
    library = model.architecture.library
    lines = ["---", "pipeline_tag: image-classification"]
    lines += [f"library_name: {library}"] if library != "none" else []
    lines += [f"tags: {json.dumps(tags)}"]
    lines += ["unlearning:", *(f"  {name}: {_yaml(value)}" for name, value in facts.items())] if facts else []
    return "\n".join([*lines, "---", ""])


def _loading(model: Classifier) -> str:
    name = plain(model.architecture.name)
    ways = {
        "timm": '`timm.create_model("local-dir:PATH", pretrained=True)`',
        "transformers": '`AutoModelForImageClassification.from_pretrained("PATH")`',
        "torchvision": f"`torchvision.models.get_model(...)` as config.json says ({name}), then "
        '`load_state_dict(safetensors.torch.load_file("PATH/model.safetensors"))`',
        "none": "your own network class, then `load_state_dict` of model.safetensors",
    }
    return f"Load it with {ways[model.architecture.library]}.\n"


def unlearned_card(result: Unlearned, scores: Scores | None) -> str:
    """What was forgotten, how, and how well."""
    method = result.method
    facts = {
        "method": "FAMR",
        "request": result.request.kind,
        "forgotten_classes": list(result.classes),
        "forgotten_images": None if scores is None else scores.unlearned.counts.get("forget"),
        "earlier_requests": len(result.earlier),
    }
    parts = [
        _front_matter(result.model, ["image-classification", "machine-unlearning", "famr"], facts),
        f"# {plain(result.model.architecture.name)}, without {plain(result.request.describe())}\n",
        f"A trained classifier that was edited to forget {plain(result.request.describe())} with "
        "Forget-Aligned Model Reconstruction (Sanga, Singh, Dubey 2025, arXiv:2506.14515).\n",
        _loading(result.model),
        f"Method: target {method.target}, {_held(method)}, "
        f"{method.optimiser} steps with learning rate {method.settled_rate:g}, {method.epochs} epochs, "
        f"batch {method.batch_size} ({method.reduction}), {method.settled_share:.0%} of the layers, "
        f"{'the head too' if method.edit_head else 'the head unchanged'}, "
        f"seed {result.seed}. Weights moved by {result.drift:.4g} in the Euclidean norm.\n",
    ]
    if result.earlier:
        before = ", ".join(plain(run.request.describe()) for run in result.earlier)
        parts.append(f"It had been made to forget before: {before}.\n")
    if scores is not None:
        models = {"original": scores.original, "unlearned": scores.unlearned, "retrained": scores.retrained}
        parts.append("| model | " + " | ".join(COLUMNS.values()) + " |")
        parts.append("|---|" + "---|" * len(COLUMNS))
        for name, found in models.items():
            cells = [in_percent(column, getattr(found, column, None)) for column in COLUMNS]
            parts.append(f"| {name} | " + " | ".join(cells) + " |")
        gaps = scores.gap or {}
        cells = [in_percent(column, gaps.get(column)) for column in COLUMNS]
        parts += ["| gap to retrained | " + " | ".join(cells) + " |", ""]
    parts.append("Nothing here is a proof that nothing about the forgotten data can be learned from the weights.\n")
    return "\n".join(parts)


def _held(method: FAMR) -> str:
    """What holds the model near the original one, in words."""
    weights, answers = method.settled_strength, method.function_strength
    said = [f"anchor {method.anchor} of strength {weights:g}"] if weights or not answers else []
    if answers:
        said.append(f"answers on up to {method.function_images} retained images a class held with strength {answers:g}")
    return ", ".join(said)


def trained_card(trained: Trained, without: Request | None, metrics: Mapping[str, Any] | None) -> str:
    """What was trained, on what."""
    unseen = f"It was trained without {plain(without.describe())}.\n" if without is not None else ""
    accuracy = (metrics or {}).get("test_accuracy")
    return "\n".join(
        [
            _front_matter(trained.model, ["image-classification", "famr"]),
            f"# {plain(trained.model.architecture.name)}\n",
            f"Trained for {trained.training.epochs} epochs with cross-entropy, seed {trained.seed}.\n",
            unseen,
            f"Test accuracy: {in_percent('test_accuracy', accuracy)}.\n",
            _loading(trained.model),
        ]
    )
