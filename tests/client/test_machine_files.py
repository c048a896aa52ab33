"""Node files: where they are searched for, and what they must contain."""

from pathlib import Path

import pytest

from stoker.client.errors import StokerError, UsageError
from stoker.client.machine_files import find_machine, read_machine, read_values

TEXT = """\
username: ben       # a comment
ip: 105.29.123.241
port: 22
ssh_key_path: ~/.ssh/id_ssh_key
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home/.local/var").mkdir(parents=True)
    return tmp_path


def test_mls_03_four_keys(here: Path) -> None:
    (here / "box.yaml").write_text(TEXT)
    assert read_machine("box.yaml") == ("box", "ssh://ben@105.29.123.241:22", "~/.ssh/id_ssh_key")


@pytest.mark.parametrize("key", ["username", "ip", "port", "ssh_key_path"])
def test_mls_03_a_missing_key_is_named_with_its_file(here: Path, key: str) -> None:
    kept = [line for line in TEXT.splitlines() if not line.startswith(key)]
    (here / "box.yaml").write_text("\n".join(kept))
    with pytest.raises(UsageError, match=f"^box.yaml has no '{key}'"):
        read_values("box.yaml")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (TEXT.replace("22", "ssh"), "port 'ssh' is not a number"),
        (TEXT.replace("22", "65536"), "port '65536'"),
        ("- a\n- b\n", "is not a node file"),
        ("username: u\nip: [\n", "is not YAML, line 3: "),
        ("", "is not a node file"),
    ],
)
def test_mls_03_a_file_that_is_not_a_node_file_is_rejected(here: Path, text: str, why: str) -> None:
    (here / "box.yaml").write_text(text)
    with pytest.raises(UsageError, match=why):
        read_values("box.yaml")


def test_mls_04_the_order_in_which_files_are_searched(here: Path) -> None:
    places = ["m", "m.yaml", "home/.local/var/m", "home/.local/var/m.yaml"]
    for place in reversed(places):
        (here / place).write_text(place)
        assert Path(find_machine("m")).read_text() == place


def test_mls_04_a_directory_of_that_name_is_skipped(here: Path) -> None:
    (here / "m").mkdir()
    (here / "m.yaml").write_text(TEXT)
    assert find_machine("m") == "m.yaml"


@pytest.mark.parametrize("name", ["nope", "nope.yaml"])
def test_mls_05_not_found(here: Path, name: str) -> None:
    with pytest.raises(StokerError) as error:
        find_machine(name)
    assert error.value.message == (
        "Machine config not found at ~/.local/var/nope.yaml or at nope.yaml."
        " Please define a correct config"
    )
    assert error.value.exit_code == 1


def test_an_address_with_colons_is_put_in_brackets(here: Path) -> None:
    (here / "six.yaml").write_text(TEXT.replace("105.29.123.241", "'2001:db8::1'"))
    assert read_machine("six.yaml")[1] == "ssh://ben@[2001:db8::1]:22"
