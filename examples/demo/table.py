"""Print the results of the sweep, best first: one line per file in results/."""

import glob
import json


def main():
    results = []
    for path in glob.glob("results/*.json"):
        with open(path) as file:
            results.append(json.load(file))
    results.sort(key=lambda result: (-result["accuracy"], result["loss"]))
    print("    lr   accuracy      loss   GPU   job")
    for place, result in enumerate(results):
        bar = "━" * round(24 * result["accuracy"])
        best = "  ← best" if place == 0 else ""
        print(
            f"{result['lr']:6g}   {result['accuracy']:8.1%}  {result['loss']:8.4f}"
            f"   {result['gpu']:>3}   {result['job']:>3}   {bar}{best}"
        )


if __name__ == "__main__":
    main()
