"""The NEON path of the CPU optimizers and of attention: compiled for 64-bit Arm and run by qemu-user. Skips where the
cross compiler (g++-aarch64-linux-gnu) or qemu (qemu-user) is not there."""

import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

KERNELS = pathlib.Path(os.environ["DS_KERNELS_DIR"])
CXX, QEMU = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64")
# The kernels of fused_adam and fused_lion are those of cpu_adam and cpu_lion.
OPS = ("cpu_adagrad", "cpu_adam", "cpu_lion", "evoformer_attn", "fused_lamb")


@unittest.skipUnless(CXX, "there is no aarch64-linux-gnu-g++")
@unittest.skipUnless(QEMU, "there is no qemu-aarch64")
class Neon(unittest.TestCase):
    def test_the_path_gives_the_bits_of_the_scalar_code_and_right_numbers(self):
        with tempfile.TemporaryDirectory() as folder:
            def compile_one(source):
                target = f"{folder}/{source.stem}.o"
                done = subprocess.run(
                    [CXX, "-std=c++17", "-O1", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror",
                     f"-I{KERNELS / 'common'}", *(f"-I{KERNELS / op}" for op in own(source)),
                     "-c", source, "-o", target],
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                self.assertEqual(done.returncode, 0, done.stdout)
                return target

            def own(source):
                return OPS if source.parent.name == "tests" else (source.parent.name,)

            sources = [KERNELS / op / f"{op}.cpp" for op in OPS]
            sources.append(KERNELS / "tests" / "neon_program.cc")
            with concurrent.futures.ThreadPoolExecutor(2) as pool:
                objects = list(pool.map(compile_one, sources))
            program = f"{folder}/program"
            subprocess.run([CXX, "-static", *objects, "-o", program], check=True)
            ran = subprocess.run([QEMU, program], stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, text=True, timeout=120)
            self.assertEqual(ran.returncode, 0, ran.stdout)
            self.assertEqual(ran.stdout.count("neon+scalar"), len(OPS), ran.stdout)


if __name__ == "__main__":
    unittest.main()
