"""Lint of a loaded configuration: options that are valid individually and conflict with each other.

One table of rules; each is a function from a view of the configuration to findings. Called by `tnwgd -v` and by
`tnwgdctl doctor`. Pure: the machine is a record. Errors in the files are reported by the readers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from dro.config.dro_xml.model import DroConfig
from dro.config.lint import acl as lint_acl
from dro.config.lint import network as lint_network
from dro.config.lint import peer as lint_peer
from dro.config.lint import portal as lint_portal
from dro.config.lint import resolver as lint_resolver
from dro.config.lint import transport as lint_transport
from dro.config.lint.finding import EndpointView, Finding, Machine, PeerView, View, view_of

OfDro = Callable[[View], Iterator[Finding]]
OfEndpoint = Callable[[EndpointView], Iterator[Finding]]
OfPeer = Callable[[PeerView], Iterator[Finding]]
OfPortal = Callable[[EndpointView | PeerView], Iterator[Finding]]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: `name` stays the same over releases; `relation` says what ought to hold, for the documentation."""

    name: str
    relation: str
    dro: OfDro | None = None
    endpoint: OfEndpoint | None = None
    peer: OfPeer | None = None

    def findings(self, view: View) -> Iterator[Finding]:
        if self.dro is not None:
            yield from (replace(found, rule=self.name) for found in self.dro(view))
        if self.endpoint is not None:
            for endpoint in view.endpoints:
                for found in self.endpoint(endpoint):
                    yield replace(found, rule=self.name, portal=endpoint.config.name)
        if self.peer is not None:
            for peer in view.peers:
                for found in self.peer(peer):
                    yield replace(found, rule=self.name, portal=peer.config.name)


def _both(name: str, relation: str, function: OfPortal) -> Rule:
    return Rule(name, relation, endpoint=function, peer=function)


