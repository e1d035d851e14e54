"""`python -m samebits` is the command `samebits`."""

from samebits.cli.main import main

if __name__ == "__main__":
    main()
