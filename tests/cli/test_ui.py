"""Options of `stoker ui` that are rejected before the daemon is asked."""

import pytest

from conftest import Run


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--share 0", "--share takes a time from 1m to 90d, not '0'."),
        ("--share 91d", "--share takes a time from 1m to 90d, not '91d'."),
        ("--sessions --revoke 5", "Give either --sessions or --revoke, not both."),
        ("--no-logs", "--no-logs needs --share TIME."),
        ("--revoke=", "'' is not a session id; see stoker ui --sessions."),
        ("--revoke ../x", "'../x' is not a session id; see stoker ui --sessions."),
        ("--revoke " + "x" * 41, f"'{'x' * 40}' is not a session id; see stoker ui --sessions."),
    ],
)
def test_wrong_options_are_one_sentence(words: str, message: str, stoker: Run) -> None:
    done = stoker("ui", *words.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"stoker: {message}\n"
