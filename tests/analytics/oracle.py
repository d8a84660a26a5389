"""Answers the questions in plain Python, from the samples alone."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import groupby, pairwise
from typing import Any, Final

from tests.analytics.scenes import RTT_BOUNDS, US, Row

SUMS: Final[Mapping[str, Sequence[str]]] = {
    "received_messages": ("topic_rcvd",), "received_bytes": ("topic_rcvd_bytes",),
    "forwarded_messages": ("forwarded",), "sent_messages": ("sent",), "sent_bytes": ("sent_bytes",),
    "dropped_messages": ("dropped_dup", "dropped_blocked", "dropped_error", "dropped_not_operational"),
    "dropped_messages_duplicate": ("dropped_dup",), "dropped_messages_would_block": ("dropped_blocked",),
    "dropped_messages_error": ("dropped_error",), "dropped_messages_not_operational": ("dropped_not_operational",),
    "receive_exception_messages_no_route": ("unicast_data_no_route",), "send_blocked_us": ("send_blocked_us",),
    "unrecoverable_datagrams": ("unrecoverable",), "udp_lost_datagrams": ("udp_lost",),
    "udp_received_datagrams": ("udp_rcvd",), "udp_unrecovered_datagrams": ("udp_unrecovered_window",),
    "link_lost_bytes": ("link_lost_bytes",), "rtt_samples": ("rtt_samples",), "rtt_us_sum": ("rtt_sum",),
    "interest_changes": ("interest_topics_added", "interest_topics_removed"), "cpu_us": ("cpu_us",),
    **{f"rtt_us_le_{bound}": (f"rtt_{nth}" if nth else "rtt",) for nth, bound in enumerate((*RTT_BOUNDS, "inf"))},
}  # fmt: skip
MINUTE_S: Final = 60
HOUR_S: Final = 3600
DAY_S: Final = 86_400
Key = tuple[Any, ...]


def of(row: Row, name: str) -> int:
    """The sum of that name in one sample."""
    return sum(row.get(column, 0) for column in SUMS[name])


def quantile(values: Iterable[float], q: float) -> float:
    """The exact one, between two values in proportion."""
    ordered = sorted(values)
    at = q * (len(ordered) - 1)
    low = math.floor(at)
    return ordered[low] + (ordered[min(low + 1, len(ordered) - 1)] - ordered[low]) * (at - low)


def slope(points: Sequence[tuple[float, float]]) -> float | None:
    """Fit the line of least squares."""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    if len(set(xs)) < 2:
        return None
    return statistics.linear_regression(xs, ys).slope


class Oracle:
    """Finds in samples what Spark should find."""

    def __init__(self, rows: Iterable[Row], dros: Iterable[Row]) -> None:
        self.samples = {(r["dro"], r["portal"], r["run"], r["page"], r["ts"]): r for r in rows}
        self.dro_samples = {(r["dro"], r["run"], r["ts"]): {"portal": "", "page": -1, **r} for r in dros}
        self.minutes = list(self._minutes([*self.samples.values(), *self.dro_samples.values()]))

    def _minutes(self, rows: list[Row]) -> Iterator[Row]:
        """Growth by minute; each with what its last sample said, and `peers`: how many samples it has."""
        first_of: dict[Key, int] = {}
        times: dict[Key, list[int]] = defaultdict(list)
        for row in rows:
            times[row["dro"], row["run"]].append(row["ts"])
        for key, found in times.items():
            first_of[key] = min(found)
        for (dro, _, run, _), of_scope in groupby(sorted(rows, key=_place), key=lambda r: _place(r)[:4]):
            known: dict[str, int] | None = None
            last_ts = run
            for minute, group in groupby(of_scope, key=lambda r: r["ts"] // (MINUTE_S * US)):
                here = list(group)
                values = {name: max(of(r, name) for r in here) for name in SUMS}
                if known is None:
                    late = here[0]["ts"] == first_of[dro, run] and here[0]["ts"] - run > self.limit_us
                    known = {name: of(here[0], name) if late else 0 for name in SUMS}
                    last_ts = here[0]["ts"] if late else run
                yield {
                    **{name: max(values[name] - known[name], 0) for name in SUMS}, "minute": minute,
                    "last": here[-1], "count": len(here), "ups": sum(r["up"] for r in here), "dro": dro,
                    "portal": here[0]["portal"], "ts_last": here[-1]["ts"],
                    "interval_us": max(here[-1]["ts"] - last_ts, 0),
                    "queue": max(r.get("queued_bytes_max", 0) for r in here),
                }  # fmt: skip
                known = {name: max(values[name], known[name]) for name in SUMS}
                last_ts = max(last_ts, here[-1]["ts"])

    limit_us = 3 * 60 * US
    """Beyond which a first sample finds counters that have counted: samples here are rarer than minutes."""

    def rolled(self, by: Callable[[Row], Key], *names: str) -> dict[Key, Counter[str]]:
        """Sums of the minutes of portals by a key."""
        found: dict[Key, Counter[str]] = defaultdict(Counter)
        for minute in self.minutes:
            if minute["portal"]:
                found[by(minute)].update({name: minute[name] for name in names})
        return found

    # the questions, each by its name

    def busiest_portal(self) -> list[Row]:
        hours = self.rolled(lambda m: (m["dro"], _hour(m), m["portal"]), "received_bytes", "sent_bytes")
        peak: dict[Key, int] = defaultdict(int)
        for m in self.minutes:
            key = (m["dro"], _hour(m), m["portal"])
            peak[key] = max(peak[key], m["received_bytes"] + m["sent_bytes"])
        found: dict[Key, tuple[int, str]] = {}
        for (dro, hour, portal), sums in hours.items():
            told = -sums["received_bytes"] - sums["sent_bytes"], portal
            found[dro, hour] = min(found.get((dro, hour), told), told)
        return [
            {"hour": hour, "dro": dro, "portal": portal, "bytes": -less, "bytes_per_s": -less / HOUR_S,
             "busiest_minute_bytes_per_s": peak[dro, hour, portal] / MINUTE_S}
            for (dro, hour), (less, portal) in found.items()
        ]  # fmt: skip

    def _days(self, *names: str) -> dict[Key, Counter[str]]:
        return self.rolled(lambda m: (m["dro"], m["portal"], _day(m)), *names)

    def drop_ratio(self) -> list[Row]:
        reasons = ("duplicate", "would_block", "error", "not_operational")
        names = [f"dropped_messages_{reason}" for reason in reasons]
        days = self._days("dropped_messages", "forwarded_messages", *names)
        ratios: dict[Key, float] = {}
        rows = []
        for (dro, portal, day), sums in sorted(days.items()):
            dropped = sums["dropped_messages"] - sums["dropped_messages_duplicate"]
            ratio = dropped / sums["forwarded_messages"] if sums["forwarded_messages"] else None
            if ratio is not None:
                ratios[dro, portal, day] = ratio
            back = [(d, r) for d in _back(day, 30) if (r := ratios.get((dro, portal, d))) is not None]
            week = [r for d, r in back if d in _back(day, 7)]
            rows.append({
                "dro": dro, "portal": portal, "day": day, "dropped": dropped, "forwarded": sums["forwarded_messages"],
                "ratio": ratio, "mean_7_days": statistics.fmean(week) if week else None,
                "slope": slope([(date.fromisoformat(d).toordinal(), r) for d, r in back]),
                **{name: sums[name] for name in names[1:]},
            })  # fmt: skip
        return rows

    def rtt(self) -> list[Row]:
        bounds = [f"rtt_us_le_{bound}" for bound in (*RTT_BOUNDS, "inf")]
        found = []
        for ends, day, a, b in self._links("rtt_samples", *bounds):
            if a["rtt_samples"] + b["rtt_samples"]:
                row = {"day": day, **ends, "a_rtt_samples": a["rtt_samples"], "b_rtt_samples": b["rtt_samples"]}
                for end, sums in (("a", a), ("b", b)):
                    for name, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("p99_9", 0.999)):
                        row[f"{end}_{name}"] = _of_buckets([sums[name] for name in bounds], q)
                found.append(row)
        return found

    def _links(self, *names: str) -> Iterator[tuple[Row, str, Counter[str], Counter[str]]]:
        """Each link and day: what its ends are called, and the sums of both, the lower node id first."""
        about: dict[Key, Row] = {}
        for m in self.minutes:
            if m["last"].get("portal_type") == "peer":
                about[m["dro"], m["portal"]] = m["last"]
        ends: dict[Key, dict[str, tuple[Key, Counter[str]]]] = defaultdict(dict)
        for (dro, portal, day), sums in self._days(*names).items():
            if (of := about.get((dro, portal))) is not None:
                pair = tuple(sorted((of["dro_id"], of["adjacent_dro_id"])))
                ends[(*pair, day)][of["dro_id"]] = (dro, portal), sums
        for (a_id, b_id, day), found in ends.items():
            nothing: tuple[Key, Counter[str]] = (None, None), Counter()
            (a_dro, a_portal), a = found.get(a_id, nothing)
            (b_dro, b_portal), b = found.get(b_id, nothing)
            told = {"a_dro": a_dro, "a_portal": a_portal, "b_dro": b_dro, "b_portal": b_portal}
            yield told, day, a, b

    def asymmetry(self) -> list[Row]:
        found = []
        for ends, day, a, b in self._links("sent_bytes"):
            both = a["sent_bytes"] + b["sent_bytes"]
            if both:
                ratio = (a["sent_bytes"] - b["sent_bytes"]) / both
                found.append({"day": day, **ends, "a_bytes": a["sent_bytes"], "b_bytes": b["sent_bytes"],
                              "ratio": ratio, "is_uneven": abs(ratio) > 0.8 and both > 1e9})  # fmt: skip
        return found

    def blocked(self) -> list[Row]:
        of_portal: dict[Key, list[Row]] = defaultdict(list)
        for m in self.minutes:
            if m["send_blocked_us"] and m["portal"]:
                begin = m["ts_last"] - m["interval_us"]
                of_portal[m["dro"], m["portal"]].append({"begin_us": begin, "end_us": m["ts_last"], "m": m})
        return [
            {"dro": dro, "portal": portal, "begin": min(r["begin_us"] for r in rows),
             "end": max(r["end_us"] for r in rows), "blocked_us": sum(r["m"]["send_blocked_us"] for r in rows),
             "queue_full": max(r["m"]["queue"] for r in rows) / 1000,
             "dropped_messages": sum(r["m"]["dropped_messages_would_block"] for r in rows)}
            for (dro, portal), found in of_portal.items() for rows in islands(found, 2 * MINUTE_S * US)
        ]  # fmt: skip

    def duplicates(self) -> list[Row]:
        days = self._days("dropped_messages_duplicate", "sent_messages")
        return [
            {"day": day, "dro": dro, "portal": portal, "duplicates": twice, "sent": sums["sent_messages"],
             "ratio": twice / (twice + sums["sent_messages"])}
            for (dro, portal, day), sums in days.items() if (twice := sums["dropped_messages_duplicate"])
        ]  # fmt: skip

    def udp_recovery(self) -> list[Row]:
        days = self._days("udp_lost_datagrams", "udp_received_datagrams", "udp_unrecovered_datagrams",
                          "received_bytes", "interval_us")  # fmt: skip
        return [
            {"day": day, "dro": dro, "portal": portal, "received": s["udp_received_datagrams"],
             "lost": lost, "unrecovered": s["udp_unrecovered_datagrams"],
             "recovered": 1 - s["udp_unrecovered_datagrams"] / lost,
             "loss": lost / (s["udp_received_datagrams"] + lost),
             "bytes_per_s": s["received_bytes"] * 1e6 / s["interval_us"] if s["interval_us"] else None}
            for (dro, portal, day), s in days.items() if (lost := s["udp_lost_datagrams"])
        ]  # fmt: skip

    def _last(self, by: Callable[[Row], Key]) -> dict[Key, Row]:
        """The last sample of each."""
        found: dict[Key, Row] = {}
        for m in sorted(self.minutes, key=lambda m: m["ts_last"]):
            if m["portal"]:
                found[by(m)] = m["last"]
        return found

    def idle_portals(self) -> list[Row]:
        days: dict[Key, list[Row]] = defaultdict(list)
        for (dro, portal, _), last in self._last(lambda m: (m["dro"], m["portal"], _day(m))).items():
            days[dro, portal].append(last)
        totals = self.rolled(lambda m: (m["dro"], m["portal"]), "received_bytes", "sent_bytes")
        found = []
        for (dro, portal), lasts in days.items():
            bytes_ = totals[dro, portal]["received_bytes"] + totals[dro, portal]["sent_bytes"]
            receivers = max(last["receiver_topics"] + last["receiver_pcre"] for last in lasts)
            proxies = max(last["proxy_receivers"] + last["proxy_sources"] for last in lasts)
            row = {
                "dro": dro, "portal": portal, "days": len(lasts), "bytes": bytes_, "receivers": receivers,
                "proxies": proxies, "carries_nothing": bytes_ < 1_000_000,
                "serves_nobody": lasts[0]["portal_type"] == "endpoint" and receivers == 0,
                "has_idle_proxies": bytes_ == 0 and proxies > 0,
            }  # fmt: skip
            if row["carries_nothing"] or row["serves_nobody"] or row["has_idle_proxies"]:
                found.append(row)
        return found

    def interest_growth(self) -> list[Row]:
        changes = self._days("interest_changes")
        interest = {
            key: last["local_topics"] + last["local_pcre"] + last["local_regex"]
            for key, last in self._last(lambda m: (m["dro"], m["portal"], _day(m))).items()
        }
        rows = []
        for (dro, portal, day), now in interest.items():
            before = {n: interest.get((dro, portal, _back(day, n + 1)[-1])) for n in (7, 30, 90)}
            points = [(date.fromisoformat(d).toordinal(), interest[dro, portal, d])
                      for d in _back(day, 30) if (dro, portal, d) in interest]  # fmt: skip
            rows.append({
                "dro": dro, "portal": portal, "scope": "local", "day": day, "interest": now,
                "changes": changes[dro, portal, day]["interest_changes"],
                **{f"over_{n}_days": None if was is None else now - was for n, was in before.items()},
                "slope": slope(points),
            })  # fmt: skip
        return rows

    def balance(self) -> list[Row]:
        hours: dict[Key, Counter[str]] = defaultdict(Counter)
        covered: dict[Key, Counter[str]] = defaultdict(Counter)
        for m in self.minutes:
            hours[m["dro"], _hour(m)].update(
                {n: m[n] for n in ("received_messages", "received_bytes", "sent_bytes", "cpu_us")}
            )
            covered[m["dro"], _hour(m)][m["portal"]] += m["interval_us"]
        of_dro: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for (dro, hour), sums in hours.items():
            of_dro[dro]["messages"].append(sums["received_messages"])
            of_dro[dro]["bytes"].append(sums["received_bytes"] + sums["sent_bytes"])
            if time := max(covered[dro, hour].values()):
                of_dro[dro]["cpu"].append(sums["cpu_us"] / time)
        high = {dro: {name: quantile(values, 0.95) for name, values in found.items()} for dro, found in of_dro.items()}
        rows = []
        for dro, values in high.items():
            row: Row = {"dro": dro, **values}
            for name, value in values.items():
                all_ = [other[name] for other in high.values()]
                spread = statistics.pstdev(all_)
                row[f"{name}_score"] = (value - statistics.fmean(all_)) / spread if spread else None
            rows.append(row)
        return rows

    # what lasts

    def outages(self) -> list[Row]:
        """Find those of portals, not joined by link yet."""
        by_run: dict[Key, list[Row]] = defaultdict(list)
        for (dro, portal, run, _, _), row in self.samples.items():
            by_run[dro, portal, run].append(row)
        found = []
        for (dro, portal, _), rows in by_run.items():
            rows.sort(key=lambda r: r["ts"])
            begin = None
            for before, row in pairwise(rows):
                if before["up"] and not row["up"]:
                    begin = row["ts"]
                if begin is not None and row["up"]:
                    found.append((dro, portal, row, begin, row["ts"], True))
                    begin = None
            if begin is not None:
                found.append((dro, portal, rows[-1], begin, rows[-1]["ts"], False))
        return [
            {"dro": dro, "portal": portal, "begin_us": begin, "end_us": end, "is_over": over,
             "link": tuple(sorted((row["dro_id"], row.get("adjacent_dro_id", portal))))}
            for dro, portal, row, begin, end, over in found
        ]  # fmt: skip

    def events(self) -> list[Row]:
        """Outages of links and restarts of DROs, each with its ends and what it cost."""
        found = []
        by_link: dict[Key, list[Row]] = defaultdict(list)
        for row in self.outages():
            by_link[row["link"]].append(row)
        for rows in by_link.values():
            for island in islands(rows, 0):
                ends = sorted({(r["dro"], r["portal"]) for r in island})
                found.append({
                    "kind": "link down", "begin": min(r["begin_us"] for r in island),
                    "end": max(r["end_us"] for r in island), "is_over": all(r["is_over"] for r in island), "ends": ends,
                })  # fmt: skip
        runs: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        for dro, run, ts in self.dro_samples:
            runs[dro][run].append(ts)
        for dro, of_dro in runs.items():
            for (_, before), (run, _) in pairwise(sorted(of_dro.items())):
                begin = min(max(before), run)
                found.append({"kind": "DRO restart", "begin": begin, "end": run, "is_over": True, "ends": [(dro, "")]})
        for event in found:
            event["cost"] = self._cost(event["begin"], event["end"], event["ends"])
        return found

    def settling(self) -> list[tuple[int, int, bool]]:
        """Times in which DROs had different topologies: begin, end, whether it is over."""
        changes: dict[int, list[tuple[str, int | None]]] = defaultdict(list)
        of_dro: dict[str, list[Row]] = defaultdict(list)
        for row in self.dro_samples.values():
            of_dro[row["dro"]].append(row)
        for dro, rows in of_dro.items():
            spans: list[list[Any]] = []
            for row in sorted(rows, key=lambda r: r["ts"]):
                told = row["run"], row["signature"]
                if spans and spans[-1][0] == told:
                    spans[-1][2], spans[-1][3] = row["ts"], spans[-1][3] + 1
                else:
                    spans.append([told, row["ts"], row["ts"], 1])
            between = sorted((last - first) / (n - 1) for _, first, last, n in spans if n > 1)
            limit = max(3 * (between[(len(between) - 1) // 2] if between else 0), MINUTE_S * US)
            for nth, (told, first, last, _) in enumerate(spans):
                changes[first].append((dro, told[1]))
                if nth + 1 == len(spans) or spans[nth + 1][1] - last > limit:
                    changes[last].append((dro, None))
        now: dict[str, int] = {}
        found: list[tuple[int, int, bool]] = []
        begin = None
        last = 0
        for at in sorted(changes):
            now |= {dro: signature for dro, signature in changes[at] if signature is not None}
            for dro, signature in changes[at]:
                if signature is None:
                    now.pop(dro, None)
            agree = len(set(now.values())) <= 1
            if begin is None and not agree:
                begin = at
            elif begin is not None and agree:
                found.append((begin, at, True))
                begin = None
            last = at
        return found if begin is None else [*found, (begin, begin, False)]

    def _cost(self, begin: int, end: int, ends: Iterable[tuple[str, str]] | None) -> Counter[str]:
        """Add up what was lost from the minute before until the minute after."""
        cost: Counter[str] = Counter()
        for m in self.minutes:
            at = m["minute"] * MINUTE_S * US
            here = ends is None or any(m["dro"] == dro and portal in ("", m["portal"]) for dro, portal in ends)
            if m["portal"] and here and begin - MINUTE_S * US <= at <= end + MINUTE_S * US:
                cost.update({name: m[name] for name in COSTS})
        return cost

    def outage_cost(self) -> list[Row]:
        return [
            {"begin": e["begin"], "kind": e["kind"], "what": _what(e["ends"]), "duration_us": e["end"] - e["begin"],
             "is_over": e["is_over"], "dropped_messages":
             e["cost"]["dropped_messages"] - e["cost"]["dropped_messages_duplicate"],
             "no_route": e["cost"]["receive_exception_messages_no_route"],
             "link_lost_bytes": e["cost"]["link_lost_bytes"]}
            for e in self.events()
        ]  # fmt: skip

    def route_flaps(self) -> list[Row]:
        found: dict[Key, Row] = {}
        ends: dict[Key, int] = {}
        for e in sorted(self.events(), key=lambda e: e["begin"]):
            what = _what(e["ends"])
            at = _utc(e["begin"]).date()
            key = at - timedelta(days=at.weekday()), e["kind"], what
            row = found.setdefault(key, {"week": key[0], "kind": e["kind"], "what": what, "events": 0, "flaps": 0,
                                         "duration_us": 0})  # fmt: skip
            before = ends.get(key[1:])
            row["events"] += 1
            row["flaps"] += before is not None and e["begin"] - before <= 600 * US
            row["duration_us"] += e["end"] - e["begin"]
            ends[key[1:]] = e["end"]
        return list(found.values())

    def settling_times(self) -> list[Row]:
        events = self.events()
        by_cause: dict[str, list[Row]] = defaultdict(list)
        for begin, end, _ in self.settling():
            causes = {e["kind"] for e in events
                      if e["begin"] <= end + MINUTE_S * US and e["end"] >= begin - MINUTE_S * US}  # fmt: skip
            row = {"duration": end - begin, **self._cost(begin, end, None)}
            by_cause[", ".join(sorted(causes)) or "unknown"].append(row)
        return [
            {"cause": cause, "times": len(rows), "p50": quantile([r["duration"] for r in rows], 0.5),
             "p99": quantile([r["duration"] for r in rows], 0.99), "longest": max(r["duration"] for r in rows),
             "no_route": sum(r.get("receive_exception_messages_no_route", 0) for r in rows),
             "not_operational": sum(r.get("dropped_messages_not_operational", 0) for r in rows)}
            for cause, rows in by_cause.items()
        ]  # fmt: skip


COSTS: Final = ("dropped_messages", "dropped_messages_duplicate", "dropped_messages_not_operational",
                "receive_exception_messages_no_route", "link_lost_bytes")  # fmt: skip


def islands(rows: Iterable[Row], pause: int) -> Iterator[list[Row]]:
    """Rows whose times follow one another within a pause."""
    island: list[Row] = []
    for row in sorted(rows, key=lambda r: (r["begin_us"], r["end_us"])):
        if island and row["begin_us"] - max(r["end_us"] for r in island) > pause:
            yield island
            island = []
        island.append(row)
    if island:
        yield island


def _of_buckets(counts: Sequence[int], q: float) -> float | None:
    """Estimate it as Prometheus does."""
    if not counts[-1]:
        return None
    rank, low, below = q * counts[-1], 0.0, 0
    for bound, count in zip(RTT_BOUNDS, counts, strict=False):
        if count >= rank:
            return low + (bound - low) * (rank - below) / (count - below)
        low, below = float(bound), count
    return low


def _place(row: Row) -> Key:
    return row["dro"], row["portal"], row["run"], row["page"], row["ts"]


def _utc(us: int) -> datetime:
    return datetime.fromtimestamp(us / US, UTC)


def _hour(minute: Row) -> datetime:
    return _utc(minute["minute"] // 60 * HOUR_S * US)


def _day(minute: Row) -> str:
    return _utc(minute["minute"] * MINUTE_S * US).date().isoformat()


def _back(day: str, days: int) -> list[str]:
    """So many days, the given one first."""
    last = date.fromisoformat(day)
    return [(last - timedelta(days=n)).isoformat() for n in range(days)]


def _what(ends: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{dro} {portal}".strip() for dro, portal in ends)
