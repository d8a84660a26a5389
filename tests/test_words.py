"""Class names say which class is meant: those that stand more than once in the product can only get fewer."""

from __future__ import annotations

import ast
from collections import Counter
from typing import Final

from tests.test_layers import PACKAGES, ROOT

KNOWN: Final = {
    "AdvertisingOptions", "Data", "Hello", "LossBurst", "Nak", "Ncf", "NoSource", "PacketType", "QueryOptions",
    "Record", "SessionMessage", "Stream", "UmeStoreGroup", "Wakeup", "_Asked", "_Client", "_Connection",
    "_Entry", "_Group", "_List", "_Options", "_Page", "_Partial", "_Pattern", "_Reader",
    "_Receiving", "_Run", "_Series", "_Table", "_Waiting",
}  # fmt: skip
"""Names of packets and records that two protocols have, what two layers have of one fact, and private ones."""


def test_no_more_class_names_stand_twice() -> None:
    names = Counter(
        node.name
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    )
    assert len(names) > 1000  # the tree was found and read
    assert {name for name, count in names.items() if count > 1} == KNOWN, "give a new one a name that says its room"
