"""``python -m saywhere`` is the program ``saywhere``."""

import os
import signal


def main() -> None:
    """Run the program; from its first import on Ctrl-C ends it without a traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # and not ignored, as in the background
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    from saywhere.cli import main as run

    run()


if __name__ == "__main__":
    main()
