import pytest

from client.fake_daemon import view
from stoker.cli.session.editor import changed_fields, editable_fields, to_toml
from stoker.client.errors import UsageError

JOB = view(42, time_limit=3600, priority=0)


def test_nothing_edited_is_nothing_changed() -> None:
    before = editable_fields(JOB)
    assert changed_fields(before, to_toml(JOB, before)) == {}


def test_the_heading_is_the_command_as_it_was_typed() -> None:
    job = {**JOB, "command": "echo 'a'\nmore"}
    assert to_toml(job, {}).splitlines()[0] == f"# Job {JOB['label']}: echo 'a'"


def test_only_what_was_edited_is_sent() -> None:
    before = editable_fields(JOB)
    text = to_toml(JOB, before).replace('gpus = "1"', 'gpus = "2"').replace('"3600s"', '"2h"')
    assert changed_fields(before, text) == {"gpus": "2", "time": "2h"}


@pytest.mark.parametrize("text", ["gpus = ", 'speed = "fast"'])
def test_what_cannot_be_read_is_named(text: str) -> None:
    with pytest.raises(UsageError):
        changed_fields(editable_fields(JOB), text)
