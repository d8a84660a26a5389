"""What pyproject.toml cannot say: the compiled steps of the data path, and the shell completion for the wheel.

A step is a module with a `.pxd` beside it. Where there is no C compiler, it runs as plain Python.
"""

import os
from pathlib import Path

from setuptools import Extension, setup

ROOT = Path(__file__).parent
PROCESSORS = os.cpu_count() or 1
MADE = ROOT / "deploy" / "completion"
FOLDERS = {
    "bash": "share/bash-completion/completions",
    "zsh": "share/zsh/site-functions",
    "fish": "share/fish/vendor_completions.d",
}
DIRECTIVES = {"annotation_typing": False, "language_level": 3}


def completion() -> list[tuple[str, list[str]]]:
    """By folder below the prefix; empty before `make completion`."""
    found = {shell: sorted((MADE / shell).glob("*")) for shell in FOLDERS}
    return [
        (FOLDERS[shell], [str(path.relative_to(MADE.parents[1])) for path in paths])
        for shell, paths in found.items()
        if paths
    ]


def steps() -> list[Extension]:
    """The compiled steps; `optional`: what cannot be compiled is left out."""
    from Cython.Build import cythonize  # where this is only looked at, Cython need not be installed

    found = [path for package in ("dro", "portals") for path in (ROOT / package).rglob("*.pxd")]
    paths = [path.relative_to(ROOT).with_suffix("") for path in found]
    made = [Extension(".".join(path.parts), [f"{path}.py"], optional=True) for path in sorted(paths)]
    return cythonize(made, compiler_directives=DIRECTIVES, build_dir="build/cython", quiet=True, nthreads=PROCESSORS)


if __name__ == "__main__":
    setup(data_files=completion(), ext_modules=steps(), options={"build_ext": {"parallel": PROCESSORS}})
