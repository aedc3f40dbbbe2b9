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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from alula.errors import ModelError
from alula.models.home import whole_file
from alula.models.load import LoadedModel
from alula.models.progress import Progress
from alula.training.corpus import Conversation, load_corpus, save_shard
from alula.training.duplicates import NearDuplicates, cut_loop, signature
from alula.training.seeds import TASKS, TOPICS
from alula.training.turns import Message, Turns
from alula.training.writer import Ask, Writer

MANIFEST = "manifest.json"
SHARDS = "shard-*.safetensors"
_LEAST_QUERY = 6
_LEAST_ANSWER = 4
_SIGNED_ANSWER = 64
_HOPELESS = 200  # conversations dropped for each that is kept
_TURNS = (1, 1, 1, 2, 2, 3)
_SOURCES = ("free", "free", "topic", "topic", "task")
_QUERY_MIN_P = 0.05
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


@dataclass
class _Draft:
    """A conversation being written."""

    source: str
    temperature: float
    turns: int
    messages: list[Message] = field(default_factory=list)
    scene: list[Message] = field(default_factory=list)
    """What steers the first query; not part of the conversation."""
    tokens: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    signed: list[int] = field(default_factory=list)
    finished: bool = False
    dropped: str | None = None

    @property
    def open(self) -> bool:
        """Whether another turn may follow."""
        return not self.finished and self.dropped is None


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
        self._turns = None if _is_plain(model, given) else Turns(model)
        self._tokenizer = model.tokenizer
        self._write = write
        self._settings = settings
        self._progress = progress
        self._takes_system = self._turns is not None and self._turns.takes_system
        self._queries: set[bytes] = set()
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
            self._keep_passage(self._tokenizer.decode(tokens[mask].tolist()))

    def shard(self, number: int) -> tuple[list[Conversation], dict[str, int]]:
        """Write the conversations of one shard, and count what was dropped by cause.

        Everything random comes from the run's seed and `number`.
        """
        dice = random.Random(f"{self._settings.seed}/{number}")
        self._queries.clear()
        planned = range(self._settings.together)
        drafts = self._answerable(number) if self._given else [self._plan(dice) for _ in planned]
        self._ask_queries([draft for draft in drafts if not draft.messages], dice)
        self._answer([draft for draft in drafts if draft.open], dice)
        for turn in range(1, max(_TURNS)):
            for draft in drafts:
                draft.scene = []  # it steers the first query alone
            going_on = [draft for draft in drafts if draft.open and draft.turns > turn]
            self._ask_queries(going_on, dice)
            self._answer([d for d in going_on if d.open], dice)
        kept = [self._conversation(draft) for draft in drafts if draft.tokens]
        return kept, Counter(draft.dropped for draft in drafts if draft.dropped)

    def shards(self) -> int | None:
        """How many there can be: three answers to every given prompt, else no limit."""
        if self._given is None:
            return None
        return len(set(self._settings.temperatures)) * -(
            -len(self._given) // self._settings.together
        )

    def _answerable(self, number: int) -> list[_Draft]:
        """The given conversations of one shard; each time round has a temperature of its own."""
        assert self._given is not None
        each = -(-len(self._given) // self._settings.together)
        first = number % each * self._settings.together
        chosen = self._given[first : first + self._settings.together]
        temperature = sorted(set(self._settings.temperatures))[number // each]
        return [_Draft("prompts", temperature, 1, messages=list(messages)) for messages in chosen]

    def _plan(self, dice: random.Random) -> _Draft:
        source = dice.choice(_SOURCES)
        draft = _Draft(source, dice.choice(self._settings.temperatures), dice.choice(_TURNS))
        task, topic = dice.choice(TASKS), dice.choice(TOPICS)
        if source == "task" or (source == "topic" and not self._takes_system):
            draft.source = "task"
            draft.messages = [_said("user", self._fill(task.request, topic, dice))]
        elif source == "topic":
            request = task.request.format(topic=topic, text="(a text that the user gives)")
            draft.scene = [_said("system", _SCENE.format(request=request))]
        return draft

    def _fill(self, request: str, topic: str, dice: random.Random) -> str:
        if "{topic}" in request:
            return request.format(topic=topic)
        if self._passages:
            return request.format(text=dice.choice(self._passages))
        return dice.choice([t.request for t in TASKS if "{topic}" in t.request]).format(topic=topic)

    def _ask_queries(self, drafts: list[_Draft], dice: random.Random) -> None:
        """Let the model speak for the user, and drop what is no proper query."""
        asks = [self._query_ask(draft, dice) for draft in drafts]
        fitting = [(d, a) for d, a in zip(drafts, asks, strict=True) if self._fits(d, a)]
        answers = self._write([ask for _, ask in fitting], self._progress)
        for (draft, ask), ids in zip(fitting, answers, strict=True):
            if not ids or ids[-1] not in ask.stop_ids | self._tokenizer.eos_ids:
                self._end(draft, "query without an end")
            elif len(ids) - 1 < _LEAST_QUERY:
                self._end(draft, "query too short")
            else:
                text = self._tokenizer.decode(ids[:-1]).strip()
                draft.messages.append(_said("user", text))

    def _query_ask(self, draft: _Draft, dice: random.Random) -> Ask:
        assert self._turns is not None
        return Ask(
            self._turns.before_user([*draft.scene, *draft.messages]),
            temperature=1.0,
            seed=dice.getrandbits(64),
            max_tokens=self._settings.query_tokens,
            min_p=_QUERY_MIN_P,
            stop_ids=frozenset({self._turns.end_id}),
        )

    def _answer(self, drafts: list[_Draft], dice: random.Random) -> None:
        pairs = []
        for draft in drafts:
            if not draft.tokens and self._is_known(draft):
                self._end(draft, "same query")
                continue
            prompt = self._prompt(draft)
            seed = dice.getrandbits(64)
            if prompt is not None:
                budget = self._settings.answer_tokens
                pairs.append((draft, Ask(prompt, draft.temperature, seed, budget)))
        pairs = [(draft, ask) for draft, ask in pairs if self._fits(draft, ask)]
        answers = self._write([ask for _, ask in pairs], self._progress)
        for (draft, ask), answer in zip(pairs, answers, strict=True):
            self._take(draft, ask.prompt, answer)

    def _prompt(self, draft: _Draft) -> list[int] | None:
        """Ids up to the answer; the conversation so far stays token by token as it was."""
        if self._turns is None:
            return self._tokenizer.encode(draft.messages[0]["content"])
        if not draft.tokens:
            return self._turns.before_answer(draft.messages)
        said = draft.messages[-2]["content"]
        more = self._turns.after_answer(draft.messages, said)
        if more is None:
            self._end(draft, "template rewrites turns")
            return None
        known = draft.tokens
        if known[-1] == more[0]:  # the answer's own end
            more = more[1:]
        return known + more

    def _take(self, draft: _Draft, prompt: list[int], answer: list[int]) -> None:
        kept = cut_loop(answer)
        if len(kept) < _LEAST_ANSWER:
            self._end(draft, "repetition")
            return
        if not draft.tokens:
            query = self._tokenizer.encode(draft.messages[-1]["content"])
            draft.signed = [*query, *kept[:_SIGNED_ANSWER]]
            if not self._near.add(signature(draft.signed)):
                self._end(draft, "near duplicate")
                return
        known = len(draft.tokens)
        draft.mask += [False] * (len(prompt) - known) + [True] * len(kept)
        draft.tokens = prompt + kept
        ended = kept[-1] in self._tokenizer.eos_ids
        text = self._tokenizer.decode(kept[:-1] if ended else kept)
        draft.messages.append(_said("assistant", text))
        draft.finished = not ended

    def _conversation(self, draft: _Draft) -> Conversation:
        digest = hashlib.sha256(draft.messages[0]["content"].encode()).digest()
        return Conversation(
            tokens=draft.tokens,
            mask=draft.mask,
            held_out=int.from_bytes(digest[:4]) < self._settings.held_out * 2**32,
            temperature=draft.temperature,
            source=draft.source,
            signature=signature(draft.signed),
        )

    def _is_known(self, draft: _Draft) -> bool:
        """Whether the same was asked before; given prompts are answered at each temperature."""
        asked = [message["content"].lower() for message in draft.messages]
        kind = draft.temperature if self._given else None
        digest = hashlib.sha256(json.dumps([kind, asked]).encode()).digest()
        known = digest in self._queries
        self._queries.add(digest)
        return known

    def _keep_passage(self, text: str) -> None:
        """Remember the beginning of an answer for tasks on a text."""
        least, most = _PASSAGE_CHARACTERS
        passage = text[:most].rpartition("\n\n")[0] or text[:most].rpartition(". ")[0]
        if len(passage) >= least and len(self._passages) < 20_000:
            self._passages.append(passage.strip())

    def _fits(self, draft: _Draft, ask: Ask) -> bool:
        """Whether there is room for more than a few tokens."""
        if len(ask.prompt) + 2 * _LEAST_QUERY <= self._settings.max_length:
            return True
        self._end(draft, "too long")
        return False

    @staticmethod
    def _end(draft: _Draft, cause: str) -> None:
        """No more turns; what there is of a conversation stays."""
        if draft.tokens:
            draft.finished = True
            draft.messages = draft.messages[: 2 * (len(draft.messages) // 2)]
        else:
            draft.dropped = cause


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
