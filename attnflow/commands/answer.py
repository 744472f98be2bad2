"""``attnflow answer``: which parts of its context an answer drew on, from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from attnflow.commands.console import echo_failed, quiet, show, status
from attnflow.commands.options import Workers, listed
from attnflow.errors import InputError
from attnflow.formats import check_file, suffixes

ONE = ("context", "question", "prompt", "messages", "answer", "instead", "units", "overwrite")
MANY = ("limit", "resume", "skip_errors", "engine", "workers")
"""Options that belong to one prompt, and options that belong to a file of many (``--data``)."""
PARTS = ("page", "json", "frame", "table")
ENDINGS = ", ".join(suffixes(*PARTS))


def answer_command(
    ctx: typer.Context,
    model: Annotated[str, typer.Argument(help="A hub name, a folder with a saved model, or a .gguf file.")],
    context: Annotated[
        list[str] | None,
        typer.Option("--context", "-c", help="A text file; several are documents by name; - reads standard input."),
    ] = None,
    question: Annotated[str | None, typer.Option("--question", "-q", help="What is asked about the context.")] = None,
    prompt: Annotated[str | None, typer.Option(help="The whole prompt as a text, in place of context.")] = None,
    messages: Annotated[Path | None, typer.Option(help="A .json file with chat messages, in place of context.")] = None,
    answer: Annotated[
        str | None, typer.Option("--answer", "-a", help="The finished answer (default: the model writes it).")
    ] = None,
    instead: Annotated[
        str | None, typer.Option(help="Another answer: scores then say why the answer and not this one.")
    ] = None,
    sources: Annotated[
        str | None, typer.Option(help="messages, paragraphs, sentences or words (default: as the prompt is).")
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="Comma-separated: direct:alti, direct, raw, rollout, flow, gradient, …")
    ] = None,
    units: Annotated[str, typer.Option(help="How the answer is split: whole, sentences or tokens.")] = "sentences",
    check: Annotated[str, typer.Option(help="Sources to leave out one by one: a number, all or 0.")] = "5",
    check_by: Annotated[str, typer.Option(help="mask, removal, or both separated by a comma.")] = "mask",
    max_new_tokens: Annotated[int | None, typer.Option(help="How much the model may write.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help=f"Write to a file: {ENDINGS}.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it exists.")] = False,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Many questions: a file with columns context, question, answer, gold; --out is a folder then."
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(help="With --data: only so many questions.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="With --data: continue the run in the folder.")] = False,
    skip_errors: Annotated[
        bool, typer.Option("--skip-errors", help="With --data: leave out questions that cannot be done.")
    ] = False,
    engine: Annotated[str, typer.Option(help="With --data: local, or ray for many machines.")] = "local",
    workers: Workers = None,
) -> None:
    """Attribute an answer to the sentences, paragraphs, documents or messages of its context."""
    _refuse_unread(ctx, data)
    wanted: dict[str, Any] = {
        "sources": sources, "methods": None if methods is None else listed(methods), "check": _check(check),
        "check_by": listed(check_by), "max_new_tokens": max_new_tokens, "show_progress": True,
    }  # fmt: skip
    if data is not None:
        _questions(
            model, data, **wanted, limit=limit, on_error="skip" if skip_errors else "raise", out=out, resume=resume,
            engine=engine, workers=workers,
        )  # fmt: skip
        return
    check_file("--out", out, PARTS, overwrite)
    given = prompt_of(context, question, prompt, messages)
    from attnflow.answers.attribute import attribute
    from attnflow.models.loading import load

    quiet()
    with status(f"Loading {model}"):
        loaded, tokenizer = load(model)
    found: Any = attribute(loaded, tokenizer, given, answer, units=units, instead=instead, **wanted)
    if answer is None:
        typer.echo(f"Answer: {found.answer.strip()}")
    found.show()
    if out is not None:
        found.save(out, overwrite)
        typer.echo(f"Written: {out.resolve()}")


def _refuse_unread(ctx: typer.Context, data: Path | None) -> None:
    """An option that this call would not read is an error: --data brings prompts and answers of its own."""
    unread = MANY if data is None else ONE
    # By its name: typer brings click with it in some versions and takes the installed one in others.
    given = [name for name in unread if getattr(ctx.get_parameter_source(name), "name", "") == "COMMANDLINE"]
    if given:
        option = f"--{given[0].replace('_', '-')}"
        raise InputError(
            f"{option} belongs to --data, and no file of questions was given. Leave it out."
            if data is None
            else f"--data was given and so was {option}, which belongs to one prompt: the rows of the file say what is "
            "asked. Leave it out."
        )


def _questions(model: str, data: Path, **options: Any) -> None:
    from attnflow.answers.questions import cite

    quiet()
    found = cite(model, None, data, **options)
    rows = [
        [
            r["method"],
            r["with gold"],
            f"{r['precision']:.3f} ({r['low']:.2f}–{r['high']:.2f})",
            f"{r['mean 1/rank']:.3f}",
        ]
        for r in found.to_frame().to_dict("records")
    ]
    show(["method", "with gold", "precision (95 %)", "mean 1/rank"], rows, str(found))
    echo_failed(found.failed, "question")


def prompt_of(context: list[str] | None, question: str | None, prompt: str | None, messages: Path | None) -> Any:
    """The prompt that the options describe; exactly one of context, prompt and messages must be given."""
    given = [name for name, value in (("--context", context), ("--prompt", prompt), ("--messages", messages)) if value]
    if len(given) != 1:
        have = " and ".join(given) or "none of them"
        raise InputError(f"One of --context, --prompt and --messages is needed, and {have} was given.")
    if question is not None and not context:
        raise InputError(f"--question belongs to --context, and {given[0]} was given. Write it into the prompt.")
    if prompt is not None:
        return prompt
    if messages is not None:
        try:
            return json.loads(_text(str(messages)))
        except ValueError as error:
            raise InputError(f"--messages {messages} is not JSON: {error}. Give a list of role and content.") from None
    names = context or []
    texts = {Path(name).name: _text(name) for name in names}
    if len(texts) != len(names):
        raise InputError("Two files of --context have the same name: rename one, so that sources can be told apart.")
    whole: Any = next(iter(texts.values())) if len(texts) == 1 else texts
    return {"context": whole, "question": question or ""}


def _text(name: str) -> str:
    if name == "-":
        return typer.get_text_stream("stdin").read()
    try:
        return Path(name).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{name} is not a text in UTF-8. Convert it:  iconv -t utf-8 {name}") from None
    except OSError as error:
        raise InputError(f"Cannot read {name}: {error.strerror or error}.") from None


def _check(value: str) -> int | str:
    try:
        return int(value)
    except ValueError:
        return value
