"""Audits: attacks and probes against an unlearned model, compared with models retrained without the forget set."""
