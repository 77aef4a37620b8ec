"""Export the unlearned model as ONNX or `torch.export`, with or without the forgotten class, and measure it again."""
