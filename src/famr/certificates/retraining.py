"""The exact certificate of a model that was trained without the forget set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from famr.certificates.claims import Assumption, Certificate, Statement
from famr.data.request import Request
from famr.data.splits import Splits
from famr.models import Classifier

NOT_SHOWN = (
    "That the earlier models and all copies of them are deleted: those were trained on the removed images.",
    "That no other image shows the same thing: duplicates and near-duplicates under other ids remain.",
    "Anything about the initial weights of the training.",
)
TRAINED_ON = Statement("removed_images_trained_on", "The model was trained on the retained images alone.", "retraining")


def retraining_certificate(model: Classifier, record: Mapping[str, Any], splits: Splits) -> Certificate:
    """Compare the training's record with the sets: no removed image may be among those of the training.

    Args:
        model: The retrained model.
        record: training/run.json.
        splits: The removed images as the forget set, and the retained images.
    """
    assert splits.retain is not None
    shared = len(set(splits.forget.ids) & set(splits.retain.ids))
    unchanged = model.digest() == record["weights_sha256"]
    claim = TRAINED_ON.claim(
        float(shared),
        0.0,
        holds=shared == 0 and unchanged,
        assumptions=(
            Assumption.checked("The weights are those that the training wrote.", unchanged),
            Assumption("The training's record is true.", "stated"),
            Assumption("The data has not changed since.", "stated"),
            Assumption("The initial weights were not trained on the removed images.", "stated"),
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
