#!/usr/bin/env python3
"""How long the GPU ops take to compile, beside DeepSpeed's of the same name.

  tests/bench/gpu/compile_time.py DEEPSPEED OUT [--arch 90] [--jobs N] [--json FILE]

DEEPSPEED is an unpacked source distribution, OUT a folder that is emptied: ours come to OUT/ours,
DeepSpeed's modules to OUT/deepspeed, where bench.py --deepspeed finds them. Each set is compiled
with the flags that its own build gives, for one architecture, on the same number of cores, all of
its ops at once; what does not compile is named and left out of both sums.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

KERNELS = pathlib.Path(__file__).resolve().parents[3] / "kernels"
MACROS = ["-DVERSION_GE_1_1", "-DVERSION_GE_1_3", "-DVERSION_GE_1_5", "-DBF16_AVAILABLE"]
CXX = ["-O3", "-std=c++17", "-g", "-Wno-reorder"] + MACROS
NVCC = ["-O3", "--use_fast_math"] + MACROS
OPTIMIZER = ["-lineinfo"]
KERNEL = ["-std=c++17", "-U__CUDA_NO_HALF_OPERATORS__", "-U__CUDA_NO_HALF_CONVERSIONS__",
          "-U__CUDA_NO_HALF2_OPERATORS__", "--threads=8"]

# Of each op: sources and include folders under csrc/, flags of nvcc. A version may lack a source:
# 0.19.8 has no fake_quantizer.cu any more.
OPS = {
    "fused_adam": (["adam/fused_adam_frontend.cpp", "adam/multi_tensor_adam.cu"],
                   ["includes", "adam"], OPTIMIZER),
    "fused_lion": (["lion/fused_lion_frontend.cpp", "lion/multi_tensor_lion.cu"],
                   ["includes", "lion"], OPTIMIZER),
    "fused_lamb": (["lamb/fused_lamb_cuda.cpp", "lamb/fused_lamb_cuda_kernel.cu"], ["includes"],
                   OPTIMIZER),
    "quantizer": ([f"quantization/{f}" for f in (
        "pt_binding.cpp", "fake_quantizer.cu", "quantize.cu", "quantize_intX.cu", "dequantize.cu",
        "swizzled_quantize.cu", "quant_reduce.cu")], ["includes"], KERNEL),
    "fp_quantizer": (["fp_quantizer/fp_quantize_impl.cu", "fp_quantizer/fp_quantize.cpp"],
                     ["fp_quantizer/includes", "includes"], KERNEL),
    "random_ltd": ([f"random_ltd/{f}" for f in (
        "pt_binding.cpp", "gather_scatter.cu", "slice_attn_masks.cu", "token_sort.cu")],
                   ["includes"], KERNEL),
    "spatial_inference": (["spatial/csrc/opt_bias_add.cu", "spatial/csrc/pt_binding.cpp"],
                          ["spatial/includes", "includes"], KERNEL),
}


def compile_one(op, source, out, arch):
    """In a process of its own: torch's builder of extensions, which DeepSpeed's is based on."""
    from torch.utils import cpp_extension
    sources, includes, flags = OPS[op]
    os.environ["TORCH_CUDA_ARCH_LIST"] = f"{arch[:-1]}.{arch[-1]}"
    cpp_extension.load(
        f"deepspeed_{op}",
        [str(source / "csrc" / s) for s in sources if (source / "csrc" / s).exists()],
        extra_include_paths=[str(source / "csrc" / i) for i in includes], extra_cflags=CXX,
        extra_cuda_cflags=NVCC + flags, extra_ldflags=["-lcurand"], build_directory=str(out),
        is_python_module=False, verbose=True)


def deepspeed(source, out, arch, jobs):
    running = {}
    started = time.monotonic()
    # All at once: the ops' own parallelism is little beside that of the largest.
    environment = {**os.environ, "MAX_JOBS": str(jobs)}
    for op in OPS:
        folder = out / op
        folder.mkdir(parents=True)
        log = open(folder / "log", "wb")
        running[op] = subprocess.Popen(
            [sys.executable, __file__, str(source), str(folder), "--arch", arch, "--one", op],
            stdout=log, stderr=log, env=environment)
    took, failed = {}, {}
    while running:
        for op, process in list(running.items()):
            if process.poll() is None:
                continue
            del running[op]
            if process.returncode == 0:
                took[op] = time.monotonic() - started
                module = out / op / f"deepspeed_{op}.so"
                shutil.copy(module, out / module.name)
            else:
                text = (out / op / "log").read_text(errors="replace")
                lines = [line for line in text.splitlines() if "error" in line.lower()]
                failed[op] = (lines or [f"exit status {process.returncode}"])[0]
        time.sleep(0.2)
    return took, failed


def ours(ops, out, arch, jobs):
    subprocess.run(["cmake", "-G", "Ninja", "-S", str(KERNELS), "-B", str(out), "-DDS_CUDA=ON",
                    f"-DDS_OPS={';'.join(ops)}", f"-DDS_CUDA_ARCHITECTURES={arch}",
                    "-DCMAKE_BUILD_TYPE=Release"], check=True, stdout=subprocess.DEVNULL)

    def ninja():
        started = time.monotonic()
        subprocess.run(["ninja", "-C", str(out), f"-j{jobs}"], check=True,
                       stdout=subprocess.DEVNULL)
        return time.monotonic() - started
    first = ninja()
    return first, ninja()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("deepspeed", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--arch", default="90")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        compile_one(options.one, options.deepspeed.resolve(), options.out, options.arch)
        return
    shutil.rmtree(options.out, ignore_errors=True)
    took, failed = deepspeed(options.deepspeed.resolve(), options.out.resolve() / "deepspeed",
                             options.arch, options.jobs)
    first, again = ours(sorted(took), options.out / "ours", options.arch, options.jobs)
    theirs = max(took.values())
    report = {"arch": options.arch, "jobs": options.jobs, "ops": sorted(took), "ours_s": first,
              "ours_again_s": again, "deepspeed_s": theirs, "deepspeed_each_s": took,
              "deepspeed_failed": failed, "ratio": first / theirs}
    print(f"{', '.join(report['ops'])} for sm_{options.arch} on {options.jobs} cores: "
          f"{first:.1f} s, with nothing changed {again:.2f} s; DeepSpeed's {theirs:.1f} s: "
          f"{first / theirs:.3f} of it")
    for op, why in failed.items():
        print(f"DeepSpeed's {op} does not compile: {why}")
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
