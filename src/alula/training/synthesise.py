"""Training data that the target writes itself.

An aligned model that reads only what comes before a user's turn writes a user's turn (Xu et al.,
Magpie, arXiv 2406.08464). It is steered by a topic in the system message, or handed one of our
tasks, or left alone; then it answers. Every request has a seed of its own.
"""

from __future__ import annotations

import hashlib
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from alula.errors import ModelError
from alula.models.home import whole_file
from alula.models.load import LoadedModel
from alula.models.progress import Progress
from alula.training.corpus import Conversation, load_corpus, save_shard
from alula.training.dialogue import Dialogue, Speaker
from alula.training.duplicates import NearDuplicates, signature
from alula.training.seeds import TASKS, TOPICS
from alula.training.turns import Message, Turns
from alula.training.writer import Writer

MANIFEST = "manifest.json"
SHARDS = "shard-*.safetensors"
_HOPELESS = 200  # conversations dropped for each that is kept
_TURNS = (1, 1, 1, 2, 2, 3)
_SOURCES = ("free", "free", "topic", "task", "task")
_SCENE = "You are a helpful assistant. The user wants this from you: {request}"
_PASSAGE_CHARACTERS = (120, 700)


@dataclass(frozen=True)
class Synthesis:
    """How much is written, and how."""

    tokens: int = 10_000_000
    """Answer tokens to keep, held-out ones included."""
    seed: int = 0
    max_length: int = 1024
    """Tokens of a conversation."""
    query_tokens: int = 192
    answer_tokens: int = 384
    temperatures: tuple[float, ...] = (0.0, 0.0, 0.7, 0.7, 1.0)
    """Drawn from for each conversation: greedy text is what is decoded most."""
    held_out: float = 0.02
    """Share of queries kept for evaluation."""
    together: int = 8192
    """Conversations written side by side, which make a shard."""


