"""Audits: attacks and probes that a hostile reader would run."""
