"""What can be broken, and ten variants that are not. `cause` is what ours has to say, as a pattern."""

import dataclasses
import os
import struct
import typing

from installed import compile_

HEAD = """# Broken installs: what ds_report says, and what ours says

Each was made for real, on a host with an sshd of its own (`scripts/cluster`), by `tests/broken`, which
writes this table: a library of one op with one fault put where DeepSpeed's `cpu_adam` is and into a release
of ours, or the machine made as it should not be. The first word of ours is its verdict: an op's status in
the report, `refused` before anything changes, or `warned`. `ds_report` was run with each library; where the
fault is in what it has no counterpart of, there is a dash. For it `[YES] [OKAY]` is installed and
compatible. As run: DeepSpeed 0.19.8, and 0.14.2 said the same; its report's own code, which never loads an
op.
"""


@dataclasses.dataclass
class Case:
    name: str
    how: str
    cause: str = ""
    op: str = "adam"
    top: str = ""
    body: str = ""
    test: str = ""                       # Name of the self-test, if another.
    flags: typing.Sequence = ()          # Of the linker; {folder} is the case's.
    shipped: typing.Callable = None      # Of the library, before it is packed.
    before: typing.Callable = None       # Of the case's folder, before anything is made.
    damage: typing.Callable = None       # Of the installed library.
    after: typing.Callable = None        # Of the prefix, after it was installed.
    then: typing.Sequence = ("report",)
    files: typing.Sequence = ()          # More files of the release.
    manifest: dict = dataclasses.field(default_factory=dict)
    built_with: dict = dataclasses.field(default_factory=dict)
    environment: dict = dataclasses.field(default_factory=dict)
    inside: str = ""                     # A shell's words in a mount namespace of its own.
    prefix: str = "there"
    needs_root: bool = False
    all_fail: bool = False
    is_library: bool = True

    def __post_init__(self):
        if self.damage and not self.after:
            self.after = lambda prefix: self.damage(prefix / f"current/lib/libds_{self.op}.so")
        if self.inside:
            self.needs_root = True


def machine(name, how, cause="", **more):
    return Case(name, how, cause, is_library=False, **more)


# ---- ways to break a file. Installed files are hard links of the store: a copy takes their place.

def rewrite(change):
    def damage(path):
        content = bytearray(path.read_bytes())
        content = change(content)
        path.unlink()
        path.write_bytes(bytes(content))
    return damage


