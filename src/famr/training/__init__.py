"""Training: `fit` for originals and retrained references, and the gradient steps that baselines and audits share."""

from famr.training.supervised import Trained, Training, TrainingRow, fit

__all__ = ["Trained", "Training", "TrainingRow", "fit"]
