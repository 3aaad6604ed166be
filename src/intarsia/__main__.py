"""`python -m intarsia`, the same as the command `intarsia`."""

from intarsia.cli.main import main

if __name__ == "__main__":
    main()
