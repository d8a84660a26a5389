"""`tnwgdctl doctor`: checks a configuration, this host and the networks of its portals.

Reads the file as `tnwgd` does, then runs the checks of the host in sequence and those of all TRDs in parallel, in
threads: a few seconds in all. A running DRO is only queried. Source of UM's requirements on a host: DRO guide, chapters
3.1.6 and 3.8; transport notes, sections 11 and 16.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dro.bus.codec import JsonObject
from dro.config.dro_xml.load import load_dro
from dro.config.dro_xml.model import DroConfig, EndpointConfig, PeerConfig
from dro.config.dro_xml.unsupported import split_limits
from dro.config.lint.finding import Machine, Severity, View, view_of
from dro.config.lint.rules import lint
from dro.config.reading.problems import ConfigErrors
from dro.config.um.interfaces import SYSTEM, Lookup
from dro.config.um.options import find_option
from dro.config.um.rules import Kind
from dro.errors import ConfigError
from supervisor.tools.doctor import host
from supervisor.tools.doctor.check import Check, Status, fail, note, ok, warn, worst
from supervisor.tools.doctor.messages import PROBE_PORT
from supervisor.tools.doctor.ports import ports
from supervisor.tools.doctor.servers import ServerTest, tests_of
from supervisor.tools.doctor.trd import LISTEN_S, TrdTestPlan, probe_trd, responders_of

MAX_THREADS: Final = 64


@dataclass(frozen=True, slots=True)
class Running:
    """The DRO that runs this configuration, if one does: its processes, parent first."""

    pids: tuple[int, ...] = ()

    @property
    def pid(self) -> int:
        return self.pids[0] if self.pids else 0


@dataclass(frozen=True, slots=True)
class DiagnosisRequest:
    """What the operator asked for. `sends` off: nothing is sent to any network."""

    file: str
    running: Running = Running()
    responders: tuple[str, ...] = ()
    listen_s: float = LISTEN_S
    port: int = PROBE_PORT
    sends: bool = True
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)  # of the DRO, for variables of UM


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Everything that was found, in the order of the file."""

    file: str
    running_pid: int
    checks: tuple[Check, ...]
    portals: tuple[str, ...] = ()

    @property
    def status(self) -> Status:
        return worst(self.checks)

    def to_json(self) -> JsonObject:
        """Write it for programs: `status` is the worst of `checks`."""
        return {
            "file": self.file,
            "running_pid": self.running_pid,
            "status": self.status.value,
            "checks": [
                {
                    "portal": c.portal, "check": c.name, "status": c.status.value, "what": c.what,
                    "remedy": c.remedy, "place": c.place,
                }
                for c in self.checks
            ],
        }  # fmt: skip

    def text(self, *, all_checks: bool = True) -> str:
        """Write it for people: the DRO and the host first, then portal by portal."""
        running = f"running, pid {self.running_pid}" if self.running_pid else "not running"
        lines = [f"{self.file} ({running})"]
        for portal in ("", *self.portals):
            shown = [c for c in self.checks if c.portal == portal and (all_checks or c.status is not Status.OK)]
            if portal and (shown or all_checks):
                lines.append(f"portal {portal}")
            lines += [f"  {check.line()}" for check in shown]
        return "\n".join([*lines, host.summary(self.checks)])


def diagnose(request: DiagnosisRequest, lookup: Lookup = SYSTEM) -> Diagnosis:
    """Diagnose; never raises for what is wrong with the file, the host or the network."""
    began = host.ClockSample.now()
    ignored: list[ConfigError] = []
    warned: list[str] = []
    try:
        config = load_dro(
            request.file, warn=warned.append, lookup=lookup, environ=request.environ, ignored=ignored.append
        )
    except ConfigError as e:
        errors = e.errors if isinstance(e, ConfigErrors) else (e,)
        return Diagnosis(request.file, request.running.pid, tuple(_config_error(error) for error in errors))
    view = view_of(config, Machine.of_system(lookup))
    checks = [note("", "configuration", text) for text in warned]
    checks += _configuration(config, ignored, view)
    plans: list[TrdTestPlan] = []
    servers: list[ServerTest] = []
    for endpoint in view.endpoints:
        net, found = host.net_of(endpoint, lookup)
        checks += found
        servers += tests_of(endpoint)
        plan = TrdTestPlan.of(endpoint, net, request.port) if net is not None else None
        if plan is not None:
            plans.append(plan)
        elif net is not None:
            checks.append(note(endpoint.config.name, "multicast", "topic resolution is not by multicast here"))
    checks += host.installation()
    checks += host.other_dros(config, request.running.pid)
    checks += _of_host(request, view, lookup)
    checks += _of_networks(request, plans, servers, lookup)
    checks += host.clock(began, host.ClockSample.now(), _newest(config))
    portals = tuple(portal.name for portal in _portals(config))
    return Diagnosis(request.file, request.running.pid, tuple(_by_portal(checks, portals)), portals)