RULES: Final = (
    Rule("joined-trds", "no two portals share a resolver channel on one network", dro=lint_network.joined_trds),
    Rule("data-groups", "no two portals share LBT-RM groups and port on one network", dro=lint_network.data_groups),
    Rule("groups", "the LBT-RM range is one, and its groups with their port serve nothing else",
         endpoint=lint_network.groups),
    Rule("port-room", "ports of ranges that portals share >= ports that they bind", dro=lint_network.port_room),
    Rule("ephemeral-ports", "ports lie outside of `ip_local_port_range`", dro=lint_network.ephemeral_ports),
    Rule("fragment-size", "datagram size where fragments leave >= datagram size where they enter",
         dro=lint_portal.fragment_sizes),
    Rule("resolver-size", "`resolver_datagram_max_size` is the same at all portals", dro=lint_portal.resolver_sizes),
    Rule("own-size", "datagram size of receivers >= that of sources, in one TRD", endpoint=lint_transport.own_sizes),
    Rule("nak-ignore", "NAK backoff >= 2 x ignore interval; ignore interval < generation interval",
         endpoint=lint_transport.udp_ignore, peer=lint_peer.udp_naks),
    Rule("nak-times", "initial backoff, 2 x backoff and suppress interval < generation interval",
         endpoint=lint_transport.udp_nak_times),
    Rule("window-time", "transmission window / data rate >= NAK generation interval",
         endpoint=lint_transport.udp_window, peer=lint_peer.udp_window),
    Rule("retransmit-rate", "5 % of the data rate <= retransmission rate < data rate",
         endpoint=lint_transport.udp_rates, peer=lint_peer.udp_rates),
    Rule("rate-quota", "data rate x rate interval >= datagram size", endpoint=lint_transport.udp_quota),
    Rule("session-life", "activity timeout >= 3 x session message interval (2 x for LBT-IPC) and >= NAK generation "
         "interval; LBT-RU client activity timeout >= 3 x acknowledgement interval",
         endpoint=lint_transport.sessions, peer=lint_peer.udp_session),
    Rule("unreliable", "NAKs are on and data of LBT-RM and LBT-RU has a rate limit",
         endpoint=lint_transport.unreliable),
    Rule("loss-check", "activity timeout > loss check + generation interval; generation interval >= 4 x loss check",
         endpoint=lint_transport.loss_check),
    Rule("tsni", "active threshold >= 4 x TSNI interval + NAK generation interval; TCP activity timer >= 3 x TSNI "
         "interval", endpoint=lint_transport.tsni),
    Rule("buffers", "receive buffer / data rate >= 50 ms; buffers hold several datagrams",
         endpoint=lint_transport.buffers),
    Rule("filtering", "sources that filter send by TCP", endpoint=lint_transport.filtering),
    Rule("batching", "batching minimum length <= datagram size, unless smart batching is on",
         endpoint=lint_transport.batching, peer=lint_peer.peer_batches),
    Rule("resolver-phases", "shortest <= longest interval; advertisements or queries are sent",
         endpoint=lint_resolver.resolver_phases),
    Rule("resolver-rates", "limits of topic resolution >= one datagram in a second",
         endpoint=lint_resolver.resolver_rates),
    Rule("resolver-ttl", "`resolver_multicast_ttl` > 0, but on the loopback interface",
         endpoint=lint_resolver.resolver_ttl),
    Rule("resolver-daemons", "`resolver_unicast_activity_timeout` >= 2 x keepalive interval, >= 5 x check interval; "
         "`resolver_unicast_force_alive` is 1", endpoint=lint_resolver.resolver_daemons),
    Rule("resolver-services", "without topic resolution over UDP there is a `resolver_service`, and with one there is "
         "`resolver_cache`", endpoint=lint_resolver.resolver_services),
    Rule("resolver-reach", "no server of topic resolution is on the loopback interface, unless the portal is",
         endpoint=lint_resolver.resolver_reach),
    Rule("resolver-transport", "`transport` lbtrm and `mim_address` where topics are resolved by multicast",
         endpoint=lint_resolver.resolver_transport),
    Rule("use-query", "use query timeout x max < periodic interval", endpoint=lint_portal.use_queries),
    Rule("remote-interest", "timeout of remote interest >= 2 x max-interval of its announcements, >= check interval",
         endpoint=lint_portal.remote_interest),
    _both("deletion-delay", "250 ms <= `<source-deletion-delay>` <= 60 s", lint_portal.deletion_delay),
    _both("cost", "the cost of a long path fits its field", lint_portal.cost),
    Rule("queue", "`<max-queue>` holds at least one datagram", endpoint=lint_portal.queue, peer=lint_peer.peer_queue),
    Rule("shared-memory", "rings of all portals, and of LBT-IPC sessions of proxy sources, fit into `/dev/shm`",
         dro=lint_portal.shared_memory),
    Rule("route-info", "timeout >= 2 x propagation interval, >= check interval", dro=lint_portal.route_info),
    _both("acl", "every entry can decide something, and every list accepts something", lint_acl.acl),
    Rule("keepalive", "`<gateway-keepalive>`: timeout >= 3 x interval, interval not 0", peer=lint_peer.keepalive),
)  # fmt: skip


def lint(config: DroConfig, machine: Machine | None = None) -> list[Finding]:
    """Return what to change in a configuration that loads, by file and line; the same text is not said twice."""
    view = view_of(config, Machine.of_system() if machine is None else machine)
    found = dict.fromkeys(finding for rule in RULES for finding in rule.findings(view))
    return sorted(found, key=lambda f: (f.place.file != config.file, f.place.file, f.place.line))


def rules_table() -> str:
    """The rules as a table for the documentation."""
    rows = [f"| `{rule.name}` | {rule.relation} |" for rule in RULES]
    return "\n".join(("| rule | what should hold |", "|---|---|", *rows)) + "\n"


if __name__ == "__main__":
    print(rules_table(), end="")
