"""Run folders: what a run leaves on disk."""
