"""The messages of UM's own monitoring are brought into a history: protobuf, CSV, and the database of a collector."""

from __future__ import annotations

import csv
import json
import sqlite3
import struct
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
import pytest

from supervisor.history.main import main

ROOT: Final = Path(__file__).parents[3]
FIELDS: Final = {
    (row["message"], row["field"]): row
    for row in csv.DictReader((ROOT / "dro/lbmmon/data/fields.csv").read_text().splitlines())
}
"""The published fields; messages here are written from them alone."""
PB, CSV = b"\x02\x01", b"\x01\x05"
Tree = Mapping[str, Any]


def varint(value: int) -> bytes:
    found = b""
    while value > 0x7F:
        found, value = found + bytes([value & 0x7F | 0x80]), value >> 7
    return found + bytes([value])


def encoded(message: str, tree: Tree) -> bytes:
    """A message in the wire format of protobuf, by its published numbers."""
    found = b""
    for name, value in tree.items():
        row = FIELDS[message, name]
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, int):
                found += varint(int(row["number"]) << 3) + varint(one)
                continue
            if isinstance(one, Mapping):
                inner = next(m for m in (f"{message}.{row['type']}", *outer(message, row["type"])) if of(m))
                one = encoded(inner, one)
            data = one.encode() if isinstance(one, str) else one
            found += varint(int(row["number"]) << 3 | 2) + varint(len(data)) + data
    return found


def outer(message: str, kind: str) -> Sequence[str]:
    parts = message.split(".")
    return [".".join([*parts[:n], kind]) for n in range(len(parts) - 1, -1, -1)]


def of(message: str) -> bool:
    return any(known == message for known, _ in FIELDS)


def packet(kind: int, data: bytes, module: bytes = PB, **attributes: bytes) -> bytes:
    """One packet, with its attributes in a table."""
    told = {3: module, **{int(name[1:]): value for name, value in attributes.items()}}
    block = b"".join(struct.pack("!HH", number, len(value)) + value for number, value in told.items())
    block = struct.pack("!HH", len(told), len(block) + 4) + block
    return struct.pack("!IHHHH", 0x1B33041B, kind, len(block), len(data), 0) + block + data


