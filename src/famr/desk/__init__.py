"""The deletion desk: requests as records, carried out once, in a chain of runs that is watched."""
