"""Classifiers by name: `load_model("timm:NAME")`, `"hf:ID-or-folder"`, `"torchvision:NAME"`, or a run folder."""

from famr.models.classifier import Classifier
from famr.models.loading import load_model, new_model

__all__ = ["Classifier", "load_model", "new_model"]
