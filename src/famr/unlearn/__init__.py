"""FAMR: from a request to an unlearned model."""
