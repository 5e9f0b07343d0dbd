# SPDX-License-Identifier: Apache-2.0
"""The program `cadenza-prepare`: texts as files of tokens. Exit codes: see cadenza.program."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from cadenza import log
from cadenza.prepare.prepare import prepare
from cadenza.processes import processors
from cadenza.program import Parser, add_detail, ended, whole_number
from cadenza.version import VERSION

_MOST_WORKERS = 1024
_EXAMPLE = """example:
  cadenza-prepare shards/*.jsonl.zst --tokenizer models/Qwen3-8B --output corpus
"""


def _parser() -> Parser:
    parser = Parser(
        prog="cadenza-prepare",
        description="Writes texts as tokens for data.source tokens, with a tokenizer of Hugging "
                    "Face, and prints the keys of an experiment that reads them. Interrupted, it "
                    "goes on with the same command.",
        epilog=_EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("inputs", nargs="+", type=Path, metavar="INPUT",
                        help="JSON Lines (.jsonl, .json), text (.txt: a file is a document), also "
                             "with .gz or .zst, or .parquet")
    parser.add_argument("--tokenizer", required=True, type=Path, metavar="PATH",
                        help="tokenizer.json, or the folder that has it")
    parser.add_argument("--output", required=True, type=Path, metavar="DIR",
                        help="folder of the tokens: a new or empty one, or one that this command "
                             "began")
    parser.add_argument("--column", default="text", metavar="NAME",
                        help="of JSON Lines and parquet: what has the text; default: text")
    parser.add_argument("--workers", type=whole_number(_MOST_WORKERS),
                        default=processors(), metavar="N",
                        help="processes that encode; default: one for each processor")
    parser.add_argument("--version", action="version", version=f"cadenza-prepare {VERSION}")
    add_detail(parser)
    return parser


def _run(arguments: argparse.Namespace) -> None:
    found = prepare(arguments.inputs, arguments.tokenizer, arguments.output, arguments.column,
                    arguments.workers)
    log.hide()
    summary, lengths = found.summary, found.summary["lengths"]
    print(f"{summary['documents']} documents ({summary['empty_documents']} more are empty and left "
          f"out), {summary['tokens']} tokens")
    print(f"{summary['text_bytes']} bytes of text, {summary['tokens_per_byte']:.4f} tokens a byte")
    print(f"length: mean {summary['mean_length']:.1f}, "
          + ", ".join(f"{name} {length}" for name, length in lengths.items()))
    print(f"\n{found.experiment}", end="")


def main(words: list[str] | None = None) -> int:
    """Runs the program with `words` (default: the process's own) and returns the exit code."""
    return ended(_parser(), words, _run, less="fewer --workers")


if __name__ == "__main__":
    sys.exit(main())
