"""``python -m attnflow`` is the command line."""

from attnflow.commands.app import main

if __name__ == "__main__":
    main()
