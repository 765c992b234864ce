"""The program that a benchmark measures, for those that run it."""

import argparse
import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]


def _program(path):
    if not os.access(path, os.X_OK) or not os.path.isfile(path):
        raise argparse.ArgumentTypeError(f"{path} is no program; scripts/run --help builds build/release/ds-install")
    return os.path.abspath(path)


def add_program_option(parser):
    """--program PATH, by default the release build's; one that is not there ends the benchmark before it begins."""
    parser.add_argument("--program", type=_program, default=str(ROOT / "build/release/ds-install"),
                        help="ds-install; default: build/release/ds-install")
