"""`tnwgdctl topology`, `path` and `recalculate`: the network of DROs as this one sees it.

The rows come from the route manager, see `dro.bus.listing`. Other DROs tell whom they have as neighbours, not how their
portals are called.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any, Final

from dro.bus.listing import IN_USE, PATH, READY, TOPOLOGY, PathRow, TopologyRow
from dro.errors import RefusedError
from dro.log.lines import printable
from supervisor.admin.client import Client
from supervisor.admin.lists import rows_of
from supervisor.admin.status import DroStatus
from supervisor.tools.ctl.output import EXIT_OK, Commands, connect, put, put_answer, put_json, whole, wide_table

MAX_DOMAIN: Final = 0xFFFF_FFFF
_OF_DRO: Final = ("dro", "node_id", "version", "signature", "agrees", "is_own", "age_s", "sharing")
_OF_NEIGHBOUR: Final = (
    "portal", "kind", "neighbour", "neighbour_name", "ingress_cost", "egress_cost", "hotlink_index", "remark",
)  # fmt: skip
_HEAD: Final = (
    "DRO", "NODE ID", "VERSION", "SIGNATURE", "AGE", "PORTAL", "TO", "NEIGHBOUR", "NAME", "COST IN", "COST OUT",
    "HOTLINK", "REMARK",
)  # fmt: skip
_PATH_HEAD: Final = ("NODE", "ID", "NAME", "ENTERED AT", "COST IN", "LEFT AT", "COST OUT")


def add_commands(commands: Commands, common: argparse.ArgumentParser) -> None:
    topology = commands.add_parser(
        "topology", parents=[common], help="all DROs that are known, and their neighbours",
        description="List all DROs that are known, and their neighbours.",
        epilog="VERSION grows with each change of the links of a DRO. SIGNATURE is that of the topology as the DRO "
        "sees it: all are equal once all DROs have calculated routes from the same topology. AGE: seconds since it was "
        "heard. COST IN is paid from the neighbour to the DRO, COST OUT on the way back.",
    )  # fmt: skip
    topology.add_argument("--dot", action="store_true", help="print it for Graphviz")
    topology.set_defaults(run=show_topology)
    path = commands.add_parser(
        PATH, parents=[common], help="the path between two domains",
        description="Show the path that traffic takes from one domain to another. With equal-cost sharing there may be "
        "several, each with its part of the sources.",
        epilog="The path back may be another one when costs are equal. It is the path of the last calculation.",
    )  # fmt: skip
    for name in ("FROM", "TO"):
        path.add_argument(name.lower(), metavar=name, type=_domain, help="domain id")
    path.set_defaults(run=show_path)
    recalculate = commands.add_parser(
        "recalculate", parents=[common], help="calculate routes though nothing has changed",
        description="Calculate routes though nothing has changed, after the backoff interval.",
    )  # fmt: skip
    recalculate.set_defaults(run=recalculate_routes)


def _domain(text: str) -> int:
    return whole(text, 1, MAX_DOMAIN)


def _ask(client: Client, what: str, text: str = "") -> list[Any]:
    """Ask the route manager for rows. Raises: RefusedError, CommandError, UnreachableError."""
    manager = client.ask(DroStatus, "status").manager
    if manager is None:
        raise RefusedError("the DRO has no route manager")
    return list(rows_of(client, what, manager.name, text))


# all DROs


def show_topology(args: argparse.Namespace) -> int:
    with connect(args) as client:
        rows = _ask(client, TOPOLOGY)
    if args.json:
        put_json({"dros": dros_of(rows)})
    else:
        put(dot_text(rows) if args.dot else topology_text(rows))
    return EXIT_OK


def _by_dro(rows: Sequence[TopologyRow]) -> Iterator[tuple[TopologyRow, list[TopologyRow]]]:
    """Yield the first row of each DRO, which describes it, and those that have a neighbour or a portal."""
    for _, group in groupby(rows, key=lambda row: row.node_id):
        first, *more = group
        yield first, [row for row in (first, *more) if row.kind or row.portal]


def dros_of(rows: Sequence[TopologyRow]) -> list[dict[str, Any]]:
    """An object for each DRO, with its neighbours."""
    found = []
    for first, neighbours in _by_dro(rows):
        values = asdict(first)
        links = [{name: value for name, value in asdict(row).items() if name in _OF_NEIGHBOUR} for row in neighbours]
        found.append({name: values[name] for name in _OF_DRO} | {"neighbours": links})
    return found


def topology_text(rows: Sequence[TopologyRow]) -> str:
    lines: list[tuple[object, ...]] = []
    for first, neighbours in _by_dro(rows):
        signature = first.signature if first.agrees else f"{first.signature} differs"
        age = "this DRO" if first.is_own else first.age_s
        described: tuple[object, ...] = (first.dro, first.node_id, first.version, signature, age)
        for row in neighbours or [first]:
            lines.append((*described, *_neighbour_cells(row)))
            described = ("",) * len(described)
    return "\n".join([wide_table(_HEAD, lines), *_sharing(rows)])


def _sharing(rows: Sequence[TopologyRow]) -> Iterator[str]:
    """Say whether equal costs are shared, when a DRO is ready for it."""
    found = [first for first, _ in _by_dro(rows) if first.sharing]
    hindrances = [f"{row.dro or row.node_id} {row.sharing}" for row in found if row.sharing not in (IN_USE, READY)]
    if hindrances:
        yield f"equal-cost sharing is not in use: {', '.join(map(printable, hindrances))}"
    elif found:
        in_use = all(row.sharing == IN_USE for row in found)
        yield f"equal-cost sharing is {'in use' if in_use else 'used from the next calculation of routes on'}"


def _neighbour_cells(row: TopologyRow) -> tuple[object, ...]:
    return (
        row.portal, row.kind, row.neighbour, row.neighbour_name, row.ingress_cost or "", row.egress_cost or "",
        row.hotlink_index or "", row.remark,
    )  # fmt: skip


def dot_text(rows: Sequence[TopologyRow]) -> str:
    """Boxes are DROs, ellipses TRDs; a dashed edge carries no traffic."""
    lines = ["graph dros {"]
    lines += [f"  {_quoted(first.node_id)} [shape=box, label={_quoted(first.dro or first.node_id)}];"
              for first, _ in _by_dro(rows)]  # fmt: skip
    domains = sorted({int(row.neighbour) for row in rows if row.kind == "TRD"})
    lines += [f'  {_quoted(str(domain))} [label="TRD {domain}"];' for domain in domains]
    drawn: set[tuple[str, str]] = set()
    for row in rows:
        if not row.neighbour or (row.neighbour, row.node_id) in drawn:
            continue
        drawn.add((row.node_id, row.neighbour))
        style = ", style=dashed" if row.remark else ""
        edge = f"{_quoted(row.node_id)} -- {_quoted(row.neighbour)}"
        lines.append(f"  {edge} [label={_quoted(_cost(rows, row))}{style}];")
    return "\n".join([*lines, "}"])


def _cost(rows: Sequence[TopologyRow], row: TopologyRow) -> str:
    """Write the cost of the portal; of a link, of both."""
    here = _costs(row)
    back = [other for other in rows if (other.node_id, other.neighbour) == (row.neighbour, row.node_id)]
    return here if row.kind == "TRD" or not back else f"{here} + {_costs(back[0])}"


def _costs(row: TopologyRow) -> str:
    return str(row.egress_cost) if row.ingress_cost == row.egress_cost else f"{row.ingress_cost}/{row.egress_cost}"


def _quoted(text: str) -> str:
    escaped = printable(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


# the path between two domains


def show_path(args: argparse.Namespace) -> int:
    start, to = getattr(args, "from"), args.to
    with connect(args) as client:
        rows = _ask(client, PATH, f"{start} {to}")
    paths = paths_of(rows)
    answer = {
        "path": [asdict(row) for row in paths[0]], "cost": cost_of(paths[0]), "hop_count": len(paths[0]) - 1,
        "ways": [{"share": path[0].share, "path": [asdict(row) for row in path]} for path in paths],
    }  # fmt: skip
    put_answer(args, answer, "\n".join(paths_text(paths)))
    return EXIT_OK


def paths_of(rows: Sequence[PathRow]) -> list[list[PathRow]]:
    """Find the paths of equal cost, one or more."""
    return [list(path) for _, path in groupby(rows, key=lambda row: row.way)]


def paths_text(paths: Sequence[Sequence[PathRow]]) -> Iterator[str]:
    for number, rows in enumerate(paths, 1):
        if len(paths) > 1:
            yield f"path {number} of {len(paths)}, {rows[0].share} % of the sources"
        yield path_text(rows)


def cost_of(rows: Sequence[PathRow]) -> int:
    """Add up the cost of all portals that are passed."""
    return sum(row.ingress_cost + row.egress_cost for row in rows)


def path_text(rows: Sequence[PathRow]) -> str:
    cells = [
        (r.kind, r.node_id, r.dro, r.entered_at, r.ingress_cost or "", r.left_at, r.egress_cost or "") for r in rows
    ]
    return f"{wide_table(_PATH_HEAD, cells)}\ncost {cost_of(rows)}, {len(rows) - 1} hops"


def recalculate_routes(args: argparse.Namespace) -> int:
    with connect(args) as client:
        answer = client.request("recalculate")
    put_answer(args, answer, "routes are calculated after the backoff interval")
    return EXIT_OK
