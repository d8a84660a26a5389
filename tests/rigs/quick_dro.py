"""`python -m tests.rigs.quick_dro [OPTIONS] FILE`: `tnwgd` with portals that do nothing but log their routes."""

from __future__ import annotations

import os
import sys
from typing import Final

from dro.bus.actor import WorkerContext
from dro.bus.messages import ROUTE_MESSAGES, PeerUp, PortalUp, Role, RouteTable
from dro.config.dro_xml.model import DroConfig, EndpointConfig
from portals.endpoint import portal
from supervisor.main import main

NAME: Final = f"Q{os.getpid()}"  # no two of a host have the same
QUICK: Final = f"""<?xml version="1.0"?>
<tnw-gateway version="1.0">
  <daemon><name>{NAME}</name><route-info check-interval="50"/>
    <route-recalculation backoff-interval="100"/></daemon>
  <portals>
    <endpoint><name>P1</name><domain-id>11</domain-id><lbm-config>a.cfg</lbm-config></endpoint>
    <endpoint><name>P2</name><domain-id>22</domain-id><cost>3</cost><lbm-config>b.cfg</lbm-config></endpoint>
  </portals>
</tnw-gateway>
"""


def run_report_routes(ctx: WorkerContext, endpoint: EndpointConfig, config: DroConfig) -> None:
    """An endpoint that reports itself to the route manager and logs the routes that it gets."""

    def on_peer_up(peer: PeerUp) -> None:
        if peer.role is Role.ROUTE_MANAGER:
            up = PortalUp(ctx.index, endpoint.domain_id, endpoint.cost)
            ctx.channels.send_ctl(peer.worker, ROUTE_MESSAGES.encode(up))

    def on_ctl(_worker: int, message: bytes) -> None:
        table = ROUTE_MESSAGES.decode(message)
        if not isinstance(table, RouteTable):  # route information for other DROs, of which there are none
            return
        routes = " ".join(
            f"{s}>{r.interested_domain}:{r.ingress}>{r.egress}" for r in table.routes for s in r.source_domains
        )
        ctx.log.info(f"TABLE v{table.version >> 32}.{table.version & 0xFFFF} of {config.daemon.name} {routes}")

    ctx.on_peer_up = on_peer_up
    ctx.channels.on_ctl = on_ctl
    ctx.ready()
    ctx.run()


if __name__ == "__main__":
    portal.run_endpoint = run_report_routes
    sys.exit(main(sys.argv[1:]))
