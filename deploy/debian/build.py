"""Build the Debian packages: `python -m deploy.debian.build`, by Python 3.11 on Debian 12 (`make deb`).

`open-dro` has the program with all that it needs from PyPI below /usr/lib/open-dro, for Debian's own python3.11, and
`open-dro-history` what `tnwgd --history` and `tnwgd-history` need besides, which is larger. Both install without a
network. The programs that need Spark are left out.

The versions are those that the tests of this environment ran with. Compiled modules are taken from the tree where they
are current. With SOURCE_DATE_EPOCH in the environment, files have that time.
"""

from __future__ import annotations

import argparse
import compileall
import gzip
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from email.message import Message
from email.parser import HeaderParser
from email.utils import formatdate
from importlib.metadata import distributions
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Final

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
PROGRAM: Final = "open-dro"
HISTORY: Final = "open-dro-history"
PREFIX: Final = "usr/lib/open-dro"
SITE: Final = f"{PREFIX}/lib/python3.11/site-packages"
INTERPRETER: Final = "/usr/bin/python3.11"
MAINTAINER: Final = "open DRO developers <open-dro@example.org>"
_PIP: Final = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
# From the wheel's folders below its prefix to Debian's.
_SHARED: Final = {
    "bash-completion/completions": "bash-completion/completions",
    "zsh/site-functions": "zsh/vendor-completions",
    "fish/vendor_completions.d": "fish/vendor_completions.d",
    "man/man1": "man/man1",
}
_UNITS: Final = {"*.service": "lib/systemd/system", "*.timer": "lib/systemd/system", "*.target": "lib/systemd/system"}
_SCRIPTS: Final = ("postinst", "prerm", "postrm")
_SETTINGS: Final = ("sysusers.d", "tmpfiles.d", "sysctl.d")


class BuildError(Exception):
    """The packages cannot be built here; the text says why."""


def project() -> dict[str, object]:
    """Read what pyproject.toml says of the project."""
    about: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return about


def commands() -> list[str]:
    """The console scripts that run without Spark."""
    scripts = project()["scripts"]
    assert isinstance(scripts, dict)
    return [name for name, target in scripts.items() if not target.startswith("analytics.")]


