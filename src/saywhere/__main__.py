"""``python -m saywhere`` is the program ``saywhere``."""

import atexit
import contextlib
import os
import signal
import sys


def main() -> None:
    """Run the program; from its first import on Ctrl-C ends it without a traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # and not ignored, as in the background
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    codes: list[int] = []
    atexit.register(_leave, codes)  # before any other, so that it is called last
    from saywhere.cli import main as run

    try:
        run()
    except SystemExit as end:
        codes += [end.code or 0] if isinstance(end.code, int | None) else []
        raise


def _leave(codes: list[int]) -> None:
    """End the process at once, without taking everything down, which takes a twentieth of a short command.

    Threads have ended by now, and what others wanted to be called at the end was called.
    """
    if codes:
        with contextlib.suppress(OSError, ValueError):  # which Python reports, when it ends by itself
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(codes[0])


if __name__ == "__main__":
    main()
