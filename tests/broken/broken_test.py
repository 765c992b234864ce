"""Broken installs, each made for real on a host of scripts/cluster, or on this machine where there can be
none: what ds_report of DeepSpeed says of the same library, and what ours says. Ours has to find every one, with its cause, and to be silent about healthy
ones. The table in orchestrator/docs/broken-installs.md is what this test saw:
DSI_UPDATE_GOLDEN=1 writes it anew.

DeepSpeed's side runs where scripts/dev/deepspeed-environment has made an environment, or where
DSI_BROKEN_DEEPSPEED names a Python that can import deepspeed; without one that column is what it was
when the table was written."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import breakages  # noqa: E402
from installed import DeepSpeed, Host, Site, TABLE  # noqa: E402


def rows_of(text):
    """{name: (ds_report, ours)} of the table."""
    rows = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if line.startswith("| ") and len(cells) == 4 and cells[0] not in ("what is broken", "healthy"):
            rows[cells[0]] = cells
    return rows


class Broken(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # Hosts have a /tmp of their own.
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="ds-broken-", dir="/var/tmp"))
        cls.addClassCleanup(shutil.rmtree, str(cls.folder), True)
        host = Host.up()
        if host:
            cls.addClassCleanup(host.down)
        elif os.geteuid() == 0:
            print("no host of scripts/cluster: everything is done on this machine")
        cls.site = Site(cls.folder, host)
        cls.deepspeed = DeepSpeed.found(cls.folder)
        if cls.deepspeed:
            cls.addClassCleanup(cls.deepspeed.end)
        cls.seen = {}

    def test_1_every_breakage_is_found_with_its_cause(self):
        self.assertGreaterEqual(len(breakages.BROKEN), 40)
        for case in breakages.BROKEN:
            if case.needs_root and os.geteuid() != 0:
                continue
            with self.subTest(case.name):
                said = self.site.say(case)
                theirs = self.deepspeed.say(case, self.site) if self.deepspeed else None
                self.seen[case.name] = (case, theirs, said)
                self.assertRegex(said, case.cause)

    def test_2_no_healthy_variant_raises_an_alarm(self):
        self.assertGreaterEqual(len(breakages.HEALTHY), 10)
        for case in breakages.HEALTHY:
            if case.needs_root and os.geteuid() != 0:
                continue
            with self.subTest(case.name):
                said = self.site.say(case)
                theirs = self.deepspeed.say(case, self.site) if self.deepspeed else None
                self.seen[case.name] = (case, theirs, said)
                self.assertEqual(said, "ok")

    def test_3_the_table_in_the_docs_is_what_was_seen(self):
        old = rows_of(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else {}
        update = os.environ.get("DSI_UPDATE_GOLDEN")
        text = breakages.HEAD
        for title, cases in (("what is broken", breakages.BROKEN), ("healthy", breakages.HEALTHY)):
            text += f"\n| {title} | how | ds_report says | ours says |\n|---|---|---|---|\n"
            for case in cases:
                _, theirs, said = self.seen.get(case.name, (case, None, None))
                kept = old.get(case.name, ["", "", "not run", "not run"])
                said = kept[3] if said is None else said.replace("|", "\\|")
                text += f"| {case.name} | {case.how} | {theirs or kept[2]} | {said} |\n"
        if update:
            TABLE.write_text(text, encoding="utf-8")
            return
        new = rows_of(text)
        self.assertEqual(list(new), list(old), "if this is wanted, run with DSI_UPDATE_GOLDEN=1")
        for name, cells in new.items():
            # Causes name versions and paths of the machine; the verdict in front is the same.
            self.assertEqual(cells[3].split(":")[0], old[name][3].split(":")[0], name)
            if self.deepspeed:
                self.assertEqual(cells[2], old[name][2], name)


if __name__ == "__main__":
    unittest.main()
