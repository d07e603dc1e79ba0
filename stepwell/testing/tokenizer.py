"""A small byte-level tokenizer, trained on text written by this module: no download, the same file every time."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Special tokens; their ids are 0, 1 and 2. The last one ends an answer."""

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' -}}"
    "{%- if message['content'] is string -%}{{- message['content'] -}}"
    "{%- else -%}{%- for part in message['content'] or [] -%}{{- part['text'] -}}{%- endfor -%}{%- endif -%}"
    "{{- '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)

_WORDS = (
    "the of and to in is that it was for on are as with they at be this from have or by one had not but what all were "
    "when we there can an your which their said if do will each about how up out them then she many some so these "
    "would other into has more her two like him see time could no make than first been its who now people my made "
    "over did down only way find use may water long little very after words called just where most know get through "
    "back much before go good new write our used me man too any day same right look think also around another came "
    "come work three word must because does part even place well such here take why things help put years different "
    "away again off went old number great tell men say small every found still between name should home big give air "
    "line set own under read last never us left end along while might next sound below saw something thought both few "
    "those always looked show large often together asked house world going want school important until form food keep "
    "children feet land side without boy once animals life enough took sometimes four head above kind began almost "
    "live page got earth need far hand high year mother light parts country father let night following picture being "
    "study second eyes soon times story boys since white days ever paper hard near sentence better best across during "
    "today others however sure means knew try told young miles sun ways thing whole hear example heard several change "
    "answer room sea against top turned learn point city play toward five using himself usually money seen car "
    "morning given trip file line test error class return import value state model cache token prompt layer memory "
    "copy engine request"
)
_SYLLABLES = (
    "ba be bi bo ca ce co da de di do fa fe fi ga ge go ha he hi ka ke la le li lo ma me mi mo na ne ni no pa pe pi po "
    "ra re ri ro sa se si so ta te ti to tra tri ver vi wa we ing tion ment al er est ly ness ful or um us ist"
)


def sample_text(seed: int, lines: int) -> list[str]:
    """`lines` lines of sentences, dialogue, code and tables made of common words. The same for the same arguments."""
    rng = random.Random(seed)
    words, syllables = _WORDS.split(), _SYLLABLES.split()
    coined = ["".join(rng.choices(syllables, k=rng.randint(2, 3))) for _ in range(600)]
    vocabulary = words + coined
    weights = [1 / (rank + 5) for rank in range(len(vocabulary))]
    return [_line(rng, vocabulary, weights) for _ in range(lines)]


def _line(rng: random.Random, vocabulary: list[str], weights: list[float]) -> str:
    words = rng.choices(vocabulary, weights, k=rng.randint(4, 14))
    match rng.randrange(8):
        case 0:
            return f"    {words[0]}_{words[1]} = {words[2]}({words[3]}, {rng.randrange(1000)})"
        case 1:
            return f"{words[0]}: {rng.randrange(100_000)}, {words[1]}: {rng.random():.3f}"
        case 2:
            return f'"{" ".join(words).capitalize()}?" asked {words[0].capitalize()}.'
        case _:
            return f"{' '.join(words[:-1]).capitalize()}, {words[-1]}."


def train_tokenizer(vocab: int, seed: int = 0) -> Tokenizer:
    """A byte-level BPE of exactly `vocab` entries, special tokens included. Needs the `tokenizers` package.

    Raises ValueError where `vocab` is too small for the bytes or too large for the text.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    smallest = 256 + len(SPECIAL)
    if vocab < smallest:
        raise ValueError(f"vocab must be at least {smallest} (every byte and the special tokens), not {vocab}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[AddedToken(text, special=True, normalized=False) for text in SPECIAL],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sample_text(seed, 6000), trainer)
    if tokenizer.get_vocab_size() != vocab:
        raise ValueError(f"the text yields {tokenizer.get_vocab_size()} tokens, not {vocab}: ask for fewer")
    return tokenizer


def write_tokenizer(path: Path, tokenizer: Tokenizer, max_positions: int) -> None:
    """Write tokenizer.json and tokenizer_config.json, with a ChatML template, into the directory `path`."""
    tokenizer.save(str(path / "tokenizer.json"))
    config = {
        "add_prefix_space": False,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": SPECIAL[2],
        "model_max_length": max_positions,
        "pad_token": SPECIAL[0],
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (path / "tokenizer_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def readable(tokenizer: Tokenizer) -> list[int]:
    """Ids whose text is printable ASCII, spaces or line ends: what an answer should be made of to be looked at."""
    shown = {chr(code) for code in range(33, 127)} | {"Ġ", "Ċ"}  # byte-level names of the space and the line end
    vocabulary = tokenizer.get_vocab()
    return sorted(i for text, i in vocabulary.items() if text not in SPECIAL and set(text) <= shown)
