"""Entry point of `python -m tbscope`: the command."""

from tbscope.cli import main

if __name__ == "__main__":
    main()
