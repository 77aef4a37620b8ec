"""The paper's five metrics of a model, and the gaps to a retrained model."""
