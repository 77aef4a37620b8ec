"""The exact certificate of a model that was trained without the forget set in the first place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from famr.certificates.claims import Assumption, Certificate, Claim
from famr.data.request import Request
from famr.data.splits import Splits
from famr.models import Classifier

NOT_SHOWN = (
    "That the earlier models and all copies of them are deleted: those have seen the removed images.",
    "That no other image shows the same thing: duplicates and near-duplicates under other ids remain.",
    "Anything about the weights that the training began with.",
)


def retraining_certificate(model: Classifier, record: Mapping[str, Any], splits: Splits) -> Certificate:
    """From the training's record: what it left out, and that these images are not among those it was trained on."""
    assert splits.retain is not None
    shared = len(set(splits.forget.ids) & set(splits.retain.ids))
    unchanged = model.digest() == record["weights_sha256"]
    claim = Claim(
        "removed_images_trained_on",
        "The model was trained on the retained images alone.",
        "retraining",
        value=float(shared),
        bound=0.0,
        holds=shared == 0 and unchanged,
        assumptions=(
            Assumption.found("The weights are those that the training wrote.", unchanged),
            Assumption("The training's record is true.", "stated"),
            Assumption("The data is what it was then.", "stated"),
            Assumption("The starting weights did not see the removed images.", "stated"),
        ),
        details={
            "removed": len(splits.forget),
            "retrained_on": len(splits.retain),
            "epochs": record["training"]["epochs"],
        },
    )
    subject = {
        "unlearned_sha256": model.digest(),
        "request": Request.from_json(record["without"]).to_json(),
        "forget_images": len(splits.forget),
        "seed": record["seed"],
    }
    return Certificate("exact", (claim,), NOT_SHOWN, subject)
