"""``python -m mtp_bench``."""

from mtp_bench.cli import main

if __name__ == "__main__":
    main()
