"""Makes histories by chance: DROs whose portals count, with restarts, gaps, repeats, late rows and set clocks."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from tests.builders.histories import START_S

US: Final = 1_000_000
RTT_BOUNDS: Final = (100, 250, 500, 1000, 2500, 5000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
                     2_500_000)  # fmt: skip
"""Microseconds, of the buckets but the last."""
GROWING: Final = {
    "topic_rcvd": 400, "forwarded": 300, "forwarded_bytes": 30_000, "sent": 300, "sent_bytes": 30_000,
    "topic_rcvd_bytes": 40_000, "interest_topics_added": 2, "interest_topics_removed": 2, "cpu_us": 0,
}  # fmt: skip
"""Counters of any portal, and how much they grow between two samples at most."""
SELDOM: Final = {
    "endpoint": {"dropped_dup": 9, "dropped_blocked": 5, "dropped_error": 2, "unicast_data_no_route": 3,
                 "send_blocked_us": 90_000, "unrecoverable": 2},
    "peer": {"dropped_dup": 9, "dropped_blocked": 5, "dropped_not_operational": 7, "send_blocked_us": 90_000,
             "udp_lost": 8, "udp_unrecovered_window": 2, "link_lost_bytes": 900, "connects": 1},
}  # fmt: skip
"""Counters that grow now and then."""
Row = dict[str, Any]


@dataclass(slots=True)
class Portal:
    """A portal of a DRO in one run, under one page."""

    name: str
    kind: str
    page: int
    about: Row
    counted: dict[str, int] = field(default_factory=dict)
    up: bool = True

    def go_on(self, chance: random.Random, rate: float) -> None:
        """Count something."""
        for name, most in GROWING.items():
            self._add(name, int(chance.randint(0, most) * rate))
        for name, most in SELDOM[self.kind].items():
            if chance.random() < 0.05:
                self._add(name, chance.randint(1, most))
        if self.kind == "peer":
            self._add("udp_rcvd", chance.randint(0, 50))
            for _ in range(chance.randint(0, 3)):
                rtt = int(chance.lognormvariate(6, 1.5))
                for nth, bound in enumerate((*RTT_BOUNDS, 1 << 62)):
                    self._add(f"rtt_{nth}" if nth else "rtt", int(rtt <= bound))
                self._add("rtt_samples", 1)
                self._add("rtt_sum", rtt)

    def _add(self, name: str, value: int) -> None:
        self.counted[name] = self.counted.get(name, 0) + value


class Scene:
    """One network of DROs over `days` days, a sample every `step_s` seconds, and everything that goes wrong in it."""

    def __init__(self, seed: int, days: float = 1.5, step_s: int = 300, dros: int = 3) -> None:
        self._chance = random.Random(seed)
        self._step_s = step_s
        self.steps = int(days * 86_400 / step_s)
        self.tables: dict[str, list[Row]] = {"portal": [], "dro": [], "pair": []}
        self.late: list[Row] = []  # of portals, that come after all others
        for nth in range(dros):
            self._dro(f"DRÖ {seed}.{nth}", str(seed * 100 + nth), str(seed * 100 + (nth + 1) % dros),
                      str(seed * 100 + (nth - 1) % dros))  # fmt: skip

    def _dro(self, name: str, node_id: str, left: str, right: str) -> None:
        chance = self._chance
        pages = iter(range(1, 1000))
        clock_us, run_us, config_us = 0, 0, 0
        portals: list[Portal] = []
        renamed = 0
        cpu_us = pairs = 0
        signature = version = 1
        absent_until = down_until = split_until = -1
        step = 0
        while step < self.steps:
            if not portals or chance.random() < 0.004:  # a restart of the DRO
                run_us = config_us = START_S * US + (step * self._step_s - chance.randint(1, 60)) * US + clock_us
                kinds = (("L", "peer", {"adjacent_dro_id": left}), ("R", "peer", {"adjacent_dro_id": right}),
                         (f"E{renamed}", "endpoint", {"domain_id": int(node_id)}),
                         ("Z", "endpoint", {"domain_id": 999}))  # fmt: skip
                portals = [Portal(n, kind, next(pages), {**about, "portal_type": kind}) for n, kind, about in kinds]
                cpu_us = pairs = 0
            elif chance.random() < 0.006:  # the endpoint gets another name
                renamed += 1
                portals[2] = Portal(f"E{renamed}", "endpoint", next(pages), portals[2].about)
            elif chance.random() < 0.006:
                clock_us += chance.choice((-90, -7, 5, 200)) * US
            elif chance.random() < 0.006:
                config_us = START_S * US + step * self._step_s * US + clock_us
            elif chance.random() < 0.01:
                absent_until = step + chance.randint(2, 100)
            elif chance.random() < 0.01:
                down_until = step + chance.randint(1, 9)
            elif chance.random() < 0.01:
                split_until = step + chance.randint(1, 4)
            portals[0].up = step > down_until
            for portal in portals[:3]:  # the last one has no traffic
                portal.go_on(chance, 1 + (step * self._step_s // 3600 % 24) / 4)
            cpu_us += chance.randint(0, 10_000)
            pairs += chance.randint(0, 100)
            if (signature == 1) is not (step > split_until):
                signature, version = 3 - signature, version + 1
            if step > absent_until:
                at_us = START_S * US + step * self._step_s * US
                base = {"dro": name, "ts": at_us + clock_us, "run": run_us, "seq": at_us - (START_S - 77) * US,
                        "source": "pages"}  # fmt: skip
                self._sample(base, node_id, portals, cpu_us, pairs, signature, version, config_us)
            step += 1

    def _sample(
        self, base: Row, node_id: str, portals: list[Portal], cpu_us: int, pairs: int, signature: int, version: int,
        config_us: int,
    ) -> None:  # fmt: skip
        for portal in portals:
            row = {
                **base, **portal.about, **portal.counted, "portal": portal.name, "page": portal.page, "up": portal.up,
                "dro_id": node_id, "cost": 1, "local_topics": portal.counted.get("topic_rcvd", 0) // 5000,
                "local_pcre": 1, "local_regex": 0, "receiver_topics": len(portal.counted) and portal.page % 2,
                "receiver_pcre": 0, "proxy_receivers": 2, "proxy_sources": 0,
                "queued_bytes_max": portal.counted.get("sent", 0) % 1000, "queue_limit": 1000,
            }  # fmt: skip
            row.pop("cpu_us", None)
            luck = self._chance.random()
            if luck < 0.03:
                self.late.append(row)
            elif luck < 0.06:
                self.tables["portal"] += [row, dict(row)]
            else:
                self.tables["portal"].append(row)
        self.tables["pair"].append(
            {**base, "portal": portals[2].name, "to_portal": "L", "page": portals[2].page, "handed": pairs}
        )
        self.tables["dro"].append({
            **base, "dro_id": node_id, "up": True, "cpu_us": cpu_us, "signature": signature, "graph_version": version,
            "network_dros": 3, "config_loaded": config_us, "resident_bytes": 1 << 20,
        })  # fmt: skip

    def rows(self) -> Iterator[Row]:
        """All rows of portals, each as often as it was written."""
        yield from self.tables["portal"]
        yield from self.late
