"""Signed evidence of a run: a signature over its files, keyed commitments to its forget images, and a ledger."""
