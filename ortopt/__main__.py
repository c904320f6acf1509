"""``python -m ortopt`` is ``ortopt``."""

from ortopt.cli import main

if __name__ == "__main__":
    main()
