"""`python -m headrace.cli`: the command line of this installation, regardless of the search path."""

from headrace.cli import main

if __name__ == "__main__":
    main()
