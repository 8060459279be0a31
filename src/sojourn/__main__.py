"""`python -m sojourn`: the command line where its script is not on the path."""

from sojourn.cli import main

if __name__ == "__main__":
    main()
