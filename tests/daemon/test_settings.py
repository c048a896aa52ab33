"""The configuration file: valid settings, and messages about invalid ones."""

import os
from pathlib import Path

import pytest

from stoker.core.model.units import BadValue
from stoker.daemon.settings import QueueLimits, Settings, load


def read(home: Path, text: str) -> Settings:
    (home / "config.toml").write_text(text)
    return load()


def test_without_a_file_everything_has_its_default(home: Path) -> None:
    assert load() == Settings()


def test_every_key_of_the_documentation_is_read(home: Path) -> None:
    guide = Path(__file__).parents[2] / "docs" / "configuration.md"
    settings = read(home, guide.read_text().partition("```toml\n")[2].partition("```")[0])
    assert (settings.gpus, settings.resources) == ("0,1", '{"licence": [2]}')
    assert (settings.grace, settings.secrets_days, settings.foreign.load) == (10.0, 14, 0.1)
    assert settings.api.listen == ["127.0.0.1:25647"]
    assert (settings.store.patience, settings.log.level) == (30.0, "info")
    assert settings.containers.engine == "docker"
    assert settings.queues["night"] == QueueLimits(4, 2000, -10, strict=False, devices=("0", "1"))
    assert settings.nodes["gpu1"].key == "~/.ssh/lab"


@pytest.mark.parametrize(
    ("text", "gpus"), [("gpus = 1", "1"), ("gpus = 'all'", "all"), ("gpus = ['0', 3]", "0,3")]
)
def test_gpus_are_written_in_several_ways(home: Path, text: str, gpus: str) -> None:
    assert read(home, text).gpus == gpus


ME = os.getuid()


@pytest.mark.parametrize(
    ("mode", "owner", "group", "refusal"),
    [
        (0o644, ME, 7, None),
        (0o664, ME, ME, None),  # a private group of the user
        (0o644, 0, 0, None),
        (0o664, ME, ME + 1, "chmod go-w"),
        (0o646, ME, ME, "chmod go-w"),
        (0o666, 0, 0, "chmod go-w"),
        (0o600, ME + 1, ME, "belongs to user"),
    ],
)
def test_a_file_that_others_can_write_to_is_rejected(
    home: Path, monkeypatch: pytest.MonkeyPatch, mode: int, owner: int, group: int,
    refusal: str | None,
) -> None:  # fmt: skip
    (home / "config.toml").write_text("on_end = 'true'")
    status = os.stat_result((0o100000 | mode, 1, 1, 1, owner, group, 0, 0, 0, 0))
    monkeypatch.setattr("stoker.daemon.settings.os.fstat", lambda _: status)
    if refusal is None:
        assert load().on_end == "true"
    else:
        with pytest.raises(BadValue, match=refusal):
            load()


QUEUE = "[queues.fast]\n"
GPU_IDS = 'GPU ids such as [0, 1] or "0,1", "all" or "none"'
ADDRESSES = 'an address such as "127.0.0.1:25647", or a list of them'
COUNT = "a whole number, 0 or more"
DURATION = 'a duration such as "10s"'


