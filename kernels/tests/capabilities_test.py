"""ds_ops.supports(): what is installed, loads and has a device, asked late."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

KERNELS = pathlib.Path(os.environ["DS_KERNELS_DIR"])


class Capabilities(unittest.TestCase):
    def setUp(self):
        self.prefix = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.prefix)
        shutil.copytree(KERNELS / "python", self.prefix / "python")
        built = pathlib.Path(os.environ["DS_OPS_BINARY_DIR"]) / "ds_utils" / "libds_utils.so"
        (self.prefix / "lib").mkdir()
        for op, devices in (("utils", ["cpu"]), ("wheels", ["wheel"]), ("both", ["wheel", "cpu"]),
                            ("fast", ["cuda"])):
            (self.prefix / "ops" / op).mkdir(parents=True)
            (self.prefix / "ops" / op / "op.json").write_text(
                json.dumps({"name": op, "capability": f"op.{op}", "devices": devices}))
            # One library under all names: torch takes a file once.
            (self.prefix / "lib" / f"libds_{op}.so").symlink_to(built)

    def ask(self, code, **environment):
        result = subprocess.run(
            [sys.executable, "-c", "import sys; sys.path.insert(0, sys.argv[1]); "
             "import ds_ops\n" + code, self.prefix / "python"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment})
        self.assertEqual(result.returncode, 0, result.stdout)
        return result.stdout

    def test_an_accelerator_is_one_file(self):
        text = "print(ds_ops.supports('op.wheels'), ds_ops.why_not('op.wheels'))"
        self.assertIn("no such accelerator", self.ask(text))
        (self.prefix / "python/ds_ops/accelerators/wheel.py").write_text(
            "def count():\n    print('looked')\n    return 3, ''\n")
        self.assertEqual(self.ask(text).split(), ["looked", "True"])

    def test_devices_are_looked_for_when_an_op_for_them_is_asked_about_and_once(self):
        (self.prefix / "python/ds_ops/accelerators/wheel.py").write_text(
            "def count():\n    print('looked')\n    return 0, 'it has come off'\n")
        self.assertEqual(self.ask("print(ds_ops.supports('op.utils'))"), "True\n")
        said = self.ask("print(ds_ops.capabilities()); print(ds_ops.why_not('op.wheels'))",
                        CUDA_VISIBLE_DEVICES="")
        self.assertEqual(said.count("looked"), 1)
        self.assertIn("['op.both', 'op.utils']", said)
        self.assertIn("(wheel: it has come off)", said)

    def test_what_is_not_there_is_said(self):
        self.assertIn("no op with the capability op.unheard_of",
                      self.ask("print(ds_ops.why_not('op.unheard_of'))"))
        self.assertIn("cuda: ", self.ask("print(ds_ops.why_not('op.fast'))",
                                         CUDA_VISIBLE_DEVICES=""))

    def test_neither_importing_nor_asking_starts_CUDA(self):
        self.assertEqual(self.ask("import torch; ds_ops.capabilities(); "
                                  "print(torch.cuda.is_initialized())"), "False\n")


if __name__ == "__main__":
    unittest.main()