def _portals(config: DroConfig) -> list[EndpointConfig | PeerConfig]:
    return [*config.portals, *config.peers]


def _by_portal(checks: Iterable[Check], portals: Sequence[str]) -> list[Check]:
    place = {name: at for at, name in enumerate(("", *portals))}
    return sorted(checks, key=lambda check: place.get(check.portal, 0))


def _config_error(e: ConfigError) -> Check:
    what = f"{e.element}: {e.what}" if e.element else e.what
    place = f"{e.file}:{e.line}" if e.line else e.file
    return fail("", "configuration", what, e.remedy or "tnwgd does not start with it", place)


def _configuration(config: DroConfig, ignored: Sequence[ConfigError], view: View) -> Iterator[Check]:
    """Check what was read and does not count, what this release cannot do, what the lint finds."""
    for e in ignored:
        files = [p.name for p in _portals(config) if e.file in p.lbm_config]
        for portal in files or [""]:
            what = f"{e.element}: {e.what}, so the line does not count".removeprefix(": ")
            yield fail(portal, _check_of(e.element), what, e.remedy or "mend the line", f"{e.file}:{e.line}")
    refusals, warnings = split_limits(config)
    for r in refusals:
        yield fail("", "configuration", f"{r.element}: {r.what}", r.remedy or "remove it", f"{r.file}:{r.line}")
    for w in warnings:
        yield note("", "configuration", f"{w.element}: {w.what}", place=f"{w.file}:{w.line}")
    findings = lint(config, view.machine)
    for f in findings:
        name, what = f"lint {f.rule}", f"{f.subject}: {f.what}: {f.why}"
        if f.severity is Severity.WARNING:
            yield warn(f.portal, name, what, f.remedy, str(f.place))
        else:
            yield note(f.portal, name, what, f.remedy, str(f.place))
    if not findings:
        yield ok("", "configuration", f"{len(config.portals) + len(config.peers)} portals, no option fights another")


def _check_of(element: str) -> str:
    """Name what a bad setting is about: an interface of this host, a name, or else the configuration."""
    scope, _, name = element.partition(" ")
    option = find_option(scope, name)
    about = {Kind.INTERFACE: "interface", Kind.ADDRESS: "name", Kind.LIST: "name"}
    return about.get(option.rule.kind, "configuration") if option is not None else "configuration"


def _of_host(request: DiagnosisRequest, view: View, lookup: Lookup) -> Iterator[Check]:
    config = view.config
    running = request.running.pids[-1] if request.running.pids else 0  # a worker, which has the rights that count
    may_force = host.has_net_admin() and (host.has_net_admin(running) if running else config.daemon.uid in (None, 0))
    yield from host.shared_memory(view, is_running=bool(request.running.pid))
    yield from host.open_files(len(config.portals) + len(config.peers), request.running.pid)
    for endpoint in view.endpoints:
        yield from host.buffers(endpoint, may_force=may_force)
    for peer in config.peers:
        yield from host.peer_buffers(peer, may_force=may_force)
    yield from ports(view, request.running.pids)
    yield from host.names(config.peers, lookup)
    yield from host.files(config.peers, time.time())


def _of_networks(
    request: DiagnosisRequest, plans: Sequence[TrdTestPlan], servers: Sequence[ServerTest], lookup: Lookup
) -> list[Check]:
    """Probe all TRDs and their servers side by side."""
    interfaces = lookup.interfaces()
    networks = {
        plan.portal: next((i.network for i in interfaces if i.address == plan.net.address), None) for plan in plans
    }
    known = [network for network in networks.values() if network is not None]
    own: Collection[str] = {i.address for i in interfaces} | {plan.net.address for plan in plans}

    def one(plan: TrdTestPlan) -> list[Check]:
        responders = responders_of(plan.net, networks[plan.portal], request.responders, known)
        return probe_trd(plan, request.port, own, responders, request.listen_s, sends=request.sends)

    if not plans and not servers:
        return []
    with ThreadPoolExecutor(min(MAX_THREADS, len(plans) + len(servers))) as pool:
        answers = pool.map(lambda test: test.run(sends=request.sends), servers)
        checks = [check for found in pool.map(one, plans) for check in found]
        return checks + list(answers)


def _newest(config: DroConfig) -> float:
    """Find when the last of the files was changed, in seconds since the epoch; 0 when that is not known."""
    paths = {config.file, *(path for p in _portals(config) for path in p.lbm_config)}
    return max((os.stat(path).st_mtime for path in paths if Path(path).exists()), default=0.0)
