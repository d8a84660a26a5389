"""Adds what pyproject.toml cannot say: compiled steps, shell completion and manual pages for the wheel.

A step is a module with a `.pxd` beside it. Where there is no C compiler, it runs as plain Python. `DRO_STEPS=none` in
the environment leaves all of them out; `python setup.py build_ext --inplace` compiles what has changed since.
"""

import os
import shutil
import sysconfig
import threading
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
PROCESSORS = os.cpu_count() or 1
MADE = ROOT / "deploy" / "completion"
MAN = ROOT / "deploy" / "man" / "man1"
FOLDERS = {
    "bash": "share/bash-completion/completions",
    "zsh": "share/zsh/site-functions",
    "fish": "share/fish/vendor_completions.d",
}
DIRECTIVES = {"annotation_typing": False, "language_level": 3, "show_performance_hints": False}
# Functions in C that steps have in the place of those of the module, which is not compiled itself.
C_FORMS = ROOT / "dro" / "system_calls.pxd"
# What Cython adds to each module that has views of memory, once for all of them.
SHARED = "dro.compiled_views"
# Debug information is a third of the time of the compiler and most of the size of a library.
FLAGS = ["-g0", "-Wno-sign-compare"]


def completion() -> list[tuple[str, list[str]]]:
    """By folder below the prefix; empty before `make completion`."""
    found = {shell: sorted((MADE / shell).glob("*")) for shell in FOLDERS}
    return [
        (FOLDERS[shell], [str(path.relative_to(MADE.parents[1])) for path in paths])
        for shell, paths in found.items()
        if paths
    ]


def man_pages() -> list[tuple[str, list[str]]]:
    """By folder below the prefix; empty before `make man`."""
    paths = [str(path.relative_to(MAN.parents[2])) for path in sorted(MAN.glob("*"))]
    return [("share/man/man1", paths)] if paths else []


def missing() -> str:
    """Name what compiling lacks on this machine; empty when all is there."""
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    header = Path(sysconfig.get_path("include"), "Python.h")
    needs = {f"C compiler ({compiler})": shutil.which(compiler), f"{header} (package python3-dev)": header.exists()}
    return " and no ".join(need for need, is_there in needs.items() if not is_there)


class BuildSteps(build_ext):
    """Compiles the steps on all processors, and says how far it is."""

    def build_extensions(self) -> None:
        self.lock, self.done = threading.Lock(), 0
        super().build_extensions()

    def build_extension(self, ext: Extension) -> None:
        """Compile one step, in a thread of its own. A library that the linker did not finish is made anew."""
        library, whole = Path(self.get_ext_fullpath(ext.name)), Path(self.build_temp, f"{ext.name}.whole")
        if not whole.exists():
            library.unlink(missing_ok=True)
        before = library.stat().st_mtime if library.exists() else 0
        whole.unlink(missing_ok=True)
        super().build_extension(ext)
        whole.touch()
        with self.lock:
            self.done += 1
            if library.stat().st_mtime > before:
                print(f"compiled {self.done} of {len(self.extensions)}: {ext.name}", flush=True)


def steps() -> list[Extension]:
    """The compiled steps; `optional`: what cannot be compiled is left out."""
    if os.environ.get("DRO_STEPS") == "none":
        return []
    if missing():
        print(f"not compiled, so the router runs in plain Python, which is slower: no {missing()}", flush=True)
        return []
    from Cython.Build import cythonize  # where this is only looked at, Cython need not be installed

    found = [path for package in ("dro", "portals", "router") for path in (ROOT / package).rglob("*.pxd")]
    paths = [path.relative_to(ROOT).with_suffix("") for path in found if path != C_FORMS]
    # The longest first: at the end no processor waits for another.
    paths.sort(key=lambda path: (-(ROOT / path).with_suffix(".py").stat().st_size, path))
    sources = {SHARED: f"{SHARED.replace('.', '/')}.c"} | {".".join(path.parts): f"{path}.py" for path in paths}
    made = [Extension(name, [source], optional=True, extra_compile_args=FLAGS) for name, source in sources.items()]
    return cythonize(
        made, compiler_directives=DIRECTIVES, build_dir="build/cython", quiet=True, nthreads=PROCESSORS,
        shared_utility_qualified_name=SHARED,
    )  # fmt: skip


if __name__ == "__main__":
    setup(data_files=completion() + man_pages(), ext_modules=steps(), options={"build_ext": {"parallel": PROCESSORS}},
          cmdclass={"build_ext": BuildSteps})  # fmt: skip
