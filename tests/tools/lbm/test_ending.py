"""How the tools end: the stop request and the signals that make it."""

from __future__ import annotations

import os
import signal
import threading
import time

from dro.tools.lbm.ending import EndRequest, signal_status


def test_nothing_is_requested_at_first() -> None:
    with EndRequest() as stop:
        assert not stop.wait(0)
        assert not stop.wait(0)
        assert not stop.wait_until(time.monotonic())


def test_another_thread_ends_the_wait_and_the_request_stays() -> None:
    with EndRequest() as stop:
        thread = threading.Thread(target=stop.request, daemon=True)
        thread.start()
        assert stop.wait(60)
        assert stop.wait_until(time.monotonic() + 60)
        assert stop.wait(0)
        assert stop.signal == 0
        thread.join(60)


def test_a_signal_ends_a_wait_that_it_does_not_interrupt() -> None:
    """As when it comes between Python's last look and the system call: its handler runs only after the wait."""
    with EndRequest() as stop:
        stop.hold()
        thread = threading.Timer(0.1, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGTERM))
        thread.start()
        assert stop.wait(60)
        assert stop.signal == signal.SIGTERM
        thread.join(60)


def test_the_first_signal_is_kept_and_the_old_handlers_come_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with EndRequest() as stop:
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
        stop.hold()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(60)
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.signal == signal.SIGTERM
        assert signal_status(stop.signal) == 143
    assert signal.set_wakeup_fd(-1) == -1
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
