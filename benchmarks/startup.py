"""What a person waits for after pressing Enter, beside an interpreter that does nothing."""

import sys
from typing import Any

from benchmarks.home import Home, missing
from benchmarks.lab import Broken, fresh_directory, run
from benchmarks.report import median, table, verdict
from benchmarks.settings import Settings

BARE = "python -I -c pass"
PROMISE = 3.0


def measure(settings: Settings) -> dict[str, Any]:
    """Median wall time of each command and its ratio to the bare interpreter."""
    print("\nStart-up: wall time of a command, with the daemon up\n")
    if why := missing(settings.cache):
        print(f"missing: stoker: {why}")
        return {"missing": {"stoker": why}}
    with fresh_directory(settings.runs) as directory:
        home = Home(directory)
        commands = {
            BARE: [sys.executable, "-I", "-c", "pass"],
            "stoker": home.argv(),
            "stoker submit true": home.argv("submit", "true"),
            "stoker --help": home.argv("--help"),
        }
        samples: dict[str, list[float]] = {name: [] for name in commands}
        try:
            home.start(1)
            for _ in range(5 if settings.quick else 21):
                for name, argv in commands.items():
                    done = run(argv, directory=directory, env=home.environment, limit=30)
                    samples[name].append(done.seconds * 1000)
                    if "submit" in name:  # its job must not run beside the next command
                        home.stoker("wait", "last", limit=30)
        except Broken as error:
            print(f"missing: stoker: {error}")
            return {"missing": {"stoker": str(error)}}
        finally:
            home.stop()

    rows = []
    for name, found in samples.items():
        ratio = median(found) / median(samples[BARE])
        kept = "" if name == BARE else f"≤ {PROMISE:g} {verdict(ratio, PROMISE)}"
        rows.append([name, f"{median(found):.1f}", f"{min(found):.1f}", f"{ratio:.2f}", kept])
    print(table(["", "median ms", "min ms", "× bare Python", "promise"], rows))
    return {"milliseconds": samples}
