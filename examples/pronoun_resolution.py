"""Pronoun resolution: which referent does a language model choose, and to which does its attention point?

    python examples/pronoun_resolution.py bert-large-uncased       the sentences of Abnar & Zuidema (2020, Figure 4)
    python examples/pronoun_resolution.py MODEL --data winobias/   a table over WinoBias, from its folder

MODEL is a masked or a causal language model: a hub name, a folder or a .gguf file.
"""

from __future__ import annotations

import argparse
from typing import Any

from attnflow.models.loading import load
from attnflow.probes import pronouns


def main(arguments: list[str] | None = None, loaded: tuple[Any, Any] | None = None) -> None:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("model")
    parse.add_argument("--data", help="folder or file of WinoBias; default: the paper's sentences")
    parse.add_argument("--limit", type=int, default=100)
    options = parse.parse_args(arguments)

    model, tokenizer = loaded or load(options.model)
    if options.data:
        over_a_data_set(model, tokenizer, pronouns.read_winobias(options.data, options.limit))
        return
    for example in pronouns.PAPER[:2]:
        result = pronouns.probe(model, tokenizer, example)
        first, second = example.names
        print(f"\n{example.text}\n{first} or {second}? The model chooses {example.names[result.choice]}.")
        for method in result.scores:
            a, b = result.scores[method][-1]
            agrees = {1.0: "agrees", 0.0: "does not"}.get(float(result.agrees(method)[-1]), "tie")
            print(f"{method:<9} at the last layer: {first} {a:.4f}, {second} {b:.4f}  {agrees}")


def over_a_data_set(model: Any, tokenizer: Any, examples: list[pronouns.PronounExample]) -> None:
    results = pronouns.probe_all(model, tokenizer, examples)
    for rate in pronouns.choices(results):
        print(rate)
    print(pronouns.table(results).to_string(index=False, float_format="{:.3f}".format))


if __name__ == "__main__":
    main()
