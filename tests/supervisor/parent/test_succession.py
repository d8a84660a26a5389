"""Whether the next life of a worker goes on, with a clock that only the test moves."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from supervisor.parent.backoff import LONG_LIFE_NS
from supervisor.parent.succession import Succession


class Lives:
    def __init__(self, *, is_portal: bool = True) -> None:
        self.now_ns = 5
        self.succession = Succession(is_portal=is_portal)

    def live(
        self, lifetime_ns: int = 0, *, part: object = 1, is_ready: bool = True, in_good_order: bool = False
    ) -> str:
        """One life from its fork to its end; why the next one starts clean."""
        self.succession.on_start(self.now_ns, part)
        if is_ready:
            self.succession.on_ready()
        self.now_ns += lifetime_ns
        self.succession.on_death(self.now_ns, in_good_order=in_good_order)
        return self.succession.obstacle(part)


@pytest.fixture
def lives() -> Lives:
    return Lives()


def test_the_first_life_starts_clean(lives: Lives) -> None:
    assert lives.succession.obstacle(1) == "it has not run yet"


def test_a_death_of_a_life_that_was_ready_is_gone_on_from_however_short_it_was(lives: Lives) -> None:
    assert lives.live() == ""


def test_a_short_life_that_went_on_is_not_gone_on_from(lives: Lives) -> None:
    lives.live()
    for _ in range(3):
        assert lives.live(LONG_LIFE_NS - 1) == "it went on and died soon after"
        assert lives.live(LONG_LIFE_NS - 1) == "", "that one began clean"
    assert lives.live(LONG_LIFE_NS) == ""
    assert lives.live(LONG_LIFE_NS) == ""


def test_a_start_that_failed_is_not_gone_on_from(lives: Lives) -> None:
    assert lives.live(is_ready=False) == "its start failed"
    lives.live()
    assert lives.live(LONG_LIFE_NS, is_ready=False) == "its start failed"


def test_an_end_in_good_order_is_not_gone_on_from(lives: Lives) -> None:
    assert lives.live(LONG_LIFE_NS, in_good_order=True) == "it ended in good order"


def test_an_order_between_two_lives_stands_until_the_next_one_is_ready(lives: Lives) -> None:
    lives.live()
    lives.succession.on_order("restart")
    assert lives.succession.obstacle(1) == "ordered: restart"
    assert lives.live() == ""


def test_a_life_that_is_taken_back_changes_nothing(lives: Lives) -> None:
    lives.live()
    lives.succession.on_start(0, 2)
    assert lives.succession.obstacle(1) == "its start failed"
    lives.succession.take_back()
    assert lives.succession.obstacle(1) == ""
    assert lives.succession.obstacle(2) == "its configuration has changed"


def test_another_program_knows_what_this_one_did(lives: Lives) -> None:
    lives.live()
    lives.succession.on_start(lives.now_ns, 1)
    lives.succession.on_ready()
    other = Lives()
    other.succession.adopt(lives.succession.record(), "the same by another name")
    assert other.succession.obstacle("the same by another name") == ""
    other.succession.on_death(lives.now_ns, in_good_order=False)
    assert other.succession.obstacle("the same by another name") == "it went on and died soon after"


def test_a_changed_configuration_is_not_gone_on_with(lives: Lives) -> None:
    lives.live(part=(1, 2))
    assert lives.succession.obstacle((1, 3)) == "its configuration has changed"
    assert lives.succession.obstacle((1, 2)) == "", "taken back"


@pytest.mark.parametrize("while_it_starts", [False, True])
def test_files_that_were_removed_are_not_gone_on_from(lives: Lives, while_it_starts: bool) -> None:
    steps: list[Callable[[], None]] = [lives.succession.on_ready, lives.succession.on_files_lost]
    lives.succession.on_start(0, 1)
    for step in reversed(steps) if while_it_starts else steps:
        step()
    lives.succession.on_death(LONG_LIFE_NS, in_good_order=False)
    assert lives.succession.obstacle(1) == "its files were removed"
    assert lives.live() == ""


def test_only_portals_go_on() -> None:
    assert Lives(is_portal=False).live() == "it is no portal"
