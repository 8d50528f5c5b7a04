"""`python -m tailgauge`."""

from tailgauge.cli import main

if __name__ == "__main__":
    main()
