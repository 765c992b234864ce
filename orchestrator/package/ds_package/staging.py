"""Staging: pip, digests, our ops."""

import base64
import csv
import errno
import hashlib
import io
import os
import sys

from ds_package.answers import Failure
from ds_package.installed import record_rows
from ds_package.processes import Process, clean_environment, last_lines, run_all


def run_pip(environment, wheels, stage, seconds):
    temporary = environment.path("tmp")
    os.makedirs(temporary, exist_ok=True)
    variables = clean_environment()
    variables["TMPDIR"] = temporary
    argv = [sys.executable, "-I", "-m", "pip", "install", "--no-index", "--no-deps",
            "--no-cache-dir", "--ignore-installed", "--no-warn-script-location", "--root", stage]
    process = run_all([lambda: Process(argv + wheels, variables, seconds)], 1)[0]
    if process.timed_out:
        raise Failure("pip did not end within %d s" % seconds, "give it more time, or look at the "
                      "node's disk")
    if process.status != 0:
        text = process.text()
        errors = [line for line in text.split("\n") if line.startswith("ERROR: ")] or \
            [last_lines(text)]
        help_text = ""
        if "not a supported wheel" in text:
            help_text = "the wheel is for another Python; build it for this one, or name another " \
                        "with --python"
        elif "No space left" in text:
            help_text = "free space in %s" % environment.prefix
        elif "No module named pip" in text:
            help_text = "install pip there: %s -m ensurepip" % sys.executable
        raise Failure("pip failed: %s" % errors[0].replace("ERROR: ", ""), help_text)


def digest_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for piece in iter(lambda: file.read(1 << 20), b""):
            digest.update(piece)
    return base64.urlsafe_b64encode(digest.digest()).decode("ascii").rstrip("=")


def damage_of(info):
    """The first file that is not what the record of a dist-info says; empty: all are."""
    base = os.path.dirname(info)
    rows = record_rows(info)
    if not rows:
        return "%s has no RECORD" % info
    for row in rows:
        if len(row) < 2 or not row[1].startswith("sha256="):
            continue
        path = os.path.join(base, row[0])
        try:
            if digest_of(path) != row[1][len("sha256="):]:
                return "%s is altered: its SHA-256 is not the wheel's" % os.path.normpath(row[0])
        except OSError as error:
            if error.errno == errno.ENOENT:
                return "%s is missing" % os.path.normpath(row[0])
            raise
    return ""


def rewrite_record(info, changed, gone):
    """`changed`: paths relative to site-packages that are new or different."""
    base = os.path.dirname(info)
    rows = [row for row in record_rows(info) if row[0] not in changed and row[0] not in gone]
    for path in sorted(changed):
        full = os.path.join(base, path)
        rows.append([path, "sha256=" + digest_of(full), str(os.path.getsize(full))])
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    with open(os.path.join(info, "RECORD"), "w", encoding="utf-8") as file:
        file.write(out.getvalue())
