"""The CUDA code of all ops compiles and links where there is nvcc, for one architecture, without
torch and without a GPU; and its self-tests say what they find."""

import ctypes
import json
import os
import pathlib
import shutil
import subprocess
import unittest

KERNELS = pathlib.Path(os.environ["DS_KERNELS_DIR"])
DEVICES_OF = {file.parent.name: json.loads(file.read_text(encoding="utf-8"))["devices"]
              for file in KERNELS.glob("*/op.json")}
CUDA_OPS = sorted(op for op, devices in DEVICES_OF.items() if "cuda" in devices)
OK, SKIPPED = 0, 3


def nvcc():
    """As cmake/DsCuda.cmake looks for it."""
    for name in ("CUDACXX", "CUDA_HOME", "CUDA_PATH"):
        path = pathlib.Path(os.environ.get(name) or "/nowhere")
        for found in (path, path / "bin" / "nvcc"):
            if found.is_file():
                return str(found)
    return shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")


@unittest.skipUnless(nvcc(), "nvcc is not on the PATH, in CUDA_HOME or in /usr/local/cuda")
class CudaCode(unittest.TestCase):
    def run_(self, *command):
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                text=True, check=False)
        self.assertEqual(result.returncode, 0, result.stdout[-6000:])

    def test_all_of_it_compiles_links_and_can_be_loaded(self):
        # The folder stays, so that a second run compiles what has changed.
        build = pathlib.Path(os.environ["DS_BUILD_DIR"]) / "cuda_cores"
        help_ = subprocess.run([nvcc(), "--help"], stdout=subprocess.PIPE, text=True, check=True)
        # Nothing runs here, so how well it would is no matter; a third of the time.
        quick = "--Ofast-compile=max" if "--Ofast-compile" in help_.stdout else ""
        launcher = os.environ.get("CMAKE_CXX_COMPILER_LAUNCHER", "")
        self.run_(os.environ["DS_CMAKE"], "-G", "Ninja", "-S", str(KERNELS), "-B", str(build),
                  "-DDS_CUDA=ON", "-DDS_CUDA_ARCHITECTURES=90", "-DCMAKE_BUILD_TYPE=Release",
                  "-DDS_BUILD_TESTS=OFF", f"-DCMAKE_CXX_COMPILER={os.environ['DS_CXX']}",
                  f"-DCMAKE_CUDA_FLAGS={quick}", f"-DCMAKE_CUDA_COMPILER_LAUNCHER={launcher}")
        self.run_(os.environ["DS_CMAKE"], "--build", str(build), "--target", "ds_cuda_cores")
        self.assertGreaterEqual(len(CUDA_OPS), 7)
        for op in CUDA_OPS:
            with self.subTest(op=op):
                library = ctypes.CDLL(str(build / f"ds_{op}_core" / f"libds_{op}_core.so"))
                detail = ctypes.create_string_buffer(300)
                self_test = getattr(library, f"ds_self_test_{op}")
                status = self_test(b"cuda", detail, ctypes.c_ulong(len(detail)))
                self.assertIn(status, (OK, SKIPPED), detail.value)
                self.assertNotEqual(detail.value, b"")
                on_cpu = self_test(b"cpu", detail, ctypes.c_ulong(len(detail)))
                if "cpu" in DEVICES_OF[op]:
                    self.assertEqual(on_cpu, OK, detail.value)
                else:
                    self.assertEqual(on_cpu, SKIPPED)
                    self.assertIn(b"has code for cuda", detail.value)


if __name__ == "__main__":
    unittest.main()
