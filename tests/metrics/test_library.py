"""The table of library statistics has every published field, in its order."""

from __future__ import annotations

from dro.metrics.library import AFTER, NO_SAMPLE, library_figures
from tests.builders.golden_statistics import published_class


def test_the_table_has_every_published_field_in_its_order() -> None:
    stats = published_class("UMSMonMsg").DESCRIPTOR.nested_types_by_name["Stats"].nested_types_by_name
    published = {
        (kind, transport.lower()): [field.name for field in fields.fields]
        for kind, name in (("source_transport", "SourceTransport"), ("receiver_transport", "ReceiverTransport"))
        for transport, fields in stats[name].nested_types_by_name.items()
        if transport in ("TCP", "LBTRM", "LBTRU", "LBTIPC")
    }
    published |= {("context", ""): [f.name for f in stats["Context"].fields]}
    published |= {("event_queue", ""): [f.name for f in stats["EventQueue"].fields]}
    ours = {key: [figure.name for figure in figures] for key, figures in library_figures().items()}
    assert ours == published
    assert [len(ours["context", ""]), len(ours["event_queue", ""])] == [24, 57]


def test_each_behaviour_is_known_and_fits_the_name() -> None:
    ends = {"_min": "minimum", "_mean": "mean", "_max": "maximum", "_tot": "counter"}
    figures = [figure for several in library_figures().values() for figure in several]
    for figure in figures:
        assert figure.after is AFTER[figure.behaviour]
        for end, behaviour in ends.items():
            assert not figure.name.endswith(end) or figure.behaviour == behaviour
        assert figure.at_first == (NO_SAMPLE if figure.name.endswith("_min") else 0)
    assert 150 > sum(not figure.why_zero for figure in figures) > 50
