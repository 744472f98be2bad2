"""``python -m attnflow`` is the command line."""

from attnflow.cli import main

if __name__ == "__main__":
    main()
