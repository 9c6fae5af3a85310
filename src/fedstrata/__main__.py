"""``python -m fedstrata`` is the command ``fedstrata``."""

from fedstrata.cli import main

if __name__ == "__main__":  # worker processes import this module again
    main()
