"""`python -m tailgauge`."""

from tailgauge.cli.main import main

if __name__ == "__main__":
    main()
