"""What can be claimed about a run, with bounds, and under which assumptions."""