def wheels(folder: Path) -> None:
    """Put the wheels of both packages into `folder`/NAME; each wheel is in one of them."""
    own = folder / PROGRAM
    made = ROOT / f"build/lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    shutil.rmtree(made, ignore_errors=True)  # what was removed from the tree would be packaged
    for package in ("dro", "portals"):
        for library in (ROOT / package).rglob(f"*{sysconfig.get_config_var('EXT_SUFFIX')}"):
            (made / library.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(library, made / library.relative_to(ROOT))
    _run(*_PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", own, ROOT)
    (wheel,) = own.glob("open_dro-*.whl")
    constraints = folder / "constraints.txt"
    found = {(each.metadata["Name"], each.version) for each in distributions(path=[sysconfig.get_path("purelib")])}
    constraints.write_text("".join(f"{name}=={version}\n" for name, version in sorted(found) if name != PROGRAM))
    for name, wanted in ((PROGRAM, str(wheel)), (HISTORY, f"{wheel}[history]")):
        _run(*_PIP, "wheel", "--only-binary", ":all:", "--constraint", constraints, "--find-links", own,
             "--wheel-dir", folder / name, wanted)  # fmt: skip
    for path in (folder / HISTORY).iterdir():
        if (own / path.name).exists():
            path.unlink()


def stage(wheels_folder: Path, folder: Path) -> None:
    """Lay out the files of both packages below `folder`/NAME."""
    for name in (PROGRAM, HISTORY):
        paths = sorted((wheels_folder / name).glob("*.whl"))
        _run(*_PIP, "install", "--no-deps", "--no-index", "--no-compile", "--ignore-installed",
             "--no-warn-script-location", "--prefix", folder / name / PREFIX, *paths)  # fmt: skip
        for path in (folder / name / SITE).glob("*.dist-info/direct_url.json"):
            path.unlink()  # where this build was
        _copyright(folder / name, name)
    _programs(folder / PROGRAM)
    _shared(folder / PROGRAM)
    for name, kept in ((PROGRAM, {"bin", "lib", "pyvenv.cfg"}), (HISTORY, {"lib"})):
        for path in (folder / name / PREFIX).iterdir():  # what wheels install besides modules
            if path.name not in kept:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    _units(folder / PROGRAM)
    _configurations(folder / PROGRAM)
    for name in (PROGRAM, HISTORY):
        overrides = folder / name / "usr/share/lintian/overrides" / name
        overrides.parent.mkdir(parents=True)
        shutil.copy(HERE / f"{name}.lintian-overrides", overrides)
        _times(folder / name)
        compileall.compile_dir(
            folder / name / SITE, stripdir=folder / name, prependdir="/", quiet=2,
            invalidation_mode=PycInvalidationMode.TIMESTAMP,
        )  # fmt: skip


def _programs(root: Path) -> None:
    """Leave the commands of the project alone, run by Debian's interpreter in an environment of its own."""
    (root / "usr/bin").mkdir(parents=True)
    for path in (root / PREFIX / "bin").iterdir():
        if path.name not in commands():
            path.unlink()
            continue
        _, _, text = path.read_text("utf-8").partition("\n")
        path.write_text(f"#!/{PREFIX}/bin/python3\n{text}", encoding="utf-8")
        (root / "usr/bin" / path.name).symlink_to(f"../{Path(PREFIX).relative_to('usr')}/bin/{path.name}")
    (root / PREFIX / "bin/python3").symlink_to(INTERPRETER)
    for package in ("dro", "portals"):  # the interpreter of the build may have put its own folder there
        _run("chrpath", "--delete", *(root / SITE / package).rglob("*.so"))
    (root / PREFIX / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.11\n")


def _shared(root: Path) -> None:
    share = root / PREFIX / "share"
    absent = {name for name in project()["scripts"] if name not in commands()}  # type: ignore[attr-defined]
    for source, target in _SHARED.items():
        if not (share / source).is_dir():
            raise BuildError("without completion or manual pages: run `make completion man` first")
        (root / "usr/share" / target).mkdir(parents=True)
        for path in (share / source).iterdir():
            if path.name.lstrip("_").removesuffix(".fish").removesuffix(".1") in absent:
                continue
            if target.startswith("man/"):
                (root / "usr/share" / target / f"{path.name}.gz").write_bytes(_gzip(path.read_bytes()))
            else:
                shutil.copyfile(path, root / "usr/share" / target / path.name)


def _units(root: Path) -> None:
    units = ROOT / "deploy/systemd"
    for pattern, target in _UNITS.items():
        for path in units.glob(pattern):
            (root / target).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, root / target / path.name)
    for name in _SETTINGS:
        for path in (*units.glob(f"{name}/*.conf"), *units.glob(f"{name.removesuffix('.d')}*.conf")):
            (root / "usr/lib" / name).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, root / "usr/lib" / name / "open-dro.conf")


def _configurations(root: Path) -> None:
    """Write a DRO between two TRDs of the loopback interface, which is safe to start, and the example networks."""
    settings = root / "etc/open-dro"
    settings.mkdir(parents=True)
    trds = [part for n in (1, 2) for part in (f"--trd{n}", f"127.0.0.1,239.192.8.{n}:12965")]
    _run(sys.executable, "-m", "supervisor.main", "init", "direct", *trds, "--name", "DRO", cwd=settings)
    text = (settings / "dro.xml").read_text("utf-8")
    (settings / "dro.xml").write_text(text.replace(f"{settings}/", "/etc/open-dro/"), encoding="utf-8")
    for path in sorted((ROOT / "tests/golden/examples").glob("*/")):
        if not path.name.startswith("unsupported"):
            shutil.copytree(path, root / f"usr/share/doc/{PROGRAM}/examples" / path.name)
    shutil.copytree(ROOT / "deploy/cloud", root / f"usr/share/doc/{PROGRAM}/examples/cloud")


def _metadata(root: Path) -> Iterator[Message]:
    for path in sorted((root / SITE).glob("*.dist-info/METADATA")):
        yield HeaderParser().parsestr(path.read_text("utf-8"))


def _licence(about: Message) -> str:
    classifiers = [text.rpartition(" :: ")[2] for text in about.get_all("Classifier", []) if text.startswith("License")]
    first_line, _, _ = str(about.get("License-Expression") or about.get("License") or "").strip().partition("\n")
    return first_line or ", ".join(classifiers) or "see its folder"


def _copyright(root: Path, name: str) -> None:
    folder = root / "usr/share/doc" / name
    folder.mkdir(parents=True)
    lines = [
        f"{name} has parts of several projects; their terms are in *.dist-info below",
        f"/{SITE}.",
        "The Apache License is in /usr/share/common-licenses/Apache-2.0.",
        "",
        *(f"{about['Name']} {about['Version']}: {_licence(about)}" for about in _metadata(root)),
    ]
    (folder / "copyright").write_text("\n".join([*lines, ""]), encoding="utf-8")


def pack(folder: Path, output: Path, version: str, compression: str = "zstd") -> list[Path]:
    """Make packages of what `stage` has laid out, below `output`."""
    output.mkdir(parents=True, exist_ok=True)
    made = []
    for name in (PROGRAM, HISTORY):
        root = folder / name
        _documents(root, name, version)
        _control(root, name, version)
        _times(root)
        made.append(output / f"{name}_{version}_amd64.deb")
        command = ("dpkg-deb", "--root-owner-group", f"-Z{compression}", "--build", root, made[-1])
        _run(*command, SOURCE_DATE_EPOCH=str(_epoch()))
    return made


def _documents(root: Path, name: str, version: str) -> None:
    head = f"{name} ({version}) bookworm; urgency=medium\n\n  * What is new: CHANGELOG.md of the project.\n"
    changes = f"{head}\n -- {MAINTAINER}  {formatdate(_epoch())}\n"
    (root / f"usr/share/doc/{name}/changelog.gz").write_bytes(_gzip(changes.encode()))
    if name == PROGRAM:
        news = (ROOT / "CHANGELOG.md").read_bytes()
        (root / f"usr/share/doc/{name}/CHANGELOG.md.gz").write_bytes(_gzip(news))


def _control(root: Path, name: str, version: str) -> None:
    control = root / "DEBIAN"
    shutil.rmtree(control, ignore_errors=True)
    control.mkdir()
    size = sum(path.lstat().st_size for path in root.rglob("*") if not path.is_dir()) // 1024
    text = (HERE / f"{name}.control").read_text("utf-8")
    (control / "control").write_text(text.format(version=version, maintainer=MAINTAINER, size=size), encoding="utf-8")
    if name != PROGRAM:
        return
    settings = sorted(path.relative_to(root) for path in (root / "etc").rglob("*") if path.is_file())
    (control / "conffiles").write_text("".join(f"/{path}\n" for path in settings))
    for script in _SCRIPTS:
        shutil.copyfile(HERE / script, control / script)


def _epoch() -> int:
    """Return the time that all files get, in seconds."""
    return int(os.environ.get("SOURCE_DATE_EPOCH") or (ROOT / "pyproject.toml").stat().st_mtime)


def _times(root: Path) -> None:
    """Give all files one time, to which bytecode refers, and their modes."""
    for path in (root, *root.rglob("*")):
        if not path.is_symlink():
            runs = path.is_dir() or path.parent == root / PREFIX / "bin" or path.name in _SCRIPTS
            path.chmod(0o755 if runs else 0o644)
        os.utime(path, (_epoch(), _epoch()), follow_symlinks=False)


def _gzip(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def _run(*command: object, cwd: Path = ROOT, **environment: str) -> None:
    """Run a command that says something only when it fails. Raises: BuildError."""
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=os.environ | {"PYTHONPATH": str(ROOT)} | environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    if done.returncode:
        raise BuildError(f"{' '.join(map(str, command))}: {done.returncode}\n{done.stdout}")


def _check() -> None:
    machine: Mapping[str, object] = {"machine": platform.machine(), "python": sys.version_info[:2]}
    if machine != {"machine": "x86_64", "python": (3, 11)}:
        raise BuildError(f"made for x86_64 and Python 3.11 only, not for {machine}; run `make deb PYTHON=python3.11`")
    for tool in ("dpkg-deb", "chrpath"):
        if shutil.which(tool) is None:
            raise BuildError(f"{tool} is not installed: it is in the Debian package {tool.removesuffix('-deb')}")


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Build the Debian packages.")
    parser.add_argument("--output", metavar="DIR", type=Path, default=ROOT / "dist", help="default: dist")
    parser.add_argument("--version", default=project()["version"], help="default: that of pyproject.toml")
    given = parser.parse_args(argv)
    folder = ROOT / "build/deb"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        _check()
        wheels(folder / "wheels")
        stage(folder / "wheels", folder / "root")
        for path in pack(folder / "root", given.output, given.version):
            print(path)
    except BuildError as e:
        print(f"deploy.debian.build: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
