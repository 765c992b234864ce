"""The real DeepSpeed, with compiled ops and with ours, in the environments that
scripts/dev/deepspeed-environment makes. One that is not there is skipped."""

import ast
import json
import os
import pathlib
import re
import shutil
import sys
import tempfile
import unittest
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from greet import differences, run, site_of, snapshot  # noqa: E402
from package_test import ds_package  # noqa: E402

CACHE = pathlib.Path(os.environ.get("DSI_DEEPSPEED_CACHE") or pathlib.Path(
    os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "ds-install/deepspeed")

# A DeepSpeed program like any other, against torch's own optimizer.
STEPS = """
import torch
from deepspeed.ops.adam import DeepSpeedCPUAdam
torch.manual_seed(0)
a = torch.nn.Parameter(torch.randn(3001))
b = torch.nn.Parameter(a.detach().clone())
ours = DeepSpeedCPUAdam([a], lr=1e-2, weight_decay=0.1)
theirs = torch.optim.AdamW([b], lr=1e-2, weight_decay=0.1)
for _ in range(5):
    g = torch.randn(3001)
    a.grad, b.grad = g.clone(), g.clone()
    ours.step()
    theirs.step()
torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
print("\\nstepped on", ours.ds_opt_adam.__file__)
"""


# The module that DeepSpeed's own builder of each op loads.
LOADS = """
import importlib, inspect, json
from deepspeed.accelerator import get_accelerator
from deepspeed.git_version_info import installed_ops
builders = importlib.import_module(get_accelerator().op_builder_dir())
found = {}
for name, builder in inspect.getmembers(builders, inspect.isclass):
    op = getattr(builder, "NAME", None)
    if op and installed_ops.get(op):
        found[op] = str(builder().load().__file__)
print("loaded", json.dumps({"installed": installed_ops, "from": found}))
"""


class DeepSpeed:
    """Run for each of the two pairs below."""

    KIND = ""
    # All that have code for the CPU.
    STAND_INS = ("async_io", "cpu_adagrad", "cpu_adam", "cpu_lion", "deepspeed_ccl_comm",
                 "deepspeed_shm_comm", "pin_memory", "random_ltd", "spatial_inference", "utils")

    @classmethod
    def setUpClass(cls):
        cls.made = CACHE / cls.KIND
        if not (cls.made / "complete").exists():
            raise unittest.SkipTest("there is no %s; scripts/dev/deepspeed-environment %s makes it"
                                    % (cls.made, cls.KIND))

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="ds-deepspeed-"))
        self.addCleanup(shutil.rmtree, str(self.folder), True)
        # An environment of its own that sees the large one's packages.
        self.environment = self.folder / "env"
        large = self.made / "env"
        run(large / "bin" / "python", "-m", "venv", "--system-site-packages", self.environment)
        self.site = site_of(self.environment)
        (self.site / "large.pth").write_text(str(site_of(large)) + "\n")
        # As ds-install has built it, manifest and all.
        self.release = self.folder / "release"
        shutil.copytree(str(self.made / "release"), str(self.release))
        self.wheel = next((self.release / "wheels").glob("deepspeed-*.whl"))

    def ds(self, *words):
        return ds_package(self.environment, *words)

    def stepped_on(self):
        text = run(self.environment / "bin" / "python", "-B", "-c", STEPS, cwd="/")
        return pathlib.Path(text.split("stepped on ")[1].strip()).name

    def test_a_step_agrees_with_torch_on_the_prebuilt_op_and_on_ours(self):
        answer = self.ds("install", "--release", self.release, "--release-id", "plain")
        self.assertEqual(answer.result, "installed", answer.text)
        for row in answer.get("ops"):
            self.assertEqual(row["status"], "ok", answer.text)
        verdicts = answer.get("ds_report")["verdicts"]
        self.assertEqual(verdicts["cpu_adam"], [True, True])
        self.assertTrue(self.stepped_on().endswith(".so"))
        before = snapshot(self.environment)

        answer = self.ds("install", "--release", self.release, "--release-id", "ours", "--drop-in")
        self.assertEqual(answer.result, "installed", answer.text)
        for op in self.STAND_INS:
            self.assertEqual(answer.row(op)["status"], "ok", answer.text)
        self.assertEqual(self.stepped_on(), "cpu_adam_op.py")
        loaded = json.loads(run(self.environment / "bin" / "python", "-B", "-c", LOADS,
                                cwd="/").split("loaded ")[1])
        self.assertEqual({op: loaded["installed"].get(op) for op in self.STAND_INS},
                         {op: True for op in self.STAND_INS})
        self.assertIn("cpu_adam", loaded["from"])
        for op in set(self.STAND_INS) & set(loaded["from"]):
            self.assertFalse(loaded["from"][op].endswith(".so"), loaded)
        report = self.ds("report", "--package", "deepspeed")
        self.assertEqual(report.get("damage"), "", report.text)
        self.assertTrue(report.get("drop_in"))

        back = self.ds("rollback", "--package", "deepspeed")
        self.assertEqual(back.get("to"), "plain", back.text)
        self.assertEqual(differences(before, snapshot(self.environment)), [])
        self.assertTrue(self.stepped_on().endswith(".so"))

    def test_ds_report_says_okay_of_what_cannot_be_loaded_and_the_row_says_both(self):
        answer = self.ds("install", "--release", self.release, "--release-id", "plain")
        self.assertEqual(answer.result, "installed", answer.text)
        library = next((self.site / "deepspeed/ops/adam").glob("cpu_adam_op.*.so"))
        library.write_bytes(b"")
        report = self.ds("report", "--package", "deepspeed")
        row = report.row("cpu_adam")
        self.assertEqual(row["status"], "damaged", report.text)
        self.assertIn("ds_report says OKAY", row["detail"])
        self.assertIn("cpu_adam_op", report.get("damage"))

    def test_its_own_build_compiles_no_op_that_was_not_asked_for_and_ours_does(self):
        tree = self.folder / "source"
        tree.mkdir()
        run("tar", "-C", tree, "--strip-components=1", "-xf",
            next((self.made / "sdist").glob("deepspeed-*.tar.gz")))
        words = (self.made / "variables").read_text().split()
        words = [word for word in words if not word.startswith("DS_BUILD_")]
        text = run("env", *words, self.environment / "bin" / "python", "-B", "setup.py", "--version",
                   cwd=tree)
        ops = ast.literal_eval(re.search(r"^Install Ops=(.*)$", text, re.M).group(1))
        self.assertIn("cpu_adam", ops)
        self.assertFalse(any(ops.values()), ops)
        modules = [name for name in zipfile.ZipFile(self.wheel).namelist() if name.endswith(".so")]
        self.assertTrue(any("cpu_adam_op" in name for name in modules), modules)

    def test_a_wheel_without_ops_runs_on_ours(self):
        # What install.sh builds: no op at all.
        stripped = self.folder / self.wheel.name
        code = ("import re, sys, zipfile\n"
                "old = zipfile.ZipFile(sys.argv[1]); new = zipfile.ZipFile(sys.argv[2], 'w')\n"
                "for i in old.infolist():\n"
                "    b = old.read(i)\n"
                "    if i.filename.endswith('.so'): continue\n"
                "    if i.filename.endswith('RECORD'):\n"
                "        b = b'\\n'.join(l for l in b.split(b'\\n') if b'.so,' not in l\n"
                "                        and b'git_version_info_installed' not in l)\n"
                "    if i.filename.endswith('git_version_info_installed.py'):\n"
                "        b = re.sub(rb\"'cpu_adam': (1|True)\", b\"'cpu_adam': False\", b)\n"
                "    new.writestr(i.filename, b)\n"
                "new.close()\n")
        run(sys.executable, "-c", code, self.wheel, stripped)
        shutil.copy(str(stripped), str(self.wheel))
        manifest = json.loads((self.release / "manifest.json").read_text())
        manifest["packages"][0]["modules"] = []
        (self.release / "manifest.json").write_text(json.dumps(manifest))
        answer = self.ds("install", "--release", self.release, "--release-id", "x", "--drop-in")
        self.assertEqual(answer.result, "installed", answer.text)
        self.assertEqual(self.stepped_on(), "cpu_adam_op.py")


class OldDeepSpeedTest(DeepSpeed, unittest.TestCase):
    KIND = "old"
    # Those that 0.10.3 has a builder for.
    STAND_INS = ("async_io", "cpu_adagrad", "cpu_adam", "deepspeed_ccl_comm", "random_ltd",
                 "spatial_inference")


class NewDeepSpeedTest(DeepSpeed, unittest.TestCase):
    KIND = "new"


if __name__ == "__main__":
    program = unittest.main(exit=False)
    ran = program.result.testsRun - len(program.result.skipped)
    sys.exit(1 if not program.result.wasSuccessful() else 0 if ran > 0 else 77)
