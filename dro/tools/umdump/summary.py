"""The result of `umdump --summary`: counters as one JSON object or as tables for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from dro.dissect.capture import Capture
from dro.dissect.fields import ip4
from dro.dissect.follow import LBMC, LBMR, LBMSRS, LBTRM, LBTRU, LBTTCP
from dro.dissect.sqnset import SqnSet
from dro.tools.text import shown, time_text
from dro.tools.umdump.counts import CaptureCounts, SeenSession, SourceCounts
from dro.tools.umdump.topic import session_address
from dro.wire.source_string import format_source

Json = str | int | float | bool | None | list["Json"] | dict[str, "Json"]

_RANGES: Final = 20  # runs of missing numbers that are listed
_ROWS: Final = 50  # rows of a table for people; JSON has all


def as_json(counts: CaptureCounts, capture: Capture) -> dict[str, Json]:
    """Everything that was counted."""
    seconds = (capture.last_ns - capture.first_ns) / 1e9 if capture.frames else 0.0
    tcp = capture.tcp.counts
    return {
        "frames": capture.frames,
        "bytes": capture.bytes,
        "first": time_text(capture.first_ns) if capture.frames else None,
        "last": time_text(capture.last_ns) if capture.frames else None,
        "seconds": round(seconds, 6),
        "malformed": counts.malformed,
        "errors": [{"frame": f, "proto": p, "error": e} for f, p, e in counts.first_errors],
        "cut_frames": capture.cut_frames,
        "protocols": {proto: _protocol(counts, proto) for proto in (LBMR, LBTRM, LBTRU, LBTTCP, LBMC, LBMSRS)},
        "lbmc": {"messages": _counter(counts.messages), "fragments": counts.fragments},
        "other": _counter(capture.ip.other),
        "ip_fragments": {
            "reassembled": capture.ip.reassembled,
            "incomplete": capture.ip.fragments_incomplete + capture.ip.fragments_waiting,
        },
        "tcp": {
            "connections": tcp.connections,
            "out_of_order": tcp.out_of_order,
            "retransmitted": tcp.retransmitted,
            "holes": tcp.holes,
            "missing_bytes": tcp.missing_bytes,
            "not_lbmc": capture.foreign_streams,
        },
        "sessions": [_session(counts, session) for session in counts.sessions.values()],
        "topics": _topics(counts),
        "patterns": [{"pattern": _text(name), "queries": count} for name, count in counts.patterns.items()],
        "forgotten": _counter(counts.forgotten),
    }


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


def _counter(counter: Mapping[str, int]) -> dict[str, Json]:
    return dict(sorted(counter.items()))


def _protocol(counts: CaptureCounts, proto: str) -> dict[str, Json]:
    out: dict[str, Json] = {"packets": counts.packets[proto], "types": _counter(counts.types[proto])}
    if proto == LBMR:
        return out | {"shapes": _counter(counts.lbmr_shapes), "records": _counter(counts.lbmr_records)}
    if proto in (LBTTCP, LBMC, LBMSRS):
        return out
    sessions = [session for session in counts.sessions.values() if session.key[0] == proto]
    return out | {
        "retransmitted_sqns": sum(len(session.resent) for session in sessions),
        "nak_entries": counts.entries[f"{proto} NAK"],
        "nak_sqns": sum(len(session.naked) for session in sessions),
        "ncf_entries": counts.entries[f"{proto} NCF"],
        "ncf_sqns": sum(len(session.ncfed) for session in sessions),
        "missing": sum(session.sqns.missing for session in sessions),
        "ncf_reasons": _counter(_reasons(sessions)),
    }


def _reasons(sessions: Iterable[SeenSession]) -> Counter[str]:
    total: Counter[str] = Counter()
    for session in sessions:
        total.update(session.reasons)
    return total


def _sqns(sqns: SqnSet) -> dict[str, Json]:
    out: dict[str, Json] = {"first_sqn": sqns.low, "last_sqn": sqns.high, "missing": sqns.missing}
    if sqns.missing:
        out["missing_sqns"] = [[first, last] for first, last in sqns.missing_ranges(_RANGES)]
    if not sqns.is_exact:
        out["is_exact"] = False
    return out


def _session(counts: CaptureCounts, session: SeenSession) -> dict[str, Json]:
    proto = session.key[0]
    out: dict[str, Json] = {
        "source": format_source(session_address(counts.directory, session.key, session.group)),
        "proto": proto,
        "is_advertised": counts.directory.address(session.key) is not None,
    }
    if proto == LBTTCP:
        return out | {"messages": session.data, "missing_bytes": session.missing_bytes}
    if session.client is not None:
        out["client"] = f"{ip4(session.client[0])}:{session.client[1]}"
        out |= {f"{kind.replace(' ', '_')}s": session.types[kind] for kind in ("connect request", "ACK", "reset")}
    return out | {
        "data": session.data,
        "retransmissions": session.retransmissions,
        "retransmitted_sqns": len(session.resent),
        **_sqns(session.sqns),
        "naks": session.types["NAK"],
        "nak_entries": session.types["NAK entries"],
        "nak_sqns": len(session.naked),
        "ncfs": session.types["NCF"],
        "ncf_entries": session.types["NCF entries"],
        "ncf_sqns": len(session.ncfed),
        "ncf_reasons": _counter(session.reasons),
        "session_messages": session.types["session message"],
    }


def _topics(counts: CaptureCounts) -> list[Json]:
    by_topic: dict[bytes | None, list[SourceCounts]] = {name: [] for name in counts.topics}
    for source in counts.sources.values():
        by_topic.setdefault(counts.directory.topic(source.key, source.index), []).append(source)
    out: list[Json] = []
    for name, sources in by_topic.items():
        known = counts.topics.get(name) if name is not None else None
        out.append(
            {
                "topic": None if name is None else _text(name),
                "queries": known.queries if known else 0,
                "advertisements": known.tirs if known else 0,
                "sources": [_source(counts, source) for source in sources],
            }
        )
    return out


def _source(counts: CaptureCounts, source: SourceCounts) -> dict[str, Json]:
    session = counts.sessions.get((source.key, None))
    group = session.group if session else None
    return {
        "source": format_source(session_address(counts.directory, source.key, group), source.index),
        "messages": source.messages,
        "repeats": source.repeats,
        "payload_bytes": source.payload_bytes,
        **_sqns(source.sqns),
    }


# for people


def as_text(summary: Mapping[str, Json]) -> str:
    """The same as tables; long ones are cut with a note."""
    lines = [
        f"{summary['frames']} frames, {summary['bytes']} bytes, {summary['seconds']} s"
        + (f", {summary['first']} to {summary['last']}" if summary["frames"] else ""),
        f"malformed: {summary['malformed']}   cut by the capture: {summary['cut_frames']}",
    ]
    lines += [
        f"  frame {item['frame']} {item['proto']}: {shown(str(item['error']))}" for item in _list(summary["errors"])
    ]
    lines.append("")
    lines += _protocols(_dict(summary["protocols"]))
    lines += _pairs("LBMC messages", _dict(_dict(summary["lbmc"])["messages"]))
    lines += _pairs("other traffic", _dict(summary["other"]))
    lines += _pairs("TCP", {k: v for k, v in _dict(summary["tcp"]).items() if v})
    lines += _sessions(_list(summary["sessions"]))
    lines += _topic_table(_list(summary["topics"]))
    patterns = _list(summary["patterns"])
    if patterns:
        rows = [("pattern", "queries"), *((shown(str(p["pattern"])), str(p["queries"])) for p in patterns[:_ROWS])]
        lines += ["", *_table(rows), *_more(len(patterns))]
    lines += _pairs("given up because a table was full", _dict(summary["forgotten"]))
    return "\n".join(lines) + "\n"


def _dict(value: Json) -> dict[str, Json]:
    return value if isinstance(value, dict) else {}


def _list(value: Json) -> list[dict[str, Json]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _pairs(title: str, values: Mapping[str, Json]) -> list[str]:
    if not values:
        return []
    return [f"{title}: " + ", ".join(f"{name} {value}" for name, value in values.items())]


def _protocols(protocols: Mapping[str, Json]) -> list[str]:
    rows: list[Sequence[str]] = [("protocol", "packets", "what")]
    for proto, value in protocols.items():
        entry = _dict(value)
        if not entry.get("packets"):
            continue
        rows.append((proto, str(entry["packets"]), ""))
        rows += [("", str(count), name) for name, count in _dict(entry.get("types")).items()]
        rows += [("", str(count), f"  of {name}") for name, count in _dict(entry.get("shapes")).items()]
        for name, text in _NUMBERS.items():
            if entry.get(name):
                rows.append(("", str(entry[name]), text))
        rows += [("", str(count), f"NCF reason {name}") for name, count in _dict(entry.get("ncf_reasons")).items()]
    return [*_table(rows, right=1), ""] if len(rows) > 1 else []


_NUMBERS: Final = {
    "retransmitted_sqns": "different sqns retransmitted",
    "nak_entries": "NAK entries",
    "nak_sqns": "different sqns in NAKs",
    "ncf_entries": "NCF entries",
    "ncf_sqns": "different sqns in NCFs",
    "missing": "sqns not captured",
}


def _sessions(sessions: list[dict[str, Json]]) -> list[str]:
    if not sessions:
        return []
    rows: list[Sequence[str]] = [("session", "data", "rx", "sqns", "missing", "NAKed")]
    for item in sessions[:_ROWS]:
        name = str(item["source"]) + (f" -> {item['client']}" if "client" in item else "")
        if item["proto"] == LBTTCP:
            rows.append((name, str(item["messages"]), "", "", f"{item['missing_bytes']} bytes", ""))
            continue
        span = "" if item["first_sqn"] is None else f"{item['first_sqn']}..{item['last_sqn']}"
        numbers = (item["data"], item["retransmissions"], span, item["missing"], item["nak_sqns"])
        rows.append((name, *map(str, numbers)))
    return ["", *_table(rows), *_more(len(sessions))]


def _topic_table(topics: list[dict[str, Json]]) -> list[str]:
    if not topics:
        return []
    rows: list[Sequence[str]] = [("topic", "queries", "TIRs", "messages", "sqns", "missing", "source")]
    for item in topics[:_ROWS]:
        name = "(not advertised)" if item["topic"] is None else shown(str(item["topic"]))
        sources = _list(item["sources"])
        head = (name, str(item["queries"]), str(item["advertisements"]))
        if not sources:
            rows.append((*head, "0", "", "", ""))
        for source in sources[:_ROWS]:
            span = f"{source['first_sqn']}..{source['last_sqn']}"
            rows.append((*head, str(source["messages"]), span, str(source["missing"]), str(source["source"])))
            head = ("", "", "")
    return ["", *_table(rows), *_more(len(topics))]


def _more(count: int) -> list[str]:
    return [f"({count - _ROWS} more; --json shows all)"] if count > _ROWS else []


def _table(rows: Sequence[Sequence[str]], right: int = -1) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    out: list[str] = []
    for row in rows:
        cells = [
            cell.rjust(width) if i == right or (right < 0 and i and cell.isdigit()) else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        out.append("  ".join(cells).rstrip())
    return out
