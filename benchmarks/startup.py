"""Start-up time of commands, compared with an interpreter that does nothing."""

from typing import Any

from benchmarks.home import Home, missing, program
from benchmarks.lab import Broken, fresh_directory, run
from benchmarks.report import median, table, verdict
from benchmarks.settings import Settings

BARE = "python -I -c pass"
LIMIT = 2.3


def measure(settings: Settings) -> dict[str, Any]:
    """Print the median wall time of each command and its ratio to the bare interpreter."""
    print("\nStart-up: wall time of a command, with the daemon up\n")
    if why := missing(settings.cache):
        print(f"missing: stoker: {why}")
        return {"missing": {"stoker": why}}
    with fresh_directory(settings.runs) as directory:
        home = Home(directory)
        commands = {
            BARE: [str(program("python")), "-I", "-c", "pass"],
            "stoker queue": home.argv("queue"),
            "stoker submit true": home.argv("submit", "true"),
            "stoker --help": home.argv("--help"),
        }
        samples: dict[str, list[float]] = {name: [] for name in commands}
        try:
            home.start(1)
            for _ in range(5 if settings.quick else 40):
                for name, argv in commands.items():
                    done = run(argv, directory=directory, env=home.environment, limit=30)
                    samples[name].append(done.seconds * 1000)
                    if "submit" in name:  # its job must not run during the next command
                        home.stoker("wait", "last", limit=30)
        except Broken as error:
            print(f"missing: stoker: {error}")
            return {"missing": {"stoker": str(error)}}
        finally:
            home.stop()

    rows = []
    for name, milliseconds in samples.items():
        ratio = median(milliseconds) / median(samples[BARE])
        promise = "" if name == BARE else f"≤ {LIMIT:g} {verdict(ratio, LIMIT)}"
        rows.append(
            [
                name,
                f"{median(milliseconds):.1f}",
                f"{min(milliseconds):.1f}",
                f"{ratio:.2f}",
                promise,
            ]
        )
    print(table(["", "median ms", "min ms", "× bare Python", "promise"], rows))
    return {"milliseconds": samples}
