"""Metrics as pure functions of a model's logits."""
