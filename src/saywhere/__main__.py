"""Entry point of the program ``saywhere``, also as ``python -m saywhere``."""

import atexit
import contextlib
import os
import signal
import sys


def main() -> None:
    """Run the program; Ctrl-C ends it without a traceback, even during imports."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not ignored, as it is in the background
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    codes: list[int] = []
    atexit.register(_leave, codes)  # registered first, so that it is called last
    from saywhere.cli import main as run

    try:
        run()
    except SystemExit as end:
        codes += [end.code or 0] if isinstance(end.code, int | None) else []
        raise


def _leave(codes: list[int]) -> None:
    """End the process without the interpreter's shutdown, which takes a twentieth of a short command's time.

    Threads have ended by now, and all other exit handlers have run.
    """
    if codes:
        with contextlib.suppress(OSError, ValueError):  # then Python exits normally and reports the error
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(codes[0])


if __name__ == "__main__":
    main()
