"""CommandQueue: commands before the daemon stops are drained, later ones are rejected."""

from typing import Any

from stoker.core.state.state import State
from stoker.daemon.runtime.command_queue import CommandQueue, QueuedCommand
from stoker.engine import CommandRejected, CommandResult, Instant


class Replies:
    def __init__(self) -> None:
        self.values: list[Any] = []
        self.rejections: list[CommandRejected] = []

    def __call__(self, value: Any, rejection: CommandRejected | None) -> None:
        if rejection is None:
            self.values.append(value)
        else:
            self.rejections.append(rejection)


def hold_all(state: State, now: Instant) -> CommandResult:
    return CommandResult(durable=False)


def test_commands_are_drained_in_order_and_each_wakes_the_daemon():
    wakes: list[int] = []
    queue = CommandQueue(lambda: wakes.append(1))
    first, second = (QueuedCommand(hold_all, Replies()) for _ in range(2))
    queue.put(first)
    queue.put(second)
    assert len(wakes) == 2
    assert queue.drain() == [first, second]
    assert queue.drain() == []


def test_after_closing_waiting_and_later_commands_are_rejected():
    queue = CommandQueue(lambda: None)
    replies = Replies()
    queue.put(QueuedCommand(hold_all, replies))
    queue.close()
    queue.put(QueuedCommand(hold_all, replies))
    assert [rejection.code for rejection in replies.rejections] == ["stopping"] * 2
    assert queue.drain() == []


def test_a_queued_command_has_the_name_and_the_result_of_its_handler():
    replies = Replies()
    command = QueuedCommand(hold_all, replies)
    assert command.name == "hold_all"
    assert command.handle(State(), Instant(0, 0)).durable is False
    command.reply(7)
    command.reject(CommandRejected("no"))
    assert replies.values == [7]
    assert [rejection.message for rejection in replies.rejections] == ["no"]
