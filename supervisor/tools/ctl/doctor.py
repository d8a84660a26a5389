"""`tnwgdctl doctor`: problems of a configuration, this host, and its networks.

Works with or without a running DRO. Exit status: 0 when nothing failed (with `--strict`: and there are no warnings), 1
when something did, 2 wrong arguments, 3 when no file is given and no DRO runs.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path
from typing import Final

from dro.clock import s
from dro.errors import ConfigError, DroError
from supervisor.admin.client import Client, find_dro, running_dros
from supervisor.admin.status import DroStatus
from supervisor.explain.neighbours import neighbour_problems
from supervisor.tools.ctl.output import EXIT_FAILED, EXIT_OK, Commands, connect, number_of_seconds, put, put_answer
from supervisor.tools.doctor.check import Check, Status, ok, warn
from supervisor.tools.doctor.diagnosis import Diagnosis, DiagnosisRequest, Running, diagnose
from supervisor.tools.doctor.messages import PROBE_PORT
from supervisor.tools.doctor.responder import Responder
from supervisor.tools.doctor.trd import LISTEN_S

MAX_LISTEN_S: Final = 5.0
MAX_RESPONDERS: Final = 16


def add_commands(commands: Commands, common: argparse.ArgumentParser) -> None:
    doctor = commands.add_parser(
        "doctor",
        parents=[common],
        help="checks of configuration, host and networks",
        description="Check a configuration, this host, and the networks of its portals.",
        epilog="With --respond on another host of a TRD, directions and sizes of datagrams are checked too.",
    )
    doctor.add_argument("file", metavar="FILE", nargs="?", help="DRO configuration; default: the running DRO's")
    doctor.add_argument("--responder", metavar="ADDRESS", type=_address, action="append", default=[],
                        help="a host where the responder runs; those nearby are found without it")  # fmt: skip
    doctor.add_argument("--respond", metavar="ADDRESS", type=_address,
                        help="answer doctors of other hosts on this address of ours, until interrupted")  # fmt: skip
    doctor.add_argument("--for", metavar="SECONDS", type=_seconds, default=0.0, dest="duration",
                        help="with --respond: for so long")  # fmt: skip
    doctor.add_argument(
        "--listen",
        metavar="SECONDS",
        type=_listen,
        default=LISTEN_S,
        help=f"how long to listen to each network; default {LISTEN_S:g}, at most {MAX_LISTEN_S:g}",
    )
    doctor.add_argument("--listen-only", action="store_true", help="send nothing to any network")
    doctor.add_argument("--port", metavar="PORT", type=_port, default=PROBE_PORT,
                        help=f"UDP port of doctor and responder; default {PROBE_PORT}")  # fmt: skip
    doctor.add_argument("--problems", action="store_true", help="leave out what is ok")
    doctor.add_argument("--strict", action="store_true", help="exit status 1 for warnings too")
    doctor.set_defaults(run=run_doctor, usage_error=doctor.error)


def _address(text: str) -> str:
    try:
        address = IPv4Address(text)
    except ValueError as e:
        raise argparse.ArgumentTypeError(f"{text!r} is not an IPv4 address") from e
    if address.is_multicast or address.is_unspecified:
        raise argparse.ArgumentTypeError(f"{text} is not the address of a host")
    return str(address)


def _seconds(text: str) -> float:
    value = number_of_seconds(text)
    if not 0 < value <= 1e6:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds above 0")
    return value


def _listen(text: str) -> float:
    value = _seconds(text)
    if value > MAX_LISTEN_S:
        raise argparse.ArgumentTypeError(f"{text} is above {MAX_LISTEN_S:g}")
    return value


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1024 <= int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 1024 to 65535")
    return int(text)


def check_arguments(args: argparse.Namespace) -> None:
    """Refuse what would have no effect; ends the program with status 2."""
    looks = {"FILE": args.file, "--responder": args.responder, "--listen-only": args.listen_only, "--json": args.json,
             "--problems": args.problems, "--strict": args.strict}  # fmt: skip
    which = {"--dro": args.dro, "--run-dir": args.run_dir}
    given = [name for name, value in (looks | which).items() if value]
    if args.respond and given:
        args.usage_error(f"{', '.join(given)} without effect: --respond looks at nothing")
    if args.duration and not args.respond:
        args.usage_error("--for without effect: it goes with --respond")
    if args.listen_only and args.responder:
        args.usage_error("--listen-only and --responder exclude each other")
    if args.file and any(which.values()):
        args.usage_error(f"FILE and {next(name for name, value in which.items() if value)} exclude each other")


def run_doctor(args: argparse.Namespace) -> int:
    check_arguments(args)
    if args.respond:
        return respond(args)
    if args.file == "":
        raise ConfigError("the name of the file is empty", remedy="write its name, or none for that of the running DRO")
    if len(args.responder) > MAX_RESPONDERS:
        raise DroError(f"{len(args.responder)} responders, at most {MAX_RESPONDERS}")
    file, running = _file_and_dro(args)
    environ: Mapping[str, str] = os.environ
    if running.pid:  # relative names in the file count from there
        file = os.path.abspath(file)
        with contextlib.suppress(OSError):
            os.chdir(f"/proc/{running.pid}/cwd")
            environ = environment_of(running.pid)
    responders = tuple(dict.fromkeys(args.responder))
    request = DiagnosisRequest(file, running, responders, args.listen, args.port, not args.listen_only, environ)
    diagnosis = diagnose(request)
    diagnosis = replace(diagnosis, checks=(*diagnosis.checks, *_neighbours(running)))
    put_answer(args, diagnosis.to_json(), diagnosis.text(all_checks=not args.problems))
    return exit_status(diagnosis, strict=args.strict)


def _neighbours(running: Running) -> Iterator[Check]:
    """Check what the running DRO waits for."""
    if not running.pid:
        return
    try:
        with Client(find_dro(str(running.pid))) as client:
            problems = neighbour_problems(client, client.ask(DroStatus, "status"))
    except DroError as e:
        what = f"the running DRO does not say which of its neighbours are there: {e}"
        yield warn("", "neighbours", what, "look at tnwgdctl status and at its log")
        return
    for problem in problems:
        yield warn(problem.portal, "neighbours", problem.what, problem.remedy)
    if not problems:
        yield ok("", "neighbours", "all that are expected are there")


def exit_status(diagnosis: Diagnosis, *, strict: bool) -> int:
    bad = (Status.WARN, Status.FAIL) if strict else (Status.FAIL,)
    return EXIT_FAILED if diagnosis.status in bad else EXIT_OK


def environment_of(pid: int) -> dict[str, str]:
    """The environment that a process was started with. Raises: OSError when this user may not see it."""
    raw = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="surrogateescape")
    return dict(entry.partition("=")[::2] for entry in raw.split("\0") if "=" in entry)


def _file_and_dro(args: argparse.Namespace) -> tuple[str, Running]:
    """Find the file to look at, and the DRO that runs it. Raises: UnreachableError when there is neither."""
    if not args.file:
        with connect(args) as client:
            status = client.ask(DroStatus, "status")
        return status.config_file, _running(status)
    return args.file, _running_with(args.file)


def _running(status: DroStatus) -> Running:
    return Running((status.pid, *(worker.pid for worker in status.workers if worker.pid)))


def _running_with(file: str) -> Running:
    """Find the DRO of this user that runs that file; one that does not answer is passed over."""
    for dro in running_dros():
        with contextlib.suppress(DroError), Client(dro.run_dir) as client:
            status = client.ask(DroStatus, "status", limit_s=2.0)
            if _same_file(status.config_file, file):
                return _running(status)
    return Running()


def _same_file(one: str, other: str) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samefile(one, other)
    return False


def respond(args: argparse.Namespace) -> int:
    """Stand there until interrupted, told to end, or the time is over."""
    with contextlib.closing(Responder(args.respond, args.port)) as responder:
        previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            put(f"responder ready on {args.respond}, UDP port {args.port}")
            responder.run(time.monotonic_ns() + s(args.duration) if args.duration else 0)
        except KeyboardInterrupt:
            return EXIT_OK
        finally:
            signal.signal(signal.SIGTERM, previous)
    return EXIT_OK
