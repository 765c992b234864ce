"""What is said to the agent: JSON objects, one a line; and the failures that are expected."""

import json
import os
import re
import stat

SCHEMA = 1
BY_HAND = "by hand"
KEPT_HISTORY = 20
PARTIAL = ".ds-partial"  # The end of the name of a file that is being copied.
AT_ONCE = 4
# The worker's exit status when another run holds the lock, and when a run whose worker was killed
# had done what it was to do.
BUSY = 75
COMMITTED = 76


class Failure(Exception):
    """An expected failure: what happened, and what the reader can do."""

    def __init__(self, what, help_text=""):
        super().__init__(what)
        self.what = what
        self.help = help_text


class Busy(Failure):
    """Another run holds the lock; what is half done is that one's."""


class HeadLeft(Failure):
    def __init__(self):
        super().__init__("the head left before the switch")


def normalised(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def find_descriptor():
    # Not inherited by any program that is started from here.
    try:
        if stat.S_ISFIFO(os.fstat(3).st_mode):
            return os.dup(3)
    except OSError:
        pass
    return os.dup(1)


ANSWER = [-1]
QUIET = [False]  # Of the second worker only a result is told.


def open_answer():
    ANSWER[0] = find_descriptor()


def say(**message):
    if QUIET[0] and "result" not in message:
        return
    try:
        os.write(ANSWER[0], (json.dumps(message) + "\n").encode("utf-8"))
    except OSError:
        pass  # Nobody listens any more; what has to be done is done all the same.