def dro(time_s: int, sent: int, pid: int = 7, name: str = "dro1") -> Tree:
    """A message of a DRO with an endpoint portal and a peer portal."""
    return {
        "attributes": {"timestamp": time_s, "application_id": name, "process_id": pid,
                       "sender_ipv4_address": "192.0.2.1"},
        "stats": {
            "local": {"gateway_name": name, "gateway_id": 1 << 60, "topology_signature": 5, "gateway_count": 2},
            "portals": [
                {"portal_name": "E", "cost": 1, "proxy_receivers": 3, "endpoint": {
                    "domain_id": 100, "local_interest_topics": 4,
                    "receive": {"transport_topic_fragments_rcvd": sent // 2},
                    "send": {"transport_topic_fragments_sent": sent, "transport_topic_fragment_bytes_sent": sent * 9,
                             "data_bytes_enqueued_limit": 1_000_000}}},
                {"portal_name": "P", "portal_index": 1, "cost": 2, "peer": {
                    "adjacent_gateway_id": 2 << 60, "send": {"data_fragments_sent": sent, "rtt_min": (1 << 64) - 1},
                    "udp_receive": {"lost": 6}}},
            ],
            "other_gateways": [{"gateway_name": "dro2", "gateway_id": 2 << 60, "topology_signature": 5,
                                "other_portals": [{"adjacent_domain_id": 200, "cost": 1}]}],
        },
    }  # fmt: skip


def rows(history: Path, table: str) -> list[dict[str, Any]]:
    """All rows of a table by time, without what is unknown."""
    paths = sorted(history.glob(f"table={table}/*/*/*.parquet"))
    parts = [pq.read_table(path, partitioning=None).to_pylist() for path in paths]
    found = [{name: value for name, value in row.items() if value is not None} for part in parts for row in part]
    return sorted(found, key=lambda row: row["ts"])


def seconds(row: Mapping[str, Any], name: str) -> int:
    return int(row[name].timestamp())


def test_messages_of_a_dro_become_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = [dro(1000, 50), dro(1060, 80), dro(1120, 10), dro(1180, 30, pid=8)]
    file = tmp_path / "packets"
    file.write_bytes(b"".join(packet(7, encoded("DROMonMsg", tree)) for tree in told))
    assert main(["import", str(file), "--history", str(tmp_path / "h")]) == 0
    assert capsys.readouterr().out == "4 messages of DROs\n"
    endpoint = [row for row in rows(tmp_path / "h", "portal") if row["portal"] == "E"]
    assert [row["sent"] for row in endpoint] == [50, 80, 10, 30]
    assert [row["sent_bytes"] for row in endpoint] == [450, 720, 90, 270]
    assert [seconds(row, "run") for row in endpoint] == [0, 0, 1120, 1180], "a fall and another process are new runs"
    assert (endpoint[0]["domain_id"], endpoint[0]["local_topics"], endpoint[0]["proxy_receivers"]) == (100, 4, 3)
    peer = next(row for row in rows(tmp_path / "h", "portal") if row["portal"] == "P")
    assert (peer["portal_type"], peer["adjacent_dro_id"], peer["udp_lost"]) == ("peer", str(2 << 60), 6)
    assert "rtt_min_us" not in peer, "there was no sample yet"
    [first, *_] = rows(tmp_path / "h", "dro")
    assert (first["dro_id"], first["signature"], first["network_dros"]) == (str(1 << 60), 5, 2)
    [other, *_] = rows(tmp_path / "h", "other")
    assert (other["other_dro"], other["adjacent_type"], other["adjacent_id"]) == ("dro2", "trd", "200")


def test_a_second_file_goes_on_where_the_first_has_ended(tmp_path: Path) -> None:
    for nth, tree in enumerate((dro(1000, 50), dro(1060, 20), dro(1030, 60), dro(1120, 40))):
        file = tmp_path / str(nth)
        file.write_bytes(packet(7, encoded("DROMonMsg", tree)))
        assert main(["import", str(file), "--history", str(tmp_path / "h")]) == 0
    endpoint = [row for row in rows(tmp_path / "h", "portal") if row["portal"] == "E"]
    assert [(row["sent"], seconds(row, "run")) for row in endpoint] == [(50, 0), (60, 0), (20, 1060), (40, 1060)]


def test_the_same_file_twice_changes_nothing(tmp_path: Path) -> None:
    """Also where it has several runs."""
    told = [dro(1000, 50), dro(1060, 80), dro(1120, 10), dro(1180, 30, pid=8), dro(1240, 5), dro(1300, 9)]
    file = tmp_path / "packets"
    file.write_bytes(b"".join(packet(7, encoded("DROMonMsg", tree)) for tree in told))
    assert main(["import", str(file), "--history", str(tmp_path / "h")]) == 0
    once = rows(tmp_path / "h", "portal")
    assert main(["import", str(file), "--history", str(tmp_path / "h")]) == 0
    twice = rows(tmp_path / "h", "portal")
    assert len(twice) == 2 * len(once)
    assert all(row in once for row in twice)


def camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(part.capitalize() for part in others)


def as_json(tree: object) -> object:
    """Write it as collectors do: names in lower camel case, whole numbers as text."""
    match tree:
        case Mapping():
            return {camel(name): as_json(value) for name, value in tree.items()}
        case list():
            return [as_json(value) for value in tree]
        case int():
            return str(tree)
        case _:
            return tree


def test_the_database_of_a_collector_says_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trees = [dro(1000, 50), dro(1060, 80)]
    session = {"attributes": {"timestamp": 1000, "application_id": "Gateway_Portal_E_rcv_ctx", "process_id": 7,
                              "sender_ipv4_address": "192.0.2.1"},
               "stats": {"receiver_transports": [{"source_string": "TCP:192.0.2.9:14371", "source_flag": "SOURCE_IM",
                                                  "tcp": {"bytes_rcved": 12}}]},
               "events": {"receiver_topics": [{"topic": "t"}]}}  # fmt: skip
    base = tmp_path / "mcs.db"
    with closing(sqlite3.connect(base)) as made:
        for table, messages in (("dromonmsg", trees), ("umsmonmsg", [session])):
            made.execute(f"CREATE TABLE {table} (message_json TEXT)")
            made.executemany(f"INSERT INTO {table} VALUES (?)", [(json.dumps(as_json(m)),) for m in messages])
        made.execute("INSERT INTO dromonmsg VALUES ('{\"stats\": 5}')")
        made.commit()
    file = tmp_path / "packets"
    file.write_bytes(b"".join(packet(7, encoded("DROMonMsg", tree)) for tree in trees))
    assert main(["import", str(file), "--history", str(tmp_path / "pb")]) == 0
    capsys.readouterr()
    assert main(["import", str(base), "--history", str(tmp_path / "json")]) == 1
    out, err = capsys.readouterr()
    assert out == "2 messages of DROs, 1 unread, 1 messages of the UM library\n"
    assert "row 3 of dromonmsg" in err
    for table in ("portal", "dro", "other"):
        assert rows(tmp_path / "json", table) == rows(tmp_path / "pb", table) != []
    [library] = rows(tmp_path / "json", "library")
    assert (library["portal"], library["session"]) == ("E", "TCP:192.0.2.9:14371")
    assert dict(library["figures"])["tcp.bytes_rcved"] == 12
    assert dict(library["figures"])["source_flag"] == 1, "a session for multicast immediate messages"


def test_csv_and_protobuf_say_the_same_of_a_session(tmp_path: Path) -> None:
    names = ("bytes_rcved", "lbm_msgs_rcved", "lbm_msgs_no_topic_rcved", "lbm_reqs_rcved")
    values = dict(zip(names, (4096, 16, 0, 2), strict=True))
    sender = {"timestamp": 1000, "application_id": "Gateway_Portal_E_rcv_ctx", "process_id": 7, "object_id": 99,
              "sender_ipv4_address": "192.0.2.1"}  # fmt: skip
    pb = {"attributes": sender, "stats": {"receiver_transports": [{"source_string": "TCP:1", "tcp": values}]}}
    attributes = {"_0": bytes([192, 0, 2, 1]), "_1": struct.pack("!I", 1000), "_2": b"Gateway_Portal_E_rcv_ctx",
                  "_4": struct.pack("!Q", 99), "_5": struct.pack("!Q", 7), "_99": b"unknown"}  # fmt: skip
    text = b'0, "TCP:1", ' + b",".join(b"%x" % value for value in values.values())
    for name, data in (("pb", packet(1, encoded("UMSMonMsg", pb))), ("csv", packet(1, text, CSV, **attributes))):
        (tmp_path / f"{name}.bin").write_bytes(data)
        assert main(["import", str(tmp_path / f"{name}.bin"), "--history", str(tmp_path / name)]) == 0
    one, other = (rows(tmp_path / name, "library") for name in ("pb", "csv"))
    figures = dict(one[0].pop("figures"))
    assert dict(other[0].pop("figures")) == figures == {f"tcp.{name}": value for name, value in values.items()}
    assert one == other


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"not a packet at all", "byte 0: no packet of lbmmon, 19 bytes are skipped"),
        (packet(7, encoded("DROMonMsg", dro(1000, 1)))[:-3], "byte 0: the packet is cut off"),
        (packet(7, b"\xff\xff\xff"), "byte 0: "),
        (packet(3, b"x", b"\x09\x01"), "format module 9 is not known"),
        (packet(1, b"77,'x',1", CSV), "transport '77' is not known"),
        (packet(3, b"1,zz", CSV), "is no hexadecimal number"),
        (struct.pack("!IHHHH", 0x1B33041B, 7, 6, 0, 0) + b"\0\1\0\6\0\3", "an attribute is cut off"),
        (packet(7, encoded("DROMonMsg", dro(1000, 1, name=""))), "without a name or time that can be"),
        (packet(7, encoded("DROMonMsg", dro(9_999_999_999, 1))), "without a name or time that can be"),
        (packet(7, encoded("DROMonMsg", dro(1000, 1, name="N" * 300))), "without a name or time that can be"),
        (packet(3, b'1,"a\r\nb', CSV), "byte 0: "),
        (b"SQLite format 3\0" + bytes(200), "file is not a database"),
    ],
)
def test_what_cannot_be_read_is_named_and_the_rest_is_kept(
    tmp_path: Path, data: bytes, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    good = packet(7, encoded("DROMonMsg", dro(1000, 50)))
    file = tmp_path / "packets"
    file.write_bytes(data if data.startswith(b"SQLite") else good + data)
    assert main(["import", str(file), "--history", str(tmp_path / "h")]) == 1
    said = capsys.readouterr().err
    assert str(file) in said or "process" in said
    assert reason in said.replace(f"byte {len(good)}", "byte 0")
    if not data.startswith(b"SQLite"):
        assert [row["sent"] for row in rows(tmp_path / "h", "portal")] == [50, 50]


def test_a_file_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", str(tmp_path / "nothing"), "--history", str(tmp_path / "h")]) == 1
    assert f"{tmp_path / 'nothing'}: No such file or directory" in capsys.readouterr().err


def test_a_database_is_read_whatever_its_file_is_called(tmp_path: Path) -> None:
    path = tmp_path / "a#b?c%41.db"
    with closing(sqlite3.connect(path)) as base:
        base.execute("CREATE TABLE dromonmsg (json TEXT)")
        texts = [json.dumps(dro(1000 + nth, 7)) for nth in range(2)]
        base.executemany("INSERT INTO dromonmsg VALUES (?)", [(text,) for text in (*texts, "[" * 9 + "{" * 20_000)])
        base.execute("INSERT INTO dromonmsg VALUES (?)", ['{"a":' * 20_000])
        base.commit()
    assert main(["import", str(path), "--history", str(tmp_path / "h")]) == 1
    assert len(rows(tmp_path / "h", "dro")) == 2


def test_what_it_knows_of_runs_is_named_when_it_is_broken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known = tmp_path / "h/journal/import.runs.json"
    known.parent.mkdir(parents=True)
    known.write_text("{")
    (tmp_path / "packets").write_bytes(packet(7, encoded("DROMonMsg", dro(1000, 50))))
    assert main(["import", str(tmp_path / "packets"), "--history", str(tmp_path / "h")]) != 0
    assert f"{known} is broken; remove it: growth of each DRO then begins" in capsys.readouterr().err
