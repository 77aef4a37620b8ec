"""The bench: methods beside each other and beside retraining, and the paper's tables and figures made again."""
