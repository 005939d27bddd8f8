"""Lets `python -m tbscope` run the command."""

from tbscope.cli import main

if __name__ == "__main__":
    main()
