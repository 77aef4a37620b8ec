"""`python -m famr`, as launchers of several processes call it."""

from famr.cli.main import main

if __name__ == "__main__":
    main()
