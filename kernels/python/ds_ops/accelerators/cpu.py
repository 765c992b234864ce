"""The processor, which is always there."""


def count():
    return 1, ""
