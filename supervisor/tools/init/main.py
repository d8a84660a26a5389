"""`tnwgd init`: writes a commented starter configuration, for a direct link or for one end of a peer link.

On a terminal it asks at most five questions; if any option is given, it asks nothing. The result is loaded before it is
written, and no file is replaced without `--force`.

Exit status: 0 written, 1 not written, 2 wrong arguments, 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import socket
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar, cast

from dro.command_line import Parser
from dro.config.dro_xml.load import load_dro
from dro.config.dro_xml.unsupported import split_limits
from dro.config.reading.problems import ConfigErrors
from dro.errors import ConfigError, ResourceError
from dro.standard_streams import say
from supervisor.tools.init.files import (
    DEFAULT_LISTEN_PORT,
    STATISTICS_FILE,
    Companion,
    NewTrd,
    Starter,
    Trd,
    UmFile,
    check_apart,
    default_trd,
    dro_text,
    read_companion,
    read_connect,
    read_domain,
    read_name,
    read_port,
    read_trd,
    shown,
    statistics_text,
    um_file_name,
    um_text,
)

COMMAND: Final = "init"
PROGRAM: Final = "tnwgd init"
EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_INTERRUPTED: Final = 130
DEFAULT_OUTPUT: Final = "dro.xml"
KINDS: Final = ("direct", "peer")
_TRD: Final = "FILE|INTERFACE[,RESOLVER]"
T = TypeVar("T")


def arguments() -> argparse.ArgumentParser:
    parser = Parser(prog=PROGRAM)
    describe(parser)
    return parser


def describe(parser: argparse.ArgumentParser) -> None:
    """Make `parser` that of `tnwgd init`; apart, so that shell completion can hang it below `tnwgd`."""
    parser.description = "Write a commented starter configuration."
    parser.epilog = (
        "A TRD is the path of its UM configuration file, or the interface of this host in it (address, "
        "network or device) with what resolves topics there, from which a UM file is made: GROUP:PORT for multicast, "
        "lbmrd=ADDRESS[:PORT][,...] for unicast daemons, srs=ADDRESS[:PORT][,...] for TCP. Without "
        "options and on a terminal it asks; with at least one option it does not."
    )
    kinds = parser.add_subparsers(dest="kind", metavar="{direct,peer}", title="kinds of links")
    direct = kinds.add_parser("direct", help="one DRO between two TRDs that this host reaches")
    direct.add_argument("--trd1", metavar=_TRD, help="the first TRD")
    direct.add_argument("--trd2", metavar=_TRD, help="the second TRD")
    direct.add_argument("--domain1", metavar="N", help="domain id of the first TRD (default: 1)")
    direct.add_argument("--domain2", metavar="N", help="domain id of the second TRD (default: 2)")
    peer = kinds.add_parser("peer", help="one end of a link to a DRO elsewhere")
    peer.add_argument("--trd", metavar=_TRD, help="the TRD of this end")
    peer.add_argument("--domain", metavar="N", help="its domain id (default: 1 with --connect, 2 with --listen)")
    end = peer.add_mutually_exclusive_group()
    end.add_argument("--connect", metavar="HOST:PORT", help="connect to the companion there")
    end.add_argument("--listen", metavar="PORT", help="listen for the companion on that port")
    for kind in (direct, peer):
        kind.add_argument("--name", help="name of the DRO (default: that of the host)")
        kind.add_argument("--statistics", action="store_true", help="publish statistics over UM, on this host alone")
        kind.add_argument("--output", metavar="FILE", help=f"the file to write (default: {DEFAULT_OUTPUT})")
        kind.add_argument("--force", action="store_true", help="replace files that exist")


Read = Callable[[str], T]


class _Asker:
    """Questions on a terminal, with a default, asked again until the answer will do."""

    def __init__(self, ask: Callable[[str], str], out: Callable[[str], None]) -> None:
        self._ask = ask
        self._out = out

    def get(self, _option: str, question: str, default: str, read: Read[T]) -> T:
        """An answer, or the default where there is no question. Raises: EOFError, KeyboardInterrupt."""
        if not question:
            return read(default)
        self._out(f"{question}\n")
        while True:
            answer = self._ask(f"  [{default}]: ").strip()
            try:
                return read(answer or default)
            except ConfigError as e:
                self._out(f"  {e.what}; {e.remedy}\n")


class _Options:
    """The same values from the command line."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._given = vars(args)

    def missing(self) -> str:
        """Say what has no default and is not there."""
        if self._given["kind"] == "direct":
            return " and ".join(f"--{trd}" for trd in ("trd1", "trd2") if self._given[trd] is None)
        if self._given["trd"] is None:
            return "--trd"
        return "--connect or --listen" if self._given["connect"] is self._given["listen"] is None else ""

    def get(self, option: str, _question: str, default: str, read: Read[T]) -> T:
        """Read the value of an option. Raises: ConfigError that names the option."""
        if option == "companion":
            option = "listen" if self._given["connect"] is None else "connect"
            read = cast("Read[T]", read_connect if option == "connect" else lambda text: Companion(read_port(text)))
        text = self._given[option]
        try:
            return read(default if text is None else text)
        except ConfigError as e:
            raise ConfigError(e.what, element=f"--{option}", remedy=e.remedy) from e


