"""The one error that a user is meant to see."""


class TrimtabError(ValueError):
    """Wrong input: one line that says what was wrong, where, and what to do.

    The command line prints it on standard error and exits with code 2; a library user catches a
    ``ValueError``. It lives apart from :mod:`trimtab.types` so that the robot runtime, which has no
    torch, can raise it too.
    """

    exit_code = 2

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(str(message).split()))


class Stopped(TrimtabError):
    """Work that was asked to stop (SIGTERM), after it saved what it needs to go on."""

    exit_code = 143  # 128 and the signal's number, as a shell would report it
