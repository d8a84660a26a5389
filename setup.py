"""Adds what pyproject.toml cannot say: compiled steps, shell completion and manual pages for the wheel.

A step is a module with a `.pxd` beside it. Where there is no C compiler, it runs as plain Python.
"""

import os
from pathlib import Path

from setuptools import Extension, setup

ROOT = Path(__file__).parent
PROCESSORS = os.cpu_count() or 1
MADE = ROOT / "deploy" / "completion"
MAN = ROOT / "deploy" / "man" / "man1"
FOLDERS = {
    "bash": "share/bash-completion/completions",
    "zsh": "share/zsh/site-functions",
    "fish": "share/fish/vendor_completions.d",
}
DIRECTIVES = {"annotation_typing": False, "language_level": 3}
# What Cython adds to each module that has views of memory, once for all of them.
SHARED = "dro.compiled_views"
# Debug information is a third of the time of the compiler and most of the size of a library.
FLAGS = ["-g0"]


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


def steps() -> list[Extension]:
    """The compiled steps; `optional`: what cannot be compiled is left out."""
    from Cython.Build import cythonize  # where this is only looked at, Cython need not be installed

    found = [path for package in ("dro", "portals") for path in (ROOT / package).rglob("*.pxd")]
    paths = [path.relative_to(ROOT).with_suffix("") for path in found]
    # The longest first: at the end no processor waits for another.
    paths.sort(key=lambda path: (-(ROOT / path).with_suffix(".py").stat().st_size, path))
    sources = {SHARED: f"{SHARED.replace('.', '/')}.c"} | {".".join(path.parts): f"{path}.py" for path in paths}
    made = [Extension(name, [source], optional=True, extra_compile_args=FLAGS) for name, source in sources.items()]
    return cythonize(
        made, compiler_directives=DIRECTIVES, build_dir="build/cython", quiet=True, nthreads=PROCESSORS,
        shared_utility_qualified_name=SHARED,
    )  # fmt: skip


if __name__ == "__main__":
    setup(data_files=completion() + man_pages(), ext_modules=steps(), options={"build_ext": {"parallel": PROCESSORS}})
