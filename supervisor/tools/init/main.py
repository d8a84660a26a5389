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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn, TypeVar

from dro.command_line import Parser
from dro.config.dro_xml.load import load_dro
from dro.config.dro_xml.unsupported import split_limits
from dro.config.reading.problems import ConfigErrors
from dro.errors import ConfigError, ResourceError
from dro.standard_streams import say
from supervisor.tools.init.files import (
    DEFAULT_LISTEN_PORT,
    Companion,
    NewTrd,
    Starter,
    Trd,
    UmFile,
    check_apart,
    default_trd,
    dro_text,
    read_companion,
    read_domain,
    read_host,
    read_name,
    read_port,
    read_trd,
    shown,
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
_TRD: Final = "FILE|INTERFACE[,GROUP:PORT]"
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
        "network or device) with the group and port of its topic resolution, from which a UM file is made. Without "
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
        kind.add_argument("--output", metavar="FILE", help=f"the file to write (default: {DEFAULT_OUTPUT})")
        kind.add_argument("--force", action="store_true", help="replace files that exist")


class _Asker:
    """Questions on a terminal, with a default, asked again until the answer will do."""

    def __init__(self, ask: Callable[[str], str], out: Callable[[str], None]) -> None:
        self._ask = ask
        self._out = out

    def ask(self, question: str, default: str, read: Callable[[str], T]) -> T:
        """Raises: EOFError, KeyboardInterrupt."""
        self._out(f"{question}\n")
        while True:
            answer = self._ask(f"  [{default}]: ").strip()
            try:
                return read(answer or default)
            except ConfigError as e:
                self._out(f"  {e.what}; {e.remedy}\n")


def default_name() -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname().partition(".")[0])[:40] or "DRO1"


def ask_starter(asker: _Asker, kind: str | None) -> tuple[Starter, Path]:
    """At most five questions. Raises: EOFError, KeyboardInterrupt."""
    kind = kind or asker.ask(
        "Kind of link: direct (two TRDs that this host reaches) or peer (one end)", "direct", _kind
    )
    name = asker.ask("Name of the DRO", default_name(), read_name)
    what = "its UM configuration file, or INTERFACE,GROUP:PORT to have one made"

    def second(text: str) -> Trd:
        trd = read_trd(text, 2)
        check_apart(first, trd)
        return trd

    if kind == "direct":
        first = asker.ask(f"First TRD: {what}", shown(default_trd(1)), lambda text: read_trd(text, 1))
        other = asker.ask(f"Second TRD: {what}", shown(default_trd(2)), second)
        starter = Starter(name, ((1, first), (2, other)))
    else:
        companion = asker.ask(
            "Companion at the other end: HOST:PORT to connect to, or PORT to listen on",
            str(DEFAULT_LISTEN_PORT),
            read_companion,
        )
        domain_id = _peer_domain(companion)
        trd = asker.ask(
            f"TRD of this end: {what}", shown(default_trd(domain_id)), lambda text: read_trd(text, domain_id)
        )
        starter = Starter(name, ((domain_id, trd),), companion)
    return starter, asker.ask("File to write", DEFAULT_OUTPUT, lambda text: _new_output(text, starter))


def _kind(text: str) -> str:
    for kind in KINDS:
        if kind.startswith(text.lower()):
            return kind
    raise ConfigError(f"{text[:40]!r} is no kind of link", remedy="write direct or peer")


def _peer_domain(companion: Companion) -> int:
    return 1 if companion.host else 2


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
    """`read_output`, and nothing that would be written exists. Raises: ConfigError."""
    path = read_output(text)
    there = [str(made) for made in plan_files(starter, path) if made.exists()]
    if there:
        raise ConfigError(f"{', '.join(there)} would be replaced", remedy="write another file")
    return path


