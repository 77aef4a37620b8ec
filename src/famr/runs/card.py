"""The model card of a run folder: README.md with Hugging Face front matter."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from famr.models import Classifier


def plain(text: str) -> str:
    """User text that cannot act as Markdown, HTML or a line of its own.

    Args:
        text: Any text.

    >>> plain("a|b <script>\\n# c")
    'a\\\\|b \\\\<script\\\\> \\\\# c'
    """
    spaced = "".join(character if character.isprintable() else " " for character in text)
    return "".join(f"\\{character}" if character in "\\`*_{}[]()<>#|~$!" else character for character in spaced)


def _yaml(value: Any) -> str:
    """A value as JSON, which is valid YAML; markup characters and invisible ones are escaped.

    >>> print(_yaml(["<b>", "a\\nb", "é"]))
    ["\\U0000003cb\\U0000003e", "a\\nb", "é"]
    """
    text = json.dumps(value, ensure_ascii=False)
    return "".join(c if c.isprintable() and c not in "<>" else f"\\U{ord(c):08x}" for c in text)


def front_matter(model: Classifier, tags: list[str], facts: Mapping[str, Any] | None = None) -> str:
    """The YAML block at the top of a model card, which the Hub reads.

    Args:
        model: The model.
        tags: Of the card.
        facts: What the card says about the unlearning run; None: nothing.
    """
    library = model.architecture.library
    lines = ["---", "pipeline_tag: image-classification"]
    lines += [f"library_name: {library}"] if library != "none" else []
    lines += [f"tags: {json.dumps(tags)}"]
    lines += ["unlearning:", *(f"  {name}: {_yaml(value)}" for name, value in facts.items())] if facts else []
    return "\n".join([*lines, "---", ""])


def loading(model: Classifier) -> str:
    """One line on how to load the model in its own library.

    Args:
        model: The model.
    """
    name = plain(model.architecture.name)
    code = {
        "timm": '`timm.create_model("local-dir:PATH", pretrained=True)`',
        "transformers": '`AutoModelForImageClassification.from_pretrained("PATH")`',
        "torchvision": f"`torchvision.models.get_model(...)` as config.json says ({name}), then "
        '`load_state_dict(safetensors.torch.load_file("PATH/model.safetensors"))`',
        "none": "your own network class, then `load_state_dict` of model.safetensors",
    }
    return f"Load it with {code[model.architecture.library]}.\n"
