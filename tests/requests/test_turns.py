"""Threads have their turns in the order in which they came, whatever is thrown into them."""

from _thread import RLock
from threading import Event, Thread

import pytest

from cutaway.requests.owner import Turns, pass_through
from support.waiting import wait_until


class Line:
    """Threads that take turns at writing down their names; ``open`` lets the first one go on."""

    def __init__(self):
        self.turns, self.order, self.open, self.threads = Turns(), [], Event(), []

    def join(self, name, function=lambda: None):
        """A new thread joins the line; it is there when this returns."""

        def turn():
            self.order.append(name)
            function()

        ready, ticket = Event(), RLock()

        def run():
            with ticket:
                ready.set()
                self.turns.take(turn, ticket)

        self.threads.append(Thread(target=run))
        self.threads[-1].start()
        assert ready.wait(300)
        wait_until(lambda: name in self.order or ticket in self.turns._line)

    def finish(self):
        self.open.set()
        for thread in self.threads:
            thread.join(300)
            assert not thread.is_alive()


def test_the_order_is_that_of_arrival():
    line = Line()
    line.join("first", line.open.wait)
    for name in range(12):
        line.join(name)
    line.finish()
    assert line.order == ["first", *range(12)]
    assert not line.turns._line


def test_an_exception_ends_a_turn():
    turns, ticket = Turns(), RLock()
    with pytest.raises(ZeroDivisionError), ticket:
        turns.take(lambda: 1 // 0, ticket)
    assert not turns.is_mine
    line = Line()
    line.turns = turns
    line.join("next", line.open.wait)
    line.finish()
    assert line.order == ["next"]


def test_a_ticket_that_was_left_in_the_line_holds_nobody_up():
    """As by an exception between joining the line and waiting in it."""
    line = Line()
    line.join("first", line.open.wait)
    line.turns._line.append(RLock())  # of a thread that was thrown out
    line.join("second")
    line.finish()
    assert line.order == ["first", "second"]
    assert not line.turns._line


def test_a_turn_is_known_to_its_thread_alone():
    turns, ticket, seen = Turns(), RLock(), []
    with ticket:
        turns.take(lambda: seen.append(turns.is_mine), ticket)
    line = Line()
    line.join("first", line.open.wait)
    seen.append(line.turns.is_mine)
    line.finish()
    assert seen == [True, False]


def test_who_passes_through_waits_until_the_thread_has_left():
    line, passed = Line(), []
    line.join("first", line.open.wait)
    [ticket] = line.turns._line
    waiting = Thread(target=lambda: passed.append(pass_through(ticket)))
    waiting.start()
    assert not passed
    line.finish()
    waiting.join(300)
    assert passed == [None]
