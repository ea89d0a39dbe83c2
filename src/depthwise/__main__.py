"""``python -m depthwise``: the command line."""

from depthwise.cli.main import main

if __name__ == "__main__":
    main()