def starter_of(args: argparse.Namespace, error: Callable[[str], object]) -> Starter:
    """From options alone. `error` ends the program. Raises: ConfigError."""
    name = _option("--name", read_name, default_name() if args.name is None else args.name)
    if args.kind == "direct":
        missing = [f"--{trd}" for trd in ("trd1", "trd2") if getattr(args, trd) is None]
        if missing:
            error(f"{' and '.join(missing)} missing")
        ids = (("--domain1", args.domain1, "1"), ("--domain2", args.domain2, "2"))
        domains = [_option(option, read_domain, default if text is None else text) for option, text, default in ids]
        if domains[0] == domains[1]:
            raise ConfigError(f"both TRDs have domain id {domains[0]}", remedy="give each its own")
        first = _option("--trd1", lambda text: read_trd(text, domains[0]), args.trd1)
        second = _option("--trd2", lambda text: read_trd(text, domains[1]), args.trd2)
        check_apart(first, second)
        return Starter(name, ((domains[0], first), (domains[1], second)))
    if args.trd is None:
        error("--trd missing")
    if args.connect is None and args.listen is None:
        error("--connect or --listen missing")
    if args.connect is not None:
        host, _, port = args.connect.rpartition(":")
        companion = Companion(host=_option("--connect", read_host, host), port=_option("--connect", read_port, port))
    else:
        companion = Companion(_option("--listen", read_port, args.listen))
    domain_id = _peer_domain(companion) if args.domain is None else _option("--domain", read_domain, args.domain)
    return Starter(name, ((domain_id, _option("--trd", lambda text: read_trd(text, domain_id), args.trd)),), companion)


def _usable(args: argparse.Namespace, error: Callable[[str], NoReturn]) -> Starter:
    """`starter_of`; values that cannot be used are wrong arguments."""
    try:
        return starter_of(args, error)
    except ConfigError as e:
        error(str(e))


def _option(name: str, read: Callable[[str], T], text: str) -> T:
    try:
        return read(text)
    except ConfigError as e:
        raise ConfigError(e.what, element=name, remedy=e.remedy) from e


def plan_files(starter: Starter, output: Path, folder: Path | None = None) -> dict[Path, str]:
    """Texts by path, the DRO file last. `folder`: make them refer to each other there instead."""
    place = (output.parent if folder is None else folder).absolute()
    files: dict[Path, str] = {}
    paths = []
    for nth, (domain_id, trd) in enumerate(starter.trds):
        match trd:
            case UmFile(path=there):
                paths.append(there)
            case NewTrd():
                path = place / um_file_name(domain_id)
                block = domain_id - 1 if len(starter.trds) == 1 else nth
                files[path] = um_text(trd, domain_id, block)
                paths.append(str(path))
    files[place / output.name] = dro_text(starter, paths)
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
    there = [str(path) for path in files if path.exists()]
    if there and not force:
        raise ResourceError(f"{', '.join(there)} would be replaced", remedy="give --force, or another --output")
    staged: dict[Path, Path] = {}
    made: list[Path] = []
    path = next(iter(files))
    try:
        for path, text in files.items():
            temporary = path.with_name(f".{path.name}.{os.getpid()}")
            staged[path] = temporary
            with temporary.open("x", encoding="utf-8") as f:
                f.write(text)
        for path, temporary in staged.items():
            if force:
                os.replace(temporary, path)
            else:
                os.link(temporary, path)  # fails when somebody else has made it meanwhile
                made.append(path)
    except OSError as e:
        for done in made:
            done.unlink(missing_ok=True)
        what = f"cannot write {path}: {e.strerror}"
        raise ResourceError(what, remedy="choose another --output, or make room and permissions") from e
    finally:
        for temporary in staged.values():
            with contextlib.suppress(OSError):
                temporary.unlink()


def _report(starter: Starter, output: Path, files: Mapping[Path, str], notes: Sequence[str], *, runs: bool) -> str:
    lines = [f"written: {path}" for path in files]
    lines += [f"note: {line}" for line in notes]
    for domain_id, trd in starter.trds:
        if isinstance(trd, NewTrd):
            path = output.parent.absolute() / um_file_name(domain_id)
            lines.append(f"applications of TRD {domain_id} (domain id) use {path}")
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
    given = {key: value for key, value in vars(args).items() if key != "kind" and value not in (None, False)}
    try:
        if given:
            starter = _usable(args, parser.error)
            output = _option("--output", read_output, DEFAULT_OUTPUT if args.output is None else args.output)
        elif not _is_terminal():
            parser.error(f"not on a terminal; give options, see {PROGRAM} direct --help")
        else:
            say(sys.stdout, "Enter takes what stands in brackets, Ctrl-C leaves.\n")
            starter, output = ask_starter(_Asker(_ask_on_terminal, lambda text: say(sys.stdout, text)), args.kind)
        notes, runs = check(starter, output)
        files = plan_files(starter, output)
        write_files(files, force=bool(given.get("force")))
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
