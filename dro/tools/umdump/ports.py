"""The ports that a UM configuration file assigns to each protocol: `umdump -c FILE`.

Advertisements name the sessions of the transports, but not the address of topic resolution, nor sessions whose
advertisement was not captured.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from dro.config.reading.problems import ConfigErrors, Warn
from dro.config.um.honoured import empty_ranges
from dro.config.um.layers import Asked
from dro.config.um.program import load_program
from dro.config.um.sets import servers_of, unicast_places
from dro.dissect.follow import LBMR, LBMSRS, LBTRM, LBTRU, LBTTCP, DecodeAs

# protocol, scope and the options that hold the lowest and the highest port
_PORTS: Final = (
    (LBMR, "context", "resolver_multicast_incoming_port", "resolver_multicast_incoming_port"),
    (LBMR, "context", "resolver_multicast_outgoing_port", "resolver_multicast_outgoing_port"),
    (LBMR, "context", "resolver_unicast_port_low", "resolver_unicast_port_high"),
    (LBTRM, "source", "transport_lbtrm_destination_port", "transport_lbtrm_destination_port"),
    (LBTRM, "context", "transport_lbtrm_source_port_low", "transport_lbtrm_source_port_high"),
    (LBTRM, "context", "mim_incoming_destination_port", "mim_incoming_destination_port"),
    (LBTRM, "context", "mim_outgoing_destination_port", "mim_outgoing_destination_port"),
    (LBTRU, "context", "transport_lbtru_port_low", "transport_lbtru_port_high"),
    (LBTRU, "receiver", "transport_lbtru_port_low", "transport_lbtru_port_high"),
    (LBTTCP, "context", "transport_tcp_port_low", "transport_tcp_port_high"),
    (LBTTCP, "context", "request_tcp_port_low", "request_tcp_port_high"),
    (LBTTCP, "source", "transport_tcp_port", "transport_tcp_port"),
)


def rules_of(files: Iterable[str], warn: Warn) -> Iterator[DecodeAs]:
    """Rules of each file on its own, so that files of several TRDs may be given together; the environment is left out.

    Raises: ConfigError with all bad lines of a file, and for one that cannot be read.
    """
    for file in files:
        program = load_program([file], warn, environ={})
        for proto, scope, low_name, high_name in _PORTS:
            options = program.of(Asked(scope))
            if empty := empty_ranges(options):
                raise ConfigErrors(empty)
            low, high = options.get_int(scope, low_name), options.get_int(scope, high_name)
            if low:
                yield DecodeAs(proto == LBTTCP, low, high, proto)
        context = program.of(Asked("context"))
        for name, servers in servers_of(context).items():
            proto = LBMSRS if name == "resolver_service" else LBMR
            for port in dict.fromkeys(server.port for server in servers):
                yield DecodeAs(proto == LBMSRS, port, port, proto)
        for place in dict.fromkeys(unicast_places(context)):
            yield DecodeAs(False, place.ports[0], place.ports[-1], LBMR)
