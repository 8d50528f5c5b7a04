"""`tailgauge` and `python -m tailgauge`."""

import sys


def main() -> None:
    """Load the commands and run one; Ctrl-C while they are loaded ends without a traceback."""
    try:
        from tailgauge.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(130)  # as Exit.INTERRUPTED, which may not be loaded
    run()


if __name__ == "__main__":
    main()
