import pytest

from stoker.cli import output
from stoker.cli.options import Option, parse
from stoker.cli.options.job import JOB, SUBMIT, job_options
from stoker.client.errors import UsageError
from stoker.core.options.submit import KNOWN_OPTIONS

SOME = (
    Option("-f/--follow", None, ""),
    Option("-n/--tail", "N", "", key="tail"),
    Option("--label", "L", "", many=True),
    Option("-i/--watch", "[N]", ""),
    Option("--exclusive", "[=X]", ""),
)


@pytest.mark.parametrize(
    ("argv", "values", "words"),
    [
        (["-f", "5"], {"follow": True}, ["5"]),
        (["5", "-f"], {"follow": True}, ["5"]),
        (["--tail=3", "-1"], {"tail": "3"}, ["-1"]),
        (["-n3", "-fn", "4"], {"tail": "4", "follow": True}, []),
        (["--label", "a", "--label=b"], {"label": ["a", "b"]}, []),
        (["--watch", "5"], {"watch": "5"}, []),
        (["--watch", "all"], {"watch": True}, ["all"]),
        (["--exclusive", "5"], {"exclusive": True}, ["5"]),
        (["--exclusive=user"], {"exclusive": "user"}, []),
        (["--", "-f", "--x"], {}, ["-f", "--x"]),
        (["-"], {}, ["-"]),
        (["--tail", "-5"], {"tail": "-5"}, []),
    ],
)
def test_options_and_words_may_be_mixed(
    argv: list[str], values: dict[str, object], words: list[str]
) -> None:
    args = parse(SOME, argv)
    assert (args.values, args.words) == (values, words)


def test_our_options_end_where_the_command_begins() -> None:
    args = parse((*JOB, *SUBMIT), ["--gpus", "1", "python", "t.py", "--lr", "0.01", "--json"],
                 command=True)  # fmt: skip
    assert args.values == {"gpus": "1"}
    assert args.words == ["python", "t.py", "--lr", "0.01", "--json"]
    assert not output.wants_json


def test_two_dashes_end_our_options_too() -> None:
    assert parse(JOB, ["-G2", "--", "-x", "--"], command=True).words == ["-x", "--"]


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--tial", "3"], "Did you mean --tail"),
        (["-z"], "no option -z"),
        (["--tail"], "--tail needs a value: --tail N"),
        (["--follow=1"], "--follow takes no value"),
    ],
)
def test_mistakes_are_named(argv: list[str], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        parse(SOME, argv, verb="logs")


def test_a_pasted_sbatch_line_is_parsed() -> None:
    line = (
        "-J train -o out/%x-%j.log -e err -D /data -t 1-12:00:00 -p long -N 1 -n 1 -c 8 --mem=32G "
        "-G a100:2 --gres=gpu:a100:2 -C big&fast -w n1 -x n2 --exclusive -a 0-15:4%4 "
        "-d afterok:5?afterany:6 -b now+1hour --deadline 2026-12-24 -H --nice=10 -q high -A lab "
        "--requeue --signal=B:USR1@120 --export=ALL,X=1 --mail-type END --mail-user me "
        "--comment hi --ntasks-per-node 1 --mem-per-cpu 2G --mem-per-gpu 8G --gpus-per-node 2 "
        "--gpus-per-task 1"
    )
    options = job_options(parse((*JOB, *SUBMIT), line.split()))
    assert options["name"] == "train"
    assert options["queue"] == "long"
    assert options["cpus"] == "8"
    assert options["nice"] == "10"
    assert options["hold"] is True
    assert options["signal"] == "B:USR1@120"
    assert set(options) <= KNOWN_OPTIONS


def test_every_option_of_a_job_is_known_to_the_daemon() -> None:
    assert {option.key for option in JOB} - {"resource"} <= KNOWN_OPTIONS


def test_no_name_means_two_things() -> None:
    names = [name for option in (*JOB, *SUBMIT) for name in option.names]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("argv", "resources"),
    [
        (["--resource", "licence=1"], "{licence:1}"),
        (["-r", "{a:1}", "--resource", "my-thing=2"], '{a:1,"my-thing":2}'),
        (["--resources", "{a: 1}"], "{a: 1}"),
    ],
)
def test_resources_are_one_map(argv: list[str], resources: str) -> None:
    assert job_options(parse(JOB, argv)) == {"resources": resources}


def test_a_resource_without_an_amount_is_rejected() -> None:
    with pytest.raises(UsageError, match="NAME=N"):
        job_options(parse(JOB, ["--resource", "licence"]))
