"""Verb number: does a model know whether the verb is singular or plural, and which words did it draw on?

    python examples/verb_number.py                           the package's own grammar and the model inside the package
    python examples/verb_number.py --model gpt2              any causal or masked language model of the hub
    python examples/verb_number.py --data sentences.tsv.gz   your own examples; see docs/probes.md for the formats

Abnar & Zuidema (2020) ask this of a small transformer, and then compare its attention with gradients and blank-out.
"""

from __future__ import annotations

import argparse
from typing import Any

from attnflow.models.loading import load
from attnflow.probes import data, grammar, verb_number


def main(arguments: list[str] | None = None, loaded: tuple[Any, Any] | None = None) -> None:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--model", help="hub name, folder or .gguf file; default: the model inside the package")
    parse.add_argument("--data", help="file or name of datasets; default: the package's own grammar")
    parse.add_argument("--limit", type=int, default=300)
    options = parse.parse_args(arguments)

    model, tokenizer = loaded or (load(options.model) if options.model else verb_number.load())
    examples = data.read(options.data, options.limit) if options.data else grammar.sentences(options.limit)

    # 1. The choice: which number does the model give the verb?
    choices = verb_number.choose(model, tokenizer, examples)
    print("attractors  accuracy (95 %)            always the more frequent one")
    for rate, baseline in zip(verb_number.accuracy(choices), verb_number.majority(choices), strict=True):
        low, high = rate.interval
        print(f"{rate.name:<11} {rate.share:.3f} ({low:.3f}–{high:.3f}) n={rate.count:<6} {baseline.share:.3f}")

    # 2. The reasons: does attention rank the words as gradients and blank-out do?
    layers = verb_number.layers(model, tokenizer, examples[:50])
    print("\nSpearman correlation, mean over", len(next(iter(layers.values.values()))), "examples")
    for (method, reference), values in layers.values.items():
        print(f"{method:<8} with {reference:<9}", " ".join(f"{v:6.2f}" for v in values.mean(0)))


if __name__ == "__main__":
    main()
