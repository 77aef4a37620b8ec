"""Fuzzers: what famr reads from strangers, fed with anything; only famr's own errors may come back."""