class Synthesiser:
    """Writes shards of conversations into a folder."""

    def __init__(
        self,
        model: LoadedModel,
        write: Writer,
        settings: Synthesis,
        progress: Progress,
        given: Sequence[list[Message]] | None = None,
    ) -> None:
        """`given`: a user's conversations to answer, which then are the only ones.

        Raises UsageError for a model without a chat template that is to speak for the user, or
        is given more than plain text.
        """
        self._given = given
        turns = None if _is_plain(model, given) else Turns(model)
        self._speaker = Speaker(
            model.tokenizer,
            turns,
            settings.max_length,
            settings.query_tokens,
            settings.answer_tokens,
        )
        self._takes_system = turns is not None and turns.takes_system
        self._write = write
        self._settings = settings
        self._progress = progress
        self._near = NearDuplicates()
        self._passages: list[str] = []

    def remember(self, paths: Sequence[Path]) -> None:
        """Know what these shards hold: nothing is written twice, and tasks may be on their text.

        Only what is remembered counts, so that a run that was interrupted goes on as it would have.
        """
        if not paths:
            return
        corpus = load_corpus(paths)
        for number in range(len(corpus)):
            self._near.add(corpus.signatures[number])
            tokens, mask = corpus.of(number)
            self._keep_passage(self._speaker.tokenizer.decode(tokens[mask].tolist()))

    def shard(self, number: int) -> tuple[list[Conversation], dict[str, int]]:
        """Write the conversations of one shard, and count what was dropped by cause.

        Everything random comes from the run's seed and `number`.
        """
        dialogues = self._answerable(number) if self._given else self._planned(number)
        begun = {each: ask for each in range(len(dialogues)) if (ask := dialogues[each].begin())}
        numbers = list(begun)
        self._write(
            list(begun.values()),
            lambda place, written: dialogues[numbers[place]].take(written),
            self._progress,
        )
        self._drop_duplicates(dialogues)
        kept = [self._conversation(each) for each in dialogues if each.dropped is None]
        return kept, Counter(each.dropped for each in dialogues if each.dropped)

    def shards(self) -> int | None:
        """How many there can be: three answers to every given prompt, else no limit."""
        if self._given is None:
            return None
        return len(set(self._settings.temperatures)) * -(
            -len(self._given) // self._settings.together
        )

    def _answerable(self, number: int) -> list[Dialogue]:
        """The given conversations of one shard; each time round has a temperature of its own."""
        assert self._given is not None
        each = -(-len(self._given) // self._settings.together)
        first = number % each * self._settings.together
        chosen = self._given[first : first + self._settings.together]
        temperature = sorted(set(self._settings.temperatures))[number // each]
        return [
            Dialogue(
                self._speaker,
                "prompts",
                temperature,
                turns=1,
                dice=self._dice(number, place),
                messages=list(messages),
            )
            for place, messages in enumerate(chosen)
        ]

    def _planned(self, number: int) -> list[Dialogue]:
        return [self._plan(self._dice(number, n)) for n in range(self._settings.together)]

    def _dice(self, number: int, place: int) -> random.Random:
        return random.Random(f"{self._settings.seed}/{number}/{place}")

    def _plan(self, dice: random.Random) -> Dialogue:
        source, temperature = dice.choice(_SOURCES), dice.choice(self._settings.temperatures)
        turns, task, topic = dice.choice(_TURNS), dice.choice(TASKS), dice.choice(TOPICS)
        if source == "topic" and not self._takes_system:
            source = "task"
        dialogue = Dialogue(self._speaker, source, temperature, turns, dice)
        if source == "task":
            dialogue.messages = [_said("user", self._fill(task.request, topic, dice))]
        elif source == "topic":
            request = task.request.format(topic=topic, text="(a text that the user gives)")
            dialogue.scene = [_said("system", _SCENE.format(request=request))]
        return dialogue

    def _fill(self, request: str, topic: str, dice: random.Random) -> str:
        if "{topic}" in request:
            return request.format(topic=topic)
        if self._passages:
            return request.format(text=dice.choice(self._passages))
        return dice.choice([t.request for t in TASKS if "{topic}" in t.request]).format(topic=topic)

    def _drop_duplicates(self, dialogues: list[Dialogue]) -> None:
        """Of the same or nearly the same, the first stays."""
        known: set[str] = set()
        for each in dialogues:
            if each.dropped is not None:
                continue
            # Given prompts are answered at every temperature.
            asked = [m["content"].lower() for m in each.first]
            question = json.dumps([each.temperature if self._given else None, asked])
            if question in known:
                each.dropped = "same query"
            elif not self._near.add(signature(each.signed)):
                each.dropped = "near duplicate"
            known.add(question)

    def _conversation(self, dialogue: Dialogue) -> Conversation:
        digest = hashlib.sha256(dialogue.messages[0]["content"].encode()).digest()
        return Conversation(
            tokens=dialogue.tokens,
            mask=dialogue.mask,
            held_out=int.from_bytes(digest[:4]) < self._settings.held_out * 2**32,
            temperature=dialogue.temperature,
            source=dialogue.source,
            signature=signature(dialogue.signed),
        )

    def _keep_passage(self, text: str) -> None:
        """Remember the beginning of an answer for tasks on a text."""
        least, most = _PASSAGE_CHARACTERS
        passage = text[:most].rpartition("\n\n")[0] or text[:most].rpartition(". ")[0]
        if len(passage) >= least and len(self._passages) < 20_000:
            self._passages.append(passage.strip())


def _is_plain(model: LoadedModel, given: Sequence[list[Message]] | None) -> bool:
    """Whether the model has no chat template and does without: all it is given is plain text."""
    return (
        model.chat_template is None
        and given is not None
        and all(len(messages) == 1 for messages in given)
    )


def _said(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def shard_paths(folder: Path) -> list[Path]:
    """The shards written so far, in order."""
    return sorted(folder.glob(SHARDS))


def synthesise(
    model: LoadedModel,
    write: Writer,
    folder: Path,
    settings: Synthesis,
    progress: Progress,
    say: Callable[[str], None],
    given: Sequence[list[Message]] | None = None,
) -> dict[str, Any]:
    """Write shards until they hold `settings.tokens` answer tokens; returns the manifest.

    A run that was interrupted goes on with the next shard. `given`: see `Synthesiser`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    manifest = read_manifest(folder)
    shards: list[dict[str, Any]] = manifest.setdefault("shards", [])
    maker = Synthesiser(model, write, settings, progress, given)
    maker.remember([folder / entry["file"] for entry in shards])
    for number in _missing(shards, settings, maker.shards()):
        started = time.perf_counter()
        conversations, dropped = maker.shard(number)
        path = folder / f"shard-{number:04}.safetensors"
        save_shard(path, conversations)
        maker.remember([path])
        seconds = time.perf_counter() - started
        shards.append(_entry(path.name, conversations, dropped, seconds))
        _write_manifest(folder, manifest | {"settings": asdict(settings), "shards": shards})
        total = sum(entry["answer_tokens"] for entry in shards)
        speed = shards[-1]["answer_tokens"] / seconds
        say(f"{total:,} of {settings.tokens:,} answer tokens, {speed:,.0f} kept a second")
        _give_up_where_hopeless(shards)
    return read_manifest(folder)


def _missing(shards: list[dict[str, Any]], settings: Synthesis, most: int | None) -> Iterator[int]:
    """Numbers of shards still to be written; `shards` grows meanwhile."""
    while sum(entry["answer_tokens"] for entry in shards) < settings.tokens:
        if len(shards) == most:
            return
        yield len(shards)


def _give_up_where_hopeless(shards: list[dict[str, Any]]) -> None:
    kept = sum(entry["conversations"] for entry in shards)
    dropped: Counter[str] = Counter()
    for entry in shards:
        dropped.update(entry["dropped"])
    if dropped.total() > _HOPELESS * (kept + 1):
        causes = ", ".join(f"{cause}: {count}" for cause, count in dropped.most_common())
        raise ModelError(
            "the model writes no conversations that can be used",
            f"{kept} were kept; dropped: {causes}",
            "give --prompts FILE.jsonl, so that it only has to answer",
        )


def _entry(
    name: str, kept: list[Conversation], dropped: dict[str, int], seconds: float
) -> dict[str, Any]:
    return {
        "file": name,
        "conversations": len(kept),
        "held_out": sum(each.held_out for each in kept),
        "tokens": sum(len(each.tokens) for each in kept),
        "answer_tokens": sum(sum(each.mask) for each in kept),
        "by_source": Counter(each.source for each in kept),
        "by_temperature": Counter(str(each.temperature) for each in kept),
        "dropped": dropped,
        "seconds": round(seconds, 1),
    }


def read_manifest(folder: Path) -> dict[str, Any]:
    """What was written so far; empty where nothing was."""
    path = folder / MANIFEST
    if not path.is_file():
        return {}
    content: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return content


def _write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    content = (json.dumps(manifest, indent=1, ensure_ascii=False) + "\n").encode()
    with whole_file(folder / MANIFEST, len(content), "keep the manifest") as file:
        file.write(content)
