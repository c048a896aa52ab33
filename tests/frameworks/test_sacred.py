"""The sacred example: what it logs are figures of the job, and a sweep's trials are worth them."""

from typing import Any

from frameworks.bench import BIN, ROOT, Bench, until

SCRIPT = ROOT / "examples" / "sacred" / "train.py"


def test_a_sweep_over_a_sacred_experiment(bench: Bench) -> None:
    box = bench.box
    command = ["sweep", "--json", "--gpus", "0", "--metric", "loss", BIN / "python", SCRIPT, "with"]
    done = box.stoker(*command, "lr=0.3,0.01", env=bench.environment)
    assert done.returncode == 0, done.stderr
    (sweep,) = box.client.sweeps(all=True)["sweeps"]
    box.client.wait([sweep["label"]])

    def trials() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = box.client.get_sweep(sweep["label"])["trials"]
        assert {trial["state"] for trial in found} == {"COMPLETED"}, box.output(found[0]["label"])
        return found if all(trial["value"] is not None for trial in found) else []

    good, poor = until(trials)
    assert good["value"] < poor["value"]
    found = box.client.metrics(good["label"])
    assert (found["names"], found["summary"]["loss"]["count"]) == (["loss", "result"], 40)
    assert found["series"]["loss"][-1][:2] == [39, good["value"]]
    assert found["series"]["result"][0][1] == good["value"]