def flip(content):
    content[len(content) // 2] ^= 4
    return content


def field(offset, text):
    def change(content):
        content[offset:offset + len(text)] = text
        return content
    return rewrite(change)


def remove(path):
    path.unlink()


def dangle(path):
    path.unlink()
    path.symlink_to("/nowhere/libds_adam.so")


def not_allowed_isa(content):
    """A level that no processor has: bit 4 of GNU_PROPERTY_X86_ISA_1_NEEDED."""
    at = content.find(struct.pack("<II", 0xC0008002, 4))
    assert at > 0
    content[at + 8:at + 12] = struct.pack("<I", 0x10)
    return content


def stub(name, version, function):
    """A library of this name that defines a version which no system has, to be linked with."""
    def make(place):
        (place / "stub").mkdir(parents=True, exist_ok=True)
        (place / "stub/map").write_text(f"{version} {{ global: {function}; local: *; }};\n")
        made = compile_(place / "stub", "stub", f"int {function}(void) {{ return 0; }}\n",
                        "-nostdlib", f"-Wl,-soname,{name}", f"-Wl,--version-script={place}/stub/map")
        made.rename(place / "stub" / name)
    return make


def needs(name, version):
    return dict(before=stub(name, version, "from_the_future"),
                top="int from_the_future(void);", body="return from_the_future();",
                flags=("{folder}/../stub/" + name,))


def torch(text, libraries=("libtorch_cpu.so", "libc10.so"), symbol="NSt7__cxx1112basic_stringIcEE"):
    """A torch as pip lays it down, of which only what is looked at is real."""
    def make(place):
        package = place / "venv/lib/python3.11/site-packages/torch"
        (package / "lib").mkdir(parents=True)
        for library in libraries:
            (package / "lib" / library).write_bytes(
                b"..._ZN3c105ErrorC2ENS_14SourceLocationE" + symbol.encode() + b"\0")
        (package / "version.py").write_text(text)
    return make


def real_torch(source, version="2.4.0"):
    """One that loads, or fails to."""
    def make(place):
        package = place / "venv/lib/python3.11/site-packages/torch"
        compile_(package / "lib", "libtorch_cpu", source, "-Wl,-soname,libtorch_cpu.so")
        (package / "version.py").write_text(f"__version__ = '{version}'\n")
        # The agent asks the python3 in PATH.
        (place / "venv/bin").mkdir(parents=True)
        python = place / "venv/bin/python3"
        python.write_text(f"#!/bin/sh\necho {package}\n")
        python.chmod(0o755)
    return make


USES_TORCH = dict(top="int torch_is_here(void);", body="if (torch_is_here() != 1) return 1;")
VENV = {"VIRTUAL_ENV": "{folder}/venv"}
PYTHON = {"VIRTUAL_ENV": "{folder}/venv", "PATH": "{folder}/venv/bin:{PATH}"}


def linked_with_torch(source, **more):
    """An op that needs libtorch_cpu.so, on a host whose torch is `source`."""
    def make(place):
        real_torch(source)(place)
        # What it was built against.
        compile_(place / "built", "libtorch_cpu", "int torch_is_here(void) { return 1; }\n",
                 "-Wl,-soname,libtorch_cpu.so")
    return dict(before=make, flags=("{folder}/../built/libtorch_cpu.so",), environment=PYTHON,
                **{**USES_TORCH, **more})


def smi(devices, cuda="13.0", script=""):
    """What stands for nvidia-smi on a host with these devices."""
    def make(place):
        (place / "bin").mkdir()
        program = place / "bin/nvidia-smi"
        program.write_text(script or (
            "#!/bin/sh\ncase \"$*\" in\n--query-gpu=*)\n" +
            "".join(f"echo 'NVIDIA X, {one}, 81559, 580.65.06, Disabled'\n" for one in devices) +
            f";;\n*) echo 'CUDA Version : {cuda}' ;;\nesac\n"))
        program.chmod(0o755)
    return make


SMI = {"PATH": "{folder}/bin:{PATH}"}
FOR_DEVICES = dict(manifest={"compute_capabilities": ["8.0", "9.0"]}, built_with={"cuda": "13.0"})


def lock(place):
    folder = place / "extensions/fused_adam"
    folder.mkdir(parents=True)
    (folder / "lock").write_text("")
    os.utime(folder / "lock", (1, 1))


def both(*steps):
    def make(place):
        for step in steps:
            step(place)
    return make


def mounted(options):
    return "mkdir -p {folder}/there && mount -t tmpfs -o " + options + " dsi {folder}/there"


BROKEN = [
    # ---- the installed file
    Case("empty library", "emptied after the install", "^damaged: .*empty",
         damage=rewrite(lambda content: b"")),
    Case("truncated library", "half of it cut off", "^damaged: .*libds_adam.so",
         damage=rewrite(lambda content: content[:len(content) // 2])),
    Case("one bit is another one", "a bit flipped", "^damaged: .*libds_adam.so",
         damage=rewrite(flip)),
    Case("library removed", "deleted", "^damaged: .*libds_adam.so", damage=remove),
    Case("dangling link", "a link to nowhere in its place", "^damaged: .*libds_adam.so",
         damage=dangle),
    Case("text in its place", "an error page saved under its name", "^damaged: .*libds_adam.so",
         damage=rewrite(lambda content: b"<html>404 Not Found</html>\n")),
    Case("another build in its place", "a byte appended, as another compiler would",
         "^damaged: .*libds_adam.so", damage=rewrite(lambda content: content + b"\0")),
    # ---- the library as it was built
    Case("shipped empty", "0 bytes from the build on", "^(damaged|incompatible): .*too short",
         shipped=rewrite(lambda content: b"")),
    Case("shipped truncated", "cut off behind its headers",
         "^(incompatible|crash|damaged): ", shipped=rewrite(lambda content: content[:700])),
    Case("no ELF file", "text from the build on", "^incompatible: .*invalid ELF header",
         shipped=rewrite(lambda content: b"x" * 5000)),
    Case("foreign architecture", "an AArch64 library on x86-64 (or the reverse)",
         "^incompatible: libds_adam.so is for another kind of processor",
         shipped=field(18, b"\xb7\0" if os.uname().machine == "x86_64" else b"\x3e\0")),
    Case("32-bit library", "ELF class 32", "^incompatible: .*wrong ELF class",
         shipped=field(4, b"\1")),
    Case("big-endian library", "the other byte order", "^incompatible: .*(endian|data encoding)",
         shipped=field(5, b"\2")),
    Case("no self-test", "the symbol is missing", "^incompatible: .*no self-test",
         test="something_else"),
    Case("missing library", "linked to a library that the machine lacks",
         "^missing: libds_absent.so is not on this node",
         before=lambda place: compile_(place / "stub", "libds_absent", "int absent(void) { return 0; }",
                                       "-Wl,-soname,libds_absent.so"),
         top="int absent(void);", body="return absent();",
         flags=("{folder}/../stub/libds_absent.so",)),
    Case("undefined symbol", "a function of another torch", r"^incompatible: .*c10::Tensor::data\(\)",
         top="int _ZN3c106Tensor4dataEv(void);", body="return _ZN3c106Tensor4dataEv();"),
    Case("old C++ ABI", "torch's Error with the string of before GCC 5",
         r"^incompatible: .*c10::Error::Error\(",
         top="void _ZN3c105ErrorC1ENS_14SourceLocationESs(void);",
         body="_ZN3c105ErrorC1ENS_14SourceLocationESs();"),
    Case("glibc too old", "needs GLIBC_2.99", "^refused: .*GLIBC_2.99.*glibc-too-old",
         **needs("libc.so.6", "GLIBC_2.99")),
    Case("libstdc++ too old", "needs GLIBCXX_3.4.99", "^refused: .*GLIBCXX_3.4.99.*libstdcxx-too-old",
         **needs("libstdc++.so.6", "GLIBCXX_3.4.99")),
    Case("C++ run-time too old", "needs CXXABI_1.3.99", "^refused: .*CXXABI_1.3.99.*cxxabi-too-old",
         **needs("libstdc++.so.6", "CXXABI_1.3.99")),
    Case("another library too old", "needs version AIO_9 of libaio, which is there without",
         "^(incompatible|missing): .*", **needs("libaio.so.1", "LIBAIO_9.9")),
    Case("processor too old", "needs a level of x86-64 that no processor has",
         "^incompatible: .*CPU ISA level", flags=("-Wl,-z,x86-64-v2",),
         shipped=rewrite(not_allowed_isa)),
    # ---- what it does
    Case("SIGSEGV on load", "writes to address 0", "^crash: SIGSEGV while it was loaded",
         top="__attribute__((constructor)) static void f(void) { *(volatile int*)0 = 1; }"),
    Case("SIGILL on load", "an instruction that the processor lacks",
         "^crash: SIGILL while it was loaded",
         top="__attribute__((constructor)) static void f(void) { __builtin_trap(); }"),
    Case("abort on load", "prints a reason and aborts",
         "^crash: SIGABRT while it was loaded: out of luck",
         top='__attribute__((constructor)) static void f(void) { fputs("out of luck\\n", stderr); '
             "abort(); }"),
    Case("exit on load", "ends its process, with success",
         "^crash: it ended its process with exit code 0",
         top="__attribute__((constructor)) static void f(void) { _exit(0); }"),
    Case("hang on load", "waits for ever", "^crash: no answer within 2 s while it was loaded",
         top="__attribute__((constructor)) static void f(void) { for (;;) pause(); }"),
    Case("SIGSEGV when used", "in the self-test", "^crash: SIGSEGV in its self-test",
         body="*(volatile int*)0 = 1;"),
    Case("SIGILL when used", "in the self-test", "^crash: SIGILL in its self-test",
         body="__builtin_trap();"),
    Case("SIGFPE when used", "divides by zero", "^crash: SIGFPE in its self-test",
         body="raise(SIGFPE);"),
    Case("SIGBUS when used", "a mapped file that was cut off", "^crash: SIGBUS in its self-test",
         body="raise(SIGBUS);"),
    Case("hang when used", "in the self-test", "^crash: no answer within 2 s in its self-test",
         body="for (;;) pause();"),
    Case("wrong numbers", "computes something else",
         "^wrong: element 3 is 1.5, the reference 1.25",
         body='snprintf(detail, size, "element 3 is 1.5, the reference 1.25"); return 1;'),
    Case("wrong numbers and a lie", "prints that all is well", "^wrong: element 3",
         body='printf("result 0 fine\\n"); fflush(stdout); '
              'snprintf(detail, size, "element 3 is off"); return 1;'),
    Case("needs something at run time", "its self-test finds no device file",
         "^missing: /dev/dsi0 is not there",
         body='snprintf(detail, size, "/dev/dsi0 is not there"); return 2;'),
    # ---- torch
    Case("torch does not load", "libtorch_cpu.so dies", "^crash: SIGABRT while it was loaded",
         **linked_with_torch("#include <stdlib.h>\n__attribute__((constructor)) static void f(void) "
                             "{ abort(); }\nint torch_is_here(void) { return 1; }\n")),
    Case("torch lacks a symbol", "another torch than the one built against",
         "^incompatible: .*torch_is_here.*this node's torch: 2.4.0",
         **linked_with_torch("int something_else(void) { return 1; }\n")),
    machine("torch of another version", "2.1 where the ops are for 2.4",
            "^refused: .*torch 2.4.1.*torch 2.1.0.*torch-other-version",
            before=torch("__version__ = '2.1.0'\n"), environment=VENV,
            built_with={"torch": "2.4.1"}),
    machine("two torches", "the environment's goes before the system's",
            "^refused: .*torch 2.9.0 in .*venv.*torch-other-version",
            before=torch("__version__ = '2.9.0'\n"), environment=VENV,
            built_with={"torch": "1.13.0"}),
    machine("torch with the old strings", "its libc10 takes the other kind",
            "^refused: .*torch-other-abi",
            before=torch("__version__ = '2.4.1'\n", symbol="SsEE"), environment=VENV,
            built_with={"torch": "2.4.1", "torch_cxx11_abi": "1"}),
    machine("torch for another CUDA", "11.8 where the ops are for 12.4",
            "^refused: .*CUDA 12.4.*CUDA 11.8.*torch-other-cuda",
            before=both(torch("__version__ = '2.4.1+cu118'\ncuda = '11.8'\n",
                              ("libtorch_cpu.so", "libc10.so", "libc10_cuda.so")),
                        smi(["9.0"])),
            environment={**VENV, **SMI}, manifest={"compute_capabilities": ["9.0"]},
            built_with={"torch": "2.4.1+cu124", "torch_cuda": "12.4", "cuda": "12.4"}),
    machine("torch without CUDA", "and the op is linked to that part",
            "^refused: .*torch-without-cuda",
            before=torch("__version__ = '2.4.1+cpu'\n"), environment=VENV,
            manifest={"needs_libraries": ["libc10_cuda.so"]}, built_with={"torch": "2.4.1"}),
    # ---- devices
    machine("no code for the device", "compute capability 7.5, code for 8.0 and 9.0",
            "^refused: adam has no code for a device.*required code for 7.5, found code for 8.0, 9.0",
            before=smi(["9.0", "7.5"]), environment=SMI, **FOR_DEVICES),
    machine("driver too old", "for CUDA 12, and the toolkit is 13", "^refused: .*driver-too-old",
            before=smi(["9.0"], cuda="12.4"), environment=SMI, **FOR_DEVICES),
    machine("driver does not answer", "nvidia-smi fails", "^warned: .*driver-silent",
            before=smi([], script="#!/bin/sh\necho NVIDIA-SMI has failed\nexit 9\n"),
            environment=SMI),
    machine("device cut into slices", "MIG mode", "^warned: .*mig-mode",
            before=smi([], script="#!/bin/sh\ncase \"$*\" in --query*) echo 'NVIDIA X, 9.0, 81559, "
                                  "580.65.06, Enabled' ;; *) echo 'CUDA Version : 13.0' ;; esac\n"),
            environment=SMI),
    machine("no device at all", "and the ops are for devices", "^warned: .*no-device",
            **FOR_DEVICES),
    # ---- the place
    machine("noexec", "the folder is mounted so", "^refused: .*prefix-noexec",
            inside=mounted("noexec")),
    machine("read-only", "the folder is mounted so", "^refused: .*prefix-read-only",
            inside=mounted("ro")),
    machine("no space", "64 KiB are free", "^refused: .*found 64.0 KiB.*no-space",
            inside=mounted("size=64k")),
    machine("no inodes", "three files can be made", "^refused: .*no-inodes",
            inside=mounted("nr_inodes=4")),
    machine("temporary folder full", "nothing is free", "^warned: .*temp-full",
            inside="mount -t tmpfs -o size=64k dsi {folder}/tmp && "
                   "head -c 65536 /dev/zero >{folder}/tmp/x"),
    machine("other architecture", "the release is for another one", "^refused: .*other-architecture",
            built_with={"arch": "riscv64"}),
    machine("stale lock", "of an extension's compilation that was killed",
            "^warned: .*stale-extension-lock",
            before=lock, environment={"TORCH_EXTENSIONS_DIR": "{folder}/extensions"}),
    machine("almost no memory may be locked", "an op that locks memory, under a limit",
            "^warned: .*little-locked-memory", op="async_io",
            inside="ulimit -l 64"),
    # ---- the release
    machine("manifest damaged", "a byte of it changed", "^failed: .*manifest",
            after=lambda prefix: rewrite(lambda content: content + b" ")(
                prefix / "current/manifest.json")),
    machine("release removed", "the folder that current leads to", "^failed: ",
            after=lambda prefix: __import__("shutil").rmtree(str((prefix / "current").resolve()))),
    machine("the tester damaged", "bin/ds-probe changed", "^damaged: .*ds-probe", all_fail=True,
            after=lambda prefix: rewrite(flip)(prefix / "current/bin/ds-probe")),
]

HEALTHY = [
    Case("plain", "nothing is wrong"),
    Case("reported once more", "an hour later", after=lambda prefix: None),
    Case("a folder with spaces", "in the prefix", prefix="my ops/here"),
    Case("behind a link", "the prefix is a symbolic link",
         before=lambda place: ((place / "real").mkdir(), (place / "there").symlink_to("real"))),
    Case("printing op", "writes a lot to its output",
         body="for (int i = 0; i < 100000; ++i) puts(\"noise\");"),
    Case("slow op", "takes a second", body="usleep(1000000);"),
    Case("threads and children", "leaves a child behind",
         body="if (fork() == 0) { sleep(30); _exit(0); }"),
    Case("libraries of its own", "one that the release brings",
         before=lambda place: compile_(place / "stub", "libds_own", "int own(void) { return 0; }",
                                       "-Wl,-soname,libds_own.so"),
         top="int own(void);", body="return own();",
         flags=("{folder}/../stub/libds_own.so", "-Wl,-rpath,$ORIGIN"),
         files=(("lib/libds_own.so", "stub/libds_own.so"),)),
    Case("linked with torch", "the one that it was built against",
         **linked_with_torch("int torch_is_here(void) { return 1; }\n")),
    machine("a device with code for it", "9.0", before=smi(["9.0"]), environment=SMI,
            **FOR_DEVICES),
    machine("a newer device of the same kind", "8.9, code for 8.0", before=smi(["8.9"]),
            environment=SMI, **FOR_DEVICES),
    machine("a small file system", "with just enough space", inside=mounted("size=64m")),
]
