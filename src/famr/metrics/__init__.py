"""Numbers about a model's answers, as pure functions of tensors."""
