"""Source-side filtering, the receiving half: what a connection asks for, and when."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dro.proto.tcp.filter_requests import AT_ONCE, EXCLUDE_AFTER_NS, REPEAT_NS, RETRY_NS, FilterRequests
from dro.proto.tcp.filters import EXCLUDE, INCLUDE
from dro.wire.lbmc.data_blocks import SsfCreq, SsfInit

OFFER = SsfInit(77, 9, 0x7F000001, 14391)
Said = list[tuple[int, int]]


def said(requests: FilterRequests, now_ns: int, *, is_sent: bool = True) -> Said:
    taken = requests.take(now_ns)
    for request in taken:
        requests.on_outcome(request, now_ns, is_sent=is_sent)
    return [(request.mode, request.topic_index) for request in taken]


def test_nothing_is_asked_for_twice() -> None:
    requests = FilterRequests(OFFER, 0)
    assert requests.next_deadline() is None
    assert requests.take(0) == []
    requests.want(1)
    assert requests.next_deadline() == 0
    assert requests.take(0) == [SsfCreq(INCLUDE, 77, 1, 9)]
    requests.want(2)
    assert (requests.next_deadline(), requests.take(0)) == (None, []), "one is on its way"
    requests.on_outcome(SsfCreq(INCLUDE, 77, 1, 9), 0, is_sent=True)
    assert said(requests, 0) == [(INCLUDE, 2)]
    assert requests.next_deadline() == REPEAT_NS


def test_a_topic_that_comes_back_at_once_is_never_excluded() -> None:
    requests = FilterRequests(OFFER, 0)
    requests.want(1)
    assert said(requests, 0) == [(INCLUDE, 1)]
    requests.unwant(1, 5)
    assert requests.next_deadline() == 5 + EXCLUDE_AFTER_NS
    requests.want(1)
    assert said(requests, 4 + EXCLUDE_AFTER_NS) == [(INCLUDE, 1)]
    assert requests.next_deadline() == REPEAT_NS
    requests.unwant(1, 10)
    assert said(requests, 9 + EXCLUDE_AFTER_NS) == []
    assert said(requests, 10 + EXCLUDE_AFTER_NS) == [(EXCLUDE, 1)]
    assert requests.next_deadline() is None
    requests.want(1)
    assert said(requests, 10 + EXCLUDE_AFTER_NS) == [(INCLUDE, 1)]


def test_many_leave_in_parts() -> None:
    requests = FilterRequests(OFFER, 0)
    for index in range(2 * AT_ONCE + 1):
        requests.want(index)
    assert [len(said(requests, 0)) for _ in range(4)] == [AT_ONCE, AT_ONCE, 1, 0]


def test_what_was_not_sent_is_sent_later_if_it_still_matters() -> None:
    requests = FilterRequests(OFFER, 0)
    for index in (1, 2):
        requests.want(index)
    taken = requests.take(0)
    requests.unwant(2, 0)
    for request in taken:
        requests.on_outcome(request, 5, is_sent=False)
    assert requests.next_deadline() == 5 + RETRY_NS
    assert said(requests, 5 + RETRY_NS) == [(INCLUDE, 1), (EXCLUDE, 2)]
    requests.unwant(1, 0)
    late = 2 * RETRY_NS
    assert said(requests, late, is_sent=False) == [(EXCLUDE, 1)]
    assert said(requests, late) == []
    assert said(requests, late + RETRY_NS) == [(EXCLUDE, 1)]


def test_all_that_is_wanted_is_asked_for_again_every_minute() -> None:
    requests = FilterRequests(OFFER, 5)
    for index in (1, 2, 3):
        requests.want(index)
    assert len(said(requests, 5)) == 3
    requests.unwant(3, 5)
    assert said(requests, 5 + EXCLUDE_AFTER_NS) == [(EXCLUDE, 3)]
    assert requests.next_deadline() == 5 + REPEAT_NS
    assert said(requests, 4 + REPEAT_NS) == []
    for nth in (1, 2):
        assert said(requests, 5 + nth * REPEAT_NS) == [(INCLUDE, 1), (INCLUDE, 2)]
    for index in (1, 2):
        requests.unwant(index, 6 + 2 * REPEAT_NS)
    assert said(requests, 3 * REPEAT_NS) == [(EXCLUDE, 1), (EXCLUDE, 2)]
    assert requests.next_deadline() is None


Steps = list[tuple[str, int]]


@given(st.lists(st.tuples(st.sampled_from(["want", "unwant", "take", "sent", "failed", "wait"]), st.integers(0, 3))))
def test_in_the_end_the_source_sends_what_is_wanted(steps: Steps) -> None:
    """Whatever fails on the way; a request that has failed may have come all the same."""
    requests = FilterRequests(OFFER, 0)
    now_ns, on_way, wanted, included = 0, list[SsfCreq](), set[int](), set[int]()

    def leave(request: SsfCreq, *, is_sent: bool) -> None:
        if is_sent or request.topic_index % 2:
            (included.add if request.mode == INCLUDE else included.discard)(request.topic_index)
        requests.on_outcome(request, now_ns, is_sent=is_sent)

    for action, index in steps:
        match action:
            case "want" if index not in wanted:
                wanted.add(index)
                requests.want(index)
            case "unwant" if index in wanted:
                wanted.remove(index)
                requests.unwant(index, now_ns)
            case "take":
                on_way += requests.take(now_ns)
            case "sent" | "failed" if on_way:
                leave(on_way.pop(0), is_sent=action == "sent")
            case "wait":
                now_ns += EXCLUDE_AFTER_NS
    for _ in range(3):  # what is on its way, what waits for that, and what is excluded later
        now_ns += RETRY_NS
        for request in on_way or requests.take(now_ns):
            leave(request, is_sent=True)
        on_way = []
    assert wanted == included
