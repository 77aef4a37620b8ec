"""Export: the unlearned model as ONNX or `torch.export`, on request without the forgotten class, measured again."""
