"""What the route manager's cores need of a configuration."""

from __future__ import annotations

import re

from dro.clock import ms
from dro.command_line import version
from dro.config.dro_xml.model import DroConfig
from dro.shares import METHOD
from router.authentication import Authentication
from router.core import OwnDro
from router.route_info_exchange import ExchangeTiming
from router.route_recalculation import Timing
from router.topology import Neighbour, configuration_signature


def timing_of(config: DroConfig) -> Timing:
    """`<route-info check-interval>`, `<route-recalculation>` and `<fast-recalculation>`."""
    daemon = config.daemon
    fast = daemon.fast_recalculation
    return Timing(
        check_ns=ms(daemon.route_info.check_interval_ms),
        backoff_ns=ms(daemon.route_recalculation.backoff_interval_ms),
        warning_ns=ms(daemon.route_recalculation.warning_interval_ms),
        first_ns=ms(fast.first_interval_ms) if fast is not None else None,
        propagation_ns=ms(daemon.route_info.propagation_interval_ms),
    )


def exchange_timing_of(config: DroConfig) -> ExchangeTiming:
    """The other attributes of `<route-info>`."""
    info = config.daemon.route_info
    return ExchangeTiming(ms(info.propagation_interval_ms), ms(info.timeout_ms), info.max_hop_count)


def own_dro(config: DroConfig, node_id: int) -> OwnDro:
    """Return what the configuration says about this DRO. The node ids of companions are not configured."""
    portals = [Neighbour(p.domain_id, p.cost, p.cost) for p in config.portals]
    portals += [Neighbour(0, p.cost, p.cost) for p in config.peers]
    sharing = METHOD if config.daemon.equal_cost_sharing else 0
    given = config.daemon.route_authentication
    authentication = Authentication(given.keys, given.accepts_unsigned) if given is not None else None
    signature, number = configuration_signature(portals), gateway_version(version())
    return OwnDro(node_id, config.daemon.name, signature, number, sharing, authentication)


def gateway_version(text: str) -> int:
    """Major, minor and patch number, a byte each, and a zero byte (ours)."""
    numbers = [min(int(number), 255) for number in re.findall(r"\d+", text)[:3]]
    return int.from_bytes(bytes(numbers).ljust(4, b"\0"), "big")
