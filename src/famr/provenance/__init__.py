"""Evidence: a run folder bound by a signature, its forgotten images by keyed commitments, its place by a ledger."""