@pytest.mark.parametrize(
    ("text", "path", "expected", "got"),
    [
        (QUEUE + 'strict = "false"', "queues.fast.strict", "true or false", '"false"'),
        (QUEUE + 'priority = "high"', "queues.fast.priority", "a whole number", '"high"'),
        (QUEUE + "priority = true", "queues.fast.priority", "a whole number", "true"),
        (QUEUE + "max_running = -1", "queues.fast.max_running", COUNT, "-1"),
        (QUEUE + "max_gpus = 'x'", "queues.fast.max_gpus", "a number such as 2 or 0.5", '"x"'),
        (QUEUE + "max_gpus = true", "queues.fast.max_gpus", "a number such as 2 or 0.5", "true"),
        (QUEUE + "devices = '01'", "queues.fast.devices",
         'a list of GPU ids such as ["0", "1"]', '"01"'),
        ("queues = 3", "queues", "a table [queues]", "3"),
        ("[queues]\nfast = 3", "queues.fast", "a table [queues.fast]", "3"),
        ("gpus = true", "gpus", GPU_IDS, "true"),
        ("gpus = [1.5]", "gpus", GPU_IDS, "[1.5]"),
        ("resources = 3", "resources", "a table such as { licence = [2] }", "3"),
        ("grace = 'soon'", "grace", DURATION, '"soon"'),
        ("grace = true", "grace", DURATION, "true"),
        ("grace = inf", "grace", DURATION, "Infinity"),
        (f"grace = {'9' * 400}", "grace", DURATION, f"{'9' * 60}…"),
        ("on_end = 3", "on_end", "a command in quotes", "3"),
        ("secrets_days = 1.5", "secrets_days", COUNT, "1.5"),
        ("secrets_days = 2026-01-01", "secrets_days", COUNT, '"2026-01-01"'),
        ("foreign = 1", "foreign", "a table [foreign]", "1"),
        ("[foreign]\nload = 'much'", "foreign.load", "a number, 0 or more", '"much"'),
        ("[api]\nlisten = 25647", "api.listen", ADDRESSES, "25647"),
        ("[api]\nlisten = ['here']", "api.listen", ADDRESSES, '["here"]'),
        ("[store]\nurl = 1", "store.url", "text in quotes", "1"),
        ("[log]\nlevel = 'loud'", "log.level",
         '"debug", "info", "warning" or "error"', '"loud"'),
    ],
)  # fmt: skip
def test_a_value_of_the_wrong_type_is_named_by_its_path(
    home: Path, text: str, path: str, expected: str, got: str
) -> None:
    with pytest.raises(BadValue) as error:
        read(home, text)
    assert str(error.value) == f"config.toml: {path}: expected {expected}, got {got}."


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("gpu = 1", "'gpu' is not a known setting; did you mean gpus?"),
        ("quuxly = 1", "'quuxly' is not a known setting; see Configuration in the documentation."),
        (
            QUEUE + "max_run = 1",
            "'queues.fast.max_run' is not a known setting; did you mean max_running?",
        ),
        ("[foreign]\nlaod = 1", "'foreign.laod' is not a known setting; did you mean load?"),
        ("[notify.lab]\nkind = 'slack'", "notify.lab.url: missing; slack needs it."),
        ("[notify.me]\nkind = 'email'", "notify.me.to: missing; email needs it."),
        ("[nodes.gpu1]", 'nodes.gpu1.address: missing; an address such as "ssh://me@host:22".'),
    ],
)
def test_a_key_that_is_unknown_or_missing_is_named(home: Path, text: str, sentence: str) -> None:
    with pytest.raises(BadValue) as error:
        read(home, text)
    assert str(error.value) == f"config.toml: {sentence}"


def test_a_file_that_is_not_utf_8_is_one_sentence(home: Path) -> None:
    (home / "config.toml").write_bytes(b"on_end = '\xff'\n")
    with pytest.raises(BadValue, match=r"config\.toml cannot be read: "):
        load()


def test_limits_of_alarms_and_targets(home: Path) -> None:
    settings = read(
        home,
        """
        [alarms]
        idle = "30m"
        hung = "off"
        nan = false
        xid = "mark"
        log_silent = "2h, preempt_if_waiting"
        [queues.night.alarms]
        idle = "cancel"
        hot = 60
        [queues.day]
        max_running = 2
        [notify.me]
        kind = "desktop"
        on = ["fail"]
        quiet = "22:00-07:00"
    """,
    )
    rules, night = settings.alarms.rules(), settings.queue_alarms["night"]
    limits = [rules.limit(kind) for kind in ("gpu_idle", "hung", "nan", "hot", "log_silent")]
    assert limits == [1800.0, 0.0, 0.0, 300.0, 7200.0]
    actions = [rules.action(kind) for kind in ("gpu_idle", "xid", "log_silent")]
    assert actions == ["tell", "mark", "preempt_if_waiting"]
    assert (night.limit("gpu_idle"), night.action("gpu_idle")) == (1800.0, "cancel")
    assert (night.limit("hot"), night.limit("hung")) == (60.0, 0.0)
    assert list(settings.queue_alarms) == ["night"]
    target = settings.notify["me"]
    assert (target.on, target.quiet, target.with_logs) == (("fail",), "22:00-07:00", False)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[notify.lab]\nurl = 'x'", "notify.lab.kind: missing; "),
        ("[notify.x]\nkind = 'desktop'\non = ['never']", "notify.x.on: expected a list such as"),
        ("[notify.x]\nkind = 'desktop'\ndigest = '25:00'", "notify.x.digest: expected a time"),
        ("[notify.x]\nkind = 'desktop'\nquiet = '7-8'", "notify.x.quiet: expected hours"),
        ("[alarms]\nidle = 'soon'", 'alarms.idle: expected "off", "on", a duration such as "10m"'),
        ("[alarms]\nnan = 3.5", 'alarms.nan: expected "off"'),
        ("[alarms]\nhot = 'cancel'", 'alarms.hot: expected "off"'),
        ("[queues.a.alarms]\nidel = 'off'", "'queues.a.alarms.idel' is not a known setting; did"),
    ],
)
def test_wrong_targets_and_limits_are_rejected(home: Path, text: str, sentence: str) -> None:
    with pytest.raises(BadValue) as error:
        read(home, text)
    assert str(error.value).startswith(f"config.toml: {sentence}")
