"""What can honestly be said about a run, and under which assumptions."""