def make_starter(values: _Asker | _Options, kind: str | None) -> Starter:
    """Ask four questions at most. Raises: ConfigError of options alone; EOFError, KeyboardInterrupt of questions."""
    kind = kind or values.get(
        "kind", "Kind of link: direct (two TRDs that this host reaches) or peer (one end)", "direct", _kind
    )
    name = values.get("name", "Name of the DRO", default_name(), read_name)
    has_statistics = values.get("statistics", "", "", bool)
    what = (
        "its UM configuration file; or INTERFACE and what resolves topics, to have one made: INTERFACE,GROUP:PORT "
        "(multicast), INTERFACE,lbmrd=ADDRESS:PORT (daemons) or INTERFACE,srs=ADDRESS:PORT (TCP)"
    )

    def trd(option: str, which: str, domain_id: int, *others: Trd) -> Trd:
        def read(text: str) -> Trd:
            made = read_trd(text, domain_id)
            for other in others:
                check_apart(other, made)
            return made

        return values.get(option, f"{which}: {what}", shown(default_trd(domain_id)), read)

    if kind == "direct":
        ids = values.get("domain1", "", "1", read_domain), values.get("domain2", "", "2", read_domain)
        if ids[0] == ids[1]:
            raise ConfigError(f"both TRDs have domain id {ids[0]}", remedy="give each its own")
        first = trd("trd1", "First TRD", ids[0])
        trds = (ids[0], first), (ids[1], trd("trd2", "Second TRD", ids[1], first))
        return Starter(name, trds, has_statistics=has_statistics)
    question = "Companion at the other end: HOST:PORT to connect to, or PORT to listen on"
    companion = values.get("companion", question, str(DEFAULT_LISTEN_PORT), read_companion)
    domain_id = values.get("domain", "", "1" if companion.host else "2", read_domain)
    return Starter(name, ((domain_id, trd("trd", "TRD of this end", domain_id)),), companion, has_statistics)


def default_name() -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname().partition(".")[0])[:40] or "DRO1"


def _kind(text: str) -> str:
    for kind in KINDS:
        if kind.startswith(text.lower()):
            return kind
    raise ConfigError(f"{text[:40]!r} is no kind of link", remedy="write direct or peer")


def read_output(text: str) -> Path:
    """The DRO file. Raises: ConfigError when it cannot be made."""
    path = Path(text)
    if not text:
        raise ConfigError("is empty", remedy=f"write a file, as in {DEFAULT_OUTPUT}")
    if path.is_dir():
        raise ConfigError(f"{text!r} is a directory", remedy=f"write a file, as in {path / DEFAULT_OUTPUT}")
    if not path.parent.is_dir():
        raise ConfigError(f"there is no directory {str(path.parent)!r}", remedy="make it, or write another file")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise ConfigError(f"no file can be made in {str(path.parent)!r}", remedy="write another file")
    return path


def _new_output(text: str, starter: Starter) -> Path:
    """Read an output as `read_output` does; nothing that would be written exists. Raises: ConfigError."""
    path = read_output(text)
    if there := _existing(plan_files(starter, path)):
        raise ConfigError(f"{there} would be replaced", remedy="write another file")
    return path


def _existing(files: Iterable[Path]) -> str:
    return ", ".join(str(path) for path in files if path.exists())


def plan_files(starter: Starter, output: Path, folder: Path | None = None) -> dict[Path, str]:
    """Texts by path, the DRO file last. `folder`: make them refer to each other there instead. Raises: ConfigError."""
    place = (output.parent if folder is None else folder).absolute()
    files: dict[Path, str] = {}
    paths = []
    for nth, (domain_id, trd) in enumerate(starter.trds):
        if isinstance(trd, UmFile):
            paths.append(trd.path)
            continue
        path = place / um_file_name(domain_id)
        files[path] = um_text(trd, domain_id, domain_id - 1 if starter.companion else nth)
        paths.append(str(path))
    statistics = str(place / STATISTICS_FILE) if starter.has_statistics else ""
    if ";" in statistics:  # which ends an option
        raise ConfigError(f"{statistics}: a name with a semicolon", remedy="write to another directory")
    if statistics:
        files[Path(statistics)] = statistics_text()
    files[place / output.name] = dro_text(starter, paths, statistics)
    return files


