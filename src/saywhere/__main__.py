"""``python -m saywhere`` is the program ``saywhere``."""

from saywhere.cli import main

if __name__ == "__main__":
    main()
