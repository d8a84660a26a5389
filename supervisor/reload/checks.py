"""Checks before a plan is carried out: sockets, memory and files that a new portal needs.

Run in the forked child of a reload, which exits afterwards, so nothing of it persists. A socket that is not available
now is no problem if a portal that the same plan stops may hold it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from dro.bus.ring_size import RING_START_BYTES
from dro.config.change.difference import Portal, portals_of
from dro.config.dro_xml.model import DroConfig, EndpointConfig
from dro.config.reading.problems import ConfigErrors
from dro.config.um.interfaces import ANY
from dro.config.um.options import UmOptions
from dro.config.um.sets import RequestOptions, ResolverOptions, UnicastResolverOptions, uses_multicast
from dro.errors import ConfigError, ResourceError
from dro.transport.sockets import OS_SOCKETS, ip_number
from supervisor.reload.plan import ActionKind, ReloadPlan

CONTEXTS: Final = 2  # of an endpoint portal, each with a request port


def check_plan(running: DroConfig, new: DroConfig, plan: ReloadPlan, resting: frozenset[str], shm: Path) -> None:
    """Try what the plan needs from the machine. `resting` portals are not started, so theirs is not tried.

    Raises: ConfigErrors with the place of each portal that would not start.
    """
    before, after = portals_of(running), portals_of(new)
    stopping = [before[name] for kind in (ActionKind.REMOVE, ActionKind.RESTART) for name in plan.portals(kind)]
    names = [name for kind in (ActionKind.ADD, ActionKind.RESTART) for name in plan.portals(kind)]
    starting = [after[name] for name in names if name not in resting]
    problems = list(_memory(starting, stopping, shm))
    for portal in starting:
        if isinstance(portal, EndpointConfig):
            problems += _sockets(portal, stopping)
    if problems:
        raise ConfigErrors(problems)


def _problem(portal: Portal, error: ResourceError) -> ConfigError:
    subject = f"portal {portal.name!r}"
    return ConfigError(error.what, file=portal.file, line=portal.line, element=subject, remedy=error.remedy)


# --- shared memory -------------------------------------------------------------------------------------------------


def _memory(starting: Sequence[Portal], stopping: Sequence[Portal], shm: Path) -> Iterator[ConfigError]:
    """Check that rings, which begin small, find memory; those of stopping portals are free by then."""
    wanted, freed = len(starting) * RING_START_BYTES, len(stopping) * RING_START_BYTES
    status = os.statvfs(shm)
    free = status.f_bavail * status.f_frsize
    if wanted > free + freed:
        what = f"the portals to start need {wanted >> 10} KiB of shared memory, {(free + freed) >> 10} KiB are free"
        yield _problem(starting[0], ResourceError(what, remedy=f"enlarge {shm.parent}"))


# --- sockets -------------------------------------------------------------------------------------------------------


def _sockets(portal: EndpointConfig, stopping: Sequence[Portal]) -> Iterator[ConfigError]:
    """Open the sockets that an endpoint portal opens at its start, and close them again."""
    held_by = [other.um for other in stopping]
    for check in (_resolver, _request_ports):
        try:
            check(portal.um, held_by)
        except ResourceError as e:
            yield _problem(portal, e)


def _resolver(um: UmOptions, held_by: Sequence[UmOptions]) -> None:
    """Bind its port. Raises: ResourceError when the interface is not there, or somebody has the port for himself."""
    unicast = UnicastResolverOptions.of(um)
    if unicast.daemons:
        if not any(UnicastResolverOptions.of(other).daemons for other in held_by):
            for place in unicast.places():
                OS_SOCKETS.bind_in_range(socket.SOCK_DGRAM, place.interface, place.ports, option=place.option).close()
        return
    o = ResolverOptions.of(um)
    if not uses_multicast(um) or o.incoming_address == ANY:
        return
    option = "resolver_multicast_incoming_address or _port"
    try:
        group = ip_number(o.incoming_address)
        OS_SOCKETS.multicast_receiver(group, o.incoming_port, o.interface, buffer_bytes=0, option=option).close()
    except ResourceError:
        if not any(ResolverOptions.of(other).incoming_port == o.incoming_port for other in held_by):
            raise


def _request_ports(um: UmOptions, held_by: Sequence[UmOptions]) -> None:
    """Bind ports of the range. Raises: ResourceError."""
    o = RequestOptions.of(um)
    if not o.bind:
        return
    ports, option = o.ports
    with ExitStack() as opened:
        try:
            for _ in range(min(CONTEXTS, len(ports))):
                opened.enter_context(OS_SOCKETS.bind_in_range(socket.SOCK_STREAM, o.interface, ports, option=option))
        except ResourceError:
            if not any(_overlap(o, RequestOptions.of(other)) for other in held_by):
                raise


def _overlap(one: RequestOptions, other: RequestOptions) -> bool:
    """Say whether the other may hold a port of the one."""
    same_interface = one.interface == other.interface or ANY in (one.interface, other.interface)
    return other.bind and same_interface and not set(one.ports[0]).isdisjoint(other.ports[0])
