"""The paper's five metrics of a model, and its gaps to a retrained model."""
