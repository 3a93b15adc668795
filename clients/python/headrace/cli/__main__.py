"""`python -m headrace.cli`: the command line of this very installation, whatever the path says."""

from headrace.cli import main

if __name__ == "__main__":
    main()