def check(starter: Starter, output: Path) -> tuple[list[str], bool]:
    """Load what would be written, elsewhere: notes, and whether this release runs it. Raises: ConfigError, OSError."""
    notes: list[str] = []
    with tempfile.TemporaryDirectory(prefix="tnwgd-init-") as made:
        folder = Path(made).absolute()
        for path, text in plan_files(starter, output, folder).items():
            path.write_text(text, encoding="utf-8")
        real = str(output.parent.absolute())
        try:
            config = load_dro(str(folder / output.name), warn=notes.append)
        except ConfigErrors as e:
            raise ConfigError("\n".join(str(error).replace(str(folder), real) for error in e.errors)) from e
        refusals, warnings = split_limits(config)
        notes += [str(warning) for warning in warnings]
        notes += [f"{refusal} (this release does not run such a file yet)" for refusal in refusals]
    return [line.replace(str(folder), real) for line in notes], not refusals


def write_files(files: Mapping[Path, str], *, force: bool) -> None:
    """All or none; with `force` a disk that fills up meanwhile may leave some. Raises: ResourceError."""
    there = _existing(files)
    if there and not force:
        raise ResourceError(f"{there} would be replaced", remedy="give --force, or another --output")
    path = next(iter(files))
    with contextlib.ExitStack() as temporary, contextlib.ExitStack() as undo:
        try:
            staged = {path: path.with_name(f".{path.name}.{os.getpid()}") for path in files}
            for path, text in files.items():
                with staged[path].open("x", encoding="utf-8") as f:
                    temporary.callback(staged[path].unlink, missing_ok=True)
                    f.write(text)
            for path in files:
                if force:
                    os.replace(staged[path], path)
                else:
                    os.link(staged[path], path)  # fails when somebody else has made it meanwhile
                    undo.callback(path.unlink, missing_ok=True)
            undo.pop_all()
        except OSError as e:
            what = f"cannot write {path}: {e.strerror}"
            raise ResourceError(what, remedy="choose another --output, or make room and permissions") from e


def _report(starter: Starter, output: Path, files: Mapping[Path, str], notes: Sequence[str], *, runs: bool) -> str:
    lines = [f"written: {path}" for path in files]
    lines += [f"note: {line}" for line in notes]
    for domain_id, trd in starter.trds:
        if isinstance(trd, NewTrd):
            path = output.parent.absolute() / um_file_name(domain_id)
            lines.append(f"applications of TRD {domain_id} (domain id) use {path}")
    if starter.has_statistics:
        lines.append(f"statistics: lbmmon --transport-opts config={output.parent.absolute() / STATISTICS_FILE}")
    lines.append(f"check: tnwgd -v {output}")
    if runs:
        lines.append(f"run:   tnwgd {output}")
    return "".join(f"{line}\n" for line in lines)


def _is_terminal() -> bool:
    try:
        return sys.stdin.isatty() and sys.stdout.isatty()
    except ValueError:  # closed
        return False


def _ask_on_terminal(prompt: str) -> str:
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  # gives `input` a line editor
    return input(prompt)


def main(argv: Sequence[str]) -> int:
    """`argv`: what follows `init`."""
    parser = arguments()
    args = parser.parse_args(argv)
    options = _Options(args)
    try:
        if any(value not in (None, False) for key, value in vars(args).items() if key != "kind"):
            if missing := options.missing():
                parser.error(f"{missing} missing")
            try:
                starter = make_starter(options, args.kind)
            except ConfigError as e:
                parser.error(str(e))
            output = options.get("output", "", DEFAULT_OUTPUT, read_output)
        elif not _is_terminal():
            parser.error(f"not on a terminal; give options, see {PROGRAM} direct --help")
        else:
            say(sys.stdout, "Enter takes what stands in brackets, Ctrl-C leaves.\n")
            asker = _Asker(_ask_on_terminal, lambda text: say(sys.stdout, text))
            starter = make_starter(asker, args.kind)
            output = asker.get("output", "File to write", DEFAULT_OUTPUT, lambda text: _new_output(text, starter))
        notes, runs = check(starter, output)
        files = plan_files(starter, output)
        write_files(files, force=bool(getattr(args, "force", False)))
    except EOFError:
        say(sys.stderr, f"\n{PROGRAM}: end of input, nothing was written\n")
        return EXIT_FAILED
    except KeyboardInterrupt:
        say(sys.stderr, f"\n{PROGRAM}: interrupted, nothing was written\n")
        return EXIT_INTERRUPTED
    except (ConfigError, ResourceError) as e:
        say(sys.stderr, f"{PROGRAM}: {e}\n")
        return EXIT_FAILED
    except OSError as e:
        say(sys.stderr, f"{PROGRAM}: {e.filename or 'cannot write'}: {e.strerror}\n")
        return EXIT_FAILED
    say(sys.stdout, _report(starter, output, files, notes, runs=runs))
    return EXIT_OK
