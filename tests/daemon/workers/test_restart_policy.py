"""Restart policy of helper processes."""

from stoker.daemon.workers.restart_policy import RestartPolicy


def test_each_failure_in_a_row_has_its_own_delay_and_then_it_is_given_up() -> None:
    policy = RestartPolicy((0.0, 0.5))
    assert not policy.may_restart
    assert [policy.record_failure() for _ in range(3)] == [0.0, 0.5, None]
    assert not policy.may_restart


def test_a_success_starts_the_delays_over() -> None:
    policy = RestartPolicy((0.0, 0.5))
    policy.record_failure()
    policy.reset()
    assert (policy.record_failure(), policy.may_restart) == (0.0, True)
