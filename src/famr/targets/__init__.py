"""What the model is to predict on the forget set."""
